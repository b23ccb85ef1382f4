"""`truncate-kit export`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import DEFAULT_OUT, ColumnsOpt, DataOpt, JsonOpt, ModelArg, OutOpt, ScaleOpt, ThreadsOpt, use_threads
from .output import print_json, progress_bar, say, table
from .pushing import PublicOpt, PushOpt, check_push, push
from .workspace import ModelSource, Workspace

if TYPE_CHECKING:
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

    if not onnx:
        raise UsageError("No format is named.", hint="Add --onnx.")
    use_threads(threads)
    workspace = Workspace(out)
    source = _source(workspace, model, quiet=as_json)
    encoder = load_encoder(source.name, pooling=source.pooling, max_length=source.max_length)
    splits, found = workspace.data(data, columns, scale, quiet=as_json)
    pairs = workspace.unseen(splits, quiet=as_json).evaluation
    with progress_bar(quiet=as_json) as progress:
        report = export_onnx(encoder, workspace.lean, normalize=normalize, pairs=pairs, progress=progress)
    workspace.remember(None if source.name == str(workspace.lean) else source, found)
    show(report, workspace.lean, as_json=as_json)
    push(workspace.lean, push_to, public, quiet=as_json)


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
    """The name of the model that an earlier export wrote to `folder`; None where something else wrote it."""
    from truncate_kit.export import ExportReport
    from truncate_kit.export.exporting import REPORT_FILE

    try:
        return ExportReport.read(folder / REPORT_FILE).model
    except (OSError, ValueError, KeyError, TypeError):
        return None


def show(report: "ExportReport", folder: Path, *, as_json: bool) -> None:
    """The report as JSON, or as a table and sentences."""
    if as_json:
        print_json(report)
        return
    rows = [(check.name, f"{check.difference:.1e}", f"{check.limit:g}") for check in report.checks]
    if report.task is not None:
        task = report.task
        for measure, before, after in (
            ("Spearman", task.spearman_before, task.spearman_after),
            ("Pearson", task.pearson_before, task.pearson_after),
        ):
            rows.append(
                (f"{measure} × 100 on {task.data}: {before:.2f} to {after:.2f}", f"{after - before:+.4f}", "0.01")
            )
    table("Graph against torch: largest difference", ("check", "difference", "allowed"), rows)
    say(report.fusion_sentence())
    say(
        f"Exported: {folder / report.file} ({report.file_bytes / 1e6:.1f} MB), vectors of {report.width} numbers"
        f"{' and length 1' if report.normalized else ''}."
    )
