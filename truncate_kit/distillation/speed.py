"""How many texts a second lean models encode, side by side with the full model."""

import statistics
import time
from collections.abc import Sequence

from truncate_kit.distillation.subsets import Blocks
from truncate_kit.encoders import Encoder, keep
from truncate_kit.progress import Progress, silent
from truncate_kit.training.examples import Ids

ROUNDS, MOST_ROUNDS, SECONDS, TEXTS = 5, 25, 10.0, 128  # small models are timed more often: noise is large for them


def texts_per_second(
    encoder: Encoder, subsets: Sequence[Blocks], ids: Sequence[Ids], *, progress: Progress = silent
) -> tuple[float, ...]:
    """Texts a second in torch on the encoder's device for each subset, the median of `ROUNDS` rounds or more.

    Each round encodes up to `TEXTS` texts by every subset in turn, so that what slows the machine down slows all.
    """
    some = list(ids[:TEXTS])
    lean = [keep(encoder, blocks, copy_weights=False) for blocks in subsets]
    seconds: list[list[float]] = [[] for _ in lean]
    started = time.perf_counter()
    for round_ in range(MOST_ROUNDS + 1):
        if round_ > ROUNDS and time.perf_counter() - started > SECONDS:
            break
        for times, model in zip(seconds, lean, strict=True):
            begin = time.perf_counter()
            model.encode_ids(some)
            if round_:  # the first one warms up
                times.append(time.perf_counter() - begin)
        progress("Timing", min(round_, ROUNDS), ROUNDS)
    return tuple(len(some) / statistics.median(times) for times in seconds)
