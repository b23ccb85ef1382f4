"""Semantic textual similarity: correlations on graded pairs, and the suite of sets as MTEB scores them."""

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import pearsonr
from torch import Tensor

from truncate_kit.core.errors import DataError, UsageError
from truncate_kit.core.origin import read_origin
from truncate_kit.core.progress import Progress, ProgressOption, reporter, silent
from truncate_kit.core.results import Result
from truncate_kit.core.statistics import LEVEL, RESAMPLES, draw_counts, interval, rank_correlations, tied
from truncate_kit.core.vectors import StoredVectors, VectorFormat, one_row_each, similarities
from truncate_kit.data.pairs import PlacedPairs, TextPair, check_ranks, distinct_texts
from truncate_kit.data.seen import pair_key, seen_pairs
from truncate_kit.data.suites import StsSet, find_sts, read_trained_pairs
from truncate_kit.evaluation.suite import Score, SuiteReport, SuiteRun, TextEncoder, Values, report_of

_CHUNK = 4096  # texts encoded between two reports of progress: enough for batches of like length


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation(Result):
    """Correlation of cosine similarity with the graded scores, in points (× 100)."""

    spearman: float
    pearson: float
    num_pairs: int
    cosines: tuple[float, ...]  # of each pair in order, by the encoder's own measure if it has one


def evaluate(encoder: TextEncoder, pairs: Sequence[TextPair]) -> Evaluation:
    """Correlate targets with cosines, or with the encoder's own measure if it has one: Spearman and Pearson × 100.

    Each distinct text is encoded once. Raises `DataError` if a correlation is undefined (fewer than three pairs, equal
    targets, equal cosines) or a score is no number; `ModelError` unless the encoder gives one vector per text.
    """
    targets = [pair.target for pair in pairs]
    check_ranks(targets)
    places = PlacedPairs.of(pairs)
    vectors = one_row_each(encoder.encode(places.texts), len(places.texts))
    return correlate(pair_similarities(vectors, places, encoder), targets)


def score_pairs(
    encoder: TextEncoder, pairs: Sequence[TextPair], *, model: str, data: str, form: VectorFormat
) -> SuiteReport:
    """Report `evaluate` with vectors stored in a format. data: name of the set."""
    stored = StoredVectors(encoder, form)
    correlation = evaluate(stored, pairs)
    values: Values = {"pairs": correlation.num_pairs, "Spearman": correlation.spearman, "Pearson": correlation.pearson}
    values |= {"dimensions": form.kept(stored.width), "bytes per vector": form.bytes_per_vector(stored.width)}
    row = Score(task=data, labels={"vectors": form.precision}, values=values)
    return report_of("pairs", encoder, model, "correlation with the scores × 100", [row])


def pair_similarities(vectors: Tensor, places: PlacedPairs, encoder: object = None) -> list[float]:
    """Return the similarity of each pair by the encoder's own measure, else the cosine; vectors (n, d)."""
    first, second = (vectors[torch.tensor(side)].double() for side in (places.first, places.second))
    values: list[float] = similarities(encoder, first, second).tolist()
    return values


def correlate(cosines: Sequence[float], targets: Sequence[float]) -> Evaluation:
    """Correlate similarities with targets. Raises `DataError` if that is undefined."""
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
    """Return the Spearman of `correlate`, None if undefined."""
    try:
        return correlate(cosines, targets).spearman
    except DataError:
        return None


def encode_distinct(
    encoder: Any, texts: Sequence[str], progress: Progress = silent, prompt: str | None = None
) -> Tensor:
    """Return the vectors (n, d) in float32 of distinct texts, in their order.

    Args:
        encoder: Anything with `.encode(texts)`.
        texts: Distinct texts.
        progress: Called after each part of them.
        prompt: Stands before each text; by default the encoder's own.

    Raises:
        DataError: Vectors are not finite.
        ModelError: The encoder does not give one vector per text.
    """
    parts: list[Tensor] = []
    for start in range(0, len(texts), _CHUNK):
        chunk = list(texts[start : start + _CHUNK])
        options = {} if prompt is None else {"prompt": False}
        vectors = encoder.encode([(prompt or "") + text for text in chunk], **options)
        parts.append(one_row_each(vectors, len(chunk)).float().cpu())
        progress(f"Encoding {len(texts):,} texts", start + len(chunk), len(texts))
    return check_finite_vectors(torch.cat(parts))


def check_finite_vectors(vectors: Tensor) -> Tensor:
    """Return the vectors. Raises `DataError` on NaN or infinity."""
    if bad := int((~vectors.isfinite().all(dim=1)).sum()):
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
    """Compare Spearman (× 100) of the similarities of two models on the same pairs, by a paired bootstrap.

    Args:
        lean: Similarities of the lean model.
        full: Similarities of the full model.
        targets: Graded scores.
        numbers: Pair number of each row (`numbers_of`), so that repeats are drawn together; by default no row repeats.
        resamples: Number of draws.
        level: Confidence level of the percentile interval.
        seed: Seed of the draws.

    Returns:
        Both scores, the interval of lean − full, the number of draws with a defined difference, the number of pairs.

    Raises:
        DataError: A correlation is undefined.
    """
    models = [correlate(cosines, targets) for cosines in (lean, full)]
    numbers = np.arange(len(targets)) if numbers is None else numbers
    num_pairs = int(numbers.max()) + 1
    counts = draw_counts(num_pairs, resamples, seed)[:, numbers]
    differences = 100 * np.subtract(*(rank_correlations(model.cosines, targets, counts) for model in models))
    defined = differences[np.isfinite(differences)]
    return (models[0].spearman, models[1].spearman), interval(defined, level), len(defined), num_pairs


def run_sts(run: SuiteRun) -> SuiteReport:
    """Score the sets of a folder, also without pairs that the model was trained on (option `seen`)."""
    sets, name = find_sts(run.data), run.options["seen"]
    seen = seen_pairs(run.model) if name is None else read_trained_pairs(name)
    if seen is not None and name is None:
        name = f"pairs noted in {run.model}"
        run.note(f"{run.model} was trained on or chosen by {name}: scored with and without those pairs.")
    elif seen is None and read_origin(run.model) is not None:
        run.note(f"What {run.model} was trained on is not known here: name it with --seen.")
    return score_sts(run.encoder, sets, model=run.model, seen=seen, progress=run.progress, seen_name=name)


def score_sts(
    encoder: TextEncoder,
    sets: Sequence[StsSet],
    *,
    model: str,
    seen: Container[int] | None = None,
    seen_name: str | None = None,
    progress: ProgressOption = False,
) -> SuiteReport:
    """Score an encoder on the sets; each distinct text of all sets is encoded once.

    Args:
        encoder: Anything with `.encode(texts)`.
        sets: As `find_sts` returns them.
        model: Name in the report.
        seen: Keys of pairs that the model was trained on (`read_trained_pairs`), to score each set also without them.
        seen_name: Source of these pairs, for the report.
        progress: True draws bars and logs; a callable is called after each part of the texts.

    Raises:
        UsageError: There are no sets.
        DataError: A correlation is undefined.
        ModelError: The encoder does not give one vector per text.
    """
    if not sets:
        raise UsageError("There are no sets to score.", hint="find_sts(path) gives those of a folder.")
    for data in sets:
        check_ranks([pair.target for pair in data.pairs], data.name)
    texts = distinct_texts(pair for data in sets for pair in data.pairs)
    vectors = encode_distinct(encoder, texts, reporter(progress))
    rows, notes = [], []
    for data in sets:
        cosines = pair_similarities(vectors, PlacedPairs.of(data.pairs, texts), encoder)
        rows.append(_score(data, cosines, seen))
        if len(data.pairs) != data.published_pairs:
            number = f"{len(data.pairs):,} of the published {data.published_pairs:,} pairs"
            notes.append(f"{data.name} here has {number}: not comparable.")
    if seen_name is not None:
        notes.append(f"Unseen pairs: without {seen_name}.")
    return report_of("sts", encoder, model, "semantic similarity × 100", rows, notes)


def _score(data: StsSet, cosines: Sequence[float], seen: Container[int] | None) -> Score:
    try:
        whole = correlate(cosines, [pair.target for pair in data.pairs])
    except DataError as error:
        raise DataError(f"{data.name}: {error}", hint=error.hint) from error
    values: Values = {"pairs": whole.num_pairs, "Spearman": whole.spearman, "Pearson": whole.pearson}
    if seen is not None:
        pairs = zip(cosines, data.pairs, strict=True)
        fresh = [(cosine, pair.target) for cosine, pair in pairs if pair_key(pair.first, pair.second) not in seen]
        # Too few pairs may be left; the whole set still has its score.
        unseen = spearman([cosine for cosine, _ in fresh], [target for _, target in fresh])
        values |= {"unseen pairs": len(fresh), "Spearman unseen": unseen}
    return Score(task=data.name, values=values, size=(whole.num_pairs,))
