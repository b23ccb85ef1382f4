"""CKA of the layers and their label-free scores from one pass over the texts, with states held or streamed."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from truncate_kit.analysis.compare import LayerComparison, Variant, compare_layers, relative_layers, without_nan
from truncate_kit.analysis.curve import Curve, Row
from truncate_kit.analysis.preparing import outlier_dimensions
from truncate_kit.analysis.scores import LayerStateScores, LayerTokenScores, StateScores, TokenScores
from truncate_kit.analysis.settings import AnalysisSettings
from truncate_kit.analysis.streamed_curve import StreamedCurve
from truncate_kit.analysis.streaming import StreamedCKA
from truncate_kit.models import Encoder
from truncate_kit.models.states import StateBatch, iter_states_together, layer_states
from truncate_kit.progress import Progress

SAMPLE_TEXTS = 4_096  # texts whose states are held beside a stream, for what needs all layer pairs at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Results of one pass; matrices and curves as in `LayerProfile`."""

    cka: Curve
    cka_without_outliers: Curve | None
    matrix: tuple[Row, ...]
    within: tuple[Row, ...]
    reference_within: tuple[Row, ...] | None
    tokens: LayerTokenScores | None  # None for a model without blocks
    scores: LayerStateScores
    states: tuple[Tensor, ...]  # per model (L', n, d) of the texts that were held, in their order


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurer:
    """Measures the layers of a model, and of a reference beside it. blocks: of texts, for the intervals."""

    encoder: Encoder
    reference: Encoder | None
    settings: AnalysisSettings
    blocks: int
    progress: Progress

    @property
    def models(self) -> tuple[Encoder, ...]:
        """The model, and the reference if there is one."""
        return (self.encoder,) if self.reference is None else (self.encoder, self.reference)

    def in_memory(self, texts: Sequence[str]) -> Measurement:
        """Hold the states of all texts and compare them in one go."""
        shapes = [(model.depth + 1, len(texts), model.width) for model in self.models]
        states = tuple(torch.empty(shape, dtype=torch.float32) for shape in shapes)
        scores = _Scores(self.encoder, raw=self.settings.raw)
        for batches in self._batches(texts, self.progress):
            scores.update(batches[0])
            for held, batch in zip(states, batches, strict=True):
                held[:, batch.places] = batch.states
        plain = self._compared(states, "plain", self.blocks)
        without = None
        if self.settings.outliers:
            without = self._labelled(self._compared(states, "without_outliers", 0).relative_depth)
        # The model alone was compared with its middle layer only: its matrix is the one with itself.
        alone = self.reference is None
        return Measurement(
            cka=self._labelled(plain.relative_depth),
            cka_without_outliers=without,
            matrix=plain.within if alone else plain.matrix,
            within=plain.within,
            reference_within=None if alone else plain.reference_within,
            tokens=scores.tokens(),
            scores=scores.states.result(),
            states=states,
        )

    def streamed(self, texts: Sequence[str]) -> Measurement:
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
        edges = [len(texts) * part // parts for part in range(parts + 1)]
        for start, stop in itertools.pairwise(edges):
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
            without = Curve(values=without_nan(cleaned.result(undefined="nan")), reference_layers=layers)
        return replace(
            sample,
            cka=self._labelled(curve.result()),
            cka_without_outliers=without and self._labelled(without),
            tokens=scores.tokens(),
            scores=scores.states.result(),
        )

    def read(self, texts: Sequence[str], *, prompt: bool = True) -> Tensor:
        """The states of the model alone, (L', n, d), as they are compared."""
        how = self.settings
        options: dict[str, Any] = {"pooling": how.pooling, "raw": how.raw, "batch_size": how.batch_size}
        return layer_states(self.encoder, texts, prompt=prompt, progress=self.progress, **options)

    def _batches(self, texts: Sequence[str], progress: Progress) -> Iterator[tuple[StateBatch, ...]]:
        how = self.settings
        return iter_states_together(
            self.models, texts, pooling=how.pooling, raw=how.raw, batch_size=how.batch_size, progress=progress
        )

    def _compared(self, states: tuple[Tensor, ...], variant: Variant, blocks: int) -> LayerComparison:
        how = self.settings
        return compare_layers(
            states[0],
            self._other(states),
            estimator=how.estimator,
            kernel=how.kernel,
            variant=variant,
            outliers=max(1, how.outliers),
            blocks=blocks,
            level=how.level,
            seed=how.seed,
        )

    def _other(self, states: tuple[Tensor, ...]) -> Tensor:
        """What the model is compared with: the reference's states, or those of the model's own middle layer."""
        if len(states) > 1:
            return states[1]
        middle = self.encoder.depth // 2
        return states[0][middle : middle + 1]

    def _labelled(self, curve: Curve) -> Curve:
        """The curve with the number that the middle layer has in the model."""
        if self.reference is not None:
            return curve
        return replace(curve, reference_layers=(self.encoder.depth // 2,) * len(curve.values))


class _Scores:
    """Label-free scores of the model over a stream of its batches."""

    def __init__(self, encoder: Encoder, *, raw: bool) -> None:
        self.states = StateScores()
        self._tokens = TokenScores()
        self._blocks = encoder.depth > 0
        # The last layer always has the final norm; compared with raw ones, it would seem to change every token.
        self._norm = encoder.final_norm if raw else None

    @torch.inference_mode()
    def update(self, batch: StateBatch) -> None:
        self.states.update(batch.states)
        if self._blocks:
            hidden = batch.hidden_states
            if self._norm is not None:
                hidden = (*(self._norm(layer) for layer in hidden[:-1]), hidden[-1])
            self._tokens.update(hidden, batch.attention_mask)

    def tokens(self) -> LayerTokenScores | None:
        return self._tokens.result() if self._blocks else None


def _kept_dimensions(states: Tensor, outliers: int) -> Tensor:
    """(L', 1, d), 0 at each layer's outlier dimensions and 1 elsewhere. states: (L', n, d)."""
    kept = torch.ones(states.shape[0], 1, states.shape[2])
    return kept.scatter_(-1, outlier_dimensions(states, outliers)[:, None, :], 0.0)


def _part_of(progress: Progress, start: int, total: int) -> Progress:
    """Progress within a part of the texts as progress over all of them."""
    return lambda task, done, _: progress(task, start + done, total)
