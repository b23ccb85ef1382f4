"""The cells of retrieval scores; the command line draws them."""

from truncate_kit.evaluation.retrieval import RetrievalComparison, RetrievalScore
from truncate_kit.evaluation.searching import Estimate
from truncate_kit.wording import FEWEST_COMPARED_QUERIES, NONE, TableCells, counted, number, too_few

WAYS = {("full", "full"): "full", ("lean", "lean"): "lean", ("lean", "full"): "lean queries, full index"}


def search_table(score: RetrievalScore) -> TableCells:
    """One row: the scores of a model with their intervals; of few queries without."""
    top, few = score.top, score.num_queries < FEWEST_COMPARED_QUERIES
    return TableCells(
        f"{score.model} in {score.runtime}: {_searched(score)}, by {score.measure}, × 100",
        (f"nDCG@{top}", f"MRR@{top}", f"recall@{top}", "vectors", "dimensions", "bytes per vector"),
        [
            (
                *(
                    f"{one.value:.2f}" + ("" if few else f" ({one.low:.2f} to {one.high:.2f})")
                    for one in (score.ndcg, score.mrr, score.recall)
                ),
                score.vectors,
                f"{score.dimensions:,}",
                f"{score.bytes_per_vector:,}",
            )
        ],
    )


def search_sentences(score: RetrievalScore) -> list[str]:
    """Why there are no intervals, where there are none."""
    if score.num_queries >= FEWEST_COMPARED_QUERIES:
        return []
    queries = counted(score.num_queries, "query", "queries")
    return [f"{queries} {'is' if score.num_queries == 1 else 'are'} too few for an interval."]


def comparison_table(report: RetrievalComparison) -> TableCells:
    """One row for each way to search."""
    top = report.top
    return TableCells(
        f"{report.full} (full) and {report.lean} (lean): {_searched(report)}, × 100",
        ("search", "vectors", f"nDCG@{top}", f"MRR@{top}", f"recall@{top}", f"overlap@{top}", "nDCG less full"),
        [
            (
                WAYS[row.queries, row.index],
                row.vectors,
                *map(number, (row.ndcg, row.mrr, row.recall, row.overlap)),
                _interval(row.difference, alone=_too_few(report) is not None),
            )
            for row in report.rows
        ],
    )


def comparison_sentences(report: RetrievalComparison) -> list[str]:
    """What the table leaves out, and what may be read from it."""
    said = [
        f"Overlap: share of the {report.top} documents that the full model finds in float32. {_difference(report)}",
        *report.notes,
    ]
    mixed = report.row("lean", "full")
    if mixed is not None and mixed.difference is not None:
        by = mixed.difference
        verdict = "no difference shown" if by.low <= 0 <= by.high else "better" if by.low > 0 else "worse"
        # Of few queries the sentence on differences says that none is a verdict.
        end = "" if _too_few(report) else f", {verdict}"
        found = _interval(by, alone=_too_few(report) is not None)
        said.append(f"Lean queries on the full model's index: nDCG@{report.top} {found} points{end}.")
    return said


def _too_few(report: RetrievalComparison) -> str | None:
    return too_few(report.num_queries, "query", "queries")


def _difference(report: RetrievalComparison) -> str:
    if few := _too_few(report):
        return f"Difference: without an interval; {few}."
    queries = counted(report.num_queries, "query", "queries")
    return f"Difference: with the 95 % interval of a paired bootstrap over {queries}."


def _searched(result: RetrievalScore | RetrievalComparison) -> str:
    queries = counted(result.num_queries, "query", "queries")
    return f"{queries} of {result.data} among {counted(result.num_documents, 'document')}"


def _interval(found: Estimate | None, *, alone: bool) -> str:
    """The difference, alone or with its interval."""
    if found is None:
        return NONE
    return f"{found.value:+.2f}" + ("" if alone else f" ({found.low:+.2f} to {found.high:+.2f})")
