"""From the name of a model to its folder and its configuration."""

import glob
import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from huggingface_hub import errors as hub_errors
from huggingface_hub import snapshot_download
from transformers import AutoConfig, PretrainedConfig

from truncate_kit.errors import ModelError, UsageError, first_line
from truncate_kit.files import is_folder, is_there, local_path, read_text, without_repeats
from truncate_kit.miniatures import is_almost_miniature, miniature_names, miniature_path
from truncate_kit.models.confinement import check_no_adapter, check_no_kernel
from truncate_kit.models.families import family_of
from truncate_kit.models.module_files import read_json
from truncate_kit.models.pipeline import read_pipeline
from truncate_kit.settings import Bounds, shown
from truncate_kit.wording import harmless

# Fields that say how many parts of a model are built one after another, under the names of all families.
_COUNTS = ("num_hidden_layers", "n_layers", "n_layer", "num_hidden_groups", "inner_group_num")
# How a model hands over what it has computed, not what it computes; some of their values end in its own errors.
_CALLING = ("chunk_size_feed_forward", "output_attentions", "return_dict", "torchscript", "use_return_dict")
_MOST_PARTS = 1024  # the deepest models in use have some hundred blocks
_HEADS = ("num_attention_heads", "n_heads", "n_head", "num_key_value_heads", "head_dim")
_MOST = (
    dict.fromkeys(_COUNTS, _MOST_PARTS) | dict.fromkeys(_HEADS, 1_000_000) | {"num_labels": 1_000_000}
)  # a table of them is made whoever needs it
_CONFIGS = ["*.json", "*.txt", "*.model", "*/config.json"]
# Modules that have none, and the one whose weights are looked for first.
_WITHOUT_WEIGHTS = ("Transformer", "Pooling", "Normalize", "Dropout")
_logger = logging.getLogger(__name__)
_said: set[Path] = set()
_OTHER_RUNTIMES = ["onnx/*", "openvino/*", "coreml/*", "*.h5", "*.msgpack", "*.ot"]


def resolve(name: str | Path) -> Path:
    """The local folder of a model: a folder, a bundled miniature's name, or a hub name (downloaded and cached).

    The hub is asked only when the name is neither a path nor a miniature. Raises `ModelError`, and `UsageError` for
    what is neither a name nor a path.
    """
    if not isinstance(name, str | Path):
        raise UsageError(
            f"A model is loaded by its folder or name, not from {shown(name)}.",
            hint='Give a folder, the name of a bundled miniature, or a hub name ("owner/name").',
        )
    text = str(name)
    path = local_path(text)
    if is_folder(path):
        return path
    if is_there(path):
        raise ModelError(f"{path} is a file, not a model folder.", hint="Give the folder that holds config.json.")
    bundled = miniature_path(text)
    if bundled is not None:
        return bundled
    if text.startswith((".", "/", "~")) or text.count("/") > 1:
        raise ModelError(f"There is no model folder {path}.", hint="Check the path; hub names look like owner/name.")
    return _download(text)


def _download(name: str) -> Path:
    try:
        folder = Path(
            snapshot_download(
                name, allow_patterns=[*_CONFIGS, "*.safetensors", "*/*.safetensors"], ignore_patterns=_OTHER_RUNTIMES
            )
        )
        if not any(folder.glob("*.safetensors")) and not any(folder.glob("0_*/*.safetensors")):
            snapshot_download(name, allow_patterns=["*.bin", "*/*.bin"], ignore_patterns=_OTHER_RUNTIMES)
        elif lacking := _without_weights(folder):
            files = [f"{glob.escape(path)}/pytorch_model.bin" for path in lacking]
            snapshot_download(name, allow_patterns=files, ignore_patterns=_OTHER_RUNTIMES)
        return folder
    except hub_errors.GatedRepoError as error:
        raise ModelError(
            f"The hub model {name!r} asks for consent first.",
            hint="Accept its terms on its page, then `hf auth login`.",
        ) from error
    except (hub_errors.RepositoryNotFoundError, hub_errors.HFValidationError) as error:
        hint = "Check the spelling; hub names look like owner/name, and private ones need `hf auth login`."
        raise ModelError(
            f"There is no folder and no hub model called {name!r}.", hint=_of_miniatures(name) or hint
        ) from error
    except (OSError, hub_errors.HfHubHTTPError, hub_errors.LocalEntryNotFoundError) as error:
        hint = "Check the path or the connection, or give a folder with a downloaded model."
        raise ModelError(
            f"There is no folder {name!r}, and the hub cannot be reached to look for a model of that name.",
            hint=_of_miniatures(name) or hint,
        ) from error


def _without_weights(folder: Path) -> list[str]:
    """The folders of modules with weights that are not there in safetensors, as modules.json names them."""
    listing = folder / "modules.json"
    modules = read_json(listing) if listing.is_file() else []
    found = [module for module in modules if isinstance(module, dict)] if isinstance(modules, list) else []
    parts = [(str(module.get("type")).rpartition(".")[2], str(module.get("path"))) for module in found]
    return [
        path
        for kind, path in parts
        if kind not in _WITHOUT_WEIGHTS and path and not is_there(folder / path / "model.safetensors")
    ]


def _of_miniatures(name: str) -> str | None:
    """A hint where a name seems to be a slip in that of a bundled encoder."""
    known = ", ".join(miniature_names())
    return f"The bundled miniatures are called {known}." if is_almost_miniature(name) else None


def load_config(name: str | Path) -> PretrainedConfig:
    """The configuration in a model folder, in a JSON file, or of a hub name. Raises `ModelError`."""
    path = local_path(name)
    if not path.is_file():
        path = read_pipeline(resolve(name)).transformer / "config.json"
    if not path.is_file():
        check_no_adapter(path.parent)
        raise ModelError(f"{path.parent} has no config.json.", hint="Give the folder of a saved transformer model.")
    try:
        values = json.loads(read_text(path), object_pairs_hook=without_repeats)
        family = SimpleNamespace(model_type=values.get("model_type"))
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise ModelError(
            f"{path} is not a model configuration: {first_line(error)}.", hint="Download or save it again."
        ) from error
    family_of(family)
    check_no_kernel(path, values)
    _check_names(path, values)
    _check_not_quantised(path, values)
    say_of_own_code(path, values)
    _check_counts(path, values)
    try:
        return AutoConfig.for_model(**{key: value for key, value in values.items() if key not in _CALLING})
    except Exception as error:  # each configuration class validates in its own way, some beyond ValueError
        raise ModelError(f"{path} is not usable: {first_line(error)}.", hint="Check its values.") from error


def say_of_own_code(path: Path, values: dict[str, Any]) -> None:
    """Log, once for each file, that code which it names is not run."""
    if values.get("auto_map") and path not in _said:
        _said.add(path)
        _logger.warning("%s names code of its own (auto_map), which is not run: transformers' own is used.", path)


def _check_names(path: Path, values: dict[str, Any]) -> None:
    """Raise `ModelError` for a key that would take the place of what a configuration does, such as saving itself."""
    wrong = next((name for name in values if callable(getattr(PretrainedConfig, name, None))), None)
    if wrong is not None:
        raise ModelError(f"{path} has the key {wrong!a}, which is no setting.", hint="Download or save it again.")


def _check_not_quantised(path: Path, values: dict[str, Any]) -> None:
    """Raise `ModelError` for weights in whole numbers or 8-bit floats, whatever made them."""
    settings = values.get("quantization_config")
    if settings:
        method = settings.get("quant_method") if isinstance(settings, dict) else None
        found = f"quantization_config: {method}" if isinstance(method, str) else "quantization_config"
        raise ModelError(
            f"{path} says that the weights are quantised ({harmless(found)}).",
            hint="Use the checkpoint that is not quantised; `export_onnx()` makes graphs in int8 of it.",
        )


def _check_counts(path: Path, values: dict[str, Any]) -> None:
    """Raise `ModelError` for a depth that no model has, before the parts of one are built."""
    for name, most in _MOST.items():
        value = values.get(name)
        if value is not None and not Bounds(0, most).holds(value):
            raise ModelError(
                f"{path} says {name} {shown(value)}.",
                hint=f"It is a whole number up to {most:,}; download or save the model again.",
            )
    groups, of_each = (values.get(name) or 1 for name in ("num_hidden_groups", "inner_group_num"))
    if groups * of_each > _MOST_PARTS:
        raise ModelError(
            f"{path} says {groups:,} groups of {of_each:,} blocks.",
            hint=f"They are up to {_MOST_PARTS:,} blocks in all; download or save the model again.",
        )
