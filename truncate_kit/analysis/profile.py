"""Measure the layers of a model before training, in one pass over the texts."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from truncate_kit.analysis.cka import (
    StreamedCKA,
    compare_layers,
    curve_of,
    outlier_mask,
    relative_layers,
    require_finite,
    text_blocks,
)
from truncate_kit.analysis.result import (
    FEWEST_TEXTS,
    AnalysisSettings,
    DropPrediction,
    LayerProfile,
    called,
    predict_drop,
)
from truncate_kit.core.errors import DataError, UsageError, too_few_texts
from truncate_kit.core.progress import Progress, ProgressOption, reporter
from truncate_kit.core.results import SEARCH_METRICS, SearchMetric, listed_texts
from truncate_kit.core.vectors import FEWEST_COMPARED
from truncate_kit.core.workspace import default_reference
from truncate_kit.data.pairs import distinct_texts, index_texts, num_distinct
from truncate_kit.models.encoder import DOCUMENT_PROMPTS, QUERY_PROMPTS, Encoder, side_prompt
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.store import encoder_digest, sha256_of
from truncate_kit.models.truncation import StateBatch, iter_states, keep, layer_states, parameters_kept

if TYPE_CHECKING:
    from truncate_kit.data.pairs import PairPlaces, TextPair
    from truncate_kit.data.retrieval import RetrievalSet
    from truncate_kit.evaluation.retrieval import Reader

ANALYSED_TEXTS = 2000  # enough for CKA intervals of a few hundredths
SAMPLE_TEXTS = 4_096  # for the CKA matrix of all layer pairs when streaming
IN_MEMORY_BYTES = 512 << 20  # for states of both models; comparing takes about four times more
IN_MEMORY_TEXTS = 10_000  # with more texts, a second pass is faster than the quadratic comparison
PAIRS_AT_A_TIME = 4_096  # 330 MB for 13 layers of width 768
# Cosines of equal float32 states differ by at most 1e-13. The limit is wider than in `tied`, which compares two values.
CONSTANT_COSINES = 1e-9


def profile(
    encoder: Encoder,
    texts: Sequence[str] | None = None,
    *,
    reference: Encoder | None = None,
    pairs: "Iterable[TextPair] | None" = None,
    retrieval: "RetrievalSet | None" = None,
    settings: AnalysisSettings | None = None,
    progress: ProgressOption = False,
) -> LayerProfile:
    """Measure every layer of `encoder` and, unless all pair scores are 0 or 1, predict a drop.

    texts: By default the texts of `pairs`, else of `retrieval`; duplicates, which bias CKA, are removed.
    reference: A model without a drop, ideally a masked language model of the same depth; by default the encoder's
        middle layer (less reliable).
    pairs: Graded pairs, to compute untrained Spearman.
    retrieval: Queries and documents to search with untrained states; best layer by the set's metric.

    Raises:
        UsageError: There are no texts, or a setting is invalid.
        ModelError: States are not finite, or a block does not exist.
        DataError: There are too few texts, scores are not finite, or a correlation is undefined.
    """
    settings = settings or AnalysisSettings()
    full_depth, digest = encoder.depth, encoder_digest(encoder)
    if settings.blocks is not None:
        encoder = keep(encoder, settings.blocks, copy_weights=False)
    if pairs is not None:
        pairs = _drawn_pairs(every_pair := list(pairs), settings)
    if texts is not None:
        offered = listed_texts(texts)
    elif pairs is not None:
        offered = [text for pair in every_pair for text in (pair.first, pair.second)]
    elif retrieval is not None:
        offered = [text for text in (*retrieval.queries, *retrieval.documents) if text]
    else:
        raise UsageError("There are no texts to analyze.", hint="Give `texts`, or graded `pairs`.")
    distinct = list(dict.fromkeys(offered))
    if texts is None and pairs is not None:
        drawn = distinct_texts(pairs)
    else:
        drawn = [distinct[place] for place in sorted(_order(len(distinct), settings.seed)[: settings.max_texts])]
    if len(drawn) < FEWEST_TEXTS:
        raise too_few_texts(len(drawn))
    models = (encoder,) if reference is None else (encoder, reference)
    streamed = _is_streamed(settings, models, len(drawn))
    blocks = settings.intervals  # at least 2; CKA needs four texts in each (streamed) or without each
    blocks = blocks if blocks > 1 and len(drawn) >= max(8, (4 if streamed else 2) * blocks) else 0
    watch, measure = reporter(progress), _streamed if streamed else _in_memory
    groups = None if pairs is None else _groups(drawn, pairs)
    measured, (states, *_) = measure(models, drawn, replace(settings, intervals=blocks), groups, watch)
    held = {} if streamed else {text: place for place, text in enumerate(drawn)}
    read = partial(layer_states, encoder, progress=watch, **_reading(settings))
    measured["spearman"] = None if pairs is None else _spearman(read, pairs, held, states)
    labels = pairs is not None and {pair.target for pair in pairs} == {0, 1}
    if retrieval is not None:
        measured["searched"] = _search(encoder, read, retrieval, held, states)
        measured["num_queries"] = len(retrieval.queries)
    return LayerProfile(
        model=encoder.name,
        reference=None if reference is None else reference.name,
        depth=encoder.depth,
        reference_depth=None if reference is None else reference.depth,
        width=encoder.width,
        pooling=settings.pooling or encoder.state_pooling,
        raw=settings.raw,
        parameters=_parameters(encoder),
        outliers=settings.outliers,
        estimator=settings.estimator,
        kernel=settings.kernel,
        level=settings.level,
        num_pairs=len(pairs or ()),
        num_texts=len(drawn),
        num_repeats=len(offered) - len(distinct),
        num_not_drawn=len(distinct) - len(drawn),
        streamed=streamed,
        matrix_texts=states.shape[1],
        drop=None if labels else _prediction(models, measured, num_distinct(pairs or ())),
        kept_blocks=settings.blocks,
        labels=labels,
        full_depth=full_depth,
        encoder_digest=digest,
        texts_digest=sha256_of(sorted(distinct)),
        **measured,
    )


def predicted_drop(
    encoder: Encoder,
    texts: Sequence[str],
    *,
    pairs: "Sequence[TextPair] | None" = None,
    max_length: int | None = None,
    progress: ProgressOption = False,
) -> DropPrediction | None:
    """Return the drop that `profile` predicts with the default reference of this model.

    Uses up to `ANALYSED_TEXTS` texts, from `pairs` if possible. No prediction for models of one block, or for
    scores of only 0 and 1.
    """
    usual = default_reference(encoder.name)
    reference = load_encoder(usual, max_length=max_length) if usual else None
    settings = AnalysisSettings(max_texts=ANALYSED_TEXTS)
    if pairs:
        with suppress(DataError):  # equal scores: use `texts` instead
            return profile(encoder, pairs=pairs, reference=reference, settings=settings, progress=progress).drop
    return profile(encoder, texts, reference=reference, settings=settings, progress=progress).drop


class LabelFreeScores:
    """Accumulates label-free scores of layers from the pooled states and token states of distinct texts."""

    def __init__(self) -> None:
        self.texts = self.tokens = 0
        self._moment = self._direction = self._squares = self._influence = self._angle = torch.empty(0)

    def update(self, states: Tensor, hidden_states: Sequence[Tensor], attention_mask: Tensor) -> None:
        """Add pooled states (L, b, d), L token states (b, t, d), and a mask (b, t), nonzero for real tokens."""
        states = states.double()
        if self.texts == 0:
            layers, _, width = states.shape
            self._moment = states.new_zeros(layers, width, width)
            self._direction, self._squares = states.new_zeros(layers, width), states.new_zeros(layers)
            self._influence, self._angle = states.new_zeros(2, layers - 1)
        self._moment.baddbmm_(states.mT, states)
        unit = torch.nn.functional.normalize(states, dim=-1)
        self._direction += unit.sum(1)
        self._squares += unit.square().sum((1, 2))
        self.texts += states.shape[1]
        # In float64: near 1, arccos turns float32 rounding into 3e-4.
        tokens = [layer[attention_mask.bool()].double() for layer in hidden_states]
        self.tokens += len(tokens[0])
        for block, (before, after) in enumerate(pairwise(tokens)):
            cosines = torch.cosine_similarity(before, after, dim=-1).clamp(-1, 1)
            self._influence[block] += (1 - cosines).sum()
            self._angle[block] += cosines.arccos().sum() / math.pi

    def result(self) -> dict[str, tuple[float, ...]]:
        """Return all scores. Raises `ModelError` on NaN.

        Effective rank is RankMe (arXiv:2210.02885), exp of the entropy of a layer's singular values, 1 to the width.
        Anisotropy is the mean cosine of two different texts. From layer l to l + 1, Block Influence is 1 − the mean
        cosine of a token before and after (ShortGPT, arXiv:2403.03853); angular distance is the mean arccos / π (as in
        PruneMe, arXiv:2403.17887, but over all tokens).
        """
        require_finite(self._moment.sum((1, 2)))
        require_finite(self._influence)
        # From second moments zᵀz (d, d).
        values = torch.stack([torch.linalg.eigvalsh(moment).clamp_min(0).sqrt() for moment in self._moment])
        shares = values / values.sum(1, keepdim=True).clamp_min(torch.finfo(values.dtype).tiny)
        # Σ over pairs i ≠ j of u_i u_j: |Σ u|² − Σ |u|².
        cosine = (self._direction.square().sum(1) - self._squares) / (self.texts * (self.texts - 1))
        scores = {
            "effective_rank": torch.special.entr(shares).sum(1).exp(),
            "anisotropy": cosine,
            "block_influence": self._influence / self.tokens,
            "angular_distance": self._angle / self.tokens,
        }
        return {name: tuple(score.tolist()) for name, score in scores.items()}


Measured = tuple[dict[str, Any], list[Tensor]]
"""Fields of `LayerProfile`, and states (L, n, d) of each model."""


def _reading(settings: AnalysisSettings) -> dict[str, Any]:
    return {"pooling": settings.pooling, "raw": settings.raw, "batch_size": settings.batch_size}


def _groups(texts: Sequence[str], pairs: "Sequence[TextPair]") -> Tensor:
    """Return the connected component of each text (n,); pairs connect texts."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    place = {text: at for at, text in enumerate(texts)}
    joined = [(place[one.first], place[one.second]) for one in pairs if {one.first, one.second} <= place.keys()]
    edges = coo_array((np.ones(len(joined)), np.reshape(joined, (-1, 2)).T), shape=(len(texts), len(texts)))
    return torch.from_numpy(connected_components(edges, directed=False)[1]).long()


def _compared_layers(models: Sequence[Encoder]) -> tuple[int, ...]:
    depth = models[0].depth
    return relative_layers(depth, models[1].depth) if len(models) > 1 else (depth // 2,) * (depth + 1)


def _in_memory(
    models: Sequence[Encoder], texts: Sequence[str], settings: AnalysisSettings, groups: Tensor | None, watch: Progress
) -> Measured:
    states = [torch.empty(model.depth + 1, len(texts), model.width, dtype=torch.float32) for model in models]
    scores, layers, without = LabelFreeScores(), _compared_layers(models), None
    for batches in iter_states(models, texts, progress=watch, **_reading(settings)):
        _score(scores, models[0], batches[0], raw=settings.raw)
        for held, (places, pooled, _, _) in zip(states, batches, strict=True):
            held[:, places] = pooled
    curve, matrix = compare_layers(states, replace(settings, outliers=0), layers, groups)
    if settings.outliers:
        without, _ = compare_layers(states, replace(settings, intervals=0), layers)
    return {"cka": curve, "cka_without_outliers": without, "cka_matrix": matrix} | scores.result(), states


def _streamed(
    models: Sequence[Encoder], texts: Sequence[str], settings: AnalysisSettings, groups: Tensor | None, watch: Progress
) -> Measured:
    """Measure in constant memory, holding the states of a sample only."""
    order, bounds = text_blocks(len(texts), settings.intervals, groups, settings.seed)
    if any(stop - start < FEWEST_TEXTS for start, stop in bounds):
        bounds = []
    texts, blocks = [texts[place] for place in order.tolist()], len(bounds)
    measured, sample = _in_memory(models, texts[:SAMPLE_TEXTS], replace(settings, intervals=0), None, watch)
    scores, layers, total = LabelFreeScores(), _compared_layers(models), len(texts)
    masks = [outlier_mask(states, settings.outliers) for states in sample] if settings.outliers else []
    fresh = partial(StreamedCKA, estimator=settings.estimator, pairs=[*enumerate(layers)])
    whole, cleaned, values = fresh(), fresh(), []
    for start, stop in bounds or [(0, total)]:

        def report(task: str, done: int, _: int, start: int = start) -> None:
            watch(task, start + done, total)

        block = fresh()
        for batches in iter_states(models, texts[start:stop], progress=report, **_reading(settings)):
            _score(scores, models[0], batches[0], raw=settings.raw)
            states = [pooled for _, pooled, _, _ in batches]
            whole.update(*states)
            block.update(*states)
            if masks:
                cleaned.update(*(layer * mask for layer, mask in zip(states, masks, strict=True)))
        values.append(block.result(undefined="nan"))
    # Standard error by batch means: blocks are independent samples.
    error = torch.stack(values).std(0) / blocks**0.5 if blocks else None
    measured["cka"] = curve_of(whole.result(undefined="nan"), layers, error, blocks, settings.level)
    if masks:
        without = cleaned.result(undefined="nan")
        measured["cka_without_outliers"] = curve_of(without, layers, None, 0, settings.level)
    return measured | scores.result(), sample


@torch.inference_mode()
def _score(scores: LabelFreeScores, encoder: Encoder, batch: StateBatch, *, raw: bool) -> None:
    _, pooled, hidden, mask = batch
    # Raw states lack the final norm below the last layer; without it, the last block would seem to change every token.
    if raw and encoder.final_norm is not None:
        hidden = (*map(encoder.final_norm, hidden[:-1]), hidden[-1])
    scores.update(pooled, hidden, mask)


def _parameters(encoder: Encoder) -> tuple[int | None, ...]:
    others = sum(parameter.numel() for parameter in encoder.tail.parameters())
    cut = parameters_kept(encoder.backbone.config)[:-1]
    return (*(None if count is None else count + others for count in cut), encoder.num_parameters)


def _is_streamed(settings: AnalysisSettings, models: Sequence[Encoder], count: int) -> bool:
    size = sum((model.depth + 1) * model.width for model in models) * count * 4
    fits = size <= IN_MEMORY_BYTES and count <= IN_MEMORY_TEXTS
    streamed = not fits if settings.streamed is None else settings.streamed
    if streamed and settings.kernel != "linear":
        raise UsageError(
            f"The {settings.kernel} kernel needs all states in memory and cannot stream the states of {count:,} texts.",
            hint="Use `max_texts=2000`, or the linear kernel.",
        )
    return streamed


def _drawn_pairs(pairs: "list[TextPair]", settings: AnalysisSettings) -> "list[TextPair]":
    if settings.max_texts is None:
        return pairs
    seen, kept = set[str](), list[int]()
    for place in _order(len(pairs), settings.seed):
        seen |= {pairs[place].first, pairs[place].second}
        if len(seen) > settings.max_texts:
            break
        kept.append(place)
    return [pairs[place] for place in sorted(kept)]


def _order(count: int, seed: int) -> list[int]:
    order: list[int] = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    return order


def _spearman(
    read: Callable[..., Tensor], pairs: "Sequence[TextPair]", held: Mapping[str, int], states: Tensor
) -> tuple[float | None, ...]:
    """Return Spearman × 100 of each layer (undefined for equal cosines).

    held: Index in `states` of texts with known states. Raises `DataError` for fewer than three pairs or equal scores.
    """
    from truncate_kit.evaluation.graded import correlate, pair_similarities

    parts: Iterable[tuple[PairPlaces, Tensor]]
    if set(distinct_texts(pairs)) <= held.keys():
        parts = [(index_texts(pairs, [*held])[1], states)]
    else:
        starts = range(0, len(pairs), PAIRS_AT_A_TIME)
        indexed = (index_texts(pairs[start : start + PAIRS_AT_A_TIME]) for start in starts)
        parts = ((places, read(texts)) for texts, places in indexed)
    cosines = [torch.tensor([pair_similarities(layer, at) for layer in layers]).double() for at, layers in parts]
    targets = [pair.target for pair in pairs]
    return tuple(
        None if float(layer.max() - layer.min()) < CONSTANT_COSINES else correlate(layer.tolist(), targets).spearman
        for layer in torch.cat(cosines, 1)
    )


def _search(
    encoder: Encoder, read: Callable[..., Tensor], data: "RetrievalSet", held: Mapping[str, int], states: Tensor
) -> dict[SearchMetric, tuple[float, ...]]:
    from truncate_kit.evaluation.retrieval import search_layers

    def reader(names: Sequence[str]) -> "Reader":
        prompt = side_prompt(encoder, names)

        def all_states(texts: Sequence[str]) -> Tensor:
            if prompt is None and held.keys() >= {*texts}:
                return states[:, [held[text] for text in texts]]
            return read([(prompt or "") + text for text in texts], prompt=False)

        return all_states

    layers = search_layers(data, reader(QUERY_PROMPTS), reader(DOCUMENT_PROMPTS))
    metrics = sorted(SEARCH_METRICS, key=lambda metric: metric != data.metric)
    return {metric: tuple(float(scores[metric].mean()) for scores in layers) for metric in metrics}


def _prediction(models: Sequence[Encoder], measured: dict[str, Any], num_pairs: int) -> DropPrediction | None:
    """Predict the drop; ignore Spearman on few pairs, as the probability was fitted on hundreds."""
    if models[0].depth < 2:
        return None
    spearman = (measured["spearman"] or ()) if num_pairs >= FEWEST_COMPARED else ()
    reference = called(models[1].name) if len(models) > 1 else None
    measures = measured | {"spearman": [value or 0.0 for value in spearman]}
    return predict_drop(measured["cka"], measures, reference=reference)
