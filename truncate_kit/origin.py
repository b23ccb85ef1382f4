"""What a saved model is: `origin.json` in its folder. This imports no torch, no method and no workspace."""

from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from truncate_kit.files import local_path, real_path
from truncate_kit.naming import place_in_words
from truncate_kit.results import Result, read_or_pass_over
from truncate_kit.wording import layers_in_words

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
"""Where each method leaves its result in a workspace; one in `lean` goes with that model."""
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
    """How a saved model was made."""

    method: Method
    model: str  # what it was made from, as it was named
    source_digest: str  # of that model, by `encoder_digest`
    layer: int  # number of blocks kept: the last layer, where these are the first ones
    depth: int  # number of blocks of `model`, or of the full model where that was cut before
    blocks: tuple[int, ...] | None = None  # kept, where they were chosen one by one; None for the first ones
    parameters: int  # kept, pooler excluded
    trained: bool | None  # whether it, or what it was cut or combined from, was fine-tuned; None where unknown
    data: str = ""  # name of the pairs that taught or chose it; empty for none
    fingerprint: str = ""  # of these pairs as they were given
    seed: int | None = None  # that divided them, where every seed divides them anew
    pieces: tuple[int, int] | None = None  # word pieces kept and all of them, where the vocabulary was cut
    long: int | None = None  # 95 of 100 raw texts that taught it have no more tokens
    settings: dict[str, Any]
    versions: dict[str, str]

    @property
    def place(self) -> str:
        """Which part of the full model: `layer 3 of 4`, or `blocks 1, 3 of 4`."""
        return f"{place_in_words(self.layer, self.blocks)} of {self.depth}"

    @property
    def words(self) -> str:
        """What the model is, for a list of models."""
        pieces = "" if self.pieces is None else ", {:,} of {:,} word pieces".format(*self.pieces)
        layers = layers_in_words(self.settings.get("layers", ())) if self.method == "combine" else ""
        values = {"place": self.place, "layer": self.layer, "depth": self.depth, "data": self.data}
        return f"{self.model}, {_WORDS[self.method].format(**values, pieces=pieces, layers=layers)}"

    def has_budget_of(self, other: "Origin") -> bool:
        """Whether both models were fine-tuned by one call: from one model, with the same data and settings."""
        ours, theirs = ((one.method, one.model, one.fingerprint, one.settings) for one in (self, other))
        return self.method == "finetune" and ours == theirs


def versions() -> dict[str, str]:
    """Return the versions that a model was made with."""
    return {name: version(name) for name in ("truncate-kit", "torch", "transformers")}


def model_folder(model: str | Path) -> Path | None:
    """Return the folder of a model, or of the graph that is named; None for a name that is no path here."""
    try:
        place = real_path(local_path(model))
    except ValueError:
        return None
    if place.is_dir():
        return place
    return place.parent if place.is_file() else None


def read_origin(model: str | Path) -> Origin | None:
    """Return what a model's folder says of it; None where it says nothing."""
    folder = model_folder(model)
    return None if folder is None else read_or_pass_over(Origin.read, folder / ORIGIN_FILE)


def was_trained(folder: Path) -> bool | None:
    """Return whether a model was fine-tuned: a plain transformer was not, a sentence-transformers folder was."""
    origin = read_origin(folder)
    if origin is not None:
        return origin.trained
    if (folder / "modules.json").is_file():
        return True
    return False if (folder / "config.json").is_file() else None
