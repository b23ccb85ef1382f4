"""Speeds of lean models, and the frontier of their graphs."""

import re
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from truncate_kit.core.errors import ModelError
from truncate_kit.core.precisions import Precision, precisions_for
from truncate_kit.core.progress import Progress, silent
from truncate_kit.core.statistics import RESAMPLES, Array, draws, interval
from truncate_kit.data.pairs import PairSet, TextPair
from truncate_kit.export.exporting import export_onnx
from truncate_kit.export.graph import bytes_of_rows, graph_files
from truncate_kit.export.record import ExportSettings
from truncate_kit.export.runtime import OnnxEncoder
from truncate_kit.methods.distill.learning import Learning
from truncate_kit.methods.distill.result import Blocks, Frontier, FrontierPoint
from truncate_kit.methods.distill.texts import TextStore
from truncate_kit.models.encoder import Encoder
from truncate_kit.models.truncation import keep_pieces, kept_pieces
from truncate_kit.training.examples import Ids, VectorEvaluator

ROUNDS, MOST_ROUNDS, SECONDS, TIMED_TEXTS = (
    5,
    25,
    10.0,
    128,
)  # small models are timed more often: noise is large for them
PRECISIONS = precisions_for("cpu")
SHARES = (1, 2, 4)
"""A vector's first dimensions, as divisors of its width."""
PAIRS = 1000
Speed = tuple[float, tuple[float, float]]
"""Texts a second, and the 95 % interval of how many times as fast as the reference that is."""


def timed_on(encoder: Encoder) -> str:
    """Name what speeds are measured on, for a record: the device, on a CPU with its number of threads."""
    device = encoder.device
    if device.type == "cuda":
        return re.sub(r"\W+", "-", torch.cuda.get_device_name(device))
    return f"{device.type}-{torch.get_num_threads()}"


def side_by_side(
    runs: Sequence[Callable[[], object]], num_texts: int, *, reference: int, progress: Progress = silent
) -> list[Speed]:
    """Time runs in `ROUNDS` rounds or more, each of which makes every run once: what slows one down slows all.

    Args:
        runs: Each encodes `num_texts` texts.
        num_texts: Their number.
        reference: Place of the run whose speed is 1.
        progress: Called after each round.
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
    return speeds(np.array(seconds), num_texts, reference)


def speeds(seconds: Array, num_texts: int, reference: int) -> list[Speed]:
    """Return the speed of each run, by its median, from the seconds of each round, (runs, rounds).

    A round that something else slowed down did so to all runs, so the bootstrap draws the same rounds for all.
    """
    rates = (num_texts / np.median(seconds, axis=1)).tolist()
    medians = np.median(seconds[:, np.stack(list(draws(seconds.shape[1], RESAMPLES)))], axis=2)
    return [(rate, interval(row)) for rate, row in zip(rates, medians[reference] / medians, strict=True)]


_Read = dict[int, tuple[list[Ids], list[Ids]]]
"""Token ids of the texts that judge and of those that report, by the number of word pieces, all of them first."""


def measure_frontier(encoders: Sequence[tuple[Blocks, Encoder]], learning: Learning) -> Frontier:
    """Export each encoder in both precisions, and measure score, speed and size.

    No labels are needed for int8: the layers that stay in float are chosen by the full model's own cosines between
    held-out texts. A smaller vocabulary has the pieces of the texts that were learned from alone: texts that are scored
    may need others, and are split into the pieces that are left. The vector is then what the whole graph gives for
    these pieces, so none is exported again; the file is smaller by the rows of the others.

    Args:
        encoders: The blocks of each, and the encoder that keeps them; the full model is the first one.
        learning: Has the texts, and what scores.

    Raises:
        MissingExtraError: No ONNX Runtime or exporter is installed.
        ModelError: An encoder cannot be exported.
    """
    begin, full, texts = time.perf_counter(), encoders[0][1], learning.texts
    held_out = np.concatenate([learning.choosing, learning.reporting])
    cut, pieces, covered = _fewer_words(full, texts, held_out)
    read: _Read = {full.backbone.config.vocab_size: (learning.evaluator.texts(), learning.report.texts())}
    if cut is not None:
        own = learning.reread(cut), texts.ids_for(cut, learning.reporting.tolist())
        judged, reported = ([[pieces[piece] for piece in row] for row in ids] for ids in own)
        read |= {len(pieces): (judged, reported)}
    pairs = own_pairs(full, texts.read(held_out[: 2 * PAIRS].tolist()))
    points, runners = list[tuple[FrontierPoint, Tensor]](), list[OnnxEncoder]()
    with tempfile.TemporaryDirectory() as scratch:
        for number, (blocks, encoder) in enumerate(encoders):
            for precision in PRECISIONS:
                folder = Path(scratch) / f"{number}-{precision}"
                export_onnx(encoder, folder, ExportSettings(precision=precision), search_pairs=pairs)
                runner = OnnxEncoder.load(folder, precision=precision, threads=torch.get_num_threads())
                points += _points_of(blocks, precision, runner, learning.evaluator, read)
                runners.append(runner)
                learning.progress("Measuring graphs", len(runners), len(encoders) * len(PRECISIONS))
        calls = [partial(runner.encode_ids, some[:TIMED_TEXTS]) for runner in runners for some, _ in read.values()]
        found = side_by_side(calls, min(TIMED_TEXTS, len(learning.evaluator.texts())), reference=0)
    graphs = [(blocks, precision, kept) for blocks, _ in encoders for precision in PRECISIONS for kept in read]
    speed = dict(zip(graphs, found, strict=True))
    timed = [
        replace(one, texts_per_second=speed[one.graph][0], speedup_interval=speed[one.graph][1]) for one, _ in points
    ]
    return Frontier(
        points=tuple(
            one if one.dominated else replace(one, agreement=learning.report.agreement_of(vectors))  # takes a second
            for one, (_, vectors) in zip(_marked(timed), points, strict=True)
        ),
        words=None if cut is None else len(pieces),
        all_words=full.backbone.config.vocab_size,
        covered=covered,
        seconds=time.perf_counter() - begin,
    )


def with_earlier(frontier: Frontier, earlier: Sequence[Frontier]) -> Frontier:
    """Add the points of further blocks that earlier frontiers measured, of students of the same store.

    Their speeds stand beside the full model's of that time, and are put beside the one of now.
    """
    points = {(one.graph, one.dims): one for one in frontier.points}
    measured = {one.blocks for one in frontier.points}
    for other in earlier:
        pace = frontier.points[0].texts_per_second / other.points[0].texts_per_second
        for one in other.points:
            if one.blocks not in measured:
                faster = replace(one, texts_per_second=one.texts_per_second * pace)
                points.setdefault((one.graph, one.dims), faster)
    full, *rest = points.values()
    return replace(frontier, points=_marked([full, *sorted(rest, key=lambda one: -len(one.blocks))]))


def _marked(points: Sequence[FrontierPoint]) -> tuple[FrontierPoint, ...]:
    """Mark the points that another one beats."""
    return tuple(replace(one, dominated=any(other.beats(one) for other in points)) for one in points)


def own_pairs(encoder: Encoder, texts: Sequence[str]) -> PairSet:
    """Pair each text with its nearest one or a random one, and take the encoder's own cosines as scores.

    Raises `DataError` below two texts.
    """
    some = list(dict.fromkeys(texts))
    unit = torch.nn.functional.normalize(encoder.vectors(some), dim=1)
    cosines = (unit @ unit.T).fill_diagonal_(-2)
    near = cosines.argmax(1)
    steps = torch.randint(1, len(some), (len(some),), generator=torch.Generator().manual_seed(0))
    other = torch.where(torch.arange(len(some)) % 2 == 0, near, (torch.arange(len(some)) + steps) % len(some))
    pairs = tuple(
        TextPair(some[place], some[second], float(cosines[place, second]))
        for place, second in enumerate(other.tolist()[:PAIRS])
    )
    return PairSet(
        name=f"cosines of {encoder.name}",
        pairs=pairs,
        scale=(-1.0, 1.0),
        path="",
        columns=("text", "text", "cosine"),
    )


def _points_of(
    blocks: Blocks, precision: Precision, runner: OnnxEncoder, evaluator: VectorEvaluator, read: _Read
) -> list[tuple[FrontierPoint, Tensor]]:
    """Score the points of one graph, not timed yet, each with its vectors of the texts for the report."""
    all_words = next(iter(read))
    vectors = {kept: tuple(map(runner.encode_ids, both)) for kept, both in read.items()}
    size = sum(file.stat().st_size for file in graph_files(runner.file))
    per_word = bytes_of_rows(runner.file, all_words)
    found = []
    for share in SHARES:
        for kept, (judged, reported) in vectors.items():
            dims = judged.shape[1] // share
            point = FrontierPoint(
                blocks=blocks,
                precision=precision,
                dims=dims,
                words=kept,
                score=evaluator.score_of(judged[:, :dims])[0],
                interval=evaluator.interval_of(judged[:, :dims]),
                texts_per_second=0.0,
                megabytes=(size - (all_words - kept) * per_word) / 1e6,
            )
            found.append((point, reported[:, :dims]))
    return found


def _fewer_words(
    full: Encoder, texts: TextStore, held_out: NDArray[np.int64]
) -> tuple[Encoder | None, list[int], float]:
    """Return the full model with the pieces that texts need that were learned from; None where none can go.

    Beside it these pieces, and the share × 100 of held-out texts that they cover.
    """
    held = {int(place) for place in held_out}
    learned: set[int] = set()
    for place in range(len(texts)):
        if place not in held:
            learned.update(texts.ids(place))
    rest = [set(texts.ids(place)) for place in held]
    covered = 100 * sum(ids <= learned for ids in rest) / max(1, len(rest))
    try:
        pieces = kept_pieces(full, learned)
        return keep_pieces(full, pieces), pieces, covered
    except ModelError:
        return None, [], covered
