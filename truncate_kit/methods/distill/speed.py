"""How many texts a second lean models encode, side by side with the full model."""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from truncate_kit.methods.distill.step_results import Blocks
from truncate_kit.models import Encoder, keep
from truncate_kit.other_work import OtherWork
from truncate_kit.progress import Progress, silent
from truncate_kit.statistics import RESAMPLES, Array, draws, interval
from truncate_kit.training.examples import Ids

ROUNDS, MOST_ROUNDS, SECONDS, TEXTS = 5, 25, 10.0, 128  # small models are timed more often: noise is large for them


@dataclass(frozen=True, slots=True)
class Timings:
    """What each run took in each round.

    Attributes:
        seconds: One row for each run, one column for each round, (runs, rounds).
        num_texts: What a run encodes.
    """

    seconds: Array
    num_texts: int

    @property
    def texts_per_second(self) -> tuple[float, ...]:
        """Of each run, by its median."""
        return tuple((self.num_texts / np.median(self.seconds, axis=1)).tolist())

    def speedup_intervals(self, reference: int) -> tuple[tuple[float, float], ...]:
        """The 95 % interval of how many times as fast as the `reference` each run is, by a bootstrap over rounds.

        A round that something else slowed down did so to all runs, so all are drawn from the same rounds.
        """
        rounds = self.seconds.shape[1]
        medians = np.median(self.seconds[:, np.stack(list(draws(rounds, RESAMPLES)))], axis=2)
        return tuple(interval(row) for row in medians[reference] / medians)


def timed_on(encoder: Encoder) -> str:
    """What speeds are measured on, for the name of a record: the device, on a CPU with its number of threads."""
    device = encoder.device
    if device.type == "cuda":
        return re.sub(r"\W+", "-", torch.cuda.get_device_name(device))
    return f"{device.type}-{torch.get_num_threads()}"


def time_blocks(
    encoder: Encoder, subsets: Sequence[Blocks], ids: Sequence[Ids], *, progress: Progress = silent
) -> tuple[Timings, float | None]:
    """Timings in torch on the encoder's device of each subset, and what others took of the machine meanwhile.

    The latter as `OtherWork.share` says it.
    """
    some = list(ids[:TEXTS])
    lean = [keep(encoder, blocks, copy_weights=False) for blocks in subsets]
    others = OtherWork()
    timings = side_by_side([partial(model.encode_ids, some) for model in lean], len(some), progress=progress)
    return timings, others.share()


def side_by_side(runs: Sequence[Callable[[], object]], num_texts: int, *, progress: Progress = silent) -> Timings:
    """Timings of `ROUNDS` rounds or more.

    Each round makes every run once, so that what slows the machine down slows all.
    """
    seconds: list[list[float]] = [[] for _ in runs]
    started = time.perf_counter()
    for round_ in range(MOST_ROUNDS + 1):
        if round_ > ROUNDS and time.perf_counter() - started > SECONDS:
            break
        for times, run in zip(seconds, runs, strict=True):
            begin = time.perf_counter()
            run()
            if round_:  # the first one warms up
                times.append(time.perf_counter() - begin)
        progress("Timing", min(round_, ROUNDS), ROUNDS)
    return Timings(np.array(seconds), num_texts)
