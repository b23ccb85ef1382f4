"""The cells of the suites' tables; the command line draws them."""

from collections import Counter
from collections.abc import Callable
from itertools import chain
from typing import Any

from truncate_kit.report.cells import NONE, TableCells, number
from truncate_kit.results import Result
from truncate_kit.suites.reports import RetrievalReport, StsReport, TransferPoint, TransferReport, TransferScore
from truncate_kit.wording import counted


def sts_table(report: StsReport) -> TableCells:
    """One row per set and one for the mean; two more columns where it is known what the model has seen."""
    columns: tuple[str, ...] = ("set", "pairs", "Spearman", "Pearson")
    rows = [(row.name, f"{row.num_pairs:,}", number(row.spearman), number(row.pearson)) for row in report.sets]
    rows.append((f"mean of {len(rows)}", "", number(report.mean_spearman), ""))
    cells: list[tuple[str, ...]] = list(rows)
    if report.seen is not None:
        columns += ("unseen pairs", "Spearman unseen")
        more = [(f"{row.unseen_pairs or 0:,}", number(row.unseen_spearman)) for row in report.sets]
        cells = [(*row, *extra) for row, extra in zip(rows, (*more, ("", number(report.mean_unseen))), strict=True)]
    return TableCells(f"{report.model} in {report.runtime}: semantic similarity × 100", columns, cells)


def transfer_table(report: TransferReport) -> TableCells:
    """One row per set and share of the training rows, and one for the means."""
    layered = report.num_subsets > 0
    columns: tuple[str, ...] = ("set", "rows to train on", "classes", "most frequent", "as it is")
    if layered:
        columns += ("last layer", "layers combined", "fewer errors %", "layers chosen most often")
    rows = [_transfer_row(score, point, layered) for score in report.sets for point in score.curve]
    mean: tuple[str, ...] = (f"mean of {len(report.sets)}", "", "", "", number(report.mean_as_is))
    if layered:
        mean += (number(report.mean_last), number(report.mean_combined))
        mean += (number(report.mean_relative_error_reduction, "+.1f"), "")
    title = (
        f"{report.model} in {report.runtime}: accuracy × 100 of logistic regression, {report.settings.splits} splits"
    )
    return TableCells(title, columns, [*rows, mean])


def _transfer_row(score: TransferScore, point: TransferPoint, layered: bool) -> tuple[str, ...]:
    known = (score.name, f"{point.train_rows:,}", str(score.num_classes))
    row = (*known, number(score.majority), number(point.mean_as_is))
    if not layered:
        return row
    counts = Counter(chain.from_iterable(point.chosen or ()))
    often = [layer for layer, count in sorted(counts.items()) if count * 2 >= len(point.chosen or ())]
    return (
        *row,
        number(point.mean_last),
        number(point.mean_combined),
        number(point.relative_error_reduction, "+.1f"),
        " ".join(map(str, often)) or NONE,
    )


def transfer_sentences(report: TransferReport) -> list[str]:
    """How the table came about, for whoever reads it alone."""
    settings = report.settings
    sentences = [
        f"Each split tests on {settings.test_share:.0%} of the rows and trains on the rest; scikit-learn, SAGA, "
        f"C = {settings.penalty:g}, tolerance {settings.tolerance:g}, at most {settings.iterations} iterations."
    ]
    if report.num_subsets:
        sentences.append(
            f"Layers were chosen inside the training part: {report.num_subsets:,} subsets of up to "
            f"{settings.max_layers} layers ranked by closed-form ridge classifiers over {settings.inner_splits} "
            f"divisions that hold out {settings.inner_share:.0%}, the {settings.finalists} best by exact fits. "
            "Fewer errors: of the combination against the last layer."
        )
    sentences += [
        f"{score.name}: {score.repeated_rows:,} of {score.num_rows:,} rows repeat a text, so splits share some."
        for score in report.sets
        if score.repeated_rows * 100 >= score.num_rows
    ]
    sentences += [
        f"{score.name}, {point.train_rows:,} rows: too few for every class to keep its share of each division."
        for score in report.sets
        for point in score.curve
        if not point.by_class
    ]
    if settings.max_rows is not None:
        sentences.append(f"Of each set at most {settings.max_rows:,} rows were used: not comparable with other runs.")
    return [*sentences, f"Took {report.seconds:.0f} s."]


def retrieval_table(report: RetrievalReport) -> TableCells:
    """The index beside the exact search."""
    return TableCells(
        f"{report.model} in {report.runtime}: {counted(report.num_queries, 'query', 'queries')} of {report.data} "
        f"among {counted(report.num_texts, 'text')}",
        ("search", "MRR@10 × 100", "ms per query", "index MiB"),
        [
            (
                f"IVF, {counted(report.lists, 'list')}, {report.probes} searched",
                number(report.mrr),
                f"{report.search_seconds * 1e3:.3f}",
                f"{report.index_bytes / 2**20:.1f}",
            ),
            (
                "exact",
                number(report.exact_mrr),
                f"{report.exact_seconds * 1e3:.3f}",
                f"{report.exact_bytes / 2**20:.1f}",
            ),
        ],
    )


def retrieval_sentences(report: RetrievalReport, wanted_lists: int) -> list[str]:
    """What the table leaves out."""
    sentences = [
        f"Times are medians, one query at a time on {counted(report.threads, 'CPU thread')}; encoding "
        f"a query takes {report.encode_seconds * 1e3:.2f} ms more. The index was built in {report.build_seconds:.1f} s."
    ]
    if report.lists < wanted_lists:
        sentences.append(
            f"{counted(report.lists, 'list')} instead of {wanted_lists:,}: "
            f"{counted(report.num_texts, 'text')} cannot place more."
        )
    return sentences


Shown = tuple[type[Result], Callable[[Any], TableCells]]  # what a suite writes, and its table

SUITE_TABLES: dict[str, Shown] = {
    "sts": (StsReport, sts_table),
    "transfer": (TransferReport, transfer_table),
    "retrieval": (RetrievalReport, retrieval_table),
}
