"""What a sweep returns."""

from dataclasses import dataclass

from truncate_kit.results import Result
from truncate_kit.runs.trial import Trial
from truncate_kit.similarity.drop import DropPrediction
from truncate_kit.sweep.settings import SweepSettings
from truncate_kit.training.configuration import TrainingSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerScores(Result):
    """Scores of one layer over its seeds: means in points; `…_std` standard deviations over seeds, None with one."""

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
class SweepResult(Result):
    """The outcome of `finetune`.

    Attributes:
        model: Name of the model that was cut.
        data: Name of the data.
        data_fingerprint: Of its texts and scores; nothing for raw text alone.
        settings: What was searched and how the choice was made.
        training: Of every trial.
        learning_rate: Peak rate that was used.
        layers: Every layer trained with the full budget, in order.
        search: Trials that only led to the choice: shorter ones, and those that a race stopped.
        trials: All with the full budget, those of the full model included.
        chosen: The layer that was saved.
        chosen_seed: The seed of the saved weights, best on dev.
        full: The yardstick, the model at its last layer with the same budget; for distillation the teacher as it is.
        prediction: The predicted drop that bounded pick and search.
        choice: Why this layer, in words; also that nothing was gained where it is the last one.
        metric: What the scores are.
        search_cost: Block-steps spent to choose, without those of the chosen layer's own trials.
        exhaustive_cost: What trying all layers with all seeds would have spent likewise.
        seconds: Of the call.
        before: What the models learned before the task, in words; nothing where they did not.
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
