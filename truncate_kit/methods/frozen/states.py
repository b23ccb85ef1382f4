"""Pooled states of all blocks, computed once and kept on disk, and the pairs of texts that they belong to."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from truncate_kit.data import PairSet, PairSplits, distinct_texts, splits_for
from truncate_kit.errors import DataError
from truncate_kit.files import run_lock
from truncate_kit.methods.frozen.heads import StatePairs
from truncate_kit.models import Encoder, encoder_digest
from truncate_kit.models.digest import Digest
from truncate_kit.models.states import layer_states
from truncate_kit.progress import Progress, silent
from truncate_kit.seen import seen_before
from truncate_kit.training.store import StoredRows

CHUNK = 512  # texts that are stored together: enough to sort by length, and seconds of work at most to do again

Rows = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class CachedStates:
    """States on disk."""

    values: Rows  # (n, L, d) float32, read-only and memory-mapped, row i for text i
    damaged: int  # texts whose stored states were damaged and have been computed again

    def statement(self, folder: Path) -> str | None:
        """What the user has to know about the cache; None where nothing was wrong."""
        if not self.damaged:
            return None
        return f"The cache in {folder} was damaged: the states of {self.damaged:,} texts were computed again."


def cached_states(
    encoder: Encoder,
    texts: Sequence[str],
    folder: Path,
    *,
    final_norm: bool = True,
    chunk: int = CHUNK,
    progress: Progress = silent,
) -> CachedStates:
    """The pooled states of the blocks 1 … L of `texts`, as `layer_states` gives them, from `folder` where they are.

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
        return CachedStates(np.memmap(stored.file, np.float32, mode="r", shape=shape), stored.damaged)


NLI_SCORES = {"contradiction": 0.0, "neutral": 0.5, "entailment": 1.0}
FEWEST_SENTENCES = 20


@dataclass(frozen=True, slots=True)
class Material:
    """States of all that is trained and tested on. raw: (n, L, d), None without raw sentences."""

    train: StatePairs
    dev: StatePairs
    test: StatePairs
    test_pairs: PairSet
    nli: StatePairs | None
    raw: NDArray[np.float32] | None
    left_out: int
    num_texts: int
    notes: tuple[str, ...]


def check_pairs(data: PairSplits, seed: int) -> tuple[PairSet, PairSet, PairSet]:
    """Train, dev and test. Raises `DataError` where one is missing, has classes, or is too small for a correlation."""
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
    """Entailment as 1, neutral as ½, contradiction as 0. Raises `DataError` for any other class."""
    other = [name for name in pairs.classes if name.lower() not in NLI_SCORES]
    if other or not pairs.classes:
        raise DataError(
            f"{pairs.name} has the class {other[0]!r}." if other else f"{pairs.name} holds scores, not classes.",
            hint=f"NLI pairs are labelled {', '.join(NLI_SCORES)}.",
        )
    scores = [NLI_SCORES[name.lower()] for name in pairs.classes]
    return [scores[int(pair.target)] for pair in pairs]


def draw_sentences(raw: Sequence[str], held_out: Sequence[PairSet], count: int, seed: int) -> tuple[list[str], int]:
    """`count` distinct raw sentences, none of held-out sets, and how many those left out. Raises `DataError`."""
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
    *,
    nli: PairSet | None,
    raw: Sequence[str] | None,
    left_out: int,
    final_norm: bool,
    progress: Progress = silent,
) -> Material:
    """The states of all distinct texts, from the cache where they are there.

    Args:
        encoder: Whose states they are.
        splits: Train, dev and test.
        cache: As in `cached_states`.
        nli: Pairs with classes; None without.
        raw: Sentences for the autoencoders; None without.
        left_out: Number of raw sentences that are in dev or test, for the notes.
        final_norm: See `cached_states`.
        progress: As in `cached_states`.
    """
    train, dev, test = splits
    notes = [said] if (said := seen_before(test, {encoder.name: encoder.seen})) else []
    num_texts = 0

    def states(texts: Sequence[str]) -> NDArray[np.float32]:
        nonlocal num_texts
        found = cached_states(encoder, texts, cache, final_norm=final_norm, progress=progress)
        num_texts += len(texts)
        statement = found.statement(cache)
        if statement is not None:
            notes.append(statement)
        return found.values

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
