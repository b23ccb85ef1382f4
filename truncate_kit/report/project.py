"""Views of what a workspace holds, and of what fits on this machine."""

from typing import TYPE_CHECKING

from truncate_kit.precisions import GRAPH_FILES
from truncate_kit.report.view import Table, View
from truncate_kit.wording import NONE, counted

if TYPE_CHECKING:
    from truncate_kit.doctor import Diagnosis
    from truncate_kit.report.page import PageReport
    from truncate_kit.workspace import Contents, RunFolder


def view_contents(found: "Contents") -> View:
    """Show models, runs and exports with their sizes."""
    precisions = {file: precision for precision, file in GRAPH_FILES.items()}

    def row(path: str, size: int, graphs: str, what: str) -> tuple[str, ...]:
        return path.removeprefix(f"{found.folder}/"), _megabytes(size), graphs, what

    rows = []
    for model in found.models:
        graphs = ", ".join(precisions.get(name, name) for name in model.graphs) or NONE
        rows.append(row(model.path, model.file_bytes, graphs, model.origin or NONE))
    rows += [row(run.path, run.file_bytes, NONE, _progress(run)) for run in found.runs]
    rows += [row(kept.path, kept.file_bytes, NONE, kept.what) for kept in found.kept]
    tables = []
    if rows:
        rows.append(("other files", _megabytes(found.other_bytes), NONE, "results, figures, notes"))
        title = f"Models in {found.folder}, and the runs behind them"
        tables.append(Table(title, ("folder", "MB", "graphs", "what it is"), rows))
    freed = f"; {_megabytes(found.freed_bytes)} MB were freed" if found.freed_bytes else ""
    sentences = [f"Results: {', '.join(found.reports)}"] if found.reports else []
    sentences.append(
        f"{found.folder}: {counted(len(found.models), 'model')}, {_megabytes(found.file_bytes)} MB{freed}."
    )
    if found.spare_bytes:
        spare = _megabytes(found.spare_bytes)
        sentences.append(f"--clean frees {spare} MB: what only a repetition would read or make again.")
    return View(key="contents", title="What the workspace holds", tables=tables, sentences=sentences)


def _progress(run: "RunFolder") -> str:
    """Say how far a run is, and how much of it can go."""
    stopped = f", {run.waiting:,} stopped" if run.waiting else ""
    spare = f"; {_megabytes(run.spare_bytes)} MB to free" if run.spare_bytes else ""
    return f"run: {run.finished:,} finished{stopped}{spare}"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f}"


def view_diagnosis(diagnosis: "Diagnosis") -> View:
    """Show what was found, and what to do, problems first."""
    rows = [(row.name, row.found, row.verdict) for row in diagnosis.checks]
    table = Table("This machine", ("what", "found", "verdict"), rows)
    sentences = [
        f"{verdict.title()}: {row.name}: {row.found}.\n  Do: {row.hint}."
        for verdict in ("problem", "warning")
        for row in diagnosis.checks
        if row.verdict == verdict
    ]
    if diagnosis.able:
        sentences.append("Everything that was asked for can run.")
    return View(key="diagnosis", title="What fits on this machine", tables=(table,), sentences=sentences)


def view_page(found: "PageReport") -> View:
    """Show the recommendation, what would add to it, and where the page is."""
    missing = zip(found.missing, found.commands, strict=True)
    sentences = [*found.recommendations, *(f"{what}. This adds it: {command}" for what, command in missing)]
    size = f"{found.file_bytes / 1e3:,.0f} kB, opens without a network"
    return View(key="page", title="Page", sentences=(*sentences, f"Page: {found.page} ({size})"))
