"""A full model and a lean one on the same queries and documents, also lean queries on the full model's index."""

from dataclasses import dataclass, replace

from truncate_kit.data import RetrievalSet
from truncate_kit.errors import UsageError
from truncate_kit.evaluation.evaluating import TOP
from truncate_kit.evaluation.graded import TextEncoder, check_text_encoder
from truncate_kit.evaluation.scores import Estimate, Found, QueryScores, estimated, overlaps, score_queries
from truncate_kit.evaluation.searching import encode_set, search
from truncate_kit.progress import ProgressOption, reporter
from truncate_kit.results import Result
from truncate_kit.vectors import VectorFormat, VectorPrecision

PRECISIONS: tuple[VectorPrecision, ...] = ("float32", "int8")


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRow(Result):
    """One way to search, and how it differs from the full model alone in float32. Scores are means in points."""

    queries: str  # what encoded the queries: `full` or `lean`
    index: str  # what encoded the documents
    vectors: str  # the precision that both were stored in
    bytes_per_vector: int
    ndcg: float  # at the depth `top`, like all of these
    mrr: float
    recall: float
    overlap: float  # share of the documents that the full model finds that are found as well
    difference: Estimate | None  # of nDCG, by query and so a paired bootstrap; None of the full model itself


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalComparison(Result):
    """What a lean model finds, alone and with its queries on the full model's index."""

    full: str
    lean: str
    data: str  # name of the set and its split
    num_queries: int
    num_documents: int
    top: int  # documents that count for each query
    full_width: int
    lean_width: int
    rows: tuple[ComparisonRow, ...]
    notes: tuple[str, ...]  # which rows are left out, and why

    def row(self, queries: str, index: str, vectors: str = "float32") -> ComparisonRow | None:
        """The row of one way to search; None where it was left out."""
        wanted = (queries, index, vectors)
        return next((row for row in self.rows if (row.queries, row.index, row.vectors) == wanted), None)


def compare(
    full: TextEncoder,
    lean: TextEncoder,
    data: RetrievalSet,
    *,
    names: tuple[str, str] = ("full", "lean"),
    top: int = TOP,
    progress: ProgressOption = False,
) -> RetrievalComparison:
    """Search with the full model, the lean one, and lean queries on the full model's index; in float32 and in int8.

    A distilled cut gives vectors of the same space: what the full model has indexed need not be encoded again. Both
    sides of a search are stored in the same precision.

    Args:
        full: The model whose index there is.
        lean: A cut of it that learned to give its vectors.
        data: As `read_retrieval` gives it.
        names: Of both models in the result.
        top: Documents that count for each query.
        progress: True draws bars and logs; else what is called after each part of the texts.

    Raises:
        UsageError: Nothing is to be found, or what is given as a model cannot encode.
        ModelError: A model's measure is not known.
        DataError: Vectors are no numbers.
    """
    progress = reporter(progress)
    for name, model in (("full", full), ("lean", lean)):
        check_text_encoder(model, name)
    sides = {"full": encode_set(full, data, progress=progress), "lean": encode_set(lean, data, progress=progress)}
    ways, notes = _ways(sides["full"].width, sides["lean"].width)
    rows: list[ComparisonRow] = []
    best: tuple[Found, QueryScores] | None = None  # of the full model in float32, which comes first
    for precision in PRECISIONS:
        try:
            stored = {name: side.stored(VectorFormat(precision=precision)) for name, side in sides.items()}
        except UsageError as error:
            notes.append(f"{error} Its rows are left out.")
            continue
        for queries, index in ways:
            found = search(replace(stored[index], queries=stored[queries].queries), top=top, own=data.own_documents)
            scores = score_queries(found, data.relevance)
            best = best or (found, scores)
            rows.append(_row(queries, index, precision, sides[index].width, (found, scores), best))
    return RetrievalComparison(
        full=names[0],
        lean=names[1],
        data=data.name,
        num_queries=len(data.queries),
        num_documents=len(data.documents),
        top=top,
        full_width=sides["full"].width,
        lean_width=sides["lean"].width,
        rows=tuple(rows),
        notes=tuple(notes),
    )


def _row(
    queries: str,
    index: str,
    precision: VectorPrecision,
    width: int,
    own: tuple[Found, QueryScores],
    best: tuple[Found, QueryScores],
) -> ComparisonRow:
    found, scores = own
    return ComparisonRow(
        queries=queries,
        index=index,
        vectors=precision,
        bytes_per_vector=VectorFormat(precision=precision).bytes_per_vector(width),
        ndcg=float(scores.ndcg.mean()),
        mrr=float(scores.mrr.mean()),
        recall=float(scores.recall.mean()),
        overlap=float(overlaps(found, best[0]).mean()),
        difference=None if scores is best[1] else estimated(scores.ndcg - best[1].ndcg),
    )


def _ways(full_width: int, lean_width: int) -> tuple[list[tuple[str, str]], list[str]]:
    """What encodes queries and documents in each search, and why one of them is left out."""
    alone = [("full", "full"), ("lean", "lean")]
    if full_width == lean_width:
        return [*alone, ("lean", "full")], []
    return alone, [
        f"Lean queries have {lean_width} dimensions, the full model's index {full_width}: they cannot search it."
    ]
