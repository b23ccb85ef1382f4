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
    """The outcome of `finetune`."""

    model: str  # name of the model that was cut
    data: str
    data_fingerprint: str  # of its texts and scores; nothing for raw text alone
    settings: SweepSettings  # what was searched and how the choice was made
    training: TrainingSettings  # of every trial
    learning_rate: float  # peak rate that was used
    layers: tuple[LayerScores, ...]  # every layer trained with the full budget, in order
    search: tuple[Trial, ...]  # trials that only led to the choice: shorter ones, and those that a race stopped
    trials: tuple[Trial, ...]  # all with the full budget, those of the full model included
    chosen: int  # the layer that was saved
    chosen_seed: int  # the seed of the saved weights, best on dev
    # the yardstick, the model at its last layer with the same budget; for distillation the teacher as it is
    full: LayerScores
    prediction: DropPrediction | None  # the predicted drop that bounded pick and search
    choice: str  # why this layer, in words; also that nothing was gained where it is the last one
    metric: str  # what the scores are
    search_cost: int  # block-steps spent to choose, without those of the chosen layer's own trials
    exhaustive_cost: int  # what trying all layers with all seeds would have spent likewise
    seconds: float  # of the call
    before: str = ""  # what the models learned before the task, in words; nothing where they did not

    @property
    def lean(self) -> LayerScores:
        """The scores of the chosen layer."""
        return next(row for row in self.layers if row.layer == self.chosen)
