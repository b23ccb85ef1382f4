"""Time contestants side by side: single sentences, fixed shapes, a real set."""

import itertools
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import torch

from truncate_kit.bench.result import Key, Role, Scenario, Timing
from truncate_kit.bench.runners import Runner, guarded, random_ids
from truncate_kit.models.encoder import Encoder

Name = TypeVar("Name", bound=Hashable)
Call = Callable[[], object]
Runners = Mapping[Key, Runner]

# Thread pools spin for some milliseconds and would slow the next runtime.
_REST = 0.02
_PRODUCT = 1536  # rows of matrices in `slower_in_bf16`
WARM_UP_TEXTS = 64
LATENCY_CALLS = 10  # per round, for a 95th percentile


def interleaved(
    calls: Mapping[Name, Call],
    *,
    rounds: int,
    calls_per_round: int = 1,
    warm_up: Mapping[Name, Call] | None = None,
    on_device: dict[Name, list[float]] | None = None,
) -> dict[Name, tuple[float, ...]]:
    """Time `rounds × calls_per_round` calls of each in turns, so that a slower machine slows all.

    Each visit begins with a rest and an untimed `warm_up`, by default the call itself. `on_device` gets seconds between
    GPU events around each call.
    """
    seconds: dict[Name, list[float]] = {key: [] for key in calls}
    order = list(calls)
    for turn in range(rounds):
        start = turn % max(len(order), 1)
        for key in order[start:] + order[:start]:
            time.sleep(_REST)
            (warm_up or calls)[key]()
            for _ in range(calls_per_round):
                if on_device is None:
                    begin = time.perf_counter()
                    calls[key]()
                    seconds[key].append(time.perf_counter() - begin)
                    continue
                first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                first.record()
                begin = time.perf_counter()
                calls[key]()
                last.record()
                seconds[key].append(time.perf_counter() - begin)
                last.synchronize()
                on_device.setdefault(key, []).append(first.elapsed_time(last) / 1000)
    return {key: tuple(values) for key, values in seconds.items()}


def time_shape(
    runners: Runners, encoders: Mapping[Role, Encoder], shape: tuple[int, int], *, rounds: int, device: torch.device
) -> list[Timing]:
    """Time batches of one shape (batch size, length), ids in memory."""
    batch_size, length = shape
    calls = {}
    for key, runner in runners.items():
        ids = random_ids([length] * batch_size, encoders[key[0]].backbone.config.vocab_size)
        calls[key] = guarded(key, guarded(key, runner.prepare)(ids))
    on_device: dict[Key, list[float]] = {}
    seconds = interleaved(
        calls,
        rounds=rounds,
        calls_per_round=LATENCY_CALLS if batch_size == 1 else 1,
        on_device=on_device if device.type == "cuda" else None,
    )
    tokens = dict.fromkeys(encoders, batch_size * length)
    return _timings(seconds, "latency" if batch_size == 1 else "throughput", batch_size, tokens, shape, on_device)


def _timings(
    seconds: Mapping[Key, tuple[float, ...]],
    scenario: Scenario,
    sentences: int,
    tokens: Mapping[Role, int],
    shape: tuple[int, int] | tuple[None, None] = (None, None),
    on_device: Mapping[Key, list[float]] = MappingProxyType({}),
) -> list[Timing]:
    return [
        Timing(
            role=role,
            backend=backend,
            scenario=scenario,
            batch_size=shape[0],
            length=shape[1],
            sentences=sentences,
            tokens=tokens[role],
            seconds=values,
            device_seconds=tuple(on_device.get((role, backend), ())),
        )
        for (role, backend), values in seconds.items()
    ]


def spread(texts: Sequence[str], count: int) -> tuple[str, ...]:
    """Take at most `count` distinct texts, evenly spread: files are often sorted."""
    distinct = list(dict.fromkeys(texts))
    if len(distinct) <= count:
        return tuple(distinct)
    return tuple(distinct[place] for place in np.linspace(0, len(distinct) - 1, count).round().astype(int))


def time_texts(
    runners: Runners, encoders: Mapping[Role, Encoder], texts: Sequence[str], *, random: bool, rounds: int, singly: bool
) -> list[Timing]:
    """Time texts with their tokenizer, in batches or `singly`.

    random: Time random ids instead, two more than each text has words.
    """
    texts = spread(texts, rounds * LATENCY_CALLS) if singly else texts

    def ids_of(encoder: Encoder) -> list[list[int]]:
        if not random:
            return encoder.token_ids(texts)
        lengths = [min(len(text.split()) + 2, encoder.max_length) for text in texts]
        return random_ids(lengths, encoder.backbone.config.vocab_size)

    ids = {role: ids_of(encoder) for role, encoder in encoders.items()}

    def call(key: Key, runner: Runner, count: int | None = None) -> Call:
        inputs: Any = ids[key[0]] if random else texts
        encode = guarded(key, runner.encode_ids if random else runner.encode)
        endless = itertools.cycle(inputs)
        return (lambda: encode([next(endless)])) if singly else (lambda: encode(inputs[:count]))

    seconds = interleaved(
        {key: call(key, runner) for key, runner in runners.items()},
        rounds=rounds,
        calls_per_round=LATENCY_CALLS if singly else 1,
        warm_up=None if singly else {key: call(key, runner, WARM_UP_TEXTS) for key, runner in runners.items()},
    )
    count = len(texts) if singly else 1  # calls
    tokens = {role: round(sum(map(len, rows)) / count) for role, rows in ids.items()}
    return _timings(seconds, "one sentence" if singly else "real set", len(texts) // count, tokens)


def slower_in_bf16() -> str:
    """Warn if the CPU multiplies matrices in bfloat16 slower than in float32 (benchmarks/training)."""
    from truncate_kit.training.kernels import linear, onednn_pays

    left, right = (torch.randn(_PRODUCT, _PRODUCT) for _ in range(2))
    low, low_right = left.bfloat16(), right.bfloat16()
    # torch.mm does not reach what every processor can do in float32
    plain = (lambda: linear(left, right)) if onednn_pays() else (lambda: torch.mm(left, right))
    seconds = interleaved({"fp32": plain, "bf16": lambda: torch.mm(low, low_right)}, rounds=3)
    ratio = min(seconds["bf16"]) / min(seconds["fp32"])
    return "" if ratio <= 1 else f"bf16 is the slower one here: its products take {ratio:.1f} times as long."
