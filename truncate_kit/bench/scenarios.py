"""What each contestant has to do: one sentence at a time, fixed shapes, a real set of sentences."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from truncate_kit.bench.backends import BACKENDS
from truncate_kit.bench.bench_report import Ceiling, Key, Role, Scenario, Timing, percentile
from truncate_kit.bench.energy import EnergyMeter
from truncate_kit.bench.roofline import ceiling, ceiling_calls, flops
from truncate_kit.bench.running import Runner, random_ids
from truncate_kit.bench.timing import Stopwatch, interleaved
from truncate_kit.models import Encoder

Runners = Mapping[Key, Runner]
WARM_UP_TEXTS = 64
LATENCY_CALLS = 10  # per round: a 95th percentile wants more calls than a median


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentences:
    """The texts of the real set, evenly spread over the given ones; as random ids for models without a tokenizer."""

    texts: tuple[str, ...]
    random: bool

    def ids(self, encoder: Encoder) -> list[list[int]]:
        """Ids of each text; where there is no tokenizer as many random ones as it has words, plus two."""
        if not self.random:
            return encoder.token_ids(self.texts)
        lengths = [min(len(text.split()) + 2, encoder.max_length) for text in self.texts]
        return random_ids(lengths, encoder.backbone.config.vocab_size)


def spread(texts: Sequence[str], count: int) -> tuple[str, ...]:
    """At most `count` of the distinct texts, evenly spread in their order: files are often sorted by source."""
    distinct = list(dict.fromkeys(texts))
    if len(distinct) <= count:
        return tuple(distinct)
    return tuple(distinct[place] for place in np.linspace(0, len(distinct) - 1, count).round().astype(int))


def timing(
    key: Key,
    scenario: Scenario,
    seconds: tuple[float, ...],
    *,
    sentences: int,
    tokens: int,
    shape: tuple[int, int] | None = None,
    work: int | None = None,
    device_seconds: Sequence[float] = (),
    joules: float | None = None,
) -> Timing:
    """The `Timing` of raw seconds of every call.

    Args:
        key: Role and backend of the contestant.
        scenario: What was timed.
        seconds: Of each call.
        sentences: Number in a call.
        tokens: Number in a call.
        shape: Batch size and length.
        work: Operations of one call.
        device_seconds: Of each call, on the device alone.
        joules: As in `Timing`.
    """
    median = percentile(seconds, 0.5)
    return Timing(
        role=key[0],
        backend=key[1],
        scenario=scenario,
        batch_size=shape[0] if shape else None,
        length=shape[1] if shape else None,
        sentences=sentences,
        tokens=tokens,
        seconds=seconds,
        p50_seconds=median,
        p95_seconds=percentile(seconds, 0.95),
        sentences_per_second=sentences / median,
        tokens_per_second=tokens / median,
        gflops=None if work is None else work / 1e9,
        device_seconds=tuple(device_seconds),
        joules=joules,
    )


def time_shape(
    runners: Runners,
    encoders: Mapping[Role, Encoder],
    shape: tuple[int, int],
    *,
    rounds: int,
    device: torch.device,
    with_ceiling: bool = False,
) -> tuple[list[Timing], list[Ceiling]]:
    """Batches of one shape without padding, ids ready in memory.

    Args:
        runners: The contestants.
        encoders: The model of each role.
        shape: Batch size and length.
        rounds: As in `interleaved`.
        device: On which they run.
        with_ceiling: Time the device's ceiling among them.
    """
    batch_size, length = shape
    single = batch_size == 1
    calls: dict[Key | str, Callable[[], object]] = {
        key: runner.prepare(random_ids([length] * batch_size, encoders[key[0]].backbone.config.vocab_size))
        for key, runner in runners.items()
    }
    if with_ceiling:
        precisions = sorted({BACKENDS[backend].precision for _, backend in runners})
        calls.update(ceiling_calls(device, precisions).items())
    watch: Stopwatch[Key | str] = Stopwatch(device)
    seconds = interleaved(calls, rounds=rounds, calls_per_round=LATENCY_CALLS if single else 1, watch=watch)
    timings = [
        timing(
            key,
            "latency" if single else "throughput",
            seconds[key],
            sentences=batch_size,
            tokens=batch_size * length,
            shape=shape,
            work=flops(encoders[key[0]], batch_size, length),
            device_seconds=watch.device_seconds.get(key, ()),
        )
        for key in runners
    ]
    ceilings = [ceiling(device, key, seconds[key]) for key in calls if isinstance(key, str)]
    return timings, ceilings


def time_one_sentence(
    runners: Runners, encoders: Mapping[Role, Encoder], sentences: Sentences, *, rounds: int
) -> list[Timing]:
    """One sentence after the other, tokeniser included: every contestant gets the same ones in the same order."""
    chosen = Sentences(texts=spread(sentences.texts, rounds * LATENCY_CALLS), random=sentences.random)
    calls = {
        key: _one_by_one(runner.encode_ids, chosen.ids(encoders[key[0]]))
        if chosen.random
        else _one_by_one(runner.encode, chosen.texts)
        for key, runner in runners.items()
    }
    seconds = interleaved(calls, rounds=rounds, calls_per_round=LATENCY_CALLS)
    tokens = {role: round(np.mean([len(row) for row in chosen.ids(encoder)])) for role, encoder in encoders.items()}
    return [timing(key, "one sentence", seconds[key], sentences=1, tokens=tokens[key[0]]) for key in runners]


def _one_by_one(encode: Callable[[Any], object], inputs: Sequence[object]) -> Callable[[], object]:
    endless = itertools.cycle(inputs)
    return lambda: encode([next(endless)])


def time_real_set(
    runners: Runners, encoders: Mapping[Role, Encoder], sentences: Sentences, *, rounds: int, meter: EnergyMeter
) -> list[Timing]:
    """All sentences, sorted by length and cut into batches, tokeniser included; with the energy they took."""
    ids = {role: sentences.ids(encoder) for role, encoder in encoders.items()}

    def call(key: Key, runner: Runner, count: int | None) -> Callable[[], object]:
        if sentences.random:
            return lambda: runner.encode_ids(ids[key[0]][:count])
        return lambda: runner.encode(sentences.texts[:count])

    calls = {key: call(key, runner, None) for key, runner in runners.items()}
    seconds = interleaved(
        calls, rounds=rounds, warm_up={key: call(key, runner, WARM_UP_TEXTS) for key, runner in runners.items()}
    )
    return [
        timing(
            key,
            "real set",
            seconds[key],
            sentences=len(sentences.texts),
            tokens=sum(len(row) for row in ids[key[0]]),
            joules=meter.joules_per_call(calls[key]),
        )
        for key in runners
    ]


def with_shares(timings: Sequence[Timing], ceilings: Sequence[Ceiling]) -> tuple[Timing, ...]:
    """The timings with their share of the ceiling of the same precision, where their work is known."""
    highest = {row.precision: row.gflops_per_second for row in ceilings}

    def share(row: Timing) -> float | None:
        limit = highest.get(BACKENDS[row.backend].precision)
        return None if row.gflops is None or limit is None else row.gflops / row.p50_seconds / limit

    return tuple(replace(row, ceiling_share=share(row)) for row in timings)
