"""Timing several contestants side by side, so that a machine that slows down slows all of them."""

import time
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)
Call = Callable[[], object]

# Thread pools of one runtime keep spinning for some milliseconds after their last call and would slow the next one's.
_REST = 0.02


def interleaved(
    calls: Mapping[Key, Call],
    *,
    rounds: int,
    calls_per_round: int = 1,
    warm_up: Mapping[Key, Call] | None = None,
) -> dict[Key, tuple[float, ...]]:
    """Seconds of `rounds × calls_per_round` timed calls of each, round by round.

    Every round visits all contestants, starting with another one each time. Each visit begins with a short rest and
    a call that is not timed: the one in `warm_up`, None for the call itself. A call has to wait for its own device
    before it returns.
    """
    seconds: dict[Key, list[float]] = {key: [] for key in calls}
    order = list(calls)
    for turn in range(rounds):
        start = turn % max(len(order), 1)
        for key in order[start:] + order[:start]:
            call = calls[key]
            time.sleep(_REST)
            (warm_up or calls)[key]()
            for _ in range(calls_per_round):
                begin = time.perf_counter()
                call()
                seconds[key].append(time.perf_counter() - begin)
    return {key: tuple(values) for key, values in seconds.items()}
