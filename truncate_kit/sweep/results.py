"""What a sweep returns."""

from dataclasses import dataclass, replace

from truncate_kit.results import Result
from truncate_kit.similarity.drop import DropPrediction
from truncate_kit.sweep.picking import DEFAULT_RULE
from truncate_kit.training.configuration import TrainingSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial(Result):
    """One training run at one layer with one seed.

    dev_scores: after each epoch, in points; in contrastive training after each look at dev. best_epoch: place of the
    best of them, from 1; its weights gave all other scores. dev, test: main score in points (Spearman × 100, or mean
    cosine to the teacher × 100 where there are no labels). test is None in trials that only search: they never see it.
    steps: optimiser steps. seconds: training and judging. stopped_after: epochs that were run of one that a race
    stopped; None for the others, which ran all `epochs`.
    """

    layer: int
    seed: int
    epochs: int
    steps: int
    dev_scores: tuple[float, ...]
    best_epoch: int
    dev: float
    dev_pearson: float | None
    test: float | None
    test_pearson: float | None
    seconds: float
    stopped_after: int | None = None

    @property
    def epochs_run(self) -> int:
        """Epochs that were run."""
        return self.stopped_after or self.epochs

    @property
    def block_steps(self) -> int:
        """Steps × blocks run; layer 0 counts as one block."""
        return self.steps * max(1, self.layer)

    def first(self, epochs: int) -> "Trial":
        """What this trial, if it was judged once an epoch, had been had it stopped after so many of its epochs."""
        scores = self.dev_scores[:epochs]
        return replace(
            self,
            steps=self.steps // self.epochs * epochs,
            dev_scores=scores,
            best_epoch=scores.index(max(scores)) + 1,
            dev=max(scores),
            dev_pearson=None,
            test=None,
            test_pearson=None,
            seconds=self.seconds * epochs / self.epochs,
            stopped_after=epochs,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerScores(Result):
    """Scores of one layer over its seeds: means in points; standard deviations over seeds, None with one seed."""

    layer: int
    parameters: int
    seeds: tuple[int, ...]
    dev: float
    dev_std: float | None
    test: float
    test_std: float | None
    test_pearson: float | None
    test_pearson_std: float | None
    dev_pearson: float | None = None
    dev_pearson_std: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSettings(Result):
    """What is searched and how the choice is made.

    layers: `auto`, `all`, or layer numbers as text ("3,6,9"). strategy: behind `auto`; None is `rankings` for
    labelled pairs, which was most often within 0.3 points of an exhaustive search (benchmarks/tmft), and `guided` where
    there are none. pick, within: see `picking`.
    """

    layers: str = "auto"
    strategy: str | None = None
    pick: str = DEFAULT_RULE
    within: float | None = None
    seeds: tuple[int, ...] = (0, 1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult(Result):
    """The outcome of `finetune`.

    layers: every layer trained with the full budget, in order. full: the yardstick, the model at its last layer with
    the same budget (for distillation: the teacher as it is). chosen: the layer that was saved, with the seed that is
    best on dev. search_cost: block-steps spent to choose, without the chosen layer's own; exhaustive_cost: what trying
    all layers with all seeds would have spent likewise. choice: the reason in words. metric: what the scores are.
    before: what the models learned before the task, in words; nothing where they did not.
    """

    model: str
    data: str
    data_fingerprint: str
    settings: SweepSettings
    training: TrainingSettings
    learning_rate: float
    layers: tuple[LayerScores, ...]
    search: tuple[Trial, ...]
    trials: tuple[Trial, ...]
    chosen: int
    chosen_seed: int
    full: LayerScores
    prediction: DropPrediction | None
    choice: str
    metric: str
    search_cost: int
    exhaustive_cost: int
    seconds: float
    before: str = ""

    @property
    def lean(self) -> LayerScores:
        """The scores of the chosen layer."""
        return next(row for row in self.layers if row.layer == self.chosen)
