"""Describe saved models by `origin.json` in their folders. Imports no torch."""

from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from truncate_kit.core.files import digest_of, local_path, read_json, real_path
from truncate_kit.core.results import Result, digest_of_values, read_or_pass_over
from truncate_kit.core.wording import layers_in_words, place_in_words

DEFAULT_MINIATURE = "mini-electra-discriminator"
DEFAULT_REFERENCE = "mini-bert"
_MINIATURES = Path(__file__).parents[1] / "models/miniatures"
CONFIG, MODULES = "config.json", "modules.json"
_WEIGHTS = (".safetensors", ".bin")
# Configuration fields that affect neither vectors nor training.
_BOOKKEEPING = {
    "_attn_implementation_autoset", "_name_or_path", "architectures", "auto_map", "export_model_type",
    "finetuning_task", "id2label", "label2id", "output_attentions", "output_hidden_states", "problem_type",
    "return_dict", "task_specific_params", "tokenizer_class", "transformers_version", "use_cache",
    "dtype", "torch_dtype",  # of the file, not of the weights
}  # fmt: skip
_HEADS = ("classifier_", "summary_")

Method = Literal["cut", "finetune", "distill", "contrast", "freeze", "combine", "copy"]
ORIGIN_FILE = "origin.json"
RESULT_FILES: dict[Method, str] = {
    "cut": "lean/cut.json",
    "distill": "lean/distill.json",
    "finetune": "sweep.json",
    "contrast": "contrastive.json",
    "freeze": "frozen-heads/frozen.json",
    "combine": "combination/combination.json",
}
"""Result of each method in a workspace."""
_WORDS: dict[Method, str] = {
    "cut": "{place}{pieces}, not trained",
    "distill": "{place}, distilled from raw text",
    "finetune": "{place}, fine-tuned on {data}",
    "contrast": "{place}, by contrast",
    "freeze": "heads on {layer} of {depth} frozen blocks",
    "combine": "{layers} combined",
    "copy": "as it was",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin(Result):
    """Method, source, data and settings of a saved model."""

    method: Method
    model: str  # source, as it was named
    source_digest: str  # of the source, by `encoder_digest`
    layer: int  # blocks kept
    depth: int  # blocks of the full model
    blocks: tuple[int, ...] | None = None  # kept, if not the first ones
    parameters: int  # kept, pooler excluded
    trained: bool | None  # if known, including its source
    data: str = ""  # name of the pairs that taught or chose it
    fingerprint: str = ""  # of these pairs
    seed: int | None = None  # of the split, if drawn for every seed
    pieces: tuple[int, int] | None = None  # word pieces kept and total, if cut
    long: int | None = None  # 95th percentile of training text lengths, in tokens
    settings: dict[str, Any]
    versions: dict[str, str]

    @property
    def place(self) -> str:
        """Name the blocks: `layer 3 of 4`, or `blocks 1, 3 of 4`."""
        return f"{place_in_words(self.layer, self.blocks)} of {self.depth}"

    @property
    def words(self) -> str:
        """Describe the model for a list."""
        pieces = "" if self.pieces is None else ", {:,} of {:,} word pieces".format(*self.pieces)
        layers = layers_in_words(self.settings.get("layers", ())) if self.method == "combine" else ""
        values = {"place": self.place, "layer": self.layer, "depth": self.depth, "data": self.data}
        return f"{self.model}, {_WORDS[self.method].format(**values, pieces=pieces, layers=layers)}"

    def has_budget_of(self, other: "Origin") -> bool:
        """Tell if both were fine-tuned from one model with the same data and settings."""
        ours, theirs = ((one.method, one.model, one.fingerprint, one.settings) for one in (self, other))
        return self.method == "finetune" and ours == theirs


def miniature_names() -> tuple[str, ...]:
    """Return the names of the bundled encoders."""
    return tuple(sorted(path.parent.name for path in _MINIATURES.glob("*/config.json")))


def miniature_path(name: str) -> Path | None:
    """Return the folder of the bundled encoder `name`, if any."""
    return _MINIATURES / name if name in miniature_names() else None


def default_reference(name: str) -> str | None:
    """Return the bundled encoder to compare a bundled one with."""
    return DEFAULT_REFERENCE if name in miniature_names() and name != DEFAULT_REFERENCE else None


def versions() -> dict[str, str]:
    """Return the versions of packages that models depend on."""
    return {name: version(name) for name in ("truncate-kit", "torch", "transformers")}


def model_folder(model: str | Path) -> Path | None:
    """Return the folder of a model or graph, if the name is a path."""
    place = real_path(local_path(model))
    return place if place.is_dir() else place.parent if place.is_file() else None


def read_origin(model: str | Path) -> Origin | None:
    """Return the recorded origin of a model, if any."""
    folder = model_folder(model)
    return None if folder is None else read_or_pass_over(Origin.read, folder / ORIGIN_FILE)


def was_trained(folder: Path) -> bool | None:
    """Tell if a model was fine-tuned: sentence-transformers yes, a plain transformer no."""
    origin = read_origin(folder)
    if origin is not None:
        return origin.trained
    return (folder / MODULES).is_file() or (False if (folder / CONFIG).is_file() else None)


def settings_of(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration values that vectors depend on."""
    return {key: value for key, value in config.items() if key not in _BOOKKEEPING and not key.startswith(_HEADS)}


def model_digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of the files that graphs depend on (no tokenizer, prompts, casing), by name."""
    places = [folder]
    if (folder / MODULES).is_file():
        places += [folder / module["path"] for module in read_json(folder / MODULES)]
    files = [folder / CONFIG, folder / MODULES]
    for place in places:
        safe = sorted(place.glob("*.safetensors"))
        files += [place / CONFIG, *(safe or sorted(place.glob("*.bin")))]
    return {str(file.relative_to(folder)): digest_in(folder, file) for file in dict.fromkeys(files) if file.is_file()}


def model_digest(folder: Path) -> str:
    """Return one SHA-256 over `model_digests`."""
    return digest_of_values(model_digests(folder))


def digest_in(folder: Path, file: Path) -> str:
    """Return the SHA-256 of a file, of the configuration without its bookkeeping."""
    if file != folder / CONFIG:
        return digest_of(file)
    return digest_of_values(settings_of(read_json(file)))


def is_weights(name: str) -> bool:
    """Tell if a file name is that of weights."""
    return name.endswith(_WEIGHTS)
