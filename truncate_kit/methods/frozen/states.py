"""Pooled states of all blocks, computed once and kept on disk, and the pairs of texts that they belong to."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from truncate_kit.core.errors import DataError
from truncate_kit.core.files import run_lock
from truncate_kit.core.progress import Progress, silent
from truncate_kit.data.pairs import splits_for
from truncate_kit.data.seen import seen_before
from truncate_kit.data.types import PairSet, PairSplits, PlacedPairs, distinct_texts
from truncate_kit.methods.frozen.settings import FrozenSettings
from truncate_kit.models.encoder import Encoder
from truncate_kit.models.pipeline import Digest, encoder_digest
from truncate_kit.models.store import StoredRows
from truncate_kit.models.truncation import layer_states

CHUNK = 512  # texts that are stored together: enough to sort by length, and seconds of work at most to do again

_READ = 1024  # states read at a time
NLI_SCORES = {"contradiction": 0.0, "neutral": 0.5, "entailment": 1.0}
FEWEST_SENTENCES = 20

Rows = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class StatePairs:
    """Pairs of texts by their rows in cached states."""

    values: Rows  # (n, L, d)
    first: tuple[int, ...]  # rows, as `second`
    second: tuple[int, ...]
    targets: tuple[float, ...]  # from 0 to 1

    @classmethod
    def of(
        cls, pairs: PairSet, texts: Sequence[str], values: Rows, targets: Sequence[float] | None = None
    ) -> "StatePairs":
        """Take the pairs of a set whose texts are among `texts`, the rows of `values`.

        Args:
            pairs: The set.
            texts: Those of the rows of `values`.
            values: A row for each of `texts`.
            targets: None is their scores.
        """
        _, first, second = PlacedPairs.of(pairs.pairs, texts)
        return cls(values, tuple(first), tuple(second), tuple(targets if targets is not None else pairs.scores01()))

    def lowest(self, blocks: int) -> "StatePairs":
        """Take the same pairs with the states of this number of lowest blocks."""
        return StatePairs(self.values[:, :blocks], self.first, self.second, self.targets)


def moments(values: Rows) -> tuple[Tensor, Tensor]:
    """Return mean and deviation over the texts of states (n, L, d), each (L, d) float32."""
    centre = values[0].astype(np.float64)  # shifted, so that large means take no digits from deviations
    total, squares = np.zeros_like(centre), np.zeros_like(centre)
    for start in range(0, len(values), _READ):
        moved = values[start : start + _READ] - centre
        total += moved.sum(axis=0)
        squares += (moved * moved).sum(axis=0)
    mean = total / len(values)
    deviation = np.sqrt(np.maximum(squares / len(values) - mean * mean, 0))
    return torch.from_numpy(centre + mean).float(), torch.from_numpy(deviation).float()


def take_states(values: Rows, places: Sequence[int], device: torch.device) -> Tensor:
    """Take rows of states (n, L, d) as (L, b, d) on `device`."""
    rows = torch.from_numpy(np.ascontiguousarray(values[np.asarray(places, dtype=np.int64)]))
    return rows.transpose(0, 1).to(device)


def cached_states(
    encoder: Encoder,
    texts: Sequence[str],
    folder: Path,
    *,
    final_norm: bool = True,
    chunk: int = CHUNK,
    progress: Progress = silent,
) -> tuple[Rows, int]:
    """Return pooled states of the blocks 1 … L of `texts`, as `layer_states` gives them, from `folder` where they are.

    They are (n, L, d) float32, read-only and memory-mapped; with them, how many texts had damaged states.

    What a killed run left is taken up and ends with the same bytes; what does not fit its checksum is computed again.

    Args:
        encoder: Whose states they are.
        texts: The texts.
        folder: The cache, with an entry for each model and list of texts.
        final_norm: Whether a model that ends in a norm has it applied to them; without it they are what the blocks
            give.
        chunk: Texts that are computed together.
        progress: Called after each chunk.

    Raises:
        FileProblemError: The entry cannot be written, or is held.
        UsageError: The rows that are there were made from something else, or the disk is too small.
    """
    digest = Digest()
    raw: Literal[False, "all"] = False if final_norm or encoder.family.final_norm is None else "all"
    digest.add("states", encoder_digest(encoder), str(chunk), *(["raw"] if raw else []), *texts)
    made_from = {"states": digest.hexdigest()}
    entry = Path(folder) / made_from["states"][:16]
    shape = (len(texts), encoder.depth, encoder.width)
    with run_lock(entry):
        row_bytes = 4 * shape[1] * shape[2]
        stored = StoredRows(entry / "states.f32", made_from, num_rows=shape[0], row_bytes=row_bytes, chunk=chunk)
        for start in stored.missing:
            part = texts[start : start + chunk]
            states = layer_states(encoder, part, raw=raw)[1:].transpose(0, 1)
            stored.write(start, states.contiguous().numpy().tobytes())
            progress(f"States of {encoder.name}", start + len(part), shape[0])
        return np.memmap(stored.file, np.float32, mode="r", shape=shape), stored.damaged


@dataclass(frozen=True, slots=True)
class Material:
    """States of all that is trained and tested on. raw: (n, L, d), None without raw sentences."""

    train: StatePairs
    dev: StatePairs
    test: StatePairs
    test_pairs: PairSet
    nli: StatePairs | None
    raw: Rows | None
    left_out: int
    num_texts: int
    notes: tuple[str, ...]


def check_pairs(data: PairSplits, seed: int) -> tuple[PairSet, PairSet, PairSet]:
    """Return train, dev and test. Raises `DataError` where one is missing, has classes, or is too small."""
    found = dict(splits_for(data, seed).items())
    if len(found) < 3:
        hint = "Give a folder with train, dev and test files, or one file to be divided."
        raise DataError(f"{data.name} has no train, dev and test set, only {', '.join(found)}.", hint=hint)
    for pairs in found.values():
        if pairs.classes:
            raise DataError(f"{pairs.name} holds classes, not scores.", hint="Give pairs with classes as `nli`.")
        pairs.check_ranked()
    return found["train"], found["dev"], found["test"]


def nli_scores(pairs: PairSet) -> list[float]:
    """Score entailment as 1, neutral as ½, contradiction as 0. Raises `DataError` for any other class."""
    other = [name for name in pairs.classes if name.lower() not in NLI_SCORES]
    if other or not pairs.classes:
        raise DataError(
            f"{pairs.name} has the class {other[0]!r}." if other else f"{pairs.name} holds scores, not classes.",
            hint=f"NLI pairs are labelled {', '.join(NLI_SCORES)}.",
        )
    scores = [NLI_SCORES[name.lower()] for name in pairs.classes]
    return [scores[int(pair.target)] for pair in pairs]


def draw_sentences(raw: Sequence[str], held_out: Sequence[PairSet], count: int, seed: int) -> tuple[list[str], int]:
    """Draw `count` distinct raw sentences, none of held-out sets, and how many those left out. Raises `DataError`."""
    held = {text for pairs in held_out for text in pairs.texts()}
    distinct = list(dict.fromkeys(raw))
    usable = [text for text in distinct if text not in held]
    if len(usable) < FEWEST_SENTENCES:
        hint = f"Give at least {FEWEST_SENTENCES} as `raw`; the paper takes 20,000."
        raise DataError(f"{len(usable)} raw sentences are too few to train autoencoders.", hint=hint)
    order = torch.randperm(len(usable), generator=torch.Generator().manual_seed(seed))[:count]
    return [usable[place] for place in sorted(order.tolist())], len(distinct) - len(usable)


def read_material(
    encoder: Encoder,
    splits: tuple[PairSet, PairSet, PairSet],
    cache: Path,
    settings: FrozenSettings,
    *,
    nli: PairSet | None,
    raw: Sequence[str] | None,
    left_out: int,
    progress: Progress,
) -> Material:
    """Read the states of all distinct texts, from the cache where they are there.

    Args:
        encoder: Whose states they are.
        splits: Train, dev and test.
        cache: As in `cached_states`.
        settings: Say whether a final norm is applied.
        nli: Pairs with classes; None without.
        raw: Sentences for the autoencoders; None without.
        left_out: Number of raw sentences that are in dev or test, for the notes.
        progress: As in `cached_states`.
    """
    train, dev, test = splits
    notes = list(filter(None, [seen_before(test, {encoder.name: encoder.seen})]))
    num_texts = 0

    def states(texts: Sequence[str]) -> Rows:
        nonlocal num_texts
        values, damaged = cached_states(encoder, texts, cache, final_norm=settings.final_norm, progress=progress)
        num_texts += len(texts)
        if damaged:
            notes.append(f"The cache in {cache} was damaged: the states of {damaged:,} texts were computed again.")
        return values

    texts = distinct_texts(pair for pairs in splits for pair in pairs)
    values = states(texts)
    return Material(
        train=StatePairs.of(train, texts, values),
        dev=StatePairs.of(dev, texts, values),
        test=StatePairs.of(test, texts, values),
        test_pairs=test,
        nli=None if nli is None else StatePairs.of(nli, nli.texts(), states(nli.texts()), nli_scores(nli)),
        raw=states(raw) if raw is not None else None,
        left_out=left_out,
        num_texts=num_texts,
        notes=tuple(notes),
    )
