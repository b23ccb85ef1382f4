"""Digests of a model's folder, by which it is known whether a model is still the one that was measured or exported."""

import json
from pathlib import Path

from truncate_kit.file_digests import digest_of
from truncate_kit.files import read_text
from truncate_kit.results import digest_of_values

CONFIG, MODULES = "config.json", "modules.json"
_SUFFIXES = (".safetensors", ".bin")
_UNREAD = {
    "_attn_implementation_autoset", "_name_or_path", "architectures", "dtype", "export_model_type", "torch_dtype",
    "transformers_version", "use_cache",
}  # fmt: skip
"""Of a configuration: saving it again may change them, and no vector."""


def model_digests(folder: Path) -> dict[str, str]:
    """SHA-256 of the files in a model's folder that a graph is made from, by their names in it.

    They are weights, configurations and the list of modules. Tokenizer, prompts and casing are read anew for every
    graph, so they may change.
    """
    files = [folder / CONFIG, folder / MODULES]
    for place in (folder, *_module_folders(folder)):
        files += [place / CONFIG, *(file for suffix in _SUFFIXES for file in sorted(place.glob(f"*{suffix}")))]
    kept = (file for file in dict.fromkeys(files) if file.is_file() and not _is_passed_over(file))
    return {str(file.relative_to(folder)): digest_in(folder, file) for file in kept}


def model_digest(folder: Path) -> str:
    """One SHA-256 over all of these."""
    return digest_of_values(model_digests(folder))


def _module_folders(folder: Path) -> list[Path]:
    """The folders of a pipeline's modules but for the model's own; none where there is no readable list of them."""
    try:
        paths = [Path(module["path"]) for module in json.loads(read_text(folder / MODULES))]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):  # who loads the model says what is wrong
        return []
    return [folder / path for path in paths if path.parts and not path.is_absolute() and ".." not in path.parts]


def digest_in(folder: Path, file: Path) -> str:
    """SHA-256 of a file's bytes; of the model's own configuration that of all values which a vector may depend on."""
    if file != folder / CONFIG:
        return digest_of(file)
    try:
        values = json.loads(read_text(file))
        return digest_of_values({name: value for name, value in values.items() if name not in _UNREAD})
    except (OSError, ValueError, AttributeError, RecursionError):
        return digest_of(file)


def _is_passed_over(file: Path) -> bool:
    """Whether weights are read from a safer file beside it."""
    return file.suffix == ".bin" and any(file.parent.glob("*.safetensors"))


def is_weights(name: str) -> bool:
    """Whether a file of this name holds weights."""
    return name.endswith(_SUFFIXES)
