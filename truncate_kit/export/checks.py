"""Whether an exported graph does what the encoder does; nothing is kept that was not found equal."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from truncate_kit.data import PairSet
from truncate_kit.errors import ModelError, failed_check, first_line
from truncate_kit.evaluation.graded import evaluate
from truncate_kit.export.export_report import Check, TaskScore
from truncate_kit.export.graph_files import INPUTS, OUTPUT, STATES
from truncate_kit.export.normalization import ends_normalized
from truncate_kit.export.runtime import OnnxEncoder
from truncate_kit.export.scores import check_scores
from truncate_kit.export.sessions import open_session
from truncate_kit.hardware import usable_cores
from truncate_kit.models import Encoder, evaluating
from truncate_kit.precisions import PRECISIONS, Precision
from truncate_kit.progress import Progress, silent

_BATCHES, _LENGTHS = (1, 2, 17), (2, 16, 128)
# At lengths of thousands a batch of 17 needs tens of GB where attention is not fused: such lengths run alone.
_MOST_SCORES = 17 * 512**2

Feeds = dict[str, Tensor]


def check_graph(
    file: Path, encoder: Encoder, *, precision: Precision = "fp32", progress: Progress = silent
) -> tuple[Check, ...]:
    """Compare the graph with the encoder, which normalises if the graph does, over shapes and paddings.

    Runs on the CPU whatever the target. Raises `ModelError` on the first difference above the limit of the precision
    and on NaN, and where ONNX Runtime cannot load the file.
    """
    try:
        session = open_session(file, device=torch.device("cpu"), threads=usable_cores())
    except ModelError as error:
        raise failed_check(str(error)) from error
    limit, unit = PRECISIONS[precision].vector_limit, 1.0 if ends_normalized(encoder) else None
    checks = []
    batches = {f"batch {size}, length {length}": (size, length) for size, length in _shapes(encoder.max_length)}
    cases = {name: _random_batch(encoder, *shape) for name, shape in batches.items()} | _odd_batches(encoder)
    for done, (name, feeds) in enumerate(cases.items()):
        progress("Checking the graph", done, len(cases) + 1)
        with torch.inference_mode(), evaluating(encoder):
            expected = encoder(**{key: value.to(encoder.device) for key, value in feeds.items()}).cpu().numpy()
        checks.append(_compare(name, _run(session, feeds, name), expected, limit, unit=unit))
    checks.append(_padding_check(session, encoder, limit, unit=unit))
    if encoder.pools_tokens:
        checks.append(_states_check(session, encoder, limit))
    checks += check_scores(session, encoder, file, limit=limit)
    progress("Checking the graph", len(cases) + 1, len(cases) + 1)
    return tuple(checks)


def odd_inputs(encoder: Encoder) -> list[dict[str, NDArray[np.int64]]]:
    """The longest batch and the odd ones, as ONNX Runtime takes them."""
    batches = [_random_batch(encoder, 1, encoder.max_length), *_odd_batches(encoder).values()]
    return [{name: value.numpy() for name, value in feeds.items()} for feeds in batches]


def _odd_batches(encoder: Encoder) -> dict[str, Feeds]:
    """One token over and over at the longest length that a batch of the checks has, and one token alone."""
    length = min(max(_LENGTHS), encoder.max_length)
    last = int(encoder.backbone.config.vocab_size) - 1
    ids = torch.stack([torch.full((length,), token) for token in (0, last // 2, last)])
    short = torch.full((1, 1), last)
    return {
        f"one token {length} times": _feeds(encoder, ids, torch.ones_like(ids)),
        "one token alone": _feeds(encoder, short, torch.ones_like(short)),
    }


def _shapes(longest: int) -> Iterator[tuple[int, int]]:
    for length in sorted({*(length for length in _LENGTHS if length < longest), longest}):
        for batch in _BATCHES:
            if batch == 1 or batch * length**2 <= _MOST_SCORES:
                yield batch, length


def _random_batch(encoder: Encoder, batch: int, length: int) -> Feeds:
    """Random ids; the first row fills the length, the others end anywhere from their second token on."""
    generator = torch.Generator().manual_seed(batch * 10_007 + length)
    ids = torch.randint(int(encoder.backbone.config.vocab_size), (batch, length), generator=generator)
    ends = torch.randint(min(2, length), length + 1, (batch, 1), generator=generator)
    ends[0] = length
    return _feeds(encoder, ids, (torch.arange(length) < ends).long())


def _feeds(encoder: Encoder, ids: Tensor, mask: Tensor) -> Feeds:
    # RoBERTa's positions count the ids that are not padding, so padding may stand only where the mask is 0.
    padding = encoder.backbone.config.pad_token_id
    if padding is not None:
        other = (int(padding) + 1) % int(encoder.backbone.config.vocab_size)
        ids = torch.where(ids == padding, other, ids)
    return dict(zip(INPUTS, (torch.where(mask == 1, ids, padding or 0), mask), strict=True))


def _run(session: Any, feeds: Feeds, name: str, output: str = OUTPUT) -> NDArray[np.float32]:
    try:
        vectors: NDArray[np.float32] = session.run([output], {key: value.numpy() for key, value in feeds.items()})[0]
    except Exception as error:  # the runtime has a class of its own for each status
        raise failed_check(f"{name} does not run: {first_line(error)}") from error
    return vectors


def _compare(
    name: str, found: NDArray[Any], expected: NDArray[Any], limit: float | None, *, unit: float | None
) -> Check:
    """The largest difference, in units of `unit`; None takes the largest magnitude that is expected."""
    for vectors, whose in ((expected, "the model's own"), (found, "its")):
        if not np.isfinite(vectors).all():
            raise failed_check(f"{name}: {whose} vectors hold NaN or infinity")
    if found.shape != expected.shape:
        raise failed_check(f"{name}: its vectors have the shape {found.shape} instead of {expected.shape}")
    largest = max(float(np.abs(expected).max()), float(np.finfo(np.float32).tiny))
    difference = float(np.abs(found - expected).max()) / (unit or largest)
    if limit is not None and difference > limit:
        raise failed_check(f"{name}: a difference of {difference:.2g}, where {limit:g} is allowed")
    return Check(name=name, difference=difference, limit=limit)


def _padding_check(session: Any, encoder: Encoder, limit: float | None, *, unit: float | None) -> Check:
    """The vector of one text must not change with what pads it, nor with how much."""
    name, longest = "padding", min(max(_LENGTHS), encoder.max_length)
    length = max(1, longest // 2)
    plain = _random_batch(encoder, 1, length)
    rest = torch.zeros((1, longest - length), dtype=torch.long)
    ids, mask = (torch.cat([plain[key], rest], dim=1) for key in INPUTS)
    wide = _feeds(encoder, ids, mask)
    return _compare(name, _run(session, wide, name), _run(session, plain, name), limit, unit=unit)


def _states_check(session: Any, encoder: Encoder, limit: float | None) -> Check:
    """The states of tokens that are no padding, for loaders that pool by themselves."""
    name, feeds = "token states", _random_batch(encoder, max(_BATCHES), min(_LENGTHS[1], encoder.max_length))
    with torch.inference_mode(), evaluating(encoder):
        expected = encoder.token_states(**{key: value.to(encoder.device) for key, value in feeds.items()}).cpu().numpy()
    kept = feeds[INPUTS[1]].numpy() == 1
    return _compare(name, _run(session, feeds, name, STATES)[kept], expected[kept], limit, unit=None)


def check_score(encoder: Encoder, exported: OnnxEncoder, pairs: PairSet, *, precision: Precision = "fp32") -> TaskScore:
    """Score both on graded pairs. Raises `ModelError` if a correlation moves by more than the precision's limit."""
    limit = PRECISIONS[precision].score_limit
    before, after = evaluate(encoder, pairs.pairs), evaluate(exported, pairs.pairs)
    for measure in ("spearman", "pearson"):
        old, new = getattr(before, measure), getattr(after, measure)
        if limit is not None and abs(new - old) > limit:
            raise failed_check(f"{measure.title()} on {pairs.name} is {new:.3f}, and {old:.3f} in torch")
    return TaskScore(
        data=pairs.name,
        num_pairs=before.num_pairs,
        spearman_before=before.spearman,
        spearman_after=after.spearman,
        pearson_before=before.pearson,
        pearson_after=after.pearson,
    )
