"""How often candidates are timed. Nothing here asserts a time."""

import random
import statistics

import numpy as np
import pytest

from truncate_kit.methods.distill import frontier as speed


@pytest.mark.parametrize(("seconds", "rounds"), [(0.0, 3), (1e9, 7)])
def test_all_take_turns_more_often_where_that_takes_little(seconds, rounds, monkeypatch):
    monkeypatch.setattr(speed, "ROUNDS", 3)
    monkeypatch.setattr(speed, "MOST_ROUNDS", 7)
    monkeypatch.setattr(speed, "SECONDS", seconds)
    heard, shown = [], []
    runs = [lambda name=name: heard.append(name) for name in "ab"]
    rates = speed.side_by_side(runs, 12, progress=lambda *step: shown.append(step))
    assert "".join(heard) == "ab" * (1 + rounds)  # the first round warms up
    assert rates.seconds.shape == (2, rounds)
    assert shown[-1] == ("Timing", 3, 3)


def test_speedups_have_the_interval_of_a_bootstrap_over_rounds():
    """Against one that draws by itself; a round that was slow for all says nothing of their factor."""
    draw = random.Random(1)
    slow = [draw.uniform(1, 3) for _ in range(12)]
    full = [2.0 * factor for factor in slow]
    lean = [1.0 * factor * draw.uniform(0.9, 1.1) for factor in slow]
    timings = speed.Timings(np.array([lean, full]), 30)
    assert timings.texts_per_second == pytest.approx([30 / statistics.median(lean), 30 / statistics.median(full)])
    (low, high), same = timings.speedup_intervals(-1)
    assert same == (1.0, 1.0)
    factors = []
    for _ in range(4000):
        rounds = [draw.randrange(12) for _ in range(12)]
        factors.append(statistics.median(full[one] for one in rounds) / statistics.median(lean[one] for one in rounds))
    ends = statistics.quantiles(factors, n=40)
    assert (low, high) == pytest.approx((ends[0], ends[-1]), rel=0.02)
    assert high - low < 0.5, "the machine's own changes, threefold, are no part of it"
