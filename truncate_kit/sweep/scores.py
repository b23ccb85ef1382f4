"""Trials summed up: one row for each layer."""

from collections.abc import Sequence
from statistics import fmean, stdev

from truncate_kit.encoders import Encoder, parameters_kept
from truncate_kit.runs.trial import Trial
from truncate_kit.sweep.results import LayerScores


def scores_by_layer(encoder: Encoder, trials: Sequence[Trial]) -> tuple[LayerScores, ...]:
    """Mean and sample standard deviation over the seeds of each layer."""
    kept = parameters_kept(encoder.backbone.config)
    rows = []
    for layer in sorted({trial.layer for trial in trials}):
        mine = sorted({trial.seed: trial for trial in trials if trial.layer == layer}.values(), key=lambda t: t.seed)
        test = [trial.test for trial in mine if trial.test is not None]
        pearson = [trial.test_pearson for trial in mine if trial.test_pearson is not None]
        dev_pearson = [trial.dev_pearson for trial in mine if trial.dev_pearson is not None]
        rows.append(
            LayerScores(
                layer=layer,
                parameters=(kept[layer] or 0) + sum(parameter.numel() for parameter in encoder.tail.parameters()),
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


def standard_deviation(values: Sequence[float]) -> float | None:
    """Of a sample; None for a single value."""
    return stdev(values) if len(values) > 1 else None
