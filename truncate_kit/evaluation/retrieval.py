"""Retrieval: how well a model searches a set, alone, beside the model it was cut from, and with an index of FAISS."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from truncate_kit.core.errors import UsageError, require
from truncate_kit.core.hardware import check_threads
from truncate_kit.core.origin import read_origin
from truncate_kit.core.progress import ProgressOption, reporter, silent
from truncate_kit.core.results import Amounts, Result
from truncate_kit.core.settings import Bounds, check_number
from truncate_kit.core.vectors import VectorFormat, VectorPrecision
from truncate_kit.core.wording import longer_texts
from truncate_kit.data.retrieval import RetrievalSet, read_retrieval
from truncate_kit.data.seen import seen_among
from truncate_kit.evaluation.searching import (
    QUERY_PROMPTS,
    TOP,
    Estimate,
    Found,
    QueryScores,
    encode_prompted,
    encode_set,
    encode_sides,
    estimated,
    found_places,
    overlaps,
    score_queries,
    search,
    side_prompt,
)
from truncate_kit.evaluation.suite import SuiteReport, SuiteRun, TextEncoder

PRECISIONS: tuple[VectorPrecision, ...] = ("float32", "int8")
_LISTS = Bounds(1, 1_000_000)
LISTS = 1024
PROBES = 16
TEXTS_PER_LIST = 39  # fewer training points per list than this make FAISS warn that the lists are badly placed
TIMED_QUERIES = 200
SAMPLED = 10_000  # texts, to know how long the others are


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalScore(Result):
    """How one model searches one set, all documents compared with each query."""

    model: str
    runtime: str  # `torch` or `onnx`
    data: str  # name of the set and its split
    num_queries: int  # that have an answer
    num_documents: int
    top: int  # documents that count for each query
    measure: str  # how vectors are compared, as the model's settings say
    ndcg: Estimate  # nDCG@top with the grade as gain, see `QueryScores`
    mrr: Estimate
    recall: Estimate
    vectors: str  # the precision that both sides were stored in before
    dimensions: int  # what was left of each vector
    bytes_per_vector: int


def evaluate_retrieval(
    encoder: TextEncoder,
    data: RetrievalSet,
    *,
    model: str,
    runtime: str = "torch",
    top: int = TOP,
    form: VectorFormat | None = None,
    progress: ProgressOption = False,
) -> RetrievalScore:
    """Search all documents for each query, exactly; nDCG, MRR and recall of the first `top`, with intervals.

    Args:
        encoder: Whatever has `.encode(texts)`; its prompts for queries and documents are used.
        data: As `read_retrieval` gives it.
        model: Its name in the result.
        runtime: What encodes, for the result.
        top: Documents that count for each query.
        form: How vectors are stored; None is as they come.
        progress: True draws bars and logs; else what is called after each part of the texts.

    Raises:
        UsageError: Nothing is to be found, or `form` does not keep what the model compares.
        ModelError: The model's measure is not known.
        DataError: Vectors are no numbers.
    """
    progress = reporter(progress)
    form = form or VectorFormat()
    vectors = encode_set(encoder, data, progress=progress)
    stored = vectors.stored(form)
    scores = score_queries(search(stored, top=top, own=data.own_documents), data.relevance)
    return RetrievalScore(
        model=model,
        runtime=runtime,
        data=data.name,
        num_queries=len(data.queries),
        num_documents=len(data.documents),
        top=int(top),
        measure=stored.measure,
        ndcg=estimated(scores["ndcg"]),
        mrr=estimated(scores["mrr"]),
        recall=estimated(scores["recall"]),
        vectors=form.precision,
        dimensions=form.kept(vectors.width),
        bytes_per_vector=form.bytes_per_vector(vectors.width),
    )


def note_of_searched(model: str, encoder: TextEncoder, data: RetrievalSet) -> tuple[str, ...]:
    """Return `longer_texts` of a set that a distilled model searches, by some of its texts; nothing of other models.

    Args:
        model: Its folder, or a graph in it.
        encoder: What was read there.
        data: The set.
    """
    origin, reader = read_origin(model), getattr(encoder, "reader", None)
    if origin is None or origin.long is None or reader is None:
        return ()
    texts = [*data.queries, *data.documents]
    long = np.quantile([len(row) for row in reader.token_ids(texts[:: 1 + len(texts) // SAMPLED])], 0.95)
    return longer_texts(data.name, int(long), origin.long)


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
        """Return the row of one way to search; None where it was left out."""
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
        UsageError: Nothing is to be found.
        ModelError: A model's measure is not known.
        DataError: Vectors are no numbers.
    """
    progress = reporter(progress)
    sides = {"full": encode_set(full, data, progress=progress), "lean": encode_set(lean, data, progress=progress)}
    widths = {name: side.width for name, side in sides.items()}
    ways, notes = [("full", "full"), ("lean", "lean"), ("lean", "full")], list[str]()
    if widths["full"] != widths["lean"]:
        ways.pop()
        notes.append(
            f"Lean queries have {widths['lean']} dimensions, the full model's index {widths['full']}: they cannot "
            "search it."
        )
    rows: list[ComparisonRow] = []
    best: tuple[Found, QueryScores] | None = None  # of the full model in float32, which comes first
    for precision in PRECISIONS:
        form = VectorFormat(precision=precision)
        try:
            stored = {name: side.stored(form) for name, side in sides.items()}
        except UsageError as error:
            notes.append(f"{error} Its rows are left out.")
            continue
        for queries, index in ways:
            found = search(replace(stored[index], queries=stored[queries].queries), top=top, own=data.own_documents)
            scores = score_queries(found, data.relevance)
            best = best or (found, scores)
            rows.append(
                ComparisonRow(
                    queries=queries,
                    index=index,
                    vectors=precision,
                    bytes_per_vector=form.bytes_per_vector(widths[index]),
                    ndcg=float(scores["ndcg"].mean()),
                    mrr=float(scores["mrr"].mean()),
                    recall=float(scores["recall"].mean()),
                    overlap=float(overlaps(found, best[0]).mean()),
                    difference=None if scores is best[1] else estimated(scores["ndcg"] - best[1]["ndcg"]),
                )
            )
    return RetrievalComparison(
        full=names[0],
        lean=names[1],
        data=data.name,
        num_queries=len(data.queries),
        num_documents=len(data.documents),
        top=top,
        full_width=widths["full"],
        lean_width=widths["lean"],
        rows=tuple(rows),
        notes=tuple(notes),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalReport(SuiteReport):
    """Finding the relevant texts of queries by cosine similarity, with the index and exactly.

    Times are medians for one query at a time on `threads` threads.
    """

    runtime: str  # `torch`, `onnx`, or what else encoded
    data: str
    num_queries: int
    num_texts: int
    width: int  # numbers of a vector
    lists: int
    probes: int  # lists searched for each query
    mrr: float  # mean reciprocal rank × 100 of the first relevant text among ten (0 where none is), with the index
    exact_mrr: float  # the same with all texts compared
    encode_seconds: float  # to encode a query
    search_seconds: float  # to search with the index
    exact_seconds: float  # to compare with all texts
    index_bytes: int  # the whole index, vectors included
    exact_bytes: int  # all vectors in one list
    build_seconds: float  # to train and fill the index
    threads: int

    def amounts(self) -> Iterator[Amounts]:
        """Yield queries and texts of the data."""
        yield (self.data,), (self.num_queries, self.num_texts)


def fitting_lists(num_texts: int, wanted: int = LISTS) -> int:
    """Return the number of lists for an index of that many texts: as wanted, or fewer that enough texts fill."""
    return max(1, min(wanted, num_texts // TEXTS_PER_LIST))


def run_retrieval(run: SuiteRun) -> RetrievalReport:
    """Search the answers of a file for its queries; option: `corpus`, a file of more texts to search."""
    data = read_retrieval(run.data, corpus=run.options["corpus"])
    if chosen_here := seen_among(data, run.model):
        run.note(chosen_here)
    return score_retrieval(
        run.encoder, data, model=run.model, runtime=run.runtime, threads=run.threads or 1, progress=run.progress
    )


def score_retrieval(
    encoder: TextEncoder,
    data: RetrievalSet,
    *,
    model: str,
    runtime: str = "torch",
    lists: int = LISTS,
    probes: int = PROBES,
    threads: int = 1,
    progress: ProgressOption = False,
) -> RetrievalReport:
    """Search all texts for each query by cosine similarity, through an IVF index on the CPU and exactly.

    A query that is itself among the texts is not found by itself.

    Args:
        encoder: Whatever has `.encode(texts)`.
        data: As `read_retrieval` gives it.
        model: Its name in the report.
        runtime: What encodes, for the report.
        lists: Largest number of lists; see `fitting_lists`.
        probes: Number of lists searched for each query.
        threads: For searching.
        progress: True draws bars and logs; else what is called after each part of the texts.

    Raises:
        MissingExtraError: FAISS is not installed.
        UsageError: No lists, probes or threads.
    """
    lists, probes = check_number("lists", lists, _LISTS), check_number("probes", probes, _LISTS)
    threads = check_threads(threads)
    faiss = require("faiss", extra="search")
    sides = encode_sides(encoder, data.queries, data.documents, reporter(progress))
    queries, texts = (torch.nn.functional.normalize(side).numpy() for side in sides)
    width = texts.shape[1]
    faiss.omp_set_num_threads(threads)
    (exact := faiss.IndexFlatIP(width)).add(texts)
    begin = time.perf_counter()
    lists = fitting_lists(len(texts), lists)
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(width), width, lists, faiss.METRIC_INNER_PRODUCT)
    index.cp.min_points_per_centroid = 1  # below 39 it warns on standard error
    index.train(texts)
    index.add(texts)
    index.nprobe = min(probes, lists)
    built = time.perf_counter()
    prompt = side_prompt(encoder, QUERY_PROMPTS)
    some = range(0, len(queries), max(1, len(queries) // TIMED_QUERIES))

    def reciprocal_rank(one: Any) -> float:
        places = torch.from_numpy(one.search(queries, TOP + 1)[1])
        return float(score_queries(found_places(places, top=TOP, own=data.own_documents), data.relevance)["mrr"].mean())

    return RetrievalReport(
        model=model,
        runtime=runtime,
        data=data.name,
        num_queries=len(queries),
        num_texts=len(texts),
        width=width,
        lists=lists,
        probes=index.nprobe,
        mrr=reciprocal_rank(index),
        exact_mrr=reciprocal_rank(exact),
        encode_seconds=_median_seconds(lambda row: encode_prompted(encoder, prompt, [data.queries[row]], silent), some),
        search_seconds=_median_seconds(lambda row: index.search(queries[row : row + 1], TOP + 1), some),
        exact_seconds=_median_seconds(lambda row: exact.search(queries[row : row + 1], TOP + 1), some),
        index_bytes=len(faiss.serialize_index(index)),
        exact_bytes=len(faiss.serialize_index(exact)),
        build_seconds=built - begin,
        threads=threads,
    )


def _median_seconds(call: Callable[[int], object], rows: Sequence[int]) -> float:
    """Return the median seconds of one call per row, after a first one that is not counted."""
    call(rows[0])
    seconds = []
    for row in rows:
        begin = time.perf_counter()
        call(row)
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)
