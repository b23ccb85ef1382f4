"""The paired bootstrap against plain Python and scipy."""

import random
import statistics
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from tests.support.made_results import a_bench
from truncate_kit.core.errors import DataError
from truncate_kit.core.vectors import draw_counts
from truncate_kit.data.seen import numbers_of
from truncate_kit.evaluation.graded import paired_difference
from truncate_kit.report.measuring import gained_table, quality_sentence


def quality_difference(lean, full, targets, **options):
    """Fill `BenchReport.quality`."""
    (ours, theirs), (low, high), resamples, num_pairs = paired_difference(lean, full, targets, **options)
    quality = {"lean": ours, "full": theirs, "difference": ours - theirs, "low": low, "high": high, "level": 0.95}
    return quality | {"resamples": resamples, "num_pairs": num_pairs}


def _pairs(count, seed=3):
    generator = random.Random(seed)
    targets = [generator.randint(0, 5) for _ in range(count)]
    lean = [target / 5 + generator.gauss(0, 0.3) for target in targets]
    full = [round(target / 5 + generator.gauss(0, 0.6), 1) for target in targets]  # with ties
    return lean, full, targets


def test_interval_is_the_percentiles_of_the_paired_differences():
    lean, full, targets = _pairs(30)
    result = quality_difference(lean, full, targets, resamples=200, level=0.9, seed=5)
    differences = []
    for row in draw_counts(30, 200, seed=5):
        drawn = np.repeat(np.arange(30), row)
        score = [stats.spearmanr(np.array(x)[drawn], np.array(targets)[drawn]).statistic for x in (lean, full)]
        differences.append(100 * (score[0] - score[1]))
    cuts = statistics.quantiles(differences, n=20, method="inclusive")
    assert (result["low"], result["high"]) == pytest.approx((cuts[0], cuts[-1]))
    ours, theirs = (stats.spearmanr(cosines, targets).statistic for cosines in (lean, full))
    assert result["difference"] == pytest.approx(100 * (ours - theirs))
    assert (result["resamples"], result["num_pairs"]) == (200, 30)
    monotone = [value**3 for value in lean]  # the same ranks in every resample, so no difference in any
    alike = quality_difference(lean, monotone, targets, resamples=200)
    assert (alike["difference"], alike["low"], alike["high"]) == pytest.approx((0, 0, 0), abs=1e-9)


def test_rows_that_repeat_a_pair_are_no_further_evidence():
    lean, full, targets = _pairs(15)
    once = quality_difference(lean, full, targets)
    texts = [(f"a{number}", f"b{number}") for number in range(15)]
    numbers = numbers_of([*texts, *((second, first) for first, second in texts)])
    assert numbers.tolist() == [*range(15), *range(15)]
    again = quality_difference(2 * lean, 2 * full, 2 * targets, numbers=numbers)
    assert (again["low"], again["high"], again["num_pairs"]) == (once["low"], once["high"], 15)
    assert again["difference"] == pytest.approx(once["difference"])


def test_resamples_without_a_correlation_are_left_out_and_counted():
    result = quality_difference([0.1, 0.2, 0.9], [0.2, 0.1, 0.9], [0, 0, 5], resamples=500)
    assert result["resamples"] < 500  # many draws of three pairs hold one target only
    assert result["low"] <= result["high"]


@pytest.mark.parametrize("count", [3, 19, 20])
def test_few_pairs_give_no_verdict(count):
    """One model orders pairs as the targets, the other in reverse: all resamples agree."""
    targets = list(range(count))
    found = quality_difference(targets, targets[::-1], targets)
    assert (found["low"], found["high"]) == pytest.approx((200, 200))
    report = replace(a_bench(), quality=found)
    said, (gain,) = quality_sentence(report, found), (row[-1] for row in gained_table(report).rows if "score" in row[0])
    assert gain == ("+200.0" if count < 20 else "+200.0 [+200.0, +200.0]")
    if count < 20:
        assert said.endswith(f": +200.00 points; {count} pairs are too few to tell which model is better.")
    else:
        assert said.endswith("over 20 pairs, 2,000 resamples): lean is better.")


def test_constant_similarities_are_an_error():
    with pytest.raises(DataError):
        quality_difference([0.5] * 5, [0.1, 0.2, 0.3, 0.4, 0.5], [1, 2, 3, 4, 5])
