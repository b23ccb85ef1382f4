"""What a search over subsets will take, from a block that is timed, and how it is made to end within minutes."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import torch

from truncate_kit.models import Encoder, length_batches
from truncate_kit.models.block_runner import BlockRunner
from truncate_kit.training.evaluators import VectorEvaluator
from truncate_kit.training.examples import Ids
from truncate_kit.wording import counted, lasting

EXACT_DEPTH = 12
"""Deepest model of which every subset is tried: 4,095 of them."""
BATCH = 64
SEARCH_SECONDS = 600.0
"""A search that would take longer uses fewer and shorter texts, and then a beam."""
SEARCH_BYTES = 4 * 2**30
"""Likewise one whose states would take more memory."""
FEWEST_SEARCHED, SEARCHED_TOKENS = 200, 128
SAID_SECONDS = 5.0  # a longer search is announced
_TIMED = 3  # blocks


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """How subsets are searched.

    Attributes:
        evaluator: Scores them.
        exact: Whether all of them are tried.
        beam: Else, how many of each size are gone on from.
        reduced: Whether the evaluator has fewer or shorter texts than the one that was given.
        runs: Of a block over the texts.
        seconds: That they will take.
        whole: Seconds of the search that was wanted.
        whole_bytes: Of the states that it would hold.
    """

    evaluator: VectorEvaluator
    exact: bool
    beam: int
    reduced: bool
    runs: int
    seconds: float
    whole: float
    whole_bytes: int

    @property
    def sentence(self) -> str:
        """What is ahead, where it takes long or is less than was wanted; else empty."""
        texts, runs = counted(len(self.evaluator.texts()), "text"), counted(self.runs, "run")
        time_taken = f"about {lasting(self.seconds)}: {runs} of a block over {texts}"
        if self.reduced:
            way = "" if self.exact else f" and by a beam of {self.beam}"
            held = f" and {self.whole_bytes / 1e9:.0f} GB" if self.whole_bytes > SEARCH_BYTES else ""
            return (
                f"The search for blocks would take about {lasting(self.whole)}{held}. So it goes over fewer texts, cut "
                f"to {SEARCHED_TOKENS} tokens{way}, and takes {time_taken}."
            )
        return f"The search for blocks takes {time_taken}." if self.seconds > SAID_SECONDS else ""


def plan_search(encoder: Encoder, evaluator: VectorEvaluator, beam: int) -> SearchPlan:
    """The first way that ends within `SEARCH_SECONDS` and holds no more than `SEARCH_BYTES`, or the last there is.

    Every subset over all texts, over all of them cut to `SEARCHED_TOKENS`, over half of these and so on down to
    `FEWEST_SEARCHED`; then by a beam, which gets narrower. Deeper models than `EXACT_DEPTH` begin with the beam.

    Args:
        encoder: Its blocks are timed.
        evaluator: Of all texts.
        beam: The widest one.
    """
    block, score = _seconds(encoder, evaluator)
    fewer = cache(lambda number: evaluator.fewer(encoder, number, SEARCHED_TOKENS))
    depth, total = encoder.depth, len(evaluator.texts())
    wanted: tuple[float, int] | None = None
    for number, width in _ways(total, depth, beam):
        used = evaluator if number is None else fewer(number)
        ids = used.texts()
        runs, subsets = (2**depth - 1,) * 2 if width is None else beam_cost(depth, width)
        seconds = runs * block * _padded(ids) + subsets * score * len(ids) / total
        held = 4 * encoder.width * _padded(ids) * (depth + 1)  # float32 states behind each block of a subset
        wanted = wanted or (seconds, held)
        found = SearchPlan(used, width is None, width or beam, number is not None, runs, seconds, *wanted)
        if seconds <= SEARCH_SECONDS and held <= SEARCH_BYTES:
            break
    return found


def beam_cost(depth: int, beam: int) -> tuple[int, int]:
    """Runs of a block and subsets of a beam over a model of `depth` blocks, at most.

    Each of up to `beam` subsets loses each of its blocks; as beginnings are shared, about half of a subset is run.
    """
    sizes = range(1, depth)
    tried = [min(math.comb(depth, size), beam * (size + 1)) for size in sizes]
    return depth + sum(number * (size + 1) // 2 for size, number in zip(sizes, tried, strict=True)), 1 + sum(tried)


def _ways(total: int, depth: int, beam: int) -> Iterator[tuple[int | None, int | None]]:
    """Numbers of texts, None for all as they are, and widths of the beam, None to try all; the dearest first."""
    fewest, numbers = total, [None, total]
    while fewest > FEWEST_SEARCHED:
        numbers.append(fewest := max(FEWEST_SEARCHED, fewest // 2))
    widths = [beam]
    while widths[-1] > 1:
        widths.append(widths[-1] // 2)
    widest = None if depth <= EXACT_DEPTH else widths.pop(0)
    yield from ((number, widest) for number in numbers)
    yield from ((fewest, width) for width in widths)


def _seconds(encoder: Encoder, evaluator: VectorEvaluator) -> tuple[float, float]:
    """Of a block a padded token, on a batch of middle length; and of a score of all vectors."""
    ids = evaluator.texts()
    batches = length_batches([len(row) for row in ids], BATCH)
    some = [ids[place] for place in batches[len(batches) // 2]]
    runner = BlockRunner.of(encoder, encoder.pad(some))
    blocks = range(1, 1 + min(_TIMED, encoder.depth))
    width = runner.vectors(runner.run(1, runner.embedded)).shape[1]  # warms up as well
    begin = time.perf_counter()
    for block in blocks:
        runner.vectors(runner.run(block, runner.embedded)).float().cpu()
    taken = (time.perf_counter() - begin) / len(blocks)
    rows = torch.rand(len(ids), width, generator=torch.Generator().manual_seed(0))
    evaluator.score_of(rows)  # the first call takes several times as long as the thousands that follow
    begin = time.perf_counter()
    evaluator.score_of(rows)
    return taken / _padded(some), time.perf_counter() - begin


def _padded(ids: list[Ids]) -> int:
    """Tokens that a block runs over, padding included."""
    lengths = [len(row) for row in ids]
    return sum(len(places) * max(lengths[place] for place in places) for places in length_batches(lengths, BATCH))
