"""The cells of what training left: layers of a sweep, sizes of a distillation, checks of a graph."""

from collections.abc import Mapping, Sequence

from truncate_kit.export.record import ExportReport
from truncate_kit.methods.distill.result import (
    Agreement,
    DistillResult,
    Frontier,
    FrontierPoint,
    SubsetSearch,
    taught_by,
)
from truncate_kit.methods.tmft.result import SweepResult
from truncate_kit.report.measuring import view_export
from truncate_kit.wording import TableCells, counted, in_points, points


def sweep_table(result: SweepResult) -> TableCells:
    """One row for each of its `rows`."""
    cells = []
    for row in result.rows:
        which = " (chosen)" * (row.layer == result.chosen) + " (full model)" * (row.layer == result.full.layer)
        cells.append((f"{result.row_name(row.layer)}{which}", f"{row.parameters:,}", *row.cells))
    counts = f"{result.seeds_in_words}, {counted(result.training.epochs, 'epoch')}"
    return TableCells(
        f"{result.metric}; {counts}, peak learning rate {result.learning_rate:g}",
        ("layer", "parameters", "dev", "test", "test Pearson"),
        cells,
    )


def sizes_table(result: DistillResult) -> TableCells:
    """One row for each number of blocks, the full model last; speeds are factors, and texts a second in torch."""
    full = result.candidates[-1]
    return TableCells(
        f"The choice of blocks of each number by {result.metric}, which flatters what it chose; "
        f"{taught_by(result.settings)} has {result.full_score:.2f}"
        + ("" if result.needed is None else f", {result.needed:.2f} stands for {in_points(result.budget.points)} less")
        + f"; speed 1 is {full.texts_per_second:,.0f} texts a second in torch",
        ("blocks", "without training", "after learning", "agreement", "nearest", "speed", "MB", "result", "texts/s"),
        [
            (
                ", ".join(map(str, row.blocks)) + (" (full model)" if row is full else ""),
                f"{row.untrained:.2f}" + ("" if row.interval is None else " [{:.1f}, {:.1f}]".format(*row.interval)),
                points(row.learned),
                *_agreement(row.agreement),
                f"{row.texts_per_second / full.texts_per_second:.2f} ×",
                f"{row.megabytes:.1f}",
                "chosen" if row.blocks == result.chosen else "beaten" if row.dominated else "",
                f"{row.texts_per_second:,.0f}",
            )
            for row in result.candidates
        ],
    )


def _agreement(found: Agreement | None) -> tuple[str, str]:
    """The correlation with its interval, and the share of nearest texts in common."""
    if found is None:
        return "–", "–"
    return found.sentence, f"{found.overlap:.0f} %"


def rules_table(search: SubsetSearch, metric: str) -> TableCells:
    """One row for each number of blocks: the best subset without training, and what simpler rules keep."""
    return TableCells(
        f"Without training: the best choice of blocks by {metric}, and what simpler rules keep",
        ("blocks", "best", *(rule.replace("_", " ") for rule in search.baselines)),
        [
            (
                str(len(row.blocks)),
                f"{row.score:.2f}",
                *(points(search.simpler(rule, row)) for rule in search.baselines),
            )
            for row in search.best
        ],
    )


def frontier_table(
    frontier: Frontier, metric: str, taken: FrontierPoint | None = None, *, every: bool = False
) -> TableCells:
    """One row for each graph with its scores by dimensions, where no other point beats one of them; the full model's.

    Args:
        frontier: The points.
        metric: What scores are, in words.
        taken: The point that the budget takes, whose graph has a row.
        every: A row for each graph.
    """
    full = frontier.points[0]
    widths = sorted({one.dims for one in frontier.points}, reverse=True)
    graphs: dict[tuple[object, ...], dict[int, FrontierPoint]] = {}
    for one in frontier.points:
        graphs.setdefault(one.graph, {})[one.dims] = one
    kept = {one.graph for one in frontier.points if every or one in (full, taken) or not one.dominated}
    shown = [row for graph, row in graphs.items() if graph in kept]
    title = f"{'All' if every else f'{len(shown)} of'} {len(graphs)} graphs, with scores ({metric}) by dimensions"
    if any(one.dominated for row in shown for one in row.values()):
        title += "; in brackets: another one beats it in score, speed, size and dimensions together"
    if frontier.words is not None:
        title += f"; {frontier.covered:.1f} % of held-out texts need no further words"
    title += f"; speed 1 is {full.texts_per_second:,.0f} texts a second"
    return TableCells(
        title,
        ("blocks", "precision", "words", *(f"{dims} dims" for dims in widths), "speed", "MB", "result", "texts/s"),
        [_graph_row(row, widths, full, taken) for row in shown],
    )


def _graph_row(
    points: Mapping[int, FrontierPoint], widths: Sequence[int], full: FrontierPoint, taken: FrontierPoint | None
) -> tuple[str, ...]:
    graph = next(iter(points.values()))
    scores = {dims: f"({one.score:.2f})" if one.dominated else f"{one.score:.2f}" for dims, one in points.items()}
    return (
        ", ".join(map(str, graph.blocks)),
        graph.precision,
        f"{graph.words:,}",
        *(scores.get(dims, "–") for dims in widths),
        f"{graph.texts_per_second / full.texts_per_second:.2f} ×",
        f"{graph.megabytes:.1f}",
        f"chosen at {taken.dims}" if taken is not None and taken in points.values() else "",
        f"{graph.texts_per_second:,.0f}",
    )


def check_table(report: ExportReport) -> TableCells:
    """One row for each comparison of the graph with torch, and for its score where there is one."""
    (shown,) = view_export(report).tables
    return TableCells(shown.title, tuple(shown.columns), [tuple(map(str, row)) for row in shown.rows])
