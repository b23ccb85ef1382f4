"""Who is called when, and what the numbers made of seconds mean. Nothing here asserts a time."""

import statistics

import pytest

from truncate_kit.bench.bench_report import Ceiling, percentile
from truncate_kit.bench.gains import gains
from truncate_kit.bench.scenarios import spread, timing, with_shares
from truncate_kit.bench.timing import interleaved


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
    row = timing(
        ("lean", "torch-fp32"), "throughput", (0.4, 0.1, 0.2), sentences=8, tokens=128, shape=(8, 16), work=10**9
    )
    assert (row.p50_seconds, row.sentences_per_second, row.tokens_per_second) == pytest.approx((0.2, 40, 640))
    assert (row.batch_size, row.length, row.gflops) == (8, 16, 1.0)
    assert row.seconds == (0.4, 0.1, 0.2)


def _timing(role, backend, seconds, shape=None, work=None):
    scenario = "real set" if shape is None else "throughput"
    return timing((role, backend), scenario, seconds, sentences=10, tokens=50, shape=shape, work=work)


def test_share_is_work_per_second_over_the_ceiling_of_the_same_precision():
    ceilings = [
        Ceiling(precision=precision, size=1, seconds=(1.0,), gflops_per_second=speed)
        for precision, speed in (("fp32", 100.0), ("bf16", 400.0))
    ]
    rows = [
        _timing("lean", backend, (0.5,), (2, 8), 10 * 10**9) for backend in ("torch-fp32", "torch-bf16", "onnx-fp32")
    ]
    rows.append(_timing("lean", "torch-fp32", (0.5,)))
    assert [row.ceiling_share for row in with_shares(rows, ceilings)] == [0.2, 0.05, 0.2, None]


def test_gain_is_what_depth_gave_times_what_the_runtime_gave():
    rows = [
        _timing("lean", "torch-fp32", (0.3, 0.2, 0.25)),
        _timing("full", "torch-fp32", (1.0, 0.9, 1.4)),
        _timing("lean", "onnx-fp32", (0.1, 0.12, 0.09)),
        _timing("full", "onnx-fp32", (0.5, 0.5, 0.5)),
        _timing("lean", "onnx-fp32", (0.02,), (4, 8)),  # nothing to compare with at this shape
    ]
    found = {row.backend: row for row in gains(rows, "torch-fp32")}
    assert list(found) == ["torch-fp32", "onnx-fp32"]
    onnx = found["onnx-fp32"]
    assert (onnx.depth, onnx.runtime, onnx.total) == pytest.approx((1.0 / 0.25, 0.25 / 0.1, 1.0 / 0.1))
    assert all(row.depth * row.runtime == pytest.approx(row.total) for row in found.values())


def test_texts_are_spread_evenly_and_once_each():
    texts = [f"text {place}" for place in range(100)]
    assert spread([*texts, *texts], 5) == ("text 0", "text 25", "text 50", "text 74", "text 99")
    assert spread(["a", "b", "a"], 5) == ("a", "b")
