"""Speeds of lean models, and the frontier of their graphs."""

import re
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from operator import ge
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from truncate_kit.core.errors import ModelError
from truncate_kit.core.precisions import precisions_for
from truncate_kit.core.progress import Progress, silent
from truncate_kit.core.statistics import RESAMPLES, Array, draws, interval
from truncate_kit.export.exporting import export_onnx
from truncate_kit.export.graph import bytes_of_rows, graph_files
from truncate_kit.export.record import ExportSettings
from truncate_kit.export.runtime import OnnxEncoder
from truncate_kit.methods.distill.learning import Learning
from truncate_kit.methods.distill.settings import Blocks, LeanModel, Measured
from truncate_kit.methods.distill.texts import PAIRS, own_pairs
from truncate_kit.models.encoder import Encoder
from truncate_kit.models.truncation import keep_pieces, kept_pieces
from truncate_kit.training.examples import Ids

ROUNDS, MOST_ROUNDS, SECONDS, TIMED_TEXTS = 5, 25, 10.0, 128  # small models are noisy
PRECISIONS = precisions_for("cpu")
SHARES = (1, 2, 4)  # divisors of a vector's width
Speed = tuple[float, tuple[float, float]]  # texts per second; 95 % interval relative to the reference


def timed_on(encoder: Encoder) -> str:
    """Name the device, with the number of threads of a CPU."""
    device = encoder.device
    if device.type == "cuda":
        return re.sub(r"\W+", "-", torch.cuda.get_device_name(device))
    return f"{device.type}-{torch.get_num_threads()}"


def side_by_side(
    runs: Sequence[Callable[[], object]], num_texts: int, *, reference: int, progress: Progress = silent
) -> list[Speed]:
    """Time runs over `num_texts` texts each, in rounds of all runs, so that a disturbance slows all of them.

    reference: place of the run with speed 1.
    """
    seconds: list[list[float]] = [[] for _ in runs]
    started = time.perf_counter()
    for round_ in range(MOST_ROUNDS + 1):
        if round_ > ROUNDS and time.perf_counter() - started > SECONDS:
            break
        for times, run in zip(seconds, runs, strict=True):
            begin = time.perf_counter()
            run()
            if round_:  # the first warms up
                times.append(time.perf_counter() - begin)
        progress("Timing", min(round_, ROUNDS), ROUNDS)
    return speeds(np.array(seconds), num_texts, reference)


def speeds(seconds: Array, num_texts: int, reference: int) -> list[Speed]:
    """Return each run's speed by its median, from seconds (runs, rounds); resamples share their rounds."""
    rates = (num_texts / np.median(seconds, axis=1)).tolist()
    medians = np.median(seconds[:, np.stack(list(draws(seconds.shape[1], RESAMPLES)))], axis=2)
    return [(rate, interval(row)) for rate, row in zip(rates, medians[reference] / medians, strict=True)]


def measure_frontier(encoders: Sequence[tuple[Blocks, Encoder]], learning: Learning) -> Measured:
    """Export each encoder in both precisions, and measure score, speed and size; the full model is first.

    The full model's cosines between held-out texts choose the float layers of int8 graphs, without labels. A smaller
    vocabulary has the learned texts' pieces only; its vectors are the whole graph's for these ids.
    """
    full, texts, evaluator, report = encoders[0][1], learning.texts, learning.evaluator, learning.report
    held_out = np.concatenate([learning.choosing, learning.reporting])
    learned = {piece for place in learning.learned_from.tolist() for piece in texts.ids(place)}
    all_words = int(full.backbone.config.vocab_size)
    ids: dict[int, tuple[list[Ids], list[Ids]]] = {all_words: (evaluator.texts(), report.texts())}  # by vocabulary
    try:
        pieces = kept_pieces(full, learned)
        cut = keep_pieces(full, pieces)
    except ModelError:  # no piece can go
        pass
    else:
        own = learning.reread(cut), texts.ids_for(cut, learning.reporting.tolist())
        judged, reported = ([[pieces[piece] for piece in row] for row in side] for side in own)
        ids |= {len(pieces): (judged, reported)}
    pairs = own_pairs(full, texts.read(held_out[: 2 * PAIRS].tolist()))
    rows, calls = list[tuple[LeanModel, Tensor]](), list[Callable[[], object]]()
    with tempfile.TemporaryDirectory() as scratch:
        for blocks, encoder in encoders:
            for precision in PRECISIONS:
                folder = Path(scratch) / f"{len(calls)}"
                export_onnx(encoder, folder, ExportSettings(precision=precision), search_pairs=pairs)
                runner = OnnxEncoder.load(folder, precision=precision, threads=torch.get_num_threads())
                size = sum(file.stat().st_size for file in graph_files(runner.file))
                for words, sides in ids.items():
                    judging, reporting = map(runner.encode_ids, sides)
                    graph = LeanModel(
                        blocks=blocks,
                        score=0.0,
                        precision=precision,
                        words=words,
                        megabytes=(size - (all_words - words) * bytes_of_rows(runner.file, all_words)) / 1e6,
                    )
                    for dims in (judging.shape[1] // share for share in SHARES):
                        score, ends = evaluator.score_of(judging[:, :dims])[0], evaluator.interval_of(judging[:, :dims])
                        rows.append((replace(graph, dims=dims, score=score, interval=ends), reporting[:, :dims]))
                    calls.append(partial(runner.encode_ids, sides[0][:TIMED_TEXTS]))
                learning.progress("Measuring graphs", len(calls), len(encoders) * len(PRECISIONS) * len(ids))
        timed = side_by_side(calls, min(TIMED_TEXTS, len(evaluator.texts())), reference=0)
    rates = (speed for speed in timed for _ in SHARES)
    marked = mark_dominated(
        replace(row, texts_per_second=rate, speedup_interval=ends)
        for (row, _), (rate, ends) in zip(rows, rates, strict=True)
    )
    return Measured(
        rows=tuple(
            row if row.dominated else replace(row, agreement=report.agreement_of(vectors))  # takes a second
            for row, (_, vectors) in zip(marked, rows, strict=True)
        ),
        covered=100 * float(np.mean([learned.issuperset(row) for row in texts.ids_at(held_out)])),
    )


def merged_graphs(measured: Sequence[Measured]) -> tuple[LeanModel, ...]:
    """Merge measurements, the last full model first, larger models next; scale speeds to its pace."""
    latest = measured[-1].rows
    rows = {(row.graph, row.dims): row for row in latest}
    for earlier in measured[:-1]:
        pace = latest[0].texts_per_second / earlier.rows[0].texts_per_second
        for row in earlier.rows:
            rows.setdefault((row.graph, row.dims), replace(row, texts_per_second=row.texts_per_second * pace))
    full, *rest = rows.values()
    return mark_dominated([full, *sorted(rest, key=lambda row: -len(row.blocks))])


def mark_dominated(rows: Iterable[LeanModel]) -> tuple[LeanModel, ...]:
    """Mark rows that another beats: nowhere worse in score, speed, size and dimensions, and better somewhere.

    Scores before and after learning do not compare, but the full model's counts as both.
    """
    rows = list(rows)
    most = max(len(row.blocks) for row in rows)

    def values(row: LeanModel) -> tuple[float, ...]:
        return round(row.score, 2), row.texts_per_second, -row.megabytes, -row.dims

    def is_beaten(row: LeanModel) -> bool:
        return any(
            values(other) != values(row) and all(map(ge, values(other), values(row)))
            for other in rows
            if most in (len(row.blocks), len(other.blocks)) or bool(row.scores) == bool(other.scores)
        )

    return tuple(replace(row, dominated=is_beaten(row)) for row in rows)
