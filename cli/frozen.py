"""`truncate-kit finetune --method frozen`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from truncate_kit.errors import ColumnsError, DataError, UsageError

from .options import SharedOptions
from .output import note, print_json, progress_bar, say, table
from .pushing import push
from .workspace import Workspace

if TYPE_CHECKING:
    from truncate_kit.data import PairSet
    from truncate_kit.frozen import FrozenReport

METHODS = ("tmft", "frozen")
POOLING = "last"  # the paper reads the last token
CODES = (
    "Its vectors are codes that its own score compares (evaluate uses it, and a graph has it inside); the cosine of a "
    "search leaves out what the score has learnt."
)

MethodOpt = Annotated[
    str, typer.Option("--method", help="tmft, or frozen: train heads over the states of all blocks, no block itself.")
]
StepsOpt = Annotated[
    str | None,
    typer.Option(
        "--steps",
        help="With --method frozen: some of cosine,siamese,autoencoder; by default all, the last with --texts only.",
    ),
]
ScoreOpt = Annotated[
    str | None,
    typer.Option("--score", help="With --method frozen: exp (a text has 1 with itself; default) or sigmoid."),
]
NliOpt = Annotated[
    str | None,
    typer.Option(
        "--nli", help="With --method frozen: pairs labelled entailment, neutral, contradiction to learn first."
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenOptions(SharedOptions):
    """What was told on the command line, None where nothing was."""

    steps: str | None
    score: str | None
    nli: str | None
    push_to: str | None
    public: bool


def check_method(method: str, **only_frozen: str | None) -> bool:
    """Whether the method is `frozen`. Raises `UsageError` for an unknown one, or frozen's options without it."""
    if method not in METHODS:
        raise UsageError(f"There is no method {method!r}.", hint=f"Use one of: {', '.join(METHODS)}.")
    for option, value in only_frozen.items():
        if method != "frozen" and value is not None:
            raise UsageError(f"--{option} goes with --method frozen only.", hint=f"Leave out --{option}.")
    return method == "frozen"


def run_frozen(told: FrozenOptions) -> None:
    """Train heads over the frozen model, save the best, and show what was found."""
    from truncate_kit.data import complete_splits, read_texts
    from truncate_kit.encoders import load_encoder
    from truncate_kit.errors import DeviceError
    from truncate_kit.frozen import STEPS, FrozenSettings, finetune_frozen
    from truncate_kit.frozen.settings import AUTOENCODER
    from truncate_kit.hardware import bf16_instructions

    steps = STEPS if told.steps is None else tuple(part.strip() for part in told.steps.split(","))
    if told.steps is None and told.texts is None:
        steps = tuple(step for step in STEPS if step != AUTOENCODER)
        note("Without raw sentences there are no autoencoders: name a file with --texts.", quiet=told.as_json)
    numbers = {"epochs": told.epochs, "batch_size": told.batch_size, "learning_rate": told.learning_rate}
    settings = FrozenSettings.from_dict(
        {
            "layers": told.layer,
            "steps": steps,
            "score": told.score or "exp",
            "precision": told.precision,
            "seeds": tuple(range(max(0, told.seeds))),
        }
        | {name: value for name, value in numbers.items() if value is not None}
    )
    if told.texts is not None and AUTOENCODER not in settings.steps:
        raise UsageError("--texts is for the autoencoders.", hint=f"Leave it out, or add {AUTOENCODER} to --steps.")
    workspace = Workspace(told.out)
    source = workspace.model(told.model, told.pooling, told.max_length, quiet=told.as_json)
    encoder = load_encoder(
        source.name, pooling=source.pooling or POOLING, max_length=source.max_length, device=told.device
    )
    if told.precision == "bf16" and bf16_instructions(encoder.device) is None:
        raise DeviceError(f"{encoder.device} has no bf16 instructions.", hint="Use --precision fp32.")
    raw = read_texts(told.texts) if told.texts is not None else None
    nli = _nli(told.nli) if told.nli is not None else None
    splits, found = workspace.data(told.data, told.columns, told.scale, quiet=told.as_json)
    before = splits.notes
    splits = complete_splits(splits)
    for statement in splits.notes[len(before) :]:
        note(statement, quiet=told.as_json)
    with progress_bar(quiet=told.as_json) as progress:
        report = finetune_frozen(
            encoder,
            splits,
            out=told.out,
            settings=settings,
            raw=raw,
            nli=nli,
            progress=progress,
        )
    workspace.remember(source, found)
    show(report, workspace, as_json=told.as_json)
    push(workspace.frozen, told.push_to, told.public, quiet=told.as_json)


def _nli(name: str) -> "PairSet":
    """The first split of a set with classes. Raises `DataError`."""
    from truncate_kit.data import load_pairs

    try:
        return load_pairs(name, classes=True).items()[0][1]
    except ColumnsError as error:
        raise DataError(str(error), hint="Call the columns of --nli sentence1, sentence2 and label.") from error


def show(report: "FrozenReport", workspace: Workspace, *, as_json: bool) -> None:
    """The figures, and the report as JSON or as sentences and tables."""
    from truncate_kit.report.frozen_figures import draw_correlations, draw_depths, draw_reconstruction
    from truncate_kit.report.frozen_tables import step_table, worst_table

    folder = workspace.frozen_report
    figures = [draw_correlations(report, folder / "correlation.png")]
    if report.reconstruction is not None:
        figures.append(draw_reconstruction(report, report.reconstruction, folder / "reconstruction.png"))
    if len(report.layers) > 1:
        figures.append(draw_depths(report, folder / "blocks.png"))
    if as_json:
        print_json(report)
        return
    for statement in report.statements():
        say(statement)
    cells, chosen = step_table(report)
    table(cells.title, cells.columns, cells.rows, marked=chosen)
    worst = worst_table(report)
    table(worst.title, worst.columns, worst.rows)
    say(report.leakage())
    say(
        f"Chosen by dev: {report.chosen_step} on {report.chosen_layer} of {report.depth} blocks, seed "
        f"{report.chosen_seed}; {report.parameters:,} frozen and {report.chosen.parameters:,} trained parameters."
    )
    say(CODES)
    say(f"Saved: {workspace.frozen}. As a graph: truncate-kit export {workspace.frozen} --onnx --out OTHER_FOLDER")
    say(f"Figures: {', '.join(map(str, figures))}")
