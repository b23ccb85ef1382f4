"""The order of timed calls, and the numbers made of seconds. No test asserts a time."""

import statistics
from dataclasses import replace

import pytest

from tests.support.made_results import a_bench, timing
from truncate_kit.bench.result import percentile
from truncate_kit.bench.runners import interleaved
from truncate_kit.report.view import view_of


def test_contestants_take_turns_and_the_first_call_of_a_visit_is_not_timed():
    heard = []
    calls = {name: lambda name=name: heard.append(name) for name in "abc"}
    seconds = interleaved(calls, rounds=3, calls_per_round=2)
    assert "".join(heard) == "aaabbbccc" + "bbbcccaaa" + "cccaaabbb"
    assert {name: len(values) for name, values in seconds.items()} == {"a": 6, "b": 6, "c": 6}
    assert all(value >= 0 for values in seconds.values() for value in values)


def test_a_warm_up_of_its_own_takes_the_place_of_the_first_call():
    heard = []
    interleaved({"a": lambda: heard.append("call")}, rounds=2, warm_up={"a": lambda: heard.append("warm")})
    assert heard == ["warm", "call", "warm", "call"]


@pytest.mark.parametrize("count", [2, 5, 21, 50])
def test_percentiles_are_linear_between_neighbours(count):
    seconds = tuple(((7 * place) % count) ** 1.5 for place in range(count))
    assert percentile(seconds, 0.5) == pytest.approx(statistics.median(seconds))
    assert percentile(seconds, 0.95) == pytest.approx(statistics.quantiles(seconds, n=20, method="inclusive")[-1])


def test_rates_follow_from_the_median():
    row = timing(("lean", "torch-fp32"), "throughput", (0.4, 0.1, 0.2), (8, 16), sentences=8, tokens=128)
    assert (row.p50_seconds, row.sentences_per_second, row.tokens_per_second) == pytest.approx((0.2, 40, 640))


def test_gain_is_what_depth_gave_times_what_the_runtime_gave():
    sizes = {"sentences": 10, "tokens": 50}
    rows = (
        timing(("lean", "torch-fp32"), "real set", (0.3, 0.2, 0.25), **sizes),
        timing(("full", "torch-fp32"), "real set", (1.0, 0.9, 1.4), **sizes),
        timing(("lean", "onnx-fp32"), "real set", (0.1, 0.12, 0.09), **sizes),
    )
    gained, _, timings = view_of(replace(a_bench(), timings=rows)).tables
    assert next(row[-1] for row in gained.rows if row[0] == "sentences per second") == "10.0× faster (4.0 × 2.5)"
    hours = next(place for place, name in enumerate(timings.columns) if "hours" in name)
    assert timings.rows[2][hours] == "2,777.8"  # 10⁹ / 100 a second = 10⁷ s
