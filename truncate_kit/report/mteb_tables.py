"""The cells of MTEB scores."""

from truncate_kit.mteb.mteb_report import MtebComparison, MtebReport, MtebScore
from truncate_kit.report.cells import TableCells, number


def mteb_table(report: MtebReport) -> TableCells:
    """One row per task and one for the mean."""
    rows = [(*_task(row), number(row.score), f"{row.seconds:.1f}") for row in report.scores]
    rows.append((f"mean of {len(rows)}", "", "", number(report.mean), f"{report.seconds:.1f}"))
    title = f"{report.model} in {report.runtime}: main scores of MTEB {report.version} × 100"
    return TableCells(title, ("task", "metric", "split", "score", "seconds"), [*rows])


def mteb_comparison_table(report: MtebComparison) -> TableCells:
    """One row per task and one for the mean: full, lean, difference."""
    full, lean = report.full, report.lean
    rows = [
        (*_task(before), number(before.score), number(after.score), number(difference, "+.2f"))
        for before, after, difference in zip(full.scores, lean.scores, report.differences, strict=True)
    ]
    means = number(full.mean), number(lean.mean), number(report.mean_difference, "+.2f")
    rows.append((f"mean of {len(rows)}", "", "", *means))
    models = " and ".join(f"{one.model} in {one.runtime} ({name})" for one, name in ((full, "full"), (lean, "lean")))
    title = f"{models}: main scores of MTEB {full.version} × 100"
    return TableCells(title, ("task", "metric", "split", "full", "lean", "lean less full"), [*rows])


def mteb_sentences(report: MtebReport) -> list[str]:
    """What a reader has to know of the tasks before comparing."""
    subsets = [
        f"{row.task}: the mean over {row.num_subsets} subsets, mostly languages."
        for row in report.scores
        if row.num_subsets > 1
    ]
    return subsets + [
        f"{row.task}: MTEB recommends {row.successor} instead, for new comparisons."
        for row in report.scores
        if row.successor is not None
    ]


def _task(row: MtebScore) -> tuple[str, str, str]:
    return row.task, row.metric, ", ".join(row.splits)
