"""Search exactly or with a FAISS index, and score retrieval by one or two models."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from timeit import timeit
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from truncate_kit.core.errors import UsageError, counted, longer_texts, require
from truncate_kit.core.hardware import check_threads
from truncate_kit.core.progress import Progress, ProgressOption, reporter, silent
from truncate_kit.core.results import COUNT, SEARCH_METRICS, SearchMetric, check_number
from truncate_kit.core.vectors import (
    FEWEST_DIFFERING,
    RESAMPLES,
    TextEncoder,
    VectorFormat,
    VectorPrecision,
    changed_queries,
    draws,
    interval,
    too_few,
)
from truncate_kit.core.workspace import read_origin
from truncate_kit.data.retrieval import RetrievalSet, read_retrieval
from truncate_kit.data.seen import seen_among
from truncate_kit.evaluation import Score, SuiteReport, Values, report_of
from truncate_kit.evaluation.graded import MEASURES, encode_distinct, measure_of
from truncate_kit.models.encoder import DOCUMENT_PROMPTS, QUERY_PROMPTS, side_prompt

Places = NDArray[np.int64]  # document indices (queries, top), best first, padded with −1
Array = NDArray[np.float64]
EncodedSet = tuple[Tensor, Tensor, str]  # float32 vectors of queries (q, d) and documents (n, d), and their measure
Best = tuple[Tensor, Tensor]  # similarities and document indices, (queries, ≤ top + 1), best first
QueryScores = dict[SearchMetric, Array]  # by metric, (queries,)
Reader = Callable[[Sequence[str]], Tensor]  # states of all layers, (L', n, d)
TOP = 10
DOCUMENTS_AT_A_TIME = 4_096  # 160 MB for 13 layers of width 768
# A block has 64 MiB of similarities, 128 MiB during computation in float64.
QUERY_BLOCK = 512
DOCUMENT_BLOCK = 32_768
PRECISIONS: tuple[VectorPrecision, ...] = ("float32", "int8")
WAYS = {"full": ("full", "full"), "lean": ("lean", "lean"), "lean queries, full index": ("lean", "full")}
LISTS = 1024
PROBES = 16
TEXTS_PER_LIST = 39  # with fewer training points per list, FAISS warns
TIMED_QUERIES = 200
SAMPLED = 10_000  # maximum of texts to tokenize for their lengths


# Search


def encode_prompted(encoder: TextEncoder, prompt: str | None, texts: Sequence[str], progress: Progress) -> Tensor:
    """Encode texts with a prompt (None: the model's default prompt), each distinct text once."""
    distinct = list(dict.fromkeys(texts))
    place = {text: index for index, text in enumerate(distinct)}
    return encode_distinct(encoder, distinct, progress, prompt)[[place[text] for text in texts]]


def store_set(queries: Tensor, documents: Tensor, measure: str, form: VectorFormat) -> EncodedSet:
    """Return query and document vectors as read back from the format `form`, and their measure.

    Unit vectors are normalized again after a cut. Raises `UsageError` if the measure needs lengths, which int8, binary
    and `normalize` lose.
    """
    width = documents.shape[1]
    unit = all(bool((side.norm(dim=1) - 1).abs().max() < 1e-3) for side in (queries, documents))
    if unit and form.kept(width) < width:
        form = replace(form, normalize=True)  # as `encode_file` writes them
    if measure != "cosine" and (form.normalize or form.precision in ("int8", "binary")):
        if measure == "manhattan" or not unit:
            raise UsageError(
                f"This model compares vectors by {measure}, which depends on vector lengths; this format changes them.",
                hint='Use `precision="float32"` or `precision="float16"`, and `normalize=False`.',
            )
        measure = "cosine"
    return form.numbers(form.store(queries), width), form.numbers(form.store(documents), width), measure


def encode_set(encoder: TextEncoder, data: RetrievalSet, progress: Progress) -> EncodedSet:
    """Encode queries and documents with the model's prompts for each."""
    measure = measure_of(encoder)
    asked, searched = side_prompt(encoder, QUERY_PROMPTS), side_prompt(encoder, DOCUMENT_PROMPTS)
    if asked == searched:
        both = encode_prompted(encoder, asked, (*data.queries, *data.documents), progress)
        queries, documents = both[: len(data.queries)], both[len(data.queries) :]
    else:
        queries = encode_prompted(encoder, asked, data.queries, progress)
        documents = encode_prompted(encoder, searched, data.documents, progress)
    return queries, documents, measure


def compared(measure: str, queries: Tensor, documents: Tensor) -> Tensor:
    """Return similarities (q, n) of queries (q, d) and documents (n, d); equal documents get equal similarities.

    Products are computed in float64: the last digit of float32 products depends on a column's position.
    """
    return MEASURES[measure](queries.double(), documents.double()).float()


def search(
    queries: Tensor, documents: Tensor, measure: str, *, top: int, own: Sequence[int | None] | None = None
) -> Places:
    """Find the `top` most similar documents (n, d) of each query (q, d), best first; ties keep document order.

    own: per query, the index of a document to skip. Raises `UsageError` for `top` below 1.
    """
    top = check_number("top", top, COUNT)
    places = []
    for start in range(0, len(queries), QUERY_BLOCK):
        asked = queries[start : start + QUERY_BLOCK]
        best = _no_documents(len(asked))
        for first in range(0, len(documents), DOCUMENT_BLOCK):
            best = _nearest(best, compared(measure, asked, documents[first : first + DOCUMENT_BLOCK]), first, top)
        places.append(best[1])
    return without_own(torch.cat(places), top=top, own=own)


def _no_documents(num_queries: int) -> Best:
    return torch.empty(num_queries, 0), torch.empty(num_queries, 0, dtype=torch.long)


def _nearest(best: Best, scores: Tensor, first: int, top: int) -> Best:
    """Update the `top` + 1 best documents of each query; one of these may be the query's own document.

    scores: similarities (q, n) of documents from index `first` on.
    """
    values, indices = scores.topk(min(top + 1, scores.shape[1]), dim=1)
    tied = (scores == values[:, -1:]).sum(dim=1) > (values == values[:, -1:]).sum(dim=1)
    if tied.any():  # `topk` breaks ties arbitrarily; a second `topk`, by index, selects the first of the tied documents
        rows, last, places = scores[tied], values[tied, -1:], torch.arange(scores.shape[1], dtype=torch.float32)
        keys = (-places).where(rows == last, -torch.inf).masked_fill(rows > last, 1)
        indices[tied] = keys.topk(values.shape[1], dim=1).indices
    indices = indices.sort(dim=1).values
    values = torch.cat([best[0], scores.gather(1, indices)], 1)
    places = torch.cat([best[1], indices + first], 1)
    order = values.argsort(dim=1, descending=True, stable=True)[:, : top + 1]
    return values.gather(1, order), places.gather(1, order)


def without_own(places: Tensor, *, top: int, own: Sequence[int | None] | None) -> Places:
    """Return the first `top` indices of each row (q, n), skipping the document `own` of each query."""
    others = np.full((len(places), top), -1, np.int64)
    for number, row in enumerate(places.tolist()):
        kept = [place for place in row if own is None or place != own[number]][:top]
        others[number, : len(kept)] = kept
    return others


def score_queries(places: Places, relevance: Sequence[Mapping[int, float]]) -> QueryScores:
    """Score each query at the depth of `places`, in points (× 100).

    relevance: grades above 0 by document index.
    ndcg: `ndcg_cut` of trec_eval, as in BEIR (Järvelin and Kekäläinen 2002): gain = grade, discount log₂(rank + 1).
    mrr: 1 / rank of the first relevant document, else 0. recall: share of the relevant documents.
    """
    top = places.shape[1]
    discounts = 1 / np.log2(np.arange(2, top + 2))
    rows = zip(places.tolist(), relevance, strict=True)
    gains = np.array([[grades.get(place, 0.0) for place in row] for row, grades in rows])
    best = np.zeros_like(gains)
    for row, grades in zip(best, relevance, strict=True):
        ideal = sorted(grades.values(), reverse=True)[:top]
        row[: len(ideal)] = ideal
    hits = gains > 0
    first = np.where(hits.any(axis=1), 1 / (hits.argmax(axis=1) + 1), 0.0)
    return {
        "ndcg": 100 * (gains @ discounts) / (best @ discounts),
        "mrr": 100 * first,
        "recall": 100 * hits.sum(axis=1) / np.array([len(grades) for grades in relevance]),
    }


def overlaps(places: Places, others: Places) -> Array:
    """Return for each query the percentage of the documents in `others` that are also in `places`."""
    pairs = zip(places.tolist(), ({*row} - {-1} for row in others.tolist()), strict=True)
    return np.array([100 * len({*row} & other) / max(1, len(other)) for row, other in pairs])


def estimated(values: Array, *, seed: int = 0) -> tuple[float, tuple[float, float]]:
    """Return the mean over queries and its 95 % bootstrap percentile interval (paired, if values are differences)."""
    return float(values.mean()), interval([values[drawn].mean() for drawn in draws(len(values), RESAMPLES, seed)])


def search_layers(data: RetrievalSet, read_queries: Reader, read_documents: Reader) -> list[QueryScores]:
    """Score each layer's vectors in search by cosine similarity, at depth `TOP`."""
    queries = read_queries(data.queries)
    nearest = [_no_documents(len(data.queries)) for _ in queries]
    for first in range(0, len(data.documents), DOCUMENTS_AT_A_TIME):
        documents = read_documents(data.documents[first : first + DOCUMENTS_AT_A_TIME])
        for layer, best in enumerate(nearest):
            nearest[layer] = _nearest(best, compared("cosine", queries[layer], documents[layer]), first, TOP)
    places = (without_own(places, top=TOP, own=data.own_documents) for _, places in nearest)
    return [score_queries(layer, data.relevance) for layer in places]


# Reports


def evaluate_retrieval(
    encoder: TextEncoder,
    data: RetrievalSet,
    *,
    model: str,
    top: int = TOP,
    form: VectorFormat | None = None,
    progress: ProgressOption = False,
) -> SuiteReport:
    """Search all documents for each query, exactly; report nDCG, MRR and recall of the first `top`, with intervals.

    model: Name in the report.
    form: Storage format of the vectors, by default float32.

    Raises:
        UsageError: `top` is out of bounds, or `form` drops vector norms the measure needs.
    """
    form = form or VectorFormat()
    encoded = encode_set(encoder, data, reporter(progress))
    width, stored = encoded[1].shape[1], store_set(*encoded, form)
    scores = score_queries(search(*stored, top=top, own=data.own_documents), data.relevance)
    estimates = {_heading(metric, top): estimated(values) for metric, values in scores.items()}
    few = too_few(len(data.queries), "query", "queries")
    values: Values = {heading: value for heading, (value, _) in estimates.items()}
    values |= {"dimensions": form.kept(width), "bytes per vector": form.bytes_per_vector(width)}
    intervals = {} if few else {heading: ends for heading, (_, ends) in estimates.items()}
    size = (len(data.queries), len(data.documents))
    row = Score(task=data.name, labels={"vectors": form.precision}, values=values, intervals=intervals, size=size)
    notes = [f"{counted(len(data.queries), 'query', 'queries')}: too few for an interval."] if few else []
    return report_of("search", encoder, model, f"{_description(data)}, by {stored[-1]}, × 100", [row], notes)


def _heading(metric: SearchMetric, top: int) -> str:
    return f"{SEARCH_METRICS[metric].removesuffix('10')}{top}"


def _description(data: RetrievalSet) -> str:
    queries = counted(len(data.queries), "query", "queries")
    return f"{queries} of {data.name} among {counted(len(data.documents), 'document')}"


def note_of_searched(model: str, encoder: TextEncoder, data: RetrievalSet) -> tuple[str, ...]:
    """Return a note if a distilled model (folder or graph) is evaluated on texts longer than its training texts."""
    origin, reader = read_origin(model), getattr(encoder, "reader", None)
    if origin is None or origin.long is None or reader is None:
        return ()
    texts = [*data.queries, *data.documents]
    long = np.quantile([len(row) for row in reader.token_ids(texts[:: 1 + len(texts) // SAMPLED])], 0.95)
    return longer_texts(data.name, int(long), origin.long)


def compare(
    full: TextEncoder,
    lean: TextEncoder,
    data: RetrievalSet,
    *,
    names: tuple[str, str] = ("full", "lean"),
    top: int = TOP,
    progress: ProgressOption = False,
) -> SuiteReport:
    """Compare search by the full model, by the lean model, and by lean queries on the full model's index.

    Vectors are float32 and int8.

    lean: A truncated model, distilled on the full model's vectors.
    """
    progress = reporter(progress)
    sides = {"full": encode_set(full, data, progress), "lean": encode_set(lean, data, progress)}
    widths = {name: documents.shape[1] for name, (_, documents, _) in sides.items()}
    notes = [f"Overlap: share of the full model's first {top} documents (float32) that the search also found."]
    ways = dict(WAYS)
    if widths["full"] != widths["lean"]:
        del ways["lean queries, full index"]
        notes.append(
            f"Lean queries have {widths['lean']} dimensions, the full model's index {widths['full']}: lean "
            "queries cannot search this index."
        )
    rows, best, size = list[Score](), None, (len(data.queries), len(data.documents))
    for precision in PRECISIONS:
        form = VectorFormat(precision=precision)
        try:
            stored = {name: store_set(*side, form) for name, side in sides.items()}
        except UsageError as error:
            notes.append(f"{precision} is skipped. {error}")
            continue
        for way, (queries, index) in ways.items():
            places = search(stored[queries][0], *stored[index][1:], top=top, own=data.own_documents)
            scores = score_queries(places, data.relevance)
            best = best or (places, scores)  # the first search is the reference: full model, float32
            values: Values = {_heading(name, top): float(each.mean()) for name, each in scores.items()}
            values |= {f"overlap@{top}": float(overlaps(places, best[0]).mean()), "nDCG less full": None}
            intervals = {}
            if scores is not best[1]:
                differences = scores["ndcg"] - best[1]["ndcg"]
                changed = changed_queries(differences)
                values["nDCG less full"], ends = estimated(differences)
                few = too_few(size[0], "query", "queries", changed)
                if few is None:
                    intervals["nDCG less full"] = ends
                if (way, precision) == ("lean queries, full index", "float32"):
                    shown = "better" if ends[0] > 0 else "worse" if ends[1] < 0 else "no difference shown"
                    found = f"{sum(changed):,} of {size[0]:,} queries differ: {shown} (95 % interval of nDCG@{top} "
                    found = few or f"{found}{ends[0]:+.1f} to {ends[1]:+.1f})"
                    notes.append(f"Lean queries on the full model's index: {found}.")
            values["bytes per vector"] = form.bytes_per_vector(widths[index])
            labels = {"search": way, "vectors": precision}
            rows.append(Score(task=data.name, labels=labels, values=values, intervals=intervals, size=size))
    if any(row.values["nDCG less full"] is not None and not row.intervals for row in rows):
        notes.append(f"A difference has no interval if fewer than {FEWEST_DIFFERING} queries differ.")
    return SuiteReport(
        suite="comparison",
        model=names[1],
        runtime="torch",
        title=f"{names[0]} (full) and {names[1]} (lean): {_description(data)}, × 100",
        rows=tuple(rows),
        notes=tuple(notes),
    )


def run_retrieval(encoder: TextEncoder, data: str, *, corpus: str | None, model: str, **run: Any) -> SuiteReport:
    """Score search for the queries of `data` among its documents and the texts of `corpus`."""
    searched, threads = read_retrieval(data, corpus=corpus), run["threads"] or 1
    if chosen_here := seen_among(searched, model):
        run["note"](chosen_here)
    return score_retrieval(encoder, searched, model=model, threads=threads, progress=run["progress"])


def score_retrieval(
    encoder: TextEncoder,
    data: RetrievalSet,
    *,
    model: str,
    lists: int = LISTS,
    probes: int = PROBES,
    threads: int = 1,
    progress: ProgressOption = False,
) -> SuiteReport:
    """Search all documents for each query by cosine, with an IVF index on the CPU and exactly.

    A query's own document is skipped. MRR@10 is 0 if the top ten hold no relevant document. Times are medians for one
    query; index sizes include the vectors.

    model: Name in the report.
    lists: Maximum IVF lists; small sets have one per `TEXTS_PER_LIST` texts.
    probes: Lists searched for each query.

    Raises:
        MissingExtraError: FAISS is not installed.
        UsageError: `lists`, `probes` or `threads` is out of bounds.
    """
    lists, probes = check_number("lists", lists, COUNT), check_number("probes", probes, COUNT)
    threads = check_threads(threads)
    faiss = require("faiss", extra="search")
    encoded = encode_set(encoder, data, reporter(progress))
    queries, texts = (torch.nn.functional.normalize(side).numpy() for side in encoded[:2])
    width = texts.shape[1]
    faiss.omp_set_num_threads(threads)
    (exact := faiss.IndexFlatIP(width)).add(texts)
    begin = time.perf_counter()
    lists = max(1, min(lists, len(texts) // TEXTS_PER_LIST))
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(width), width, lists, faiss.METRIC_INNER_PRODUCT)
    index.cp.min_points_per_centroid = 1  # else FAISS warns
    index.train(texts)
    index.add(texts)
    index.nprobe = min(probes, lists)
    build_seconds = time.perf_counter() - begin
    some = range(0, len(queries), max(1, len(queries) // TIMED_QUERIES))
    size = (len(queries), len(texts))

    def row(way: str, searched: Any) -> Score:
        places = torch.from_numpy(searched.search(queries, TOP + 1)[1])
        scores = score_queries(without_own(places, top=TOP, own=data.own_documents), data.relevance)
        milliseconds = 1e3 * _median_seconds(lambda row: searched.search(queries[row : row + 1], TOP + 1), some)
        megabytes = len(faiss.serialize_index(searched)) / 1e6
        mrr = float(scores["mrr"].mean())
        values: Values = {"MRR@10 × 100": mrr, "ms per query": milliseconds, "index MB": megabytes}
        return Score(task=data.name, labels={"search": way}, values=values, size=size)

    prompt = side_prompt(encoder, QUERY_PROMPTS)
    encoding = _median_seconds(lambda row: encode_prompted(encoder, prompt, [data.queries[row]], silent), some)
    notes = (
        f"Times are medians, one query at a time on {counted(threads, 'CPU thread')}; encoding a query adds "
        f"{encoding * 1e3:.2f} ms.",
        f"The index has {counted(lists, 'list')}, {index.nprobe} searched per query; it was built in "
        f"{build_seconds:.1f} s.",
    )
    return report_of("retrieval", encoder, model, _description(data), (row("IVF", index), row("exact", exact)), notes)


def _median_seconds(call: Callable[[int], object], rows: Sequence[int]) -> float:
    call(rows[0])
    return statistics.median(timeit(partial(call, row), number=1) for row in rows)
