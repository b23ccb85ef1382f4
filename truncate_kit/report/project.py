"""Views of what a workspace holds, of what fits on this machine, and sentences on the pairs that a command takes."""

from pathlib import Path
from typing import TYPE_CHECKING

from truncate_kit.core.precisions import GRAPH_FILES
from truncate_kit.core.wording import NONE, counted
from truncate_kit.report.view import Table, View

if TYPE_CHECKING:
    from truncate_kit.core.workspace import Contents, RunFolder
    from truncate_kit.data.types import Overlap, PairSplits
    from truncate_kit.doctor import Diagnosis
    from truncate_kit.report.page import PageReport

_KEPT = {"graphs": "graphs that bench made", "distillation": "what distill learns from"}
# What whole sets of scores may be instead, said and not decided.
_CODES: dict[frozenset[float], str] = {
    frozenset({0, 1}): "All scores are 0 or 1: where they mark paraphrases, the objective is paraphrase.",
    frozenset({0, 1, 2}): "All scores are 0, 1 or 2: where they are classes, such as entailment, neutral and "
    "contradiction, the objective is entailment.",
}


def data_sentences(splits: "PairSplits") -> list[str]:
    """Tell a user of the pairs a command takes: sizes, scale or classes, notes, and what splits share."""
    sets = [pairs for _, pairs in splits.items()]
    total, pairs = sum(map(len, sets)), splits.evaluation
    # A single file is of no split until it is divided.
    sizes = f"{total:,}" if splits.one_file else ", ".join(f"{name} {len(split):,}" for name, split in splits.items())
    sentences = [f"Data: {splits.name} ({sizes} {'pair' if total == 1 else 'pairs'})."]
    if pairs.classes:
        sentences.append(f"Classes: {', '.join(pairs.classes)}.")
    else:
        inferred = f"inferred from {counted(total, 'value')}"
        source = {"given": "as given", "inferred": inferred, "known": "known for this set"}[pairs.scale_source]
        low, high = pairs.scale
        sentences.append(f"Scores run from {low:g} to {high:g} ({source}).")
        code = _CODES.get(frozenset(pair.target for split in sets for pair in split))
        sentences += [code] if code else []
    warning = overlap_warning(splits.overlap)
    return [*sentences, *splits.notes, *([warning] if warning else [])]


def overlap_warning(overlap: "Overlap") -> str | None:
    """Say what test shares with train; None if it shares nothing."""
    if overlap.train_test is None or not overlap.test_sentences_in_train:
        return None
    same, either = overlap.train_test
    return (
        f"Overlap: {either:,} test pairs ({same:,} in the same order) and {overlap.test_sentences_in_train:,} of the "
        f"{overlap.test_sentences:,} distinct test sentences are also in train; the test score may flatter the model."
    )


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
    rows += [row(path, size, NONE, _KEPT[Path(path).name]) for path, size in found.kept.items()]
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
