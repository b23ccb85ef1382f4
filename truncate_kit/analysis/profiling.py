"""`profile`: texts and models in, everything that can be said of the layers before training out."""

from collections.abc import Iterable, Sequence

import torch

from truncate_kit.analysis.reading import Reader, Reading
from truncate_kit.analysis.results import LayerProfile, called
from truncate_kit.analysis.scoring import cosines_by_reading, layer_cosines, layer_spearman
from truncate_kit.data import TextPair
from truncate_kit.encoders import Encoder, PoolingMode, parameters_kept
from truncate_kit.errors import BatchTooSmallError, UsageError
from truncate_kit.progress import Progress, silent
from truncate_kit.representations import layer_states
from truncate_kit.similarity.cka import Estimator, Kernel
from truncate_kit.similarity.drop import DropPrediction, predict_drop

IN_MEMORY_BYTES = 512 << 20
"""States of both models that are held; comparing them takes about four times that."""

IN_MEMORY_TEXTS = 10_000
"""Beyond, comparing in memory takes longer than a second pass: it is quadratic in the texts."""


def profile(
    encoder: Encoder,
    texts: Sequence[str] | None = None,
    *,
    reference: Encoder | None = None,
    pairs: Iterable[TextPair] | None = None,
    estimator: Estimator = "debiased",
    kernel: Kernel = "linear",
    drop_outliers: int = 3,
    intervals: int = 10,
    level: float = 0.95,
    pooling: PoolingMode | None = None,
    raw: bool = False,
    max_texts: int | None = None,
    streamed: bool | None = None,
    seed: int = 0,
    batch_size: int = 64,
    progress: Progress = silent,
) -> LayerProfile:
    """Measure every layer of `encoder` and predict whether its end falls.

    texts: None takes the texts of the pairs; repeats are left out, because they break the debiasing of CKA.
    reference: a model known not to fall, best a masked language model of the same depth; None compares the model
    with its own middle layer, which is less sure. pairs: graded pairs, for Spearman of the untrained states.
    estimator, kernel: see `cka_matrix`. drop_outliers: how many dimensions of largest variance the second curve leaves
    out at each layer, 0 for no second curve. intervals: blocks of texts for the intervals, 0 for none, and none where
    a block would be a single text; level: their confidence level. pooling: for both models; None is each one's own.
    raw: see `Encoder.hidden_states`. max_texts: draw at most so many distinct texts (and pairs made of so many) at
    random with `seed`; None takes all. streamed: keep no states; None decides by size. The RBF kernel cannot be
    streamed.
    Raises `UsageError`, `BatchTooSmallError` and the other `SimilarityError` kinds, `DataError` where scores are such
    that no correlation is defined.
    """
    graded, drawn, num_repeats, num_not_drawn = _drawn(texts, None if pairs is None else list(pairs), max_texts, seed)
    _check(encoder, reference, drop_outliers, len(drawn))
    reader = Reader(
        encoder=encoder,
        reference=reference,
        estimator=estimator,
        kernel=kernel,
        outliers=drop_outliers,
        blocks=intervals if len(drawn) >= 2 * intervals else 0,
        level=level,
        pooling=pooling,
        raw=raw,
        seed=seed,
        batch_size=batch_size,
        progress=progress,
    )
    if streamed is None:
        streamed = not _fits(reader.models, len(drawn))
    if streamed and kernel != "linear":
        raise UsageError(
            f"The {kernel} kernel needs all states in memory, and those of {len(drawn):,} texts are too many.",
            hint="Use --max-texts 2000, or the linear kernel.",
        )
    reading = reader.streamed(drawn) if streamed else reader.in_memory(drawn)
    spearman = None if graded is None else _spearman(reader, graded, [] if streamed else drawn, reading)
    tail = sum(parameter.numel() for parameter in encoder.tail.parameters())
    scores, tokens = reading.scores, reading.tokens
    return LayerProfile(
        model=encoder.name,
        reference=None if reference is None else reference.name,
        depth=encoder.depth,
        reference_depth=None if reference is None else reference.depth,
        width=encoder.width,
        pooling=pooling or encoder.pooling,
        raw=raw,
        parameters=tuple(None if count is None else count + tail for count in parameters_kept(encoder.backbone.config)),
        cka=reading.cka,
        cka_without_outliers=reading.cka_without_outliers,
        outliers=drop_outliers,
        cka_matrix=reading.matrix,
        cka_within=reading.within,
        reference_within=reading.reference_within,
        estimator=estimator,
        kernel=kernel,
        level=level,
        blocks=reader.blocks,
        block_influence=tokens.block_influence if tokens else (),
        angular_distance=tokens.angular_distance if tokens else (),
        num_tokens=tokens.num_tokens if tokens else 0,
        effective_rank=scores.effective_rank,
        anisotropy=scores.anisotropy,
        outlier_share=scores.outlier_share,
        spearman=spearman,
        num_pairs=len(graded or ()),
        num_texts=len(drawn),
        num_repeats=num_repeats,
        num_not_drawn=num_not_drawn,
        streamed=streamed,
        matrix_texts=reading.states[0].shape[1],
        drop=_prediction(encoder, reference, reading, spearman),
    )


def _check(encoder: Encoder, reference: Encoder | None, drop_outliers: int, count: int) -> None:
    if count < 4:
        raise BatchTooSmallError(count)
    narrowest = min(model.width for model in (encoder, reference or encoder))
    if not 0 <= drop_outliers < narrowest:
        raise UsageError(
            f"Cannot leave out {drop_outliers} of {narrowest} dimensions.", hint="Use 0 for none, or 1 to 5."
        )


def _drawn(
    texts: Sequence[str] | None, pairs: list[TextPair] | None, max_texts: int | None, seed: int
) -> tuple[list[TextPair] | None, list[str], int, int]:
    """The pairs and the distinct texts to read, how many repeats were left out, and how many texts not drawn."""
    if texts is None and pairs is None:
        raise UsageError("There is nothing to read.", hint="Give texts, or graded pairs.")
    if max_texts is not None and max_texts < 4:
        raise UsageError(f"{max_texts} texts are too few.", hint="Use at least 4; some hundred make CKA steady.")
    graded = None if pairs is None else _drawn_pairs(pairs, max_texts, seed)
    given = [text for pair in pairs or () for text in (pair.first, pair.second)] if texts is None else texts
    whole = list(dict.fromkeys(given))
    if texts is None and graded is not None:
        drawn = list(dict.fromkeys(text for pair in graded for text in (pair.first, pair.second)))
    else:
        drawn = [whole[place] for place in sorted(_order(len(whole), seed)[:max_texts])]
    return graded, drawn, len(given) - len(whole), len(whole) - len(drawn)


def _drawn_pairs(pairs: list[TextPair], max_texts: int | None, seed: int) -> list[TextPair]:
    """Pairs drawn at random until their texts are `max_texts`, in their former order; all of them if they are fewer."""
    if max_texts is None:
        return pairs
    seen: set[str] = set()
    kept = []
    for place in _order(len(pairs), seed):
        both = seen | {pairs[place].first, pairs[place].second}
        if len(both) > max_texts:
            break
        seen = both
        kept.append(place)
    return [pairs[place] for place in sorted(kept)]


def _order(count: int, seed: int) -> list[int]:
    order: list[int] = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    return order


def _fits(models: Sequence[Encoder], count: int) -> bool:
    size = sum((model.depth + 1) * model.width for model in models) * count * 4
    return size <= IN_MEMORY_BYTES and count <= IN_MEMORY_TEXTS


def _spearman(
    reader: Reader, pairs: Sequence[TextPair], held: Sequence[str], reading: Reading
) -> tuple[float | None, ...]:
    """Spearman of each layer, from the states that are held where they are those of all pairs."""
    places = {text: place for place, text in enumerate(held)}
    if all(pair.first in places and pair.second in places for pair in pairs):
        return layer_spearman(layer_cosines(pairs, places, reading.states[0]), pairs)

    def read(texts: list[str]) -> torch.Tensor:
        return layer_states(
            reader.encoder,
            texts,
            pooling=reader.pooling,
            raw=reader.raw,
            batch_size=reader.batch_size,
            progress=reader.progress,
        )

    return layer_spearman(cosines_by_reading(pairs, read), pairs)


def _prediction(
    encoder: Encoder, reference: Encoder | None, reading: Reading, spearman: Sequence[float | None] | None
) -> DropPrediction | None:
    if encoder.depth < 2:
        return None
    assert reading.tokens is not None
    return predict_drop(
        reading.cka.values,
        reference=None if reference is None else called(reference.name),
        low=reading.cka.low,
        high=reading.cka.high,
        effective_rank=reading.scores.effective_rank,
        anisotropy=reading.scores.anisotropy,
        block_influence=reading.tokens.block_influence,
        # States that are the same for all texts rank nothing: no correlation.
        untrained_spearman=None if spearman is None else [value or 0.0 for value in spearman],
    )
