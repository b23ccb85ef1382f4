"""`truncate-kit export`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import DEFAULT_OUT, ColumnsOpt, DataOpt, JsonOpt, ModelArg, OutOpt, ScaleOpt, ThreadsOpt, use_threads
from .output import note, print_json, progress_bar, say, table
from .pushing import PublicOpt, PushOpt, check_push, push
from .sources import ModelSource
from .workspace import Workspace

if TYPE_CHECKING:
    from truncate_kit.data import PairSplits
    from truncate_kit.export import ExportReport


def export(
    model: ModelArg = None,
    onnx: Annotated[bool, typer.Option("--onnx", help="Write one ONNX graph, from token ids to the vector.")] = False,
    normalize: Annotated[
        bool | None,
        typer.Option(
            "--normalize/--no-normalize",
            help="Vectors of length 1, or not; by default as the model does.",
            show_default=False,
        ),
    ] = None,
    precision: Annotated[
        str, typer.Option("--precision", help="fp32, fp16 (for CUDA) or int8 (for the CPU); each has its own file.")
    ] = "fp32",
    target: Annotated[
        str | None,
        typer.Option("--target", help="cpu or cuda, whose kernels the graph is for; by default cpu, for fp16 cuda."),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option("--budget", help="With int8: Spearman points it may cost on dev pairs; 0.3 by default."),
    ] = None,
    data: DataOpt = None,
    columns: ColumnsOpt = None,
    scale: ScaleOpt = None,
    threads: ThreadsOpt = None,
    push_to: PushOpt = None,
    public: PublicOpt = False,
    out: OutOpt = DEFAULT_OUT,
    as_json: JsonOpt = False,
) -> None:
    """Write the model as one checked ONNX graph beside its tokenizer and configuration."""
    from truncate_kit.errors import UsageError

    check_push(push_to, public)
    from truncate_kit.encoders import load_encoder
    from truncate_kit.export import export_onnx
    from truncate_kit.export.precision import check_combination
    from truncate_kit.export.searching import BUDGET

    if not onnx:
        raise UsageError("No format is named.", hint="Add --onnx.")
    where = target or ("cuda" if precision == "fp16" else "cpu")
    check_combination(precision, where)  # before anything is loaded
    if budget is not None and precision != "int8":
        raise UsageError("--budget goes with int8 only.", hint="Add --precision int8, or leave --budget out.")
    use_threads(threads)
    workspace = Workspace(out)
    source = _source(workspace, model, quiet=as_json)
    encoder = load_encoder(source.name, pooling=source.pooling, max_length=source.max_length)
    splits, found = workspace.data(data, columns, scale, quiet=as_json)
    splits = workspace.unseen(splits, quiet=as_json)
    if precision == "int8":
        splits = _searchable(splits, quiet=as_json)
    with progress_bar(quiet=as_json) as progress:
        report = export_onnx(
            encoder,
            workspace.lean,
            precision=precision,
            target=where,
            normalize=normalize,
            pairs=splits.evaluation,
            search_pairs=splits.dev if precision == "int8" else None,
            budget=BUDGET if budget is None else budget,
            progress=progress,
        )
    workspace.remember(None if source.name == str(workspace.lean) else source, found)
    show(report, workspace.lean, as_json=as_json)
    push(workspace.lean, push_to, public, quiet=as_json)


def _searchable(splits: "PairSplits", *, quiet: bool) -> "PairSplits":
    """Splits with dev pairs to choose layers on and others to report on; what is missing comes out of train.

    Raises `UsageError` where there is no train split to take them from.
    """
    from truncate_kit.data import complete_splits
    from truncate_kit.errors import UsageError

    if splits.dev is not None and splits.test is not None:
        return splits
    if splits.train is None:
        raise UsageError(
            f"int8 chooses its layers on dev pairs and reports on test pairs; {splits.name} has only "
            f"{' and '.join(name for name, _ in splits.items())}.",
            hint="Give a folder with both, or one file: it is divided. Or use --precision fp32.",
        )
    divided = complete_splits(splits)
    for statement in divided.notes[len(splits.notes) :]:
        note(statement, quiet=quiet)
    return divided


def _source(workspace: Workspace, named: str | None, *, quiet: bool) -> ModelSource:
    """The model named, else the one that finetune left, else as for every command.

    Raises `UsageError` where another model than the one in the workspace would take its place.
    """
    from truncate_kit.errors import UsageError

    lean = workspace.lean
    if not lean.is_dir():
        return workspace.model(named, quiet=quiet)
    if named is None:
        workspace.note_lean(quiet=quiet)
        return ModelSource(str(lean))
    if Path(named).resolve() != lean.resolve() and named != _exported(lean):
        raise UsageError(
            f"{lean} holds another model, which exporting {named} would replace.",
            hint="Name another folder with --out, or leave MODEL out to export the one that is there.",
        )
    return ModelSource(named)


def _exported(folder: Path) -> str | None:
    """The name of the model that an earlier export wrote to `folder`; None where something else wrote it.

    Raises `ModelError` where its export.json is damaged.
    """
    from truncate_kit.export import read_exports

    return next((report.model for report in read_exports(folder).graphs), None)


def show(report: "ExportReport", folder: Path, *, as_json: bool) -> None:
    """The report as JSON, or as a table and sentences."""
    from truncate_kit.export.checks import SCORE_LIMITS

    if as_json:
        print_json(report)
        return
    rows = [(check.name, f"{check.difference:.1e}", _allowed(check.limit)) for check in report.checks]
    limit = SCORE_LIMITS[report.precision]
    if report.task is not None:
        task = report.task
        for measure, before, after in (
            ("Spearman", task.spearman_before, task.spearman_after),
            ("Pearson", task.pearson_before, task.pearson_after),
        ):
            rows.append(
                (
                    f"{measure} × 100 on {task.data}: {before:.2f} to {after:.2f}",
                    f"{after - before:+.4f}",
                    _allowed(limit),
                )
            )
    table("Graph against torch: largest difference", ("check", "difference", "allowed"), rows)
    for sentence in (report.fusion_sentence(), *report.precision_sentences()):
        say(sentence)
    say(
        f"Exported: {folder / report.file} ({report.file_bytes / 1e6:.1f} MB), vectors of {report.width} numbers"
        f"{' and length 1' if report.normalized else ''}."
    )


def _allowed(limit: float | None) -> str:
    return "–" if limit is None else f"{limit:g}"
