"""The cells of the tables of frozen heads; the command line draws them."""

from truncate_kit.methods.frozen.settings import FrozenReport
from truncate_kit.wording import TableCells, counted, points

_LONGEST = 60  # characters of a sentence in a table


def step_table(report: FrozenReport) -> tuple[TableCells, int]:
    """One row per step and number of blocks, before them the best plain block; and the place of the chosen row."""
    known = [(score, block) for block, score in enumerate(report.states, 1) if score is not None]
    rows: list[tuple[str, ...]] = []
    for name, (score, block) in (("the last one", known[-1]), ("best on test", max(known))) if known else ():
        rows.append((f"states of block {block} as they are, {name}", "1", "0", "–", points(score, None), "–"))
    chosen = len(rows) + report.groups.index((report.chosen_step, report.chosen_layer))
    for step, layer in report.groups:
        spans = [report.score(step, layer, measure) for measure in ("dev", "test", "test_pearson")]
        trained = f"{report.of(step, layer)[0].parameters:,}"
        rows.append((step, str(layer), trained, *(points(span.mean, span.std) for span in spans)))
    title = f"{report.model} on {report.data}: Spearman × 100, {counted(report.num_seeds, 'seed')}"
    return TableCells(title, ("heads", "blocks", "trained", "dev", "test", "test Pearson"), rows), chosen


def worst_table(report: FrozenReport) -> TableCells:
    """The test pairs on which the saved model errs most."""
    rows: list[tuple[str, ...]] = []
    for pair in report.worst:
        numbers = f"{pair.target:.2f}", f"{pair.predicted:.2f}", f"{pair.error:+.2f}"
        rows.append((f"{_cut(pair.first)} | {_cut(pair.second)}", *numbers))
    return TableCells(
        "Largest errors on test, from 0 to 1; the mean difference on dev is taken off",
        ("pair", "score", "predicted", "error"),
        rows,
    )


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
