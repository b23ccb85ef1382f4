"""What made a model: one row for each method that leaves a result beside the models it makes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from truncate_kit.blocks import blocks_in_words
from truncate_kit.results import Result, read_or_pass_over
from truncate_kit.wording import counted, layers_in_words

Words = Callable[[Any], str]


class Pairs(NamedTuple):
    """What a model learned from or was chosen by. seed: that divided the pairs. name: by which those noted are its."""

    fingerprint: str = ""  # of train, dev and test; nothing where there were no pairs
    seed: int = 0
    name: str = ""


class Queries(NamedTuple):
    """A retrieval set, half of whose queries chose models. fingerprint: of the queries; earlier versions noted none."""

    name: str
    fingerprint: str
    metric: str
    lean: float  # the lean model's score on the other half
    models: tuple[str, ...]  # folders of those that they chose


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A method, by the result that it leaves in a workspace."""

    name: str  # of the result, as the page has it
    kind: str  # module and class of the result: methods stand above this module, which imports what it reads alone
    file: str  # in the workspace; one in `lean` goes where that model goes
    models: dict[str, Words]  # folders of the models that it makes, each with what the result says of it
    note: Words = str  # of the lean one, for the commands that take it
    pairs: Callable[[Any], Pairs] = field(default=lambda _: Pairs())  # of the result
    queries: Callable[[Any], Queries | None] = lambda _: None  # of the result; None where pairs or nothing chose
    place: Words = lambda _: "as measured"  # what the lean model is of the full one
    parameters: Callable[[Any], int | None] = lambda _: None  # number of the lean model's
    learns: bool = True  # from these pairs; else they only choose
    ends: bool = False  # what made these models: they owe nothing to results of later rows that are still there

    @property
    def file_name(self) -> str:
        """Without the folder."""
        return Path(self.file).name

    def read(self, workspace: Path) -> Any:
        """The result in a workspace, None where there is none or it is damaged.

        Raises `FileProblemError` for one of a later format.
        """
        module, name = self.kind.split(":")
        kind: type[Result] = getattr(import_module(f"truncate_kit.{module}"), name)
        return read_or_pass_over(kind.read, workspace / self.file)


def _reached(place: str) -> str:
    return f"{'at' if place.startswith('layer') else 'to'} {place}"


def _of_sweep(it: Any) -> str:
    return f"{it.place(it.chosen)} of {it.full.layer}"


CUT = Method(
    name="cut", kind="training.cutting:CutResult", file="lean/cut.json", ends=True,
    models={"lean": lambda it: f"{it.model}, {it.what}, not trained"},
    note=lambda it: f"{it.model} {it.how}, not trained",
    place=lambda it: f"{it.place} of {it.depth}", parameters=lambda it: it.parameters,
)  # fmt: skip
DISTILLED = Method(
    name="distilled", kind="methods.distill.result:DistillResult", file="lean/distill.json",
    learns=False, ends=True,
    models={
        "lean": lambda it: f"{it.model}, {blocks_in_words(it.chosen, it.depth)}, distilled from raw text",
        "full": lambda it: f"{it.model}, as it was",
    },
    note=lambda it: f"{blocks_in_words(it.chosen)} of {it.model}, distilled",
    pairs=lambda it: Pairs(it.data_fingerprint, it.settings.seed, it.data_fingerprint),
    queries=lambda it: Queries(
        it.scores.data, it.scores.queries_fingerprint, it.scores.metric, it.scores.lean, ("lean",)
    ) if it.scores is not None and it.scores.of_queries else None,
    place=lambda it: f"{len(it.chosen)} of {counted(it.depth, 'block')}", parameters=lambda it: it.candidate.parameters,
)  # fmt: skip
SWEEP = Method(
    name="sweep", kind="methods.tmft.sweep_result:SweepResult", file="sweep.json",
    models={
        "lean": lambda it: f"{it.model}, {_of_sweep(it)}, fine-tuned on {it.data}",
        "full": lambda it: f"{it.model}, layer {it.full.layer} of {it.full.layer}, fine-tuned on {it.data}",
    },
    note=lambda it: f"which finetune cut from {it.model} {_reached(it.place(it.chosen))}",
    pairs=lambda it: Pairs(it.data_fingerprint, it.chosen_seed, f"{it.data_fingerprint} {it.chosen_seed}"),
    queries=lambda it: Queries(
        it.retrieval, it.queries_fingerprint, it.metric.partition(" of ")[0], it.lean.test, ("lean", "full")
    ) if it.retrieval else None,
    place=_of_sweep, parameters=lambda it: it.lean.parameters,
)  # fmt: skip
CONTRAST = Method(
    name="contrast", kind="methods.contrast.contrastive_result:ContrastiveResult", file="contrastive.json",
    # `full` is what `finetune` made of `lean` later, or was there before: this result does not say what it is.
    models={"lean": lambda it: f"{it.model}, layer {it.layer} of {it.depth}, by contrast", "full": lambda _: ""},
    note=lambda it: f"layer {it.layer} of {it.model}, trained by contrast",
    pairs=lambda it: Pairs(it.data_fingerprint, 0, f"{it.data_fingerprint} {it.rows_fingerprint}"),
    parameters=lambda it: it.parameters,
)  # fmt: skip
HEADS = Method(
    name="heads", kind="methods.frozen.frozen_report:FrozenReport", file="frozen-heads/frozen.json",
    models={"frozen": lambda it: f"{it.model}, heads on {it.chosen_layer} of {it.depth} frozen blocks"},
    pairs=lambda it: Pairs(it.data_fingerprint, it.settings.seeds[0], f"{it.data_fingerprint} {it.settings.seeds[0]}"),
)  # fmt: skip
COMBINED = Method(
    name="combined", kind="methods.bert_lc.result:CombinationReport", file="combination/combination.json",
    models={"combined": lambda it: f"{it.model}, {layers_in_words(it.chosen)} combined"},
)  # fmt: skip

METHODS = (CUT, DISTILLED, SWEEP, CONTRAST, HEADS, COMBINED)
"""Of two that make a model in one folder, the one whose result says whose it is stands first."""
MODELS = tuple(dict.fromkeys(folder for method in METHODS for folder in method.models))
"""Folders of models in a workspace."""
