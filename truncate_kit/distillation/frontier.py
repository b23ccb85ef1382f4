"""What is left to choose behind the choice of blocks: graphs in float32 and int8, fewer dimensions, fewer words."""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from truncate_kit.data import PairSet, TextPair
from truncate_kit.distillation.speed import TEXTS, side_by_side
from truncate_kit.distillation.step_results import Blocks, Frontier, FrontierPoint
from truncate_kit.distillation.texts import TextStore
from truncate_kit.encoders import Encoder
from truncate_kit.encoders.word_pieces import kept_pieces
from truncate_kit.errors import ModelError
from truncate_kit.export.exporting import export_onnx
from truncate_kit.export.graph_files import bytes_of_rows, graph_files
from truncate_kit.export.runtime import OnnxEncoder
from truncate_kit.export.settings import ExportSettings
from truncate_kit.precisions import Precision, precisions_for
from truncate_kit.progress import Progress, silent
from truncate_kit.training.evaluators import VectorEvaluator
from truncate_kit.training.examples import Ids

PRECISIONS = precisions_for("cpu")
SHARES = (1, 2, 4)
"""A vector's first dimensions, as divisors of its width."""
PAIRS = 1000


def measure_frontier(
    encoders: Sequence[tuple[Blocks, Encoder]],
    evaluator: VectorEvaluator,
    texts: TextStore,
    held_out: NDArray[np.int64],
    *,
    progress: Progress = silent,
) -> Frontier:
    """Export each encoder in both precisions, and measure score, speed and size.

    No labels are needed for int8: the layers that stay in float are chosen by the full model's own cosines between
    held-out texts. A vocabulary without the pieces that no text uses changes no vector of these texts
    (`word_pieces.keep_words`), so its points have the score and the speed of the whole one, and a smaller file.

    Args:
        encoders: The blocks of each, and the encoder that keeps them; the full model is the first one.
        evaluator: Scores the vectors of its texts.
        texts: What was learned from and held out.
        held_out: Places of the texts that were held out.
        progress: Called after each graph.

    Raises:
        MissingExtraError: No ONNX Runtime or exporter is installed.
        ModelError: An encoder cannot be exported.
    """
    begin = time.perf_counter()
    full = encoders[0][1]
    ids = evaluator.texts()
    words, covered = _needed_words(full, texts, held_out, ids)
    pairs = own_pairs(full, texts.read(held_out[: 2 * PAIRS].tolist()))
    points, runners = list[FrontierPoint](), list[OnnxEncoder]()
    with tempfile.TemporaryDirectory() as scratch:
        for number, (blocks, encoder) in enumerate(encoders):
            for precision in PRECISIONS:
                folder = Path(scratch) / f"{number}-{precision}"
                export_onnx(encoder, folder, ExportSettings(precision=precision), search_pairs=pairs)
                runner = OnnxEncoder.load(folder, precision=precision, threads=torch.get_num_threads())
                points += _points_of(blocks, precision, runner, evaluator, words, encoder.backbone.config.vocab_size)
                runners.append(runner)
                progress("Measuring graphs", len(runners), len(encoders) * len(PRECISIONS))
        some = ids[:TEXTS]
        speeds = side_by_side([partial(runner.encode_ids, some) for runner in runners], len(some))
    graphs = [(blocks, precision) for blocks, _ in encoders for precision in PRECISIONS]
    speed = dict(zip(graphs, speeds, strict=True))
    timed = [replace(one, texts_per_second=speed[one.blocks, one.precision]) for one in points]
    marked = tuple(replace(one, dominated=any(other.beats(one) for other in timed)) for one in timed)
    return Frontier(
        points=marked,
        words=words,
        all_words=full.backbone.config.vocab_size,
        covered=covered,
        seconds=time.perf_counter() - begin,
    )


def own_pairs(encoder: Encoder, texts: Sequence[str]) -> PairSet:
    """Pairs of texts and the encoder's own cosines as their scores: each text with its nearest one, or a random one.

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
    blocks: Blocks,
    precision: Precision,
    runner: OnnxEncoder,
    evaluator: VectorEvaluator,
    words: int | None,
    all_words: int,
) -> list[FrontierPoint]:
    """Of one graph; not timed yet."""
    vectors: Tensor = runner.encode_ids(evaluator.texts())
    size = sum(file.stat().st_size for file in graph_files(runner.file))
    per_word = bytes_of_rows(runner.file, all_words)
    found = []
    for share in SHARES:
        dims = vectors.shape[1] // share
        score = evaluator.score_of(vectors[:, :dims])[0]
        for kept in dict.fromkeys((all_words, words or all_words)):
            megabytes = (size - (all_words - kept) * per_word) / 1e6
            found.append(
                FrontierPoint(
                    blocks=blocks,
                    precision=precision,
                    dims=dims,
                    words=kept,
                    score=score,
                    texts_per_second=0.0,
                    megabytes=megabytes,
                )
            )
    return found


def _needed_words(
    full: Encoder, texts: TextStore, held_out: NDArray[np.int64], scored: Sequence[Ids]
) -> tuple[int | None, float]:
    """Number of pieces that are needed, and the share × 100 of held-out texts that those of the others cover."""
    held = {int(place) for place in held_out}
    learned: set[int] = set()
    for place in range(len(texts)):
        if place not in held:
            learned.update(texts.ids(place))
    rest = [set(texts.ids(place)) for place in sorted(held)]
    covered = 100 * sum(ids <= learned for ids in rest) / max(1, len(rest))
    try:
        return len(kept_pieces(full, learned.union(*rest, *scored))), covered
    except ModelError:
        return None, covered
