"""`truncate-kit finetune` with a contrastive objective: its own options, and the run."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import SharedOptions, triplet_columns_of
from .output import note, print_json, progress_bar, say, table
from .sources import TripletSource
from .workspace import Workspace

if TYPE_CHECKING:
    from truncate_kit.contrastive import ContrastiveResult, ContrastiveSettings
    from truncate_kit.data import PairSplits, TripletSet

OBJECTIVES = ("in-batch", "dropout", "hard-negatives")
POOLINGS = ("layer-attention", "first-last", "concat")
"""Poolings that only contrastive training makes."""
SHOWN_SENTENCES, MAX_TOKENS = 8, 64
_NAMES = {"last_cls": "--no-last-cls"}  # where the option is not called like its field

TrainedPoolingOpt = Annotated[
    str | None,
    typer.Option(
        "--pooling",
        help="mean, cls, max or last; by default the model's own, else mean. Contrastive: layer-attention (default), "
        "first-last, concat, cls or mean.",
    ),
]
TripletsOpt = Annotated[
    str | None,
    typer.Option(
        "--triplets",
        help="Contrastive: a file, folder or hub name with anchor, positive[, negative], or an NLI set.",
    ),
]
TripletColumnsOpt = Annotated[
    str | None,
    typer.Option(
        "--triplet-columns",
        metavar="ANCHOR,POSITIVE[,NEGATIVE]",
        help="Columns of --triplets, if their names do not tell; for an NLI set PREMISE,HYPOTHESIS,LABEL.",
    ),
]
AttendOpt = Annotated[
    str, typer.Option("--attend", help="Layer attention: both (CLS asks, means answer), cls or mean.")
]
LastClsOpt = Annotated[
    bool, typer.Option("--last-cls/--no-last-cls", help="Layer attention: put the last CLS before what it gives.")
]
LiteralOpt = Annotated[
    bool, typer.Option("--literal", help="Layer attention: equation 1 as printed, without the exponential.")
]
RemovePoolerOpt = Annotated[
    bool, typer.Option("--remove-pooler", help="Contrastive: use the pooler in training only, then the top CLS state.")
]
TemperatureOpt = Annotated[float, typer.Option("--temperature", help="Contrastive: of the softmax.")]
ChunkOpt = Annotated[
    int | None,
    typer.Option("--chunk-size", help="Contrastive: texts encoded at a time; any batch in little memory."),
]
JudgeEveryOpt = Annotated[int, typer.Option("--judge-every", help="Contrastive: steps between two looks at dev.")]
SentencesOpt = Annotated[
    Path | None,
    typer.Option("--sentences", help="Layer attention: texts whose attention is drawn; by default some of dev."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContrastiveOptions:
    """The options that only contrastive training has."""

    triplets: str | None = None
    triplet_columns: str | None = None
    attend: str = "both"
    last_cls: bool = True
    literal: bool = False
    remove_pooler: bool = False
    temperature: float = 0.05
    chunk_size: int | None = None
    judge_every: int = 100
    sentences: Path | None = None


def is_contrastive(objective: str, pooling: str | None, own: ContrastiveOptions) -> bool:
    """Whether these options ask for contrastive training. Raises `UsageError` for some of it without its objective."""
    from truncate_kit.errors import UsageError
    from truncate_kit.training.configuration import OBJECTIVES as BY_LAYER

    if objective in OBJECTIVES:
        return True
    if objective not in BY_LAYER:
        known = ", ".join((*BY_LAYER, *OBJECTIVES))
        raise UsageError(f"There is no objective {objective!r}.", hint=f"Use one of: {known}.")
    hint = f"Add --objective with one of: {', '.join(OBJECTIVES)}."
    if pooling in POOLINGS:
        raise UsageError(f"--pooling {pooling} is trained by contrast, not with the objective {objective}.", hint=hint)
    refuse_contrastive(own, objective, hint)
    return False


def refuse_contrastive(own: ContrastiveOptions, other: str, hint: str) -> None:
    """Raise `UsageError` for an option of contrastive training that `other` would ignore."""
    from truncate_kit.errors import UsageError

    for field in fields(own):
        if getattr(own, field.name) != field.default:
            name = _NAMES.get(field.name, f"--{field.name.replace('_', '-')}")
            raise UsageError(f"{name} goes with a contrastive objective, not with {other}.", hint=hint)


def run_contrastive(shared: SharedOptions, own: ContrastiveOptions) -> bool:
    """Train and show; under `torchrun` together with the other processes. Returns whether this process leads."""
    from truncate_kit.contrastive import finetune_contrastive
    from truncate_kit.encoders import load_encoder
    from truncate_kit.errors import DeviceError
    from truncate_kit.hardware import bf16_instructions
    from truncate_kit.training.distributed import joined

    settings = _settings(shared, own)
    workspace = Workspace(shared.out)
    with joined(shared.device) as (group, device):
        quiet = shared.as_json or not group.leads
        source = workspace.model(shared.model, None, shared.max_length, quiet=quiet)
        encoder = load_encoder(source.name, max_length=source.max_length, device=device)
        if shared.precision == "bf16" and bf16_instructions(encoder.device) is None:
            raise DeviceError(f"{encoder.device} has no bf16 instructions.", hint="Use --precision fp32.")
        splits, found = workspace.data(shared.data, shared.columns, shared.scale, quiet=quiet)
        splits = _with_dev(splits, quiet=quiet)
        rows = _rows(shared, own, splits)
        note(rows.note, quiet=quiet)
        shown = _shown(own.sentences, splits)
        with progress_bar(quiet=quiet) as progress:
            result = finetune_contrastive(
                encoder, rows, splits, out=workspace.out, settings=settings, group=group, progress=progress
            )
        if group.leads:
            workspace.sweep_result.unlink(missing_ok=True)  # it told of the model whose place this one takes
            triplets = None if own.triplets is None else TripletSource(own.triplets, own.triplet_columns)
            workspace.remember(replace(source, pooling=None), found, triplets)
            drawn = _draw(workspace, settings, shown)
            show(result, workspace, drawn, as_json=shared.as_json)
        return group.leads


def _settings(shared: SharedOptions, own: ContrastiveOptions) -> "ContrastiveSettings":
    from truncate_kit.contrastive import ContrastiveSettings
    from truncate_kit.errors import UsageError

    if shared.layer != "auto" and not shared.layer.isdecimal():
        raise UsageError(
            f"Contrastive training is at one layer, not at {shared.layer!r}.",
            hint="Name one with --layer, or leave it out for the last one.",
        )
    if own.sentences is not None and (own.remove_pooler or shared.pooling not in (None, "layer-attention")):
        raise UsageError("--sentences shows layer attention, which this model does not keep.", hint="Leave it out.")
    return ContrastiveSettings(
        objective=shared.objective,  # type: ignore[arg-type]  # checked by the settings themselves
        pooling=shared.pooling or "layer-attention",  # type: ignore[arg-type]  # likewise
        over=own.attend,  # type: ignore[arg-type]  # likewise
        last_cls=own.last_cls,
        literal=own.literal,
        keep_pooler=not own.remove_pooler,
        layer=None if shared.layer == "auto" else int(shared.layer),
        temperature=own.temperature,
        epochs=shared.epochs,
        batch_size=shared.batch_size,
        learning_rate=shared.learning_rate,
        max_tokens=shared.max_length or MAX_TOKENS,
        judge_every=own.judge_every,
        chunk=own.chunk_size,
        precision=shared.precision,  # type: ignore[arg-type]  # likewise
        seeds=tuple(range(max(0, shared.seeds))),
    )


def _with_dev(splits: "PairSplits", *, quiet: bool) -> "PairSplits":
    """The pairs with a dev and a test split, which are taken out of a single file; says so."""
    from truncate_kit.data import complete_splits

    if splits.dev is not None:
        return splits
    divided = complete_splits(splits)
    for statement in divided.notes[len(splits.notes) :]:
        note(statement, quiet=quiet)
    return divided


def _rows(shared: SharedOptions, own: ContrastiveOptions, splits: "PairSplits") -> "TripletSet":
    """What the objective learns from. Raises `UsageError` where it was not given, `DataError`."""
    from truncate_kit.data import load_triplets, raw_texts, read_texts
    from truncate_kit.errors import UsageError

    if shared.objective == "dropout":
        if own.triplets is not None:
            raise UsageError("The objective dropout learns from raw text.", hint="Use --texts instead of --triplets.")
        if shared.texts is not None:
            return raw_texts(shared.texts.name, read_texts(shared.texts))
        if splits.train is None:
            raise UsageError("There are no texts to learn from.", hint="Give --texts FILE.")
        return raw_texts(splits.train.name, splits.train.texts())
    if shared.texts is not None:
        raise UsageError(f"The objective {shared.objective} learns from pairs.", hint="Use --triplets, not --texts.")
    if own.triplets is None:
        raise UsageError(
            f"The objective {shared.objective} has nothing to learn from.",
            hint="Give --triplets FILE with anchor, positive[, negative] or an NLI set; --data is what is judged on.",
        )
    names, negatives = triplet_columns_of(own.triplet_columns), shared.objective == "hard-negatives"
    return load_triplets(own.triplets, columns=names, negatives=negatives)


def _shown(sentences: Path | None, splits: "PairSplits") -> Sequence[str]:
    """The texts whose attention is drawn; read before training, so that a wrong file costs nothing."""
    from truncate_kit.data import read_texts

    return read_texts(sentences) if sentences is not None else splits.evaluation.texts()[:SHOWN_SENTENCES]


def _draw(workspace: Workspace, settings: "ContrastiveSettings", texts: Sequence[str]) -> Path | None:
    """The figure of the attention over layers, where the saved model has one."""
    from truncate_kit.contrastive import layer_weights
    from truncate_kit.encoders import load_encoder
    from truncate_kit.report.attention_figure import draw_attention

    if settings.pooling != "layer-attention" or not settings.keep_pooler:
        return None
    found = layer_weights(load_encoder(workspace.lean), texts)
    found.write(workspace.attention)
    return draw_attention(found, workspace.attention.with_suffix(".png"))


def show(result: "ContrastiveResult", workspace: Workspace, drawn: Path | None, *, as_json: bool) -> None:
    """The result as JSON, or as a table and sentences."""
    from truncate_kit.contrastive.card import pooling_words
    from truncate_kit.sweep.card import points

    if as_json:
        print_json(result)
        return
    table(
        f"{result.settings.objective}, Spearman × 100 on {result.data}; {len(result.trials)} seeds, "
        f"{result.epochs} epochs, batch {result.batch_size}, peak learning rate {result.learning_rate:g}",
        ("pooling", "layer", "parameters", "dev", "test", "kept look"),
        [
            (
                pooling_words(result.settings),
                f"{result.layer} of {result.depth}",
                f"{result.parameters:,}",
                points(result.dev, result.dev_std),
                points(result.test, result.test_std),
                f"{result.chosen.best_epoch} of {len(result.chosen.dev_scores)}",
            )
        ],
    )
    if result.seen:
        say(f"{result.seen:,} of {result.test_texts:,} test sentences are among the training texts.")
    say(f"Saved: {workspace.lean} (seed {result.chosen_seed})" + (f", {drawn}" if drawn else ""))
    if drawn:
        say("sentence-transformers loads it with trust_remote_code=True: it has no layer-wise attention of its own.")
