"""`truncate-kit freeze`: heads over the states of all blocks of a frozen encoder or decoder."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from truncate_kit.bounds import first_seeds
from truncate_kit.errors import ColumnsError, DataError, UsageError
from truncate_kit.methods.frozen.settings import AUTOENCODER, COSINE, SIAMESE, STEPS, FrozenSettings

from . import options
from .options import (
    data_option,
    layers_option,
    names_in,
    refuse,
    results_option,
    training_option,
    use_threads,
    whole_numbers_in,
)
from .output import print_json, progress_bar, say, table
from .pushing import check_push, push
from .workspace import Workspace

if TYPE_CHECKING:
    from truncate_kit.data import PairSet
    from truncate_kit.methods.frozen.frozen_report import FrozenReport

SETTINGS = FrozenSettings()
SEEDS = len(SETTINGS.seeds)
POOLING = "last"  # the paper reads the last token
CODES = (
    "Its vectors are codes that its own score compares (evaluate uses it, and a graph has it inside); the cosine of a "
    "search leaves out what the score has learnt."
)


def freeze(
    model: options.Model = None,
    data: options.Data = None,
    columns: options.Columns = None,
    scale: options.Scale = None,
    texts: Annotated[
        Path | None,
        data_option("Raw text for the autoencoders, in the FREEZE report GenericsKB; without it there are none."),
    ] = None,
    nli: Annotated[
        str | None,
        data_option(
            "Pairs labelled entailment, neutral, contradiction to learn first, as scores 1, ½ and 0, which are not "
            "from the FREEZE report."
        ),
    ] = None,
    pooling: Annotated[str | None, data_option(f"mean, cls, max or last; by default {POOLING}.")] = None,
    max_length: options.MaxLength = None,
    layer: Annotated[
        str, layers_option("Number of the lowest blocks, such as 6 or 3,6,9 or 1..6; auto for all blocks.")
    ] = SETTINGS.layers,
    final_norm: Annotated[
        bool,
        layers_option("Apply a decoder's final norm to every block's states, which are else as the block gives them."),
    ] = SETTINGS.final_norm,
    steps: Annotated[
        str | None,
        training_option(
            "Some of cosine,siamese,autoencoder; by default all, the last with --texts only. Encoders of "
            "autoencoders go on learning, of which the FREEZE report says nothing."
        ),
    ] = None,
    score: Annotated[
        str, training_option("exp (a text has 1 with itself), or sigmoid as in the FREEZE report.")
    ] = SETTINGS.score,
    loss: Annotated[
        str,
        training_option(
            "log-variance (of what is predicted less what is given), or mse as in all but the last model of the FREEZE "
            "report."
        ),
    ] = SETTINGS.loss,
    codes: Annotated[
        str | None,
        training_option(
            "Code width of the blocks in the lower and in the upper half, or one width for all; by default a quarter "
            "and a half of the states' width.",
            metavar="LOWER[,UPPER]",
        ),
    ] = None,
    depth: Annotated[
        int,
        training_option(
            "Layers of each block's network and of its autoencoder's way back; not from the FREEZE report."
        ),
    ] = SETTINGS.depth,
    seeds: Annotated[int, training_option("Number of seeds, from 0; not from the FREEZE report.")] = SEEDS,
    epochs: Annotated[int, training_option("The best on dev is kept; not from the FREEZE report.")] = SETTINGS.epochs,
    batch_size: Annotated[int, training_option("Pairs per step; not from the FREEZE report.")] = SETTINGS.batch_size,
    learning_rate: Annotated[
        float, training_option("Peak learning rate; not from the FREEZE report.")
    ] = SETTINGS.learning_rate,
    precision: options.Precision = SETTINGS.precision,
    device: options.Device = None,
    threads: options.Threads = None,
    folder: options.WorkspaceFolder = options.WORKSPACE,
    push_to: Annotated[
        str | None,
        results_option("Upload the frozen model with its heads to the hub, as a private one.", metavar="OWNER/NAME"),
    ] = None,
    public: options.Public = False,
    as_json: options.Json = False,
) -> None:
    """Train heads over the states of all blocks, computed once, and no block itself."""
    from truncate_kit.data import read_texts
    from truncate_kit.methods.frozen.run import finetune_frozen

    check_push(push_to, public)
    workspace = Workspace(folder, quiet=as_json)
    named = names_in(steps)
    if named is None and texts is None:
        named = tuple(step for step in STEPS if step != AUTOENCODER)
        workspace.note("Without raw sentences there are no autoencoders: name a file with --texts.")
    settings = FrozenSettings(
        layers=layer,
        steps=STEPS if named is None else named,
        score=score,
        loss=loss,
        codes=_codes(codes),
        depth=depth,
        final_norm=final_norm,
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        precision=precision,  # type: ignore[arg-type]  # checked by the settings themselves
        seeds=first_seeds(seeds),
    )
    if set(settings.steps) == {COSINE}:
        refuse(f"the steps {SIAMESE} and {AUTOENCODER}", codes=codes, depth=depth > SETTINGS.depth)
    if texts is not None and AUTOENCODER not in settings.steps:
        raise UsageError("--texts is for the autoencoders.", hint=f"Leave it out, or add {AUTOENCODER} to --steps.")
    use_threads(threads)
    source = workspace.starting_model(model, pooling, max_length)
    encoder = workspace.load(replace(source, pooling=source.pooling or POOLING), device=device, precision=precision)
    raw = read_texts(texts) if texts is not None else None
    first = _nli(nli) if nli is not None else None
    pairs, found = workspace.data(data, columns, scale)
    pairs = workspace.divided(pairs)
    with progress_bar(quiet=as_json) as progress:
        report = finetune_frozen(encoder, pairs, out=folder, settings=settings, raw=raw, nli=first, progress=progress)
    workspace.remember(source, found)
    show(report, workspace)
    push(workspace.frozen, push_to, public, quiet=as_json)


def _codes(text: str | None) -> tuple[int, int] | None:
    """The widths of `--codes`. Raises `UsageError`."""
    if text is None:
        return None
    widths = whole_numbers_in(text, "--codes")
    if len(widths) > 2:
        raise UsageError(f"--codes {text} names {len(widths)} widths.", hint="Give one, or one for each half.")
    return widths[0], widths[-1]


def _nli(name: str) -> "PairSet":
    """The first split of a set with classes. Raises `DataError`."""
    from truncate_kit.data import load_pairs

    try:
        return load_pairs(name, classes=True, divide=False).items()[0][1]
    except ColumnsError as error:
        raise DataError(str(error), hint="Call the columns of --nli sentence1, sentence2 and label.") from error


def show(report: "FrozenReport", workspace: Workspace) -> None:
    """The figures, and the report as JSON or as sentences and tables."""
    from truncate_kit.report.frozen_figures import draw_correlations, draw_depths, draw_reconstruction
    from truncate_kit.report.frozen_tables import step_table, worst_table
    from truncate_kit.wording import points

    folder = workspace.frozen_heads
    for name in ("reconstruction", "reconstruction-own-units", "blocks"):  # of a report whose place this one takes
        (folder / f"{name}.png").unlink(missing_ok=True)
    figures = [draw_correlations(report, folder / "correlation.png")]
    if report.reconstruction is not None:
        figures.append(draw_reconstruction(report, report.reconstruction, folder / "reconstruction.png"))
        own = folder / "reconstruction-own-units.png"
        figures.append(draw_reconstruction(report, report.reconstruction, own, own_scale=True))
    if any(len(layers) > 1 for layers in report.steps.values()):
        figures.append(draw_depths(report, folder / "blocks.png"))
    if workspace.quiet:
        print_json(report)
        return
    say(*report.statements())
    cells, chosen = step_table(report)
    table(*cells, marked=chosen)
    table(*worst_table(report), detail=True)
    say(report.leakage())
    say(
        f"Chosen by dev: {report.chosen_step} on {report.chosen_layer} of {report.depth} blocks, seed "
        f"{report.chosen_seed}; {report.parameters:,} frozen and {report.chosen.parameters:,} trained parameters. It "
        f"has {points(report.chosen.test)} on test; {report.plain}."
    )
    say(CODES)
    say(
        f"Saved: {workspace.frozen}. As a graph: truncate-kit export {workspace.frozen} --onnx "
        f"--workspace {workspace.folder}"
    )
    say(f"Figures: {', '.join(map(str, figures))}")
