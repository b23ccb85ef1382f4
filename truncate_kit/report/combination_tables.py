"""The cells of the tables of layer combinations; the command line and the page draw them."""

from truncate_kit.methods.bert_lc.result import CombinationReport
from truncate_kit.statistics import Span
from truncate_kit.wording import TableCells, points


def scores_table(report: CombinationReport, title: str) -> TableCells:
    """The best combination, then what no search is needed for."""
    names = [row.name for row in report.splits[0].baselines]
    rows = [("best combination", _points(report.best("dev")), _points(report.best("test")))]
    rows += [(name, _points(report.baseline(name, "dev")), _points(report.baseline(name, "test"))) for name in names]
    return TableCells(title, ("vectors", "dev", "test"), rows)


def best_of_sizes_table(report: CombinationReport, *, with_layers: bool) -> TableCells:
    """One row for each number of layers.

    Args:
        report: What is shown.
        with_layers: And the layers that the first split takes.
    """
    found = [(size, row) for size, row in enumerate(report.splits[0].by_size, 1) if row is not None]
    return TableCells(
        "The best of each size",
        ("layers", "dev", "test", *(["first split's"] * with_layers)),
        [
            (
                str(size),
                _points(report.size(size, "dev")),
                _points(report.size(size, "test")),
                *([", ".join(map(str, row.layers))] * with_layers),
            )
            for size, row in found
        ],
    )


def effects_table(report: CombinationReport) -> TableCells:
    """What leaving out each layer changes."""
    rows = [(str(effect.layer), f"{effect.dev:+.2f}", f"{effect.test:+.2f}") for effect in report.effects()]
    return TableCells("Without a layer: change of the best, in points", ("layer", "dev", "test"), rows)


def _points(span: Span | None) -> str:
    return points(None) if span is None else points(span.mean, span.std)
