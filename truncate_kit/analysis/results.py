"""The result of an analysis."""

from dataclasses import dataclass
from pathlib import Path

from truncate_kit.results import Result
from truncate_kit.similarity.compare import Curve, Row
from truncate_kit.similarity.drop import DropPrediction


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerProfile(Result):
    """Everything that was measured of the layers 0 (embeddings) … depth of one model.

    model, reference: their names; reference None: the model was compared with its own middle layer.
    reference_depth: None without a reference.
    parameters: kept when truncated at that layer, pooler excluded; None where no model can end there.
    cka: to the reference at the same layer, at the same relative depth where depths differ (its `reference_layers`
    say which), or to the model's own middle layer. cka_without_outliers: the same without each layer's `outliers`
    dimensions of largest variance; None when not asked for.
    cka_matrix: rows are the model's layers, columns the reference's. cka_within, reference_within: each with itself.
    estimator, kernel, level, blocks: how CKA and its interval were computed; 0 blocks: no interval.
    block_influence, angular_distance: from layer l to l + 1, so one less than layers; over num_tokens tokens.
    effective_rank, anisotropy, outlier_share: of the pooled states, see `LayerStateScores`.
    spearman: points (× 100) of the untrained states on num_pairs graded pairs, None where all cosines are the same;
    None as a whole without scores.
    num_texts: distinct texts compared. num_repeats: repeats left out. num_not_drawn: distinct texts beyond the limit.
    streamed: whether the states were too many to hold. matrix_texts: how many texts the matrices come from.
    drop: None for models too shallow to have a middle.
    ndcg: nDCG@10, in points, of the untrained states on num_queries queries; None without a retrieval set.
    """

    model: str
    reference: str | None
    depth: int
    reference_depth: int | None
    width: int
    pooling: str
    raw: bool
    parameters: tuple[int | None, ...]
    cka: Curve
    cka_without_outliers: Curve | None
    outliers: int
    cka_matrix: tuple[Row, ...]
    cka_within: tuple[Row, ...]
    reference_within: tuple[Row, ...] | None
    estimator: str
    kernel: str
    level: float
    blocks: int
    block_influence: tuple[float, ...]
    angular_distance: tuple[float, ...]
    num_tokens: int
    effective_rank: tuple[float, ...]
    anisotropy: tuple[float, ...]
    outlier_share: tuple[float | None, ...]
    spearman: tuple[float | None, ...] | None
    num_pairs: int
    num_texts: int
    num_repeats: int
    num_not_drawn: int
    streamed: bool
    matrix_texts: int
    drop: DropPrediction | None
    ndcg: tuple[float, ...] | None = None
    num_queries: int = 0

    @property
    def sentence(self) -> str:
        """The prediction in one sentence."""
        if self.drop is not None:
            return self.drop.sentence
        blocks = "1 block" if self.depth == 1 else f"{self.depth} blocks"
        return f"A model of {blocks} has no middle to compare its end with: no drop is predicted."

    def statements(self) -> tuple[str, ...]:
        """What the user has to know of how the numbers came about."""
        notes = [self._texts_sentence()]
        if self.reference is None:
            notes.append(
                f"No reference: each layer is compared with the model's own middle layer {self.depth // 2}, "
                "which is less sure."
            )
        elif self.reference_depth != self.depth:
            mapping = ", ".join(f"{layer}–{other}" for layer, other in enumerate(self.cka.reference_layers))
            notes.append(
                f"The depths differ ({self.depth} and {self.reference_depth} blocks), so layers are compared at the "
                f"same relative depth: {mapping}."
            )
        if self.streamed:
            notes.append(
                f"The states were streamed; the matrices and the choice of outlier dimensions come from a sample of "
                f"{self.matrix_texts:,} texts."
            )
        not_held = [str(layer) for layer, count in enumerate(self.parameters) if count is None]
        if not_held:
            notes.append(f"No model of this family can be cut at layer {', '.join(not_held)}.")
        if self.depth > 1 and len(set(self.parameters[1:])) == 1:
            notes.append("The blocks of this model share their weights: cutting saves time, not parameters.")
        return tuple(notes)

    def _texts_sentence(self) -> str:
        said = f"States of {self.num_texts:,} distinct texts"
        if self.num_repeats:
            said += f"; {self.num_repeats:,} repeats were left out"
        if self.num_not_drawn:
            said += f"; {self.num_not_drawn:,} more texts were not drawn"
        return f"{said}."


def called(name: str) -> str:
    """What to call a model in a sentence: the last part of a local path, otherwise its name."""
    return Path(name).name if Path(name).is_dir() else name
