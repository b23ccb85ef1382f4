"""Finding the texts that answer a query: MRR@10, time per query and memory of an inverted-file index of FAISS."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from truncate_kit.cells import TableCells, number
from truncate_kit.data import RetrievalSet, read_retrieval
from truncate_kit.evaluation.graded import TextEncoder
from truncate_kit.evaluation.prompts import QUERY_PROMPTS, encode_prompted, encode_sides, side_prompt
from truncate_kit.evaluation.registry import SuiteReport, SuiteRun
from truncate_kit.evaluation.scores import Found, score_queries
from truncate_kit.evaluation.searching import found_places
from truncate_kit.extras import require
from truncate_kit.hardware import check_threads
from truncate_kit.measurement import Amounts
from truncate_kit.progress import Progress, ProgressOption, reporter, silent
from truncate_kit.settings import Bounds, check_number
from truncate_kit.wording import counted

_LISTS = Bounds(1, 1_000_000)
LISTS = 1024
PROBES = 16
TEXTS_PER_LIST = 39  # fewer training points per list than this make FAISS warn that the lists are badly placed
CUTOFF = 10
TIMED_QUERIES = 200

Vectors = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalReport(SuiteReport):
    """Finding the relevant texts of queries by cosine similarity, with the index and exactly.

    Times are medians for one query at a time on `threads` threads.
    """

    model: str
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
        """Queries and texts of the data."""
        yield (self.data,), (self.num_queries, self.num_texts)

    def table(self) -> TableCells:
        """The index beside the exact search."""
        return TableCells(
            f"{self.model} in {self.runtime}: {counted(self.num_queries, 'query', 'queries')} of {self.data} "
            f"among {counted(self.num_texts, 'text')}",
            ("search", "MRR@10 × 100", "ms per query", "index MB"),
            [
                (
                    f"IVF, {counted(self.lists, 'list')}, {self.probes} searched",
                    number(self.mrr),
                    f"{self.search_seconds * 1e3:.3f}",
                    f"{self.index_bytes / 1e6:.1f}",
                ),
                (
                    "exact",
                    number(self.exact_mrr),
                    f"{self.exact_seconds * 1e3:.3f}",
                    f"{self.exact_bytes / 1e6:.1f}",
                ),
            ],
        )

    def sentences(self) -> list[str]:
        """How it was timed, and where the texts are too few for the usual index."""
        sentences = [
            f"Times are medians, one query at a time on {counted(self.threads, 'CPU thread')}; encoding "
            f"a query takes {self.encode_seconds * 1e3:.2f} ms more. The index was built in {self.build_seconds:.1f} s."
        ]
        if self.lists == fitting_lists(self.num_texts) < LISTS:
            sentences.append(
                f"{counted(self.lists, 'list')} instead of {LISTS:,}: "
                f"{counted(self.num_texts, 'text')} cannot place more."
            )
        return sentences


def fitting_lists(num_texts: int, wanted: int = LISTS) -> int:
    """Number of lists for an index of that number of texts: as wanted, or fewer where few texts would fill each."""
    return max(1, min(wanted, num_texts // TEXTS_PER_LIST))


def run_retrieval(run: SuiteRun) -> RetrievalReport:
    """The queries of a file among their answers; option: `corpus`, a file of more texts to search."""
    data = read_retrieval(run.data, corpus=run.options["corpus"])
    if chosen_here := run.chosen_on(data):
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
    texts, queries = _encoded(encoder, data, reporter(progress))
    faiss.omp_set_num_threads(threads)
    (exact := faiss.IndexFlatIP(texts.shape[1])).add(texts)
    begin = time.perf_counter()
    index = _inverted(faiss, texts, fitting_lists(len(texts), lists), probes)
    built = time.perf_counter()
    found, exactly = (one.search(queries, CUTOFF + 1)[1] for one in (index, exact))
    some = range(0, len(queries), max(1, len(queries) // TIMED_QUERIES))
    return RetrievalReport(
        model=model,
        runtime=runtime,
        data=data.name,
        num_queries=len(queries),
        num_texts=len(texts),
        width=texts.shape[1],
        lists=index.nlist,
        probes=index.nprobe,
        mrr=_reciprocal_rank(found, data),
        exact_mrr=_reciprocal_rank(exactly, data),
        encode_seconds=_median_seconds(_encodes_one(encoder, data), some),
        search_seconds=_median_seconds(lambda row: index.search(queries[row : row + 1], CUTOFF + 1), some),
        exact_seconds=_median_seconds(lambda row: exact.search(queries[row : row + 1], CUTOFF + 1), some),
        index_bytes=len(faiss.serialize_index(index)),
        exact_bytes=len(faiss.serialize_index(exact)),
        build_seconds=built - begin,
        threads=threads,
    )


def _reciprocal_rank(found: Found, data: RetrievalSet) -> float:
    places = found_places(torch.from_numpy(found), top=CUTOFF, own=data.own_documents)
    return float(score_queries(places, data.relevance).mrr.mean())


def _encoded(encoder: TextEncoder, data: RetrievalSet, progress: Progress) -> tuple[Vectors, Vectors]:
    """Unit vectors of documents and queries, each after the model's prompt for its side."""
    sides = encode_sides(encoder, data.queries, data.documents, progress)
    queries, documents = (torch.nn.functional.normalize(side).numpy() for side in sides)
    return documents, queries


def _encodes_one(encoder: TextEncoder, data: RetrievalSet) -> Callable[[int], object]:
    """What encodes the query of a row, after the model's prompt for queries."""
    prompt = side_prompt(encoder, QUERY_PROMPTS)
    return lambda row: encode_prompted(encoder, prompt, [data.queries[row]], silent)


def _inverted(faiss: Any, texts: Vectors, lists: int, probes: int) -> Any:
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(texts.shape[1]), texts.shape[1], lists, faiss.METRIC_INNER_PRODUCT)
    index.cp.min_points_per_centroid = 1  # below 39 it warns on standard error
    index.train(texts)
    index.add(texts)
    index.nprobe = min(probes, lists)
    return index


def _median_seconds(call: Callable[[int], object], rows: Sequence[int]) -> float:
    """Median seconds of one call per row, after a first one that is not counted."""
    call(rows[0])
    seconds = []
    for row in rows:
        begin = time.perf_counter()
        call(row)
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)
