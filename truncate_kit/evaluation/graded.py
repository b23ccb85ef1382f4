"""Correlate similarities with the scores of graded pairs, and score the STS sets as MTEB does."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import pearsonr
from torch import Tensor

from truncate_kit.core.errors import DataError, ModelError, UsageError
from truncate_kit.core.progress import Progress, ProgressOption, reporter, silent
from truncate_kit.core.results import Result
from truncate_kit.core.vectors import (
    LEVEL,
    RESAMPLES,
    TextEncoder,
    VectorFormat,
    draw_counts,
    interval,
    one_row_each,
    rank_correlations,
    similarities,
    tied,
)
from truncate_kit.core.workspace import read_origin
from truncate_kit.data.pairs import PairPlaces, PairSet, TextPair, check_ranks, distinct_texts, index_texts
from truncate_kit.data.seen import NO_KEYS, Keys, pair_keys, seen_by
from truncate_kit.evaluation import Note, Score, SuiteReport, Values, report_of
from truncate_kit.models.encoder import Encoder, settings_of
from truncate_kit.models.pipeline import Normalize

_CHUNK = 4096  # texts encoded at a time, enough to batch by length
STS_PAIRS = {"STS12": 3108, "STS13": 1500, "STS14": 3750, "STS15": 3000, "STS16": 1186, "STSB": 1379, "SICK-R": 9927}
"""Number of pairs in each published set."""


class Evaluation(Result):
    """Correlation of similarities with graded scores, in points (× 100)."""

    spearman: float
    pearson: float
    num_pairs: int
    cosines: tuple[float, ...]  # similarity of each pair


def evaluate(encoder: TextEncoder, pairs: Sequence[TextPair]) -> Evaluation:
    """Return Spearman and Pearson × 100 between targets and similarities, by the encoder's own measure or cosine.

    Raises as `correlate`.
    """
    targets = [pair.target for pair in pairs]
    check_ranks(targets)
    texts, places = index_texts(pairs)
    vectors = one_row_each(encoder.encode(texts), len(texts))
    return correlate(pair_similarities(vectors, places, encoder), targets)


def pair_similarities(vectors: Tensor, places: PairPlaces, encoder: object = None) -> list[float]:
    """Return each pair's similarity, by the encoder's own measure or cosine; vectors (n, d)."""
    first, second = (vectors[torch.tensor(side)].double() for side in places)
    values: list[float] = similarities(encoder, first, second).tolist()
    return values


def correlate(cosines: Sequence[float], targets: Sequence[float]) -> Evaluation:
    """Correlate similarities with targets.

    Raises `DataError` for fewer than three pairs, and for values that are all equal or not finite.
    """
    cosines = tied(cosines)
    check_ranks(targets)
    if len(set(cosines)) < 2 or not all(map(math.isfinite, cosines)):
        raise DataError(
            "The model gives every pair the same similarity, or similarities that are not finite.",
            hint="Check the model: its vectors may be constant or hold NaN.",
        )
    return Evaluation(
        spearman=100 * float(rank_correlations(cosines, targets)[0]),
        pearson=100 * float(pearsonr(cosines, targets).statistic),
        num_pairs=len(targets),
        cosines=tuple(cosines),
    )


def spearman(cosines: Sequence[float], targets: Sequence[float]) -> float | None:
    """Return Spearman × 100, or None if undefined."""
    try:
        return correlate(cosines, targets).spearman
    except DataError:
        return None


def encode_distinct(
    encoder: Any, texts: Sequence[str], progress: Progress = silent, prompt: str | None = None
) -> Tensor:
    """Return float32 vectors (n, d) of distinct texts; `prompt` replaces the encoder's default prompt."""
    parts: list[Tensor] = []
    for start in range(0, len(texts), _CHUNK):
        chunk = list(texts[start : start + _CHUNK])
        options = {} if prompt is None else {"prompt": False}
        vectors = encoder.encode([(prompt or "") + text for text in chunk], **options)
        parts.append(one_row_each(vectors, len(chunk)).float().cpu())
        progress(f"Encoding {len(texts):,} texts", start + len(chunk), len(texts))
    vectors = torch.cat(parts)
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
    """Compare Spearman (× 100) of two models on the same pairs by a paired percentile bootstrap.

    numbers: pair number of each row (`numbers_of`), so that rows of one pair are drawn together.
    Returns both scores, the interval of lean − full, the number of resamples with defined scores, and of pairs.
    Raises `DataError`.
    """
    models = [correlate(cosines, targets) for cosines in (lean, full)]
    numbers = np.arange(len(targets)) if numbers is None else numbers
    num_pairs = int(numbers.max()) + 1
    counts = draw_counts(num_pairs, resamples, seed)[:, numbers]
    differences = 100 * np.subtract(*(rank_correlations(model.cosines, targets, counts) for model in models))
    defined = differences[np.isfinite(differences)]
    return (models[0].spearman, models[1].spearman), interval(defined, level), len(defined), num_pairs


# Similarities (q, n) of queries (q, d) and documents (n, d), by name in a model's settings.
MEASURES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cosine": lambda queries, documents: _unit(queries) @ _unit(documents).T,
    "dot": lambda queries, documents: queries @ documents.T,
    "euclidean": lambda queries, documents: -torch.cdist(queries, documents),
    "manhattan": lambda queries, documents: -torch.cdist(queries, documents, p=1),
}


def _unit(vectors: Tensor) -> Tensor:
    return torch.nn.functional.normalize(vectors)


def measure_of(encoder: TextEncoder) -> str:
    """Return the model's similarity measure. Raises `UsageError` for a name, `ModelError` for an unknown measure."""
    if isinstance(encoder, str | Path):
        raise UsageError(f"{str(encoder)!r} is a name, not a model.", hint="Load it with `load_encoder()`.")
    measure: str = settings_of(encoder).get("similarity_fn_name") or "cosine"
    if measure not in MEASURES:
        raise ModelError(
            f"The model's settings name an unknown similarity measure, {measure!r}.",
            hint=f"Known measures: {', '.join(MEASURES)}.",
        )
    return measure


def measure_of_lengths(encoder: Encoder) -> str:
    """Return the similarity measure, or cosine if the model normalizes its vectors to length 1."""
    normalized = any(isinstance(module, Normalize) for module in encoder.tail)
    return "cosine" if normalized else measure_of(encoder)


# Suites


def score_pairs(
    encoder: TextEncoder, pairs: Sequence[TextPair], *, model: str, data: str, form: VectorFormat
) -> SuiteReport:
    """Report how similarities of vectors stored in `form` correlate with the scores."""
    texts, places = index_texts(pairs)
    vectors = one_row_each(encoder.encode(texts), len(texts))
    width = vectors.shape[1]
    stored = form.numbers(form.store(vectors), width)
    correlation = correlate(pair_similarities(stored, places, encoder), [pair.target for pair in pairs])
    values: Values = {"pairs": correlation.num_pairs, "Spearman": correlation.spearman, "Pearson": correlation.pearson}
    values |= {"dimensions": form.kept(width), "bytes per vector": form.bytes_per_vector(width)}
    row = Score(task=data, labels={"vectors": form.precision}, values=values)
    return report_of("pairs", encoder, model, "correlation with the scores × 100", [row])


def run_sts(
    encoder: TextEncoder, data: str, *, seen: str | None, model: str, note: Note, progress: Progress, **_: object
) -> SuiteReport:
    """Score the STS sets of a folder, with and without training pairs."""
    from truncate_kit.data.suites import find_sts, read_trained_pairs

    sets, name = find_sts(data), seen
    keys = seen_by(model) if seen is None else read_trained_pairs(seen)
    if seen is None and len(keys):
        name = f"the pairs recorded in {model}"
        note(f"{model} was trained or selected on recorded pairs: scores are reported with and without these pairs.")
    elif seen is None and read_origin(model) is not None:
        note(f"The training data of {model} are unknown: give the training pairs with --seen.")
    return score_sts(encoder, sets, model=model, seen=keys, progress=progress, seen_name=name)


def score_sts(
    encoder: TextEncoder,
    sets: Sequence[PairSet],
    *,
    model: str,
    seen: Keys = NO_KEYS,
    seen_name: str | None = None,
    progress: ProgressOption = False,
) -> SuiteReport:
    """Score an encoder on the sets of `find_sts`.

    model: Name in the report.
    seen: Keys of training pairs (`read_trained_pairs`).
    seen_name: Source of `seen`; if given, unseen pairs are scored, too.

    Raises `DataError` if a correlation is undefined.
    """
    for data in sets:
        data.check_ranked()
    texts = distinct_texts(pair for data in sets for pair in data)
    vectors = encode_distinct(encoder, texts, reporter(progress))
    rows, notes = list[Score](), list[str]()
    for data in sets:
        cosines = np.array(pair_similarities(vectors, index_texts(data.pairs, texts)[1], encoder))
        try:
            whole = correlate(cosines.tolist(), data.scores())
        except DataError as error:
            raise DataError(f"{data.name}: {error}", hint=error.hint) from error
        values: Values = {"pairs": whole.num_pairs, "Spearman": whole.spearman, "Pearson": whole.pearson}
        if seen_name is not None:
            fresh = ~np.isin(pair_keys(data), seen)
            unseen = spearman(cosines[fresh].tolist(), np.array(data.scores())[fresh].tolist())
            values |= {"unseen pairs": int(fresh.sum()), "Spearman unseen": unseen}  # None if too few are left
        rows.append(Score(task=data.name, values=values, size=(whole.num_pairs,)))
        if len(data) != (published := STS_PAIRS.get(data.name, len(data))):
            share = f"{data.name} has {len(data):,} of the published {published:,} pairs"
            notes.append(f"{share}: not comparable with published scores.")
    if seen_name is not None:
        notes.append(f"Unseen pairs: not in {seen_name}.")
    return report_of("sts", encoder, model, "semantic similarity × 100", rows, notes)
