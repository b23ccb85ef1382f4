"""Views of what a workspace holds, and of what fits on this machine."""

from typing import TYPE_CHECKING

from truncate_kit.cells import NONE
from truncate_kit.precisions import GRAPH_FILES
from truncate_kit.report.view import Table, View
from truncate_kit.wording import counted

if TYPE_CHECKING:
    from truncate_kit.doctor import Diagnosis
    from truncate_kit.report.writing import PageReport
    from truncate_kit.workspace.contents import Contents, RunFolder


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
    """Show packages, what starts, then the findings, problems first."""
    facts = diagnosis.facts
    rows = []
    for need in facts.requirements:
        if need.extra != "test" or "test" in diagnosis.request.extras:
            extra = f"extra {need.extra}" if need.extra else "all"
            fits = "yes" if need.fits else "no"
            rows.append((need.name, need.wanted or "any", need.installed or NONE, extra, fits))
    table = Table(f"Packages (Python {facts.python})", ("package", "needs", "installed", "for", "fits"), rows)
    wheels = ", ".join(f"{name} {version}" for name, version in facts.wheels.items()) or "ONNX Runtime"
    starting = ", ".join(provider.name for provider in facts.providers if provider.starts) or "nothing"
    cuda, processor = facts.cuda, facts.processor
    granted = f", a quota of {processor.quota:g}" if processor.quota is not None else ""
    sentences = [
        f"{wheels} starts on: {starting}.",
        *(f"{one.name} does not start: {one.reason}" for one in facts.providers if not one.starts),
        f"CUDA: driver {cuda.driver or 'none'}, torch {cuda.torch or 'without'}, cuDNN {cuda.cudnn or 'none'}, "
        f"ONNX Runtime {cuda.onnxruntime or 'without'}.",
        f"Processor: {processor.name}, {processor.cores} cores, {processor.usable} usable{granted}, torch threads "
        f"{processor.torch_threads or 'unknown'}, bf16 {processor.bf16 or 'none'}, VNNI {processor.int8 or 'none'}.",
    ]
    for finding in sorted(diagnosis.findings, key=lambda finding: finding.severity):
        sentences.append(f"{finding.severity.title()}: {finding.text}\n  Do: {finding.remedy}")
    if diagnosis.able:
        sentences.append("Everything that was asked for can run.")
    return View(key="diagnosis", title="What fits on this machine", tables=(table,), sentences=sentences)


def view_page(found: "PageReport") -> View:
    """Show the recommendation, what would add to it, and where the page is."""
    missing = zip(found.missing, found.commands, strict=True)
    sentences = [*found.recommendations, *(f"{what}. This adds it: {command}" for what, command in missing)]
    size = f"{found.file_bytes / 1e3:,.0f} kB, opens without a network"
    return View(key="page", title="Page", sentences=(*sentences, f"Page: {found.page} ({size})"))
