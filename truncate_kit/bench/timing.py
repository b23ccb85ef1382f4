"""Timing several contestants side by side, so that a machine that slows down slows all of them."""

import time
from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

import torch

Key = TypeVar("Key", bound=Hashable)
Call = Callable[[], object]

# Thread pools of one runtime keep spinning for some milliseconds after their last call and would slow the next one's.
_REST = 0.02


class Stopwatch(Generic[Key]):
    """Seconds of timed calls by contestant: by the wall clock, and on CUDA also between two events of the device.

    A call has to wait for its own device before it returns. The events are on torch's current stream.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self._on_cuda = device is not None and device.type == "cuda"
        self.seconds: dict[Key, list[float]] = {}
        self.device_seconds: dict[Key, list[float]] = {}

    def time(self, key: Key, call: Call) -> None:
        """Call once, and remember how long it took."""
        first, last = self._events()
        if first is not None:
            first.record()
        begin = time.perf_counter()
        call()
        if first is not None and last is not None:
            last.record()
        self.seconds.setdefault(key, []).append(time.perf_counter() - begin)
        if first is not None and last is not None:
            last.synchronize()
            self.device_seconds.setdefault(key, []).append(first.elapsed_time(last) / 1000)

    def _events(self) -> tuple[torch.cuda.Event | None, torch.cuda.Event | None]:
        if not self._on_cuda:
            return None, None
        # torch leaves events untyped
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        return first, last


def interleaved(
    calls: Mapping[Key, Call],
    *,
    rounds: int,
    calls_per_round: int = 1,
    warm_up: Mapping[Key, Call] | None = None,
    watch: Stopwatch[Key] | None = None,
) -> dict[Key, tuple[float, ...]]:
    """Seconds of `rounds × calls_per_round` timed calls of each, round by round.

    Every round visits all contestants, starting with another one each time. Each visit begins with a short rest and a
    call that is not timed: the one in `warm_up`, None for the call itself.

    Args:
        calls: What is timed, of each contestant.
        rounds: Each visits all contestants.
        calls_per_round: Timed calls of each contestant in a round.
        warm_up: The call of each visit that is not timed; None for the call itself.
        watch: None for the wall clock.
    """
    watch = watch or Stopwatch()
    order = list(calls)
    for turn in range(rounds):
        start = turn % max(len(order), 1)
        for key in order[start:] + order[:start]:
            call = calls[key]
            time.sleep(_REST)
            (warm_up or calls)[key]()
            for _ in range(calls_per_round):
                watch.time(key, call)
    return {key: tuple(watch.seconds[key]) for key in calls}
