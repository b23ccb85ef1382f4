"""Semantic textual similarity: scores on graded pairs, and the suite of sets as MTEB counts them."""

import math
import time
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import pearsonr
from torch import Tensor

from truncate_kit.core.errors import DataError, UsageError
from truncate_kit.core.origin import read_origin
from truncate_kit.core.progress import Progress, ProgressOption, reporter, silent
from truncate_kit.core.results import Amounts, Result
from truncate_kit.core.statistics import LEVEL, RESAMPLES, draw_counts, interval, rank_correlations, tied
from truncate_kit.core.vectors import one_row_each, similarities
from truncate_kit.data.seen import seen_pairs
from truncate_kit.data.suites import StsSet, find_sts, read_trained_pairs
from truncate_kit.data.types import PlacedPairs, TextPair, check_ranks, distinct_texts
from truncate_kit.evaluation.suite import SuiteReport, SuiteRun, TextEncoder

if TYPE_CHECKING:
    from truncate_kit.data.suites import StsSet

_CHUNK = 4096  # texts encoded between two reports of progress: enough for batches of like length


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation(Result):
    """Correlation of cosine similarity with the graded scores, in points (× 100)."""

    spearman: float
    pearson: float
    num_pairs: int
    # Of each pair, by the encoder's own measure where it has one, in the order of the file; for paired comparisons.
    cosines: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelScore(Result):
    """How one model scores on one set, without the single similarities."""

    model: str
    runtime: str  # `torch` or `onnx`
    data: str
    split: str
    num_pairs: int
    spearman: float  # as pearson: of cosine similarity and target, in points (× 100)
    pearson: float
    vectors: str  # the precision they were stored in before
    dimensions: int  # what was left of each
    bytes_per_vector: int


def evaluate(encoder: TextEncoder, pairs: Sequence[TextPair]) -> Evaluation:
    """Correlate targets with cosines, or with the encoder's own measure if it has one: Spearman and Pearson × 100.

    Each distinct text is encoded once. Raises `DataError` where a correlation is not defined: fewer than three pairs,
    or one value only among targets or cosines, and for a score that is no number; `ModelError` where the encoder does
    not give one vector for each text.
    """
    targets = [pair.target for pair in pairs]
    check_ranks(targets)
    places = PlacedPairs.of(pairs)
    vectors = one_row_each(encoder.encode(places.texts), len(places.texts))
    return correlate(pair_similarities(vectors, places, encoder), targets)


def pair_similarities(vectors: Tensor, places: PlacedPairs, encoder: object = None) -> list[float]:
    """Similarity of each pair by the encoder's own measure where it has one, else the cosine; vectors (n, d)."""
    first, second = vectors[torch.tensor(places.first)].double(), vectors[torch.tensor(places.second)].double()
    found: list[float] = similarities(encoder, first, second).tolist()
    return found


def correlate(cosines: Sequence[float], targets: Sequence[float]) -> Evaluation:
    """Return the `Evaluation` of given similarities against given targets."""
    cosines = tied(cosines)
    check_ranks(targets)
    if len(set(cosines)) < 2 or not all(map(math.isfinite, cosines)):
        raise DataError(
            "The model gives every pair the same similarity, or one that is not a number.",
            hint="Check the model: its vectors may be constant or hold NaN.",
        )
    return Evaluation(
        spearman=100 * float(rank_correlations(cosines, targets)[0]),
        pearson=100 * float(pearsonr(cosines, targets).statistic),
        num_pairs=len(targets),
        cosines=tuple(cosines),
    )


def spearman(cosines: Sequence[float], targets: Sequence[float]) -> float | None:
    """Return the Spearman of `correlate`, None where it is not defined."""
    try:
        return correlate(cosines, targets).spearman
    except DataError:
        return None


def encode_distinct(
    encoder: Any, texts: Sequence[str], progress: Progress = silent, prompt: str | None = None
) -> Tensor:
    """Return the vectors (n, d) in float32 of distinct texts after a prompt, in their order.

    Args:
        encoder: Whatever has `.encode(texts)`.
        texts: Each once.
        progress: Called after each part of them.
        prompt: None leaves the prompt to the encoder.

    Raises `DataError` if they are not finite, `ModelError` if there is not one for each text.
    """
    task = f"Encoding {len(texts):,} texts"
    parts: list[Tensor] = []
    for start in range(0, len(texts), _CHUNK):
        chunk = list(texts[start : start + _CHUNK])
        found = (
            encoder.encode(chunk) if prompt is None else encoder.encode([prompt + one for one in chunk], prompt=False)
        )
        parts.append(one_row_each(found, len(chunk)).float().cpu())
        progress(task, start + len(chunk), len(texts))
    return check_finite_vectors(torch.cat(parts))


def check_finite_vectors(vectors: Tensor) -> Tensor:
    """Return the vectors; raises `DataError` if one holds NaN or infinity."""
    bad = int((~vectors.isfinite().all(dim=1)).sum())
    if bad:
        raise DataError(
            f"The model gives vectors that are not numbers for {bad:,} of {len(vectors):,} texts.",
            hint="Check the model: its weights may hold NaN, or overflow in half precision.",
        )
    return vectors


def paired_difference(
    lean: Sequence[float],
    full: Sequence[float],
    targets: Sequence[float],
    *,
    numbers: NDArray[np.int64] | None = None,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
    seed: int = 0,
) -> tuple[tuple[float, float], tuple[float, float], int, int]:
    """Compare Spearman (× 100) of the similarities of two models with the same targets.

    The interval of lean − full is a percentile interval of a paired bootstrap: pairs are drawn with replacement, the
    same for both models, and all rows of one pair together, for they say the same.

    Args:
        lean: Similarities of the lean model.
        full: Similarities of the full model.
        targets: What both are compared with.
        numbers: Of each row its pair, as `numbers_of` gives them; None where none repeats another.
        resamples: Number of draws.
        level: Of the interval.
        seed: Of the draws.

    Returns:
        Both scores, the ends of the interval, the number of draws with a defined difference, and the number of pairs.

    Raises:
        DataError: A correlation is not defined.
    """
    found = [correlate(cosines, targets) for cosines in (lean, full)]
    numbers = np.arange(len(targets)) if numbers is None else numbers
    num_pairs = int(numbers.max()) + 1
    counts = draw_counts(num_pairs, resamples, seed)[:, numbers]
    differences = 100 * np.subtract(*(rank_correlations(one.cosines, targets, counts) for one in found))
    defined = differences[np.isfinite(differences)]
    return (found[0].spearman, found[1].spearman), interval(defined, level), len(defined), num_pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class StsScore(Result):
    """Correlation of cosine similarity with the gold scores of one set, all its pairs together, in points."""

    name: str
    num_pairs: int  # number of pairs scored
    published_pairs: int  # number of pairs of the published set; with another number the score is not comparable
    spearman: float
    pearson: float
    unseen_pairs: int | None  # number of pairs that the model was not trained on; None where nothing is known of them
    unseen_spearman: float | None  # rank correlation of these; None also where too few are left


@dataclass(frozen=True, slots=True, kw_only=True)
class StsReport(SuiteReport):
    """The sets that were found, and plain means over them."""

    runtime: str  # `torch`, `onnx`, or what else encoded
    sets: tuple[StsScore, ...]  # in the order of the paper
    mean_spearman: float
    seen: str | None  # where the pairs come from that the model was trained on; None where nothing is known
    mean_unseen: float | None  # mean without these pairs; None also where a set has no such score
    seconds: float

    def amounts(self) -> Iterator[Amounts]:
        """Yield sets by their pairs."""
        for row in self.sets:
            yield (row.name,), (row.num_pairs,)


def run_sts(run: SuiteRun) -> StsReport:
    """Score the sets of a folder, also without pairs that the model was trained on (option `seen`)."""
    sets, name = find_sts(run.data), run.options["seen"]
    seen = seen_pairs(run.model) if name is None else read_trained_pairs(name)
    if seen is not None and name is None:
        name = f"pairs noted in {run.model}"
        run.note(f"{run.model} was trained on or chosen by {name}: scored with and without those pairs.")
    elif seen is None and read_origin(run.model) is not None:
        run.note(f"What {run.model} was trained on is not known here: name it with --seen.")
    return score_sts(
        run.encoder,
        sets,
        model=run.model,
        runtime=run.runtime,
        seen=seen or frozenset(),
        seen_name=name,
        progress=run.progress,
    )


def score_sts(
    encoder: TextEncoder,
    sets: "Sequence[StsSet]",
    *,
    model: str,
    runtime: str = "torch",
    seen: Container[frozenset[str]] = frozenset(),
    seen_name: str | None = None,
    progress: ProgressOption = False,
) -> StsReport:
    """Score whatever has `.encode(texts)` on the sets; each distinct text of all sets is encoded once.

    Args:
        encoder: Of which nothing else is used.
        sets: As `find_sts` gives them.
        model: Its name in the report.
        runtime: What encodes, for the report.
        seen: Pairs that the model was trained on, as `read_trained_pairs` gives them.
        seen_name: Where these come from; None where nothing is known. With a name, each set is also scored without
            them, in either order of their texts.
        progress: True draws bars and logs; else what is called after each part of the texts.

    Raises:
        UsageError: There are no sets.
        DataError: A correlation is not defined.
        ModelError: The encoder does not give one vector for each text.
    """
    if not sets:
        raise UsageError("There are no sets to score.", hint="find_sts(path) gives those of a folder.")
    for one in sets:
        check_ranks([pair.target for pair in one.pairs], one.name)
    progress = reporter(progress)
    begin = time.perf_counter()
    texts = distinct_texts(pair for one in sets for pair in one.pairs)
    vectors = encode_distinct(encoder, texts, progress)
    known = seen if seen_name else None
    rows = [_score(one, pair_similarities(vectors, PlacedPairs.of(one.pairs, texts), encoder), known) for one in sets]
    unseen = [row.unseen_spearman for row in rows if row.unseen_spearman is not None]
    return StsReport(
        model=model,
        runtime=runtime,
        sets=tuple(rows),
        mean_spearman=sum(row.spearman for row in rows) / len(rows),
        seen=seen_name,
        mean_unseen=sum(unseen) / len(rows) if len(unseen) == len(rows) else None,
        seconds=time.perf_counter() - begin,
    )


def _score(one: "StsSet", cosines: Sequence[float], seen: Container[frozenset[str]] | None) -> StsScore:
    try:
        found = correlate(cosines, [pair.target for pair in one.pairs])
    except DataError as error:
        raise DataError(f"{one.name}: {error}", hint=error.hint) from error
    fresh = None
    if seen is not None:
        pairs = zip(cosines, one.pairs, strict=True)
        fresh = [(cosine, pair) for cosine, pair in pairs if frozenset((pair.first, pair.second)) not in seen]
    return StsScore(
        name=one.name,
        num_pairs=len(one.pairs),
        published_pairs=one.published_pairs,
        spearman=found.spearman,
        pearson=found.pearson,
        unseen_pairs=None if fresh is None else len(fresh),
        # None also where what is left is too little for a correlation: the whole set still has its score.
        unseen_spearman=None if fresh is None else spearman([c for c, _ in fresh], [p.target for _, p in fresh]),
    )
