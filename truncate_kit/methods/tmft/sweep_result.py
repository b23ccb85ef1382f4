"""What a sweep returns, and how trials become one row for each layer."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING

from truncate_kit.analysis.drop import DropPrediction
from truncate_kit.methods.tmft.certainty import Certainty
from truncate_kit.methods.tmft.settings import SweepSettings
from truncate_kit.naming import place_in_words
from truncate_kit.results import Result
from truncate_kit.statistics import standard_deviation
from truncate_kit.training.settings import TrainingSettings, Trial
from truncate_kit.wording import counted, points

if TYPE_CHECKING:
    from truncate_kit.models import Encoder


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

    @property
    def cells(self) -> tuple[str, str, str]:
        """Dev, test, and Pearson's correlation on test, each with its deviation, as tables have them."""
        pearson = points(self.test_pearson, self.test_pearson_std)
        return points(self.dev, self.dev_std), points(self.test, self.test_std), pearson


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking(Result):
    """A finished ranking as it is kept: the score of each layer, in points."""

    layers: tuple[int, ...]
    scores: tuple[float, ...]


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
    prediction: DropPrediction | None  # what was predicted; a drop that is likely bounded pick and search
    choice: str  # why this layer, in words; also that nothing was gained where it is the last one
    metric: str  # what the scores are
    search_cost: int  # block-steps spent to choose, without those of the chosen layer's own trials
    exhaustive_cost: int  # what trying all layers with all seeds would have spent likewise
    seconds: float  # of the call
    before: str = ""  # what the models learned before the task, in words; nothing where they did not
    # Of the full model, that the model whose layers were tried consists of; None where these are its first ones.
    blocks: tuple[int, ...] | None = None
    # Cheap scores of all layers that led the search, by the names of the strategies that need nothing else.
    rankings: dict[str, Ranking] = field(default_factory=dict)
    # Which layers dev and seeds cannot tell apart; None where fewer than two were trained out, or dev is too small.
    certainty: Certainty | None = None
    retrieval: str = ""  # name of the retrieval set by half of whose queries all was chosen; nothing where dev did
    queries_fingerprint: str = ""  # of these queries; nothing where dev chose
    # That the model or its teacher had seen test pairs before, in words; nothing where neither had.
    seen_before: str = ""

    @property
    def lean(self) -> LayerScores:
        """The scores of the chosen layer."""
        return next(row for row in self.layers if row.layer == self.chosen)

    @property
    def tests_of_shared_seeds(self) -> tuple[float, float]:
        """Test scores of the chosen layer and of the full model, means over the seeds that both have.

        An earlier call may have left more seeds of one of them; where none is shared, over those that each has.
        """
        tests = [
            {trial.seed: trial.test for trial in self.trials if trial.layer == row.layer and trial.test is not None}
            for row in (self.lean, self.full)
        ]
        shared = tests[0].keys() & tests[1].keys()
        if not shared:
            return self.lean.test, self.full.test
        lean, full = (fmean(found[seed] for seed in sorted(shared)) for found in tests)
        return lean, full

    @property
    def choice_sentences(self) -> tuple[str, ...]:
        """Why this layer, and which others dev and seeds cannot tell apart."""
        return (self.choice,) if self.certainty is None else (self.choice, self.certainty.sentence)

    @property
    def cost_sentences(self) -> tuple[str, ...]:
        """What the search cost against trying every layer with every seed; nothing where there was none."""
        share = 100 * self.search_cost / max(1, self.exhaustive_cost)
        said = (
            f"Search cost, trials of earlier runs included: {self.search_cost:,} block-steps, {share:.0f} % of what "
            f"trying every layer with every seed costs ({self.exhaustive_cost:,})."
        )
        return (said,) if self.search_cost else ()

    @property
    def rows(self) -> list[LayerScores]:
        """Every layer trained with the full budget and the full model, by layer."""
        return sorted({row.layer: row for row in (*self.layers, self.full)}.values(), key=lambda row: row.layer)

    @property
    def seeds_in_words(self) -> str:
        """Over how many seeds its rows are: "3 seeds", or "2 to 4 seeds" where earlier calls left more of some."""
        return numbers_of_seeds(self.rows)

    def place(self, layer: int) -> str:
        """What a model of `layer` has of the full one, in words: `layer 3`, or `blocks 1, 4, 6`."""
        return place_in_words(layer, None if layer == self.full.layer else self.blocks)

    def row_name(self, layer: int) -> str:
        """What the row of `layer` is called in tables: `3`, or `blocks 1, 4, 6` where blocks were left out."""
        return f"{layer}" if self.blocks is None else self.place(layer)


def numbers_of_seeds(rows: Sequence[LayerScores]) -> str:
    """Over how many seeds the rows are, in words."""
    numbers = [len(row.seeds) for row in rows]
    least, most = min(numbers), max(numbers)
    return counted(least, "seed") if least == most else f"{least} to {most} seeds"


def scores_by_layer(encoder: "Encoder", trials: Sequence[Trial]) -> tuple[LayerScores, ...]:
    """Mean and sample standard deviation over the seeds of each layer."""
    from truncate_kit.models import parameters_kept  # here, because results are read without torch

    kept = parameters_kept(encoder.backbone.config)
    above = [encoder.tail, *([] if encoder.pooler is None else [encoder.pooler])]
    others = sum(parameter.numel() for module in above for parameter in module.parameters())
    rows = []
    for layer in sorted({trial.layer for trial in trials}):
        mine = sorted({trial.seed: trial for trial in trials if trial.layer == layer}.values(), key=lambda t: t.seed)
        test = [trial.test for trial in mine if trial.test is not None]
        pearson = [trial.test_pearson for trial in mine if trial.test_pearson is not None]
        dev_pearson = [trial.dev_pearson for trial in mine if trial.dev_pearson is not None]
        rows.append(
            LayerScores(
                layer=layer,
                parameters=(kept[layer] or 0) + others,
                seeds=tuple(trial.seed for trial in mine),
                dev=fmean(trial.dev for trial in mine),
                dev_std=standard_deviation([trial.dev for trial in mine]),
                test=fmean(test),
                test_std=standard_deviation(test),
                test_pearson=fmean(pearson) if pearson else None,
                test_pearson_std=standard_deviation(pearson),
                dev_pearson=fmean(dev_pearson) if dev_pearson else None,
                dev_pearson_std=standard_deviation(dev_pearson),
            )
        )
    return tuple(rows)
