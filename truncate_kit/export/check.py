"""Whether an exported graph does what the encoder does; nothing is kept that was not found equal."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from truncate_kit.core.errors import ModelError, failed_check, first_line
from truncate_kit.core.hardware import usable_cores
from truncate_kit.core.precisions import PRECISIONS, Precision
from truncate_kit.core.progress import Progress, silent
from truncate_kit.core.wording import counted
from truncate_kit.data.pairs import PairSet, PlacedPairs
from truncate_kit.evaluation.graded import correlate, evaluate, pair_similarities
from truncate_kit.export.graph import INPUTS, OUTPUT, SCORE, STATES, Feeds
from truncate_kit.export.record import Invariance, TaskScore
from truncate_kit.export.runtime import OnnxEncoder, open_session
from truncate_kit.export.trace import WithScores, ends_normalized
from truncate_kit.models.encoder import Encoder, evaluating
from truncate_kit.models.tokenizer import padded

_BATCHES, _LENGTHS = (1, 2, 17), (2, 16, 128)
# At lengths of thousands a batch of 17 needs tens of GB where attention is not fused: such lengths run alone.
_MOST_SCORES = 17 * 512**2
_MOST_PAIRS = 200

Batch = dict[str, Tensor]


def check_graph(
    file: Path, encoder: Encoder, *, precision: Precision = "fp32", progress: Progress = silent
) -> dict[str, float]:
    """Compare the graph with the encoder, which normalises if the graph does, over shapes and paddings.

    Runs on the CPU whatever the target. Returns the largest difference by what was compared, relative to the largest
    entry that is expected where vectors have not length 1. Raises `ModelError` on the first one above the limit of the
    precision and on NaN, and where ONNX Runtime cannot load the file.
    """
    try:
        session = open_session(file, device=torch.device("cpu"), threads=usable_cores())
    except ModelError as error:
        raise failed_check(str(error)) from error
    limit, unit = PRECISIONS[precision].vector_limit, 1.0 if ends_normalized(encoder) else None
    found: dict[str, float] = {}
    batches = {f"batch {size}, length {length}": (size, length) for size, length in _shapes(encoder.max_length)}
    cases = {name: _random_batch(encoder, *shape) for name, shape in batches.items()} | _odd_batches(encoder)
    for done, (name, batch) in enumerate(cases.items()):
        progress("Checking the graph", done, len(cases) + 1)
        expected = _expected(encoder, encoder, batch)
        found[name] = _compare(name, _run(session, batch, name), expected, limit, unit=unit)
    # The vector of one text must not change with what pads it, nor with how much.
    longest = min(max(_LENGTHS), encoder.max_length)
    plain = _random_batch(encoder, 1, max(1, longest // 2))
    rest = torch.zeros((1, longest - max(1, longest // 2)), dtype=torch.long)
    ids, mask = (torch.cat([plain[key], rest], dim=1) for key in INPUTS)
    alone, wide = (_run(session, batch, "padding") for batch in (plain, _batch(encoder, ids, mask)))
    found["padding"] = _compare("padding", wide, alone, limit, unit=unit)
    if encoder.pools_tokens:  # the states of tokens that are no padding, for loaders that pool by themselves
        name, batch = "token states", _random_batch(encoder, max(_BATCHES), min(_LENGTHS[1], encoder.max_length))
        kept = batch[INPUTS[1]].numpy() == 1
        states = _run(session, batch, name, STATES)[kept]
        found[name] = _compare(name, states, _expected(encoder, encoder.token_states, batch)[kept], limit, unit=None)
    found |= check_scores(session, encoder, limit)
    progress("Checking the graph", len(cases) + 1, len(cases) + 1)
    return found


def check_scores(session: Any, encoder: Encoder, limit: float | None) -> dict[str, float]:
    """Compare the scores of the graph with the encoder's on pairs of random texts; nothing for one without heads.

    limit: None only states the difference. Raises `ModelError` for one above it, or NaN.
    """
    found: dict[str, float] = {}
    for pairs in (1, 8) if encoder.heads is not None else ():
        name, batch = (
            f"score of {counted(pairs, 'pair')}",
            _random_batch(encoder, 2 * pairs, min(12, encoder.max_length)),
        )
        if pairs > 1:  # the last pair is one text twice
            for value in batch.values():
                value[-1] = value[pairs - 1]
        with torch.inference_mode(), evaluating(encoder):
            _, expected = WithScores(encoder)(**{key: value.to(encoder.device) for key, value in batch.items()})
        found[name] = _compare(name, _run(session, batch, name, SCORE), expected.cpu().numpy(), limit, unit=1.0)
    return found


def odd_inputs(encoder: Encoder) -> list[Feeds]:
    """Make the longest batch and the odd ones, as ONNX Runtime takes them."""
    batches = [_random_batch(encoder, 1, encoder.max_length), *_odd_batches(encoder).values()]
    return [{name: value.numpy() for name, value in batch.items()} for batch in batches]


def _odd_batches(encoder: Encoder) -> dict[str, Batch]:
    """One token over and over at the longest length that a batch of the checks has, and one token alone."""
    length = min(max(_LENGTHS), encoder.max_length)
    last = int(encoder.backbone.config.vocab_size) - 1
    ids = torch.stack([torch.full((length,), token) for token in (0, last // 2, last)])
    short = torch.full((1, 1), last)
    return {
        f"one token {length} times": _batch(encoder, ids, torch.ones_like(ids)),
        "one token alone": _batch(encoder, short, torch.ones_like(short)),
    }


def _shapes(longest: int) -> Iterator[tuple[int, int]]:
    for length in sorted({*(length for length in _LENGTHS if length < longest), longest}):
        for batch in _BATCHES:
            if batch == 1 or batch * length**2 <= _MOST_SCORES:
                yield batch, length


def _random_batch(encoder: Encoder, size: int, length: int) -> Batch:
    """Random ids; the first row fills the length, the others end anywhere from their second token on."""
    generator = torch.Generator().manual_seed(size * 10_007 + length)
    ids = torch.randint(int(encoder.backbone.config.vocab_size), (size, length), generator=generator)
    ends = torch.randint(min(2, length), length + 1, (size, 1), generator=generator)
    ends[0] = length
    return _batch(encoder, ids, (torch.arange(length) < ends).long())


def _batch(encoder: Encoder, ids: Tensor, mask: Tensor) -> Batch:
    # RoBERTa's positions count the ids that are not padding, so padding may stand only where the mask is 0.
    padding = encoder.backbone.config.pad_token_id
    if padding is not None:
        other = (int(padding) + 1) % int(encoder.backbone.config.vocab_size)
        ids = torch.where(ids == padding, other, ids)
    return dict(zip(INPUTS, (torch.where(mask == 1, ids, padding or 0), mask), strict=True))


def _expected(encoder: Encoder, compute: Any, batch: Batch) -> NDArray[np.float32]:
    with torch.inference_mode(), evaluating(encoder):
        found: Tensor = compute(**{key: value.to(encoder.device) for key, value in batch.items()})
    return found.cpu().numpy()


def _run(session: Any, batch: Batch, name: str, output: str = OUTPUT) -> NDArray[np.float32]:
    try:
        vectors: NDArray[np.float32] = session.run([output], {key: value.numpy() for key, value in batch.items()})[0]
    except Exception as error:  # the runtime has a class of its own for each status
        raise failed_check(f"{name} does not run: {first_line(error)}") from error
    return vectors


def _compare(
    name: str, found: NDArray[Any], expected: NDArray[Any], limit: float | None, *, unit: float | None
) -> float:
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
    return difference


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


def measure_invariance(exported: OnnxEncoder, pairs: PairSet) -> Invariance:
    """Compare vectors of texts run alone with those run in batches, and padded to the longest; at most 200 pairs."""
    assert exported.reader is not None
    chosen = pairs.pairs[:: -(-len(pairs) // _MOST_PAIRS)]
    if len({pair.target for pair in chosen}) < 2:  # a set sorted or filled oddly: then all of it
        chosen = pairs.pairs
    places = PlacedPairs.of(chosen)
    ids = exported.reader.token_ids(places.texts)
    longest = max(len(row) for row in ids)
    alone = _unit(np.concatenate([exported.run(padded([row], exported.reader.padding_id)) for row in ids]))
    wide = _unit(np.concatenate([exported.run(padded([row], exported.reader.padding_id, longest)) for row in ids]))
    batched = _unit(exported.encode_ids(ids).numpy())
    targets = [pair.target for pair in chosen]
    scores = [
        correlate(pair_similarities(torch.from_numpy(vectors), places), targets).spearman
        for vectors in (alone, batched)
    ]
    return Invariance(
        data=pairs.name,
        num_texts=len(places.texts),
        num_pairs=len(chosen),
        batch_difference=float(np.abs(batched - alone).max()),
        batch_cosine=float((batched * alone).sum(axis=1).min()),
        padding_difference=float(np.abs(wide - alone).max()),
        padding_cosine=float((wide * alone).sum(axis=1).min()),
        spearman_alone=scores[0],
        spearman_batched=scores[1],
    )


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float64]:
    unit: NDArray[np.float64] = torch.nn.functional.normalize(torch.from_numpy(vectors).double(), dim=1).numpy()
    return unit
