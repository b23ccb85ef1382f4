"""What texts and models show of the layers before any training: CKA and label-free scores from one pass."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from truncate_kit.analysis.cka import LayerComparison, StreamedCurve, compare_layers, relative_layers, without_nan
from truncate_kit.analysis.drop import DropPrediction, predict_drop
from truncate_kit.analysis.hsic import outlier_dimensions
from truncate_kit.analysis.result import FEWEST_TEXTS, AnalysisSettings, Curve, LayerProfile, called
from truncate_kit.analysis.streaming import LayerStateScores, LayerTokenScores, StateScores, StreamedCKA, TokenScores
from truncate_kit.core.errors import DataError, UsageError, too_few_texts
from truncate_kit.core.origin import default_reference
from truncate_kit.core.progress import Progress, ProgressOption, reporter
from truncate_kit.core.settings import listed_texts
from truncate_kit.core.wording import FEWEST_COMPARED, counted
from truncate_kit.data.pairs import PlacedPairs, TextPair, distinct_texts
from truncate_kit.data.retrieval import SEARCH_METRICS, RetrievalSet
from truncate_kit.evaluation.graded import correlate, pair_similarities
from truncate_kit.evaluation.searching import (
    DOCUMENT_PROMPTS,
    QUERY_PROMPTS,
    QueryScores,
    Reader,
    search_layers,
    side_prompt,
)
from truncate_kit.models.encoder import Encoder
from truncate_kit.models.layer_pooling import LayerPooler
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.pipeline import Digest, encoder_digest
from truncate_kit.models.truncation import StateBatch, iter_states_together, keep, layer_states, parameters_kept

ANALYSED_TEXTS = 2000  # enough for intervals of a few hundredths, and a matter of seconds
SAMPLE_TEXTS = 4_096  # texts whose states are held beside a stream, for what needs all layer pairs at once
IN_MEMORY_BYTES = 512 << 20  # states of both models that are held; comparing them takes about four times that
IN_MEMORY_TEXTS = 10_000  # beyond, comparing in memory takes longer than a second pass: it is quadratic in the texts
PAIRS_AT_A_TIME = 4_096  # pairs whose states are held at a time: of 13 layers of width 768, 330 MB
# Cosines that differ by less are all the same: states are float32, cosines of equal states differ by 1e-13. It is wider
# than `statistics.tied`: no layer that reads something has all of its cosines so near, single pairs of it may.
CONSTANT_COSINES = 1e-9


def profile(
    encoder: Encoder,
    texts: Sequence[str] | None = None,
    *,
    reference: Encoder | None = None,
    pairs: Iterable[TextPair] | None = None,
    retrieval: RetrievalSet | None = None,
    settings: AnalysisSettings | None = None,
    progress: ProgressOption = False,
) -> LayerProfile:
    """Measure every layer of `encoder`; predict whether scores drop at its end, unless the pairs have only labels.

    Args:
        encoder: The model to look at.
        texts: None takes the texts of the pairs, else of `retrieval`; repeats are left out: they break CKA's debiasing.
        reference: A model known to have no such drop, best a masked language model of the same depth; None compares the
            model with its own middle layer, which is less sure.
        pairs: Graded pairs, for Spearman of the untrained states. If every score is 0 or 1, nothing is predicted:
            of the alarms on labels none came true.
        retrieval: Queries and documents, for nDCG@10, MRR@10 and recall@10 of the untrained states, all documents
            compared; by the one that it names the best layer is chosen.
        settings: None takes the defaults.
        progress: True draws bars and logs; else what is called with the task and how much of it is done.

    Raises:
        UsageError: There is nothing to read, or a setting is impossible.
        ModelError: States are no numbers, or the model has no such blocks.
        DataError: There are too few texts, or scores that are no numbers or such that no correlation is defined.
    """
    progress, settings = reporter(progress), settings or AnalysisSettings()
    if texts is None and pairs is None and retrieval is not None:
        texts = [text for text in (*retrieval.queries, *retrieval.documents) if text]
    full_depth, digest = encoder.depth, encoder_digest(encoder)
    texts = None if texts is None else listed_texts(texts)
    if settings.blocks is not None:
        encoder = keep(encoder, settings.blocks, copy_weights=False)
    drawn = _drawn(texts, None if pairs is None else list(pairs), settings)
    count = len(drawn.texts)
    if count < FEWEST_TEXTS:
        raise too_few_texts(count)
    narrowest = min(model.width for model in (encoder, reference or encoder))
    if settings.outliers >= narrowest:
        hint = "Use 0 for none, or 1 to 5."
        raise UsageError(f"Cannot leave out {settings.outliers} of {narrowest} dimensions.", hint=hint)
    streamed = _is_streamed(settings, [encoder] if reference is None else [encoder, reference], count)
    blocks = settings.intervals if count >= (4 if streamed else 2) * settings.intervals else 0
    measurer = _Measurer(encoder, reference, settings, blocks, progress)
    found = measurer.streamed(drawn.texts) if streamed else measurer.in_memory(drawn.texts)
    held = [] if streamed else drawn.texts
    num_pairs, spearman = len(drawn.pairs or ()), None
    if drawn.pairs is not None:
        spearman = _spearman(measurer, drawn.pairs, held, found.states[0])
    # The model alone was compared with its middle layer only: its matrix is the one with itself.
    compared, alone, scores, tokens = found.compared, reference is None, found.scores, found.tokens
    result = LayerProfile(
        model=encoder.name,
        reference=None if reference is None else reference.name,
        depth=encoder.depth,
        reference_depth=None if reference is None else reference.depth,
        width=encoder.width,
        pooling=settings.pooling or encoder.pooling,
        raw=settings.raw,
        parameters=_parameters(encoder),
        cka=found.cka,
        cka_without_outliers=found.cka_without_outliers,
        outliers=settings.outliers,
        cka_matrix=compared.within if alone else compared.matrix,
        cka_within=compared.within,
        reference_within=None if alone else compared.reference_within,
        estimator=settings.estimator,
        kernel=settings.kernel,
        level=settings.level,
        blocks=blocks,
        block_influence=tokens.block_influence if tokens else (),
        angular_distance=tokens.angular_distance if tokens else (),
        num_tokens=tokens.num_tokens if tokens else 0,
        effective_rank=scores.effective_rank,
        anisotropy=scores.anisotropy,
        outlier_share=scores.outlier_share,
        spearman=spearman,
        num_pairs=num_pairs,
        num_texts=count,
        num_repeats=drawn.num_repeats,
        num_not_drawn=drawn.num_not_drawn,
        streamed=streamed,
        matrix_texts=found.states[0].shape[1],
        drop=None if drawn.labels else _prediction(encoder, reference, found, spearman, num_pairs),
        kept_blocks=settings.blocks,
        labels=drawn.labels,
        full_depth=full_depth,
        encoder_digest=digest,
        texts_digest=drawn.digest,
    )
    if retrieval is None:
        return result
    searched = _search(measurer, retrieval, held, found.states[0])
    ndcg, mrr, recall = (tuple(float(one[metric].mean()) for one in searched) for metric in SEARCH_METRICS)
    result = replace(result, ndcg=ndcg, mrr=mrr, recall=recall, search_metric=retrieval.metric)
    return replace(result, num_queries=len(retrieval.queries))


def predicted_drop(
    encoder: Encoder,
    texts: Sequence[str],
    *,
    pairs: Sequence[TextPair] | None = None,
    max_length: int | None = None,
) -> DropPrediction | None:
    """Return what `profile` predicts from some texts, with the usual reference if there is one for such a model.

    Args:
        encoder: The whole model, by whose name the reference is found.
        texts: The first `ANALYSED_TEXTS` are read, unless there are pairs whose scores rank them.
        pairs: Graded pairs to learn from; `ANALYSED_TEXTS` of their texts are read instead, and the untrained scores
            are part of the prediction.
        max_length: Of the reference's texts, in tokens.

    Returns:
        None for a model of fewer than two layers, and if all scores of the pairs are 0 or 1.

    Raises:
        TruncateKitError: As `profile`.
    """
    usual = default_reference(encoder.name)
    reference = load_encoder(usual, max_length=max_length) if usual else None
    settings = AnalysisSettings(max_texts=ANALYSED_TEXTS)
    if pairs:
        with suppress(DataError):  # scores that rank nothing; what else is wrong is found below
            return profile(encoder, pairs=pairs, reference=reference, settings=settings).drop
    return profile(encoder, texts, reference=reference, settings=settings).drop


@dataclass(frozen=True, slots=True)
class _Measured:
    """Results of one pass; curves as in `LayerProfile`."""

    cka: Curve
    cka_without_outliers: Curve | None
    compared: LayerComparison  # of the texts that were held
    tokens: LayerTokenScores | None  # None for a model without blocks
    scores: LayerStateScores
    states: tuple[Tensor, ...]  # per model (L', n, d) of the texts that were held, in their order


@dataclass(frozen=True, slots=True)
class _Measurer:
    """Measures the layers of a model, and of a reference beside it. blocks: of texts, for the intervals."""

    encoder: Encoder
    reference: Encoder | None
    settings: AnalysisSettings
    blocks: int
    progress: Progress

    @property
    def models(self) -> tuple[Encoder, ...]:
        """Return the model, and the reference if there is one."""
        return (self.encoder,) if self.reference is None else (self.encoder, self.reference)

    def in_memory(self, texts: Sequence[str]) -> _Measured:
        """Hold the states of all texts and compare them in one go."""
        shapes = [(model.depth + 1, len(texts), model.width) for model in self.models]
        states = tuple(torch.empty(shape, dtype=torch.float32) for shape in shapes)
        scores = _Scores(self.encoder, raw=self.settings.raw)
        for batches in self._batches(texts, self.progress):
            scores.update(batches[0])
            for held, batch in zip(states, batches, strict=True):
                held[:, batch.places] = batch.states
        how, other, without = self.settings, self._other(states), None
        same: dict[str, Any] = {"estimator": how.estimator, "kernel": how.kernel, "level": how.level, "seed": how.seed}
        plain = compare_layers(states[0], other, blocks=self.blocks, **same)
        if how.outliers:
            left = compare_layers(states[0], other, outliers=how.outliers, blocks=0, **same)
            without = self._labelled(left.curve)
        return _Measured(self._labelled(plain.curve), without, plain, scores.tokens(), scores.states.result(), states)

    def streamed(self, texts: Sequence[str]) -> _Measured:
        """Hold no states but those of a sample: memory does not grow with the texts."""
        # In random order, because files are ordered by source: for the sample, and for the blocks of the interval.
        order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(self.settings.seed)).tolist()
        texts = [texts[place] for place in order]
        sample = replace(self, blocks=0).in_memory(texts[:SAMPLE_TEXTS])
        how = self.settings
        layers = relative_layers(self.encoder.depth, 0 if self.reference is None else self.reference.depth)
        curve = StreamedCurve(layers, estimator=how.estimator, level=how.level)
        cleaned = StreamedCKA(estimator=how.estimator, pairs=list(enumerate(layers)))
        masks = [_kept_dimensions(states, how.outliers) for states in sample.states] if how.outliers else []
        scores = _Scores(self.encoder, raw=how.raw)
        parts = max(1, self.blocks)
        for start, stop in itertools.pairwise(len(texts) * part // parts for part in range(parts + 1)):
            for batches in self._batches(texts[start:stop], _part_of(self.progress, start, len(texts))):
                scores.update(batches[0])
                states = tuple(batch.states for batch in batches)
                curve.update(states[0], self._other(states))
                if masks:
                    states = tuple(layer * mask for layer, mask in zip(states, masks, strict=True))
                    cleaned.update(states[0], self._other(states))
            curve.end_block()
        without = None
        if masks:
            values = without_nan(cleaned.result(undefined="nan"))
            without = self._labelled(Curve(values=values, reference_layers=layers))
        return replace(
            sample,
            cka=self._labelled(curve.result()),
            cka_without_outliers=without,
            tokens=scores.tokens(),
            scores=scores.states.result(),
        )

    def read(self, texts: Sequence[str], *, prompt: bool = True) -> Tensor:
        """Return the states of the model alone, (L', n, d), as they are compared."""
        how = self.settings
        options: dict[str, Any] = {"pooling": how.pooling, "raw": how.raw, "batch_size": how.batch_size}
        return layer_states(self.encoder, texts, prompt=prompt, progress=self.progress, **options)

    def _batches(self, texts: Sequence[str], progress: Progress) -> Iterator[tuple[StateBatch, ...]]:
        how = self.settings
        return iter_states_together(
            self.models, texts, pooling=how.pooling, raw=how.raw, batch_size=how.batch_size, progress=progress
        )

    def _other(self, states: tuple[Tensor, ...]) -> Tensor:
        """Return the states to compare with: the reference's, or those of the model's own middle layer."""
        if len(states) > 1:
            return states[1]
        middle = self.encoder.depth // 2
        return states[0][middle : middle + 1]

    def _labelled(self, curve: Curve) -> Curve:
        """Return the curve with the number that the middle layer has in the model."""
        if self.reference is not None:
            return curve
        return replace(curve, reference_layers=(self.encoder.depth // 2,) * len(curve.values))


class _Scores:
    """Label-free scores of the model over a stream of its batches."""

    def __init__(self, encoder: Encoder, *, raw: bool) -> None:
        self.states = StateScores()
        self._tokens = TokenScores() if encoder.depth else None
        # The last layer always has the final norm; compared with raw ones, it would seem to change every token.
        self._norm = encoder.final_norm if raw else None

    @torch.inference_mode()
    def update(self, batch: StateBatch) -> None:
        self.states.update(batch.states)
        if self._tokens is not None:
            hidden = batch.hidden_states
            if self._norm is not None:
                hidden = (*(self._norm(layer) for layer in hidden[:-1]), hidden[-1])
            self._tokens.update(hidden, batch.attention_mask)

    def tokens(self) -> LayerTokenScores | None:
        return None if self._tokens is None else self._tokens.result()


def _kept_dimensions(states: Tensor, outliers: int) -> Tensor:
    """Return (L', 1, d), 0 at each layer's outlier dimensions and 1 elsewhere. states: (L', n, d)."""
    kept = torch.ones(states.shape[0], 1, states.shape[2])
    return kept.scatter_(-1, outlier_dimensions(states, outliers)[:, None, :], 0.0)


def _part_of(progress: Progress, start: int, total: int) -> Progress:
    """Report progress within a part of the texts as progress over all of them."""
    return lambda task, done, _: progress(task, start + done, total)


def _parameters(encoder: Encoder) -> tuple[int | None, ...]:
    """Of the model cut at each layer; heads and what pools over layers stay with all of them only."""
    pooler = None if isinstance(encoder.pooler, LayerPooler) else encoder.pooler
    above = [encoder.tail, *([] if pooler is None else [pooler])]
    others = sum(parameter.numel() for module in above for parameter in module.parameters())
    cut = parameters_kept(encoder.backbone.config)[:-1]
    return (*(None if count is None else count + others for count in cut), encoder.num_parameters)


def _is_streamed(settings: AnalysisSettings, models: Sequence[Encoder], count: int) -> bool:
    size = sum((model.depth + 1) * model.width for model in models) * count * 4
    fits = size <= IN_MEMORY_BYTES and count <= IN_MEMORY_TEXTS
    streamed = not fits if settings.streamed is None else settings.streamed
    if streamed and settings.kernel != "linear":
        raise UsageError(
            f"The {settings.kernel} kernel needs all states in memory, and those of {count:,} texts are too many.",
            hint="Use `max_texts=2000`, or the linear kernel.",
        )
    return streamed


class _Drawn(NamedTuple):
    """The pairs and the distinct texts to read, how many repeats and texts not drawn, and the digest of all texts."""

    pairs: list[TextPair] | None
    texts: list[str]
    num_repeats: int
    num_not_drawn: int
    digest: str

    @property
    def labels(self) -> bool:
        """Whether the pairs are marked as alike or not: no similarity in which a drop could be seen."""
        return self.pairs is not None and {pair.target for pair in self.pairs} == {0, 1}


def _drawn(texts: Sequence[str] | None, pairs: list[TextPair] | None, settings: AnalysisSettings) -> _Drawn:
    if texts is None and pairs is None:
        raise UsageError("There is nothing to read.", hint="Give `texts`, or graded `pairs`.")
    graded = None if pairs is None else _drawn_pairs(pairs, settings.max_texts, settings.seed)
    given = [text for pair in pairs or () for text in (pair.first, pair.second)] if texts is None else texts
    whole = list(dict.fromkeys(given))
    if texts is None and graded is not None:
        drawn = distinct_texts(graded)
    else:
        drawn = [whole[place] for place in sorted(_order(len(whole), settings.seed)[: settings.max_texts])]
    digest = Digest()
    digest.add(*sorted(whole))
    return _Drawn(graded, drawn, len(given) - len(whole), len(whole) - len(drawn), digest.hexdigest())


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


def _spearman(
    measurer: _Measurer, pairs: Sequence[TextPair], held: Sequence[str], states: Tensor
) -> tuple[float | None, ...]:
    """Return Spearman × 100 of each layer, from the states that are held if they are those of all pairs.

    None if all cosines of a layer are the same. Raises `DataError` for fewer than three pairs or one score only.
    """
    parts: Iterable[tuple[PlacedPairs, Tensor]]
    if set(distinct_texts(pairs)) <= set(held):
        parts = [(PlacedPairs.of(pairs, held), states)]
    else:
        some = (PlacedPairs.of(pairs[at : at + PAIRS_AT_A_TIME]) for at in range(0, len(pairs), PAIRS_AT_A_TIME))
        parts = ((places, measurer.read(places.texts)) for places in some)
    found = [torch.tensor([pair_similarities(layer, at) for layer in read], dtype=torch.float64) for at, read in parts]
    targets = [pair.target for pair in pairs]
    return tuple(
        None if float(layer.max() - layer.min()) < CONSTANT_COSINES else correlate(layer.tolist(), targets).spearman
        for layer in torch.cat(found, 1)
    )


def _search(measurer: _Measurer, data: RetrievalSet, held: Sequence[str], states: torch.Tensor) -> list[QueryScores]:
    """Of each layer, from the states that are held where texts are read as they are: without any prompts."""
    place = {text: index for index, text in enumerate(held)}

    def reader(names: Sequence[str]) -> Reader:
        prompt = side_prompt(measurer.encoder, names)

        def read(texts: Sequence[str]) -> torch.Tensor:
            found = states.new_empty(states.shape[0], len(texts), states.shape[2])
            known = [number for number, text in enumerate(texts) if prompt is None and text in place]
            others = sorted({*range(len(texts))} - {*known})
            found[:, known] = states[:, [place[texts[number]] for number in known]]
            if others:
                found[:, others] = measurer.read([(prompt or "") + texts[number] for number in others], prompt=False)
            return found

        return read

    return search_layers(data, reader(QUERY_PROMPTS), reader(DOCUMENT_PROMPTS))


def _prediction(
    encoder: Encoder,
    reference: Encoder | None,
    found: _Measured,
    spearman: Sequence[float | None] | None,
    num_pairs: int,
) -> DropPrediction | None:
    """The scores of few pairs are chance: the sweeps that a probability comes from had hundreds."""
    if encoder.depth < 2:
        return None
    assert found.tokens is not None
    few = num_pairs < FEWEST_COMPARED
    predicted = predict_drop(
        found.cka.values,
        reference=None if reference is None else called(reference.name),
        low=found.cka.low,
        high=found.cka.high,
        effective_rank=found.scores.effective_rank,
        anisotropy=found.scores.anisotropy,
        block_influence=found.tokens.block_influence,
        # States that are the same for all texts rank nothing: no correlation.
        untrained_spearman=None if spearman is None or few else [value or 0.0 for value in spearman],
    )
    if spearman is None or not few:
        return predicted
    ignored = f"; the scores of {counted(num_pairs, 'pair')} are too few to count here."
    return replace(predicted, sentence=predicted.sentence.removesuffix(".") + ignored)
