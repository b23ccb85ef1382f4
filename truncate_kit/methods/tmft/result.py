"""How sure a choice among layers is: which of them dev and seeds cannot tell apart."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from truncate_kit.analysis.drop import DropPrediction
from truncate_kit.methods.tmft.settings import SweepSettings
from truncate_kit.naming import place_in_words
from truncate_kit.results import Result
from truncate_kit.statistics import LEVEL, interval, standard_deviation
from truncate_kit.training.settings import TrainingSettings, Trial
from truncate_kit.wording import counted

if TYPE_CHECKING:
    from truncate_kit.models import Encoder


@dataclass(frozen=True, slots=True, kw_only=True)
class Certainty(Result):
    """Which layers could be the best one."""

    best: int  # the layer with the best mean dev score
    alike: tuple[int, ...]  # it and those that cannot be told apart from it, sorted
    compared: tuple[int, ...]  # layers that were trained out with the same seeds, sorted
    low: tuple[float, ...]  # of `compared`: points that the best one is ahead on dev, the interval at `level`
    high: tuple[float, ...]
    level: float
    seeds: int
    sentence: str


def certainty(
    trials: Sequence[Trial], layers: Sequence[int] = (), seeds: Sequence[int] = (), trained: Collection[int] = ()
) -> Certainty | None:
    """By a paired bootstrap over dev pairs and what seeds vary by, from the trials of one model with the full budget.

    In each draw all layers have the same resample of the dev pairs. A layer cannot be told apart from the best one if
    the interval of the difference holds 0; layers are compared with it one by one.

    Args:
        trials: Those without `dev_draws` are passed over.
        layers: All that could have been taken; those that were not trained out are named.
        seeds: By which was chosen. Where two layers or more have all of them, the others are none that were trained
            out: a layer that an earlier run left with fewer seeds takes none from the rest.
        trained: Layers that were trained out; where these are more than are compared, the sentence says so.

    Returns:
        None where fewer than two layers share a seed and have resampled scores.
    """
    could = layers
    held = {(trial.layer, trial.seed): trial for trial in trials if trial.dev_draws}
    layers = sorted({layer for layer, _ in held})
    whole = [layer for layer in layers if all((layer, seed) in held for seed in seeds)]
    if seeds and len(whole) >= 2:
        held = {(layer, seed): held[layer, seed] for layer in whole for seed in seeds}
        layers = whole
    seeds = [seed for seed in sorted({seed for _, seed in held}) if all((layer, seed) in held for layer in layers)]
    if len(layers) < 2 or not seeds:
        return None
    means = {layer: np.mean([held[layer, seed].dev for seed in seeds]) for layer in layers}
    best = max(layers, key=lambda layer: (means[layer], -layer))
    scores = {layer: np.array([held[layer, seed].dev_draws for seed in seeds]) for layer in layers}
    spread = spread_over_seeds([scores[layer].mean(1) for layer in layers])
    ends = []
    for layer in layers:
        ahead = means_over_seeds(scores[best] - scores[layer], spread) if layer != best else np.zeros(1)
        ends.append([round(end, 3) for end in interval(ahead)])
    low, high = zip(*ends, strict=True)
    alike = tuple(layer for layer, least in zip(layers, low, strict=True) if least <= 0)
    fewer = sorted({*could} & {*trained} - {*layers})
    missing = sorted({*could} - {*trained} - {*layers})
    return Certainty(
        best=best,
        alike=alike,
        compared=tuple(layers),
        low=low,
        high=high,
        level=LEVEL,
        seeds=len(seeds),
        sentence=_sentence(alike, layers, len(seeds), "compared" if {*trained} - {*layers} else "trained out")
        + _not_compared(missing, "not trained out")
        + _not_compared(fewer, "trained with fewer seeds"),
    )


def spread_over_seeds(means: Sequence[NDArray[np.float64]]) -> tuple[float, int]:
    """Variance over seeds of a difference of two layers, and its degrees of freedom; 0 and 0 for one seed.

    That of layers and seeds without repetition: what is left of a score without its layer's mean and its seed's. All
    layers together say it, since two or three seeds of one alone hardly do.

    Args:
        means: Of each layer the score of each seed.
    """
    table = np.array(means)
    freedom = (table.shape[0] - 1) * (table.shape[1] - 1)
    if not freedom:
        return 0.0, 0
    rest = table - table.mean(0) - table.mean(1, keepdims=True) + table.mean()
    return 2 * float((rest**2).sum()) / freedom, freedom


def means_over_seeds(draws: NDArray[np.float64], spread: tuple[float, int]) -> NDArray[np.float64]:
    """Of each resample of pairs a difference's mean over seeds, moved as far as that of as many other seeds might be.

    By Student's t: of two or three seeds drawn with replacement, the ends of an interval lie far too near.

    Args:
        draws: (seeds, resamples).
        spread: As `spread_over_seeds` gives it.
    """
    from scipy.stats import t as student_t  # slow to import, and results are read without it

    means = np.array(draws.mean(0))
    _, freedom = spread
    if not freedom:
        return means
    # The quantiles of t in an order by chance: those of a few hundred draws end anywhere.
    places = (np.arange(len(means)) + 0.5) / len(means)
    moved = np.random.default_rng(0).permutation(student_t.ppf(places, freedom))
    return np.array(means + moved * np.sqrt(variance_of_mean(draws, spread)))


def variance_of_mean(draws: NDArray[np.float64], spread: tuple[float, int]) -> float:
    """Variance over seeds of a difference's mean over them: that of all layers, or its own where that is larger.

    The last layers of a model with a drop vary more by seed than the others do. Arguments as in `means_over_seeds`.
    """
    pooled, freedom = spread
    return max(pooled, float(draws.mean(1).var(ddof=1))) / len(draws) if freedom else 0.0


def _sentence(alike: Sequence[int], layers: Sequence[int], seeds: int, what: str) -> str:
    over = "dev pairs and seeds" if seeds > 1 else "dev pairs; one seed says nothing of seeds"
    by = f"95 % interval of each against the best, over {over}"
    if len(alike) == 1:
        worse = [layer for layer in layers if layer != alike[0]]
        than = f"layer {worse[0]}, the only other one" if len(worse) == 1 else "every other layer"
        return f"Layer {alike[0]} is better on dev than {than} that was {what} ({by})."
    of = f"the only two that were {what}" if len(layers) == 2 else f"of the {len(layers)} that were {what}"
    return f"Layers {layers_in_words(alike)}, {of}, cannot be told apart on dev ({by}); {alike[0]} is the smallest."


def _not_compared(layers: Sequence[int], why: str) -> str:
    """A further sentence on layers that could have been taken; nothing where there are none."""
    if not layers:
        return ""
    if len(layers) == 1:
        return f" Layer {layers[0]} was {why}: it is not compared."
    return f" Layers {layers_in_words(layers)} were {why}: they are not compared."


def layers_in_words(layers: Sequence[int]) -> str:
    """Numbers in words: "1 to 3" where they follow each other, "1, 2 and 6" where they do not."""
    if len(layers) > 2 and layers[-1] - layers[0] == len(layers) - 1:
        return f"{layers[0]} to {layers[-1]}"
    *others, last = map(str, layers)
    return f"{', '.join(others)} and {last}" if others else last


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
    def rows(self) -> list[LayerScores]:
        """Every layer trained with the full budget and the full model, by layer."""
        return sorted({row.layer: row for row in (*self.layers, self.full)}.values(), key=lambda row: row.layer)

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
