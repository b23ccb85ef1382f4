"""The texts to learn from: token ids in a memory-mapped file, and the few that choices of blocks are tried out on."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from truncate_kit.core.errors import DataError
from truncate_kit.core.files import replacing
from truncate_kit.core.progress import Progress, silent
from truncate_kit.core.wording import counted
from truncate_kit.evaluation.searching import DOCUMENT_PROMPTS, QUERY_PROMPTS, prompted_ids, side_prompt
from truncate_kit.methods.distill.result import TextCounts
from truncate_kit.methods.distill.settings import DistillSettings
from truncate_kit.models.encoder import Encoder
from truncate_kit.models.pipeline import Digest, encoder_digest
from truncate_kit.training.examples import Ids

FEWEST_TEXTS = 200
FEWEST_HELD_OUT = 42
"""Texts: halves of 21, so that each has the nearest twenty of which the overlap is counted."""
FEW_TEXTS, FEW_TOKENS = 2000, 64
"""How many texts a choice of blocks is tried out on, a tenth of all where these are few; and the length to which they
are cut where too few are short."""
TEXTS_FILE, TOKENS_FILE, ENDS_FILE, NOTE_FILE = "texts.jsonl", "tokens.bin", "ends.npy", "texts.json"
_AT_ONCE = 4096  # texts that are tokenised together


@dataclass(frozen=True, slots=True, kw_only=True)
class RawTexts:
    """What is read.

    Attributes:
        texts: As long as those to be served; read once, in order.
        queries: Texts that will be searched with; they get the model's prompt for queries.
        exclude: Texts that must not be learned from.
        vocabulary: Texts whose word pieces alone the lean model keeps; None keeps all.
    """

    texts: Iterable[str]
    queries: Iterable[str] = ()
    exclude: Collection[str] = ()
    vocabulary: Sequence[str] | None = None


class TextStore:
    """Token ids of all texts by their places, read from a memory-mapped file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / TEXTS_FILE  # the texts themselves, one JSON object a line, prompts not included
        note = json.loads((folder / NOTE_FILE).read_text(encoding="utf-8"))
        self.counts = TextCounts.from_dict(note["counts"])
        self.num_queries = self.counts.num_queries  # which come first
        self.digest: str = note["texts"]
        self._ends: NDArray[np.int64] = np.load(folder / ENDS_FILE, mmap_mode="r")
        self._tokens: NDArray[np.int32] = np.memmap(folder / TOKENS_FILE, dtype=np.int32, mode="r")

    def __len__(self) -> int:
        return len(self._ends)

    def ids(self, place: int) -> Ids:
        """Return the token ids of one text."""
        start = int(self._ends[place - 1]) if place else 0
        found: Ids = self._tokens[start : int(self._ends[place])].tolist()
        return found

    def ids_at(self, places: NDArray[np.int64]) -> list[Ids]:
        """Return the token ids of some texts."""
        return [self.ids(place) for place in places.tolist()]

    def lengths(self) -> NDArray[np.int64]:
        """Count the tokens of each text, (n,)."""
        return np.diff(self._ends, prepend=0)

    def read(self, places: Collection[int]) -> list[str]:
        """Read the texts at some places, in the order of the file, prompts not included."""
        wanted = set(places)
        with self.file.open(encoding="utf-8") as lines:
            return [json.loads(line)["text"] for place, line in enumerate(lines) if place in wanted]

    def ids_for(self, encoder: Encoder, places: Sequence[int]) -> list[Ids]:
        """Tokenise the texts at some places by another tokenizer, which has the same prompts; in that order."""
        text = dict(zip(sorted(places), self.read(places), strict=True))
        found: dict[int, Ids] = {}
        for names, asked in ((QUERY_PROMPTS, True), (DOCUMENT_PROMPTS, False)):
            side = [place for place in text if (place < self.num_queries) == asked]
            prompt = side_prompt(encoder, names) or None
            found |= zip(side, prompted_ids(encoder, [text[place] for place in side], prompt), strict=True)
        return [found[place] for place in places]


def store_texts(
    encoder: Encoder, raw: RawTexts, folder: Path, *, limit: int | None = None, progress: Progress = silent
) -> TextStore:
    """Tokenise the distinct texts into `folder`.

    Queries come first and get the model's own prompt for queries; other texts get that for documents, or the default
    prompt. Only a hash of each text stays in memory.

    Args:
        encoder: Whose tokenizer, casing, prompts and length count.
        raw: The texts.
        folder: Is written as a whole.
        limit: Largest number of texts beside the queries, of which all are read; None for all.
        progress: Called after some thousand texts.

    Raises:
        DataError: Queries alone, or fewer than `FEWEST_TEXTS` distinct texts.
        FileProblemError: The folder cannot be written.
    """
    exclude, number = {_compared(text) for text in raw.exclude}, Counter[str]()
    lengths, digest, longest = list[int](), Digest(), encoder.max_length
    digest.add(encoder_digest(encoder))
    read = _distinct(raw.queries, raw.texts, exclude, limit, number)
    with replacing(folder) as place:
        place.mkdir()
        with (place / TEXTS_FILE).open("w", encoding="utf-8") as lines, (place / TOKENS_FILE).open("wb") as tokens:
            for names, some in read:
                prompt = side_prompt(encoder, names) or None  # where there is none for a side, the default one
                rows = prompted_ids(encoder, some, prompt)
                full = [(prompt or "") + one for one, ids in zip(some, rows, strict=True) if len(ids) >= longest]
                number["cut"] += encoder.reader.num_longer(full, prompt=prompt is None)  # some fit exactly
                for text, ids in zip(some, rows, strict=True):
                    lines.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
                    np.asarray(ids, dtype=np.int32).tofile(tokens)
                    lengths.append(len(ids))
                    digest.add(names[0], text)
                progress("Reading texts", len(lengths), len(lengths) + 1)
        _check_enough(len(lengths), number)
        progress("Reading texts", len(lengths), len(lengths))
        np.save(place / ENDS_FILE, np.cumsum(lengths, dtype=np.int64))
        counts = TextCounts(
            num_texts=len(lengths),
            num_queries=number["queries"],
            repeated=number["repeated"],
            excluded=number["excluded"],
            tokens=sum(lengths),
            middle=int(np.quantile(lengths, 0.5)),
            long=int(np.quantile(lengths, 0.95)),
            cut=number["cut"],
            compared=len(exclude),
        )
        note = {"texts": digest.hexdigest(), "counts": counts.to_dict()}
        (place / NOTE_FILE).write_text(json.dumps(note), encoding="utf-8")
    return TextStore(folder)


def _distinct(
    queries: Iterable[str], texts: Iterable[str], exclude: set[str], limit: int | None, number: Counter[str]
) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Yield the names of a prompt and some texts that were not seen before and are not excluded; count the others."""
    seen = set[bytes]()

    def distinct(some: Iterable[str]) -> Iterator[str]:
        for text in some:
            mark = hashlib.blake2b(text.encode(), digest_size=12).digest()
            if _compared(text) in exclude:
                number["excluded"] += 1
            elif mark in seen:
                number["repeated"] += 1
            else:
                seen.add(mark)
                yield text

    for names, source in ((QUERY_PROMPTS, distinct(queries)), (DOCUMENT_PROMPTS, islice(distinct(texts), limit))):
        while some := list(islice(source, _AT_ONCE)):
            number["queries"] += len(some) if names is QUERY_PROMPTS else 0
            yield names, some


def _check_enough(count: int, number: Counter[str]) -> None:
    """Raise `DataError` for fewer distinct texts than are learned from, or queries alone."""
    if count == number["queries"] > 0:
        hint = "Give `texts` that these search, or leave out `queries` and give them as `texts`."
        raise DataError(f"There are {counted(count, 'query', 'queries')} and no texts to learn from.", hint=hint)
    if count < FEWEST_TEXTS:
        raise DataError(
            f"Only {counted(count, 'distinct text')} to learn from; {number['excluded']:,} of those read are left out, "
            "because they are to be excluded or stand in the data for evaluation.",
            hint=f"At least {FEWEST_TEXTS} are needed, tens of thousands are better: give other `texts`, a larger "
            "`max_texts`, or fewer to `exclude`.",
        )


def words_of(text: str) -> list[str]:
    """Split a text into the words by which texts are compared, without case and punctuation; never empty."""
    return re.findall(r"\w+", text.lower()) or text.split()


def _compared(text: str) -> str:
    return " ".join(words_of(text))


def held_out_places(
    number: int, settings: DistillSettings
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Divide that number of texts: places of those that choose, of those that report, and of those learned from."""
    order = np.random.default_rng(settings.seed).permutation(number)
    held = max(FEWEST_HELD_OUT, min(settings.held_out, number // 10))
    return order[: held // 2], order[held // 2 : held], order[held:]


class CutTexts:
    """A few texts that are cut, in memory; read as a `TextStore`."""

    def __init__(self, ids: list[Ids], num_queries: int) -> None:
        self._ids, self.num_queries = ids, num_queries

    def ids(self, place: int) -> Ids:
        """Return the token ids of one text."""
        return self._ids[place]

    def lengths(self) -> NDArray[np.int64]:
        """Count the tokens of each text, (n,)."""
        return np.array([len(row) for row in self._ids])


Taught = tuple[TextStore | CutTexts, NDArray[np.int64], NDArray[np.float16]]
"""Texts, the places of those that are learned from, and the full model's vectors of all."""


def few_texts(
    encoder: Encoder, texts: TextStore, places: NDArray[np.int64], vectors: NDArray[np.float16]
) -> Taught | None:
    """Take the first short ones of `places`, and longer ones, cut, where these are too few; None where none is left.

    Args:
        encoder: The teacher, which encodes texts that are cut: the whole ones have other vectors.
        texts: All texts.
        places: Of those that may be learned from, in random order.
        vectors: The teacher's, of all texts.
    """
    number = min(FEW_TEXTS, len(places) // 10)
    if not number:
        return None
    is_short = texts.lengths()[places] <= FEW_TOKENS
    short = places[is_short][:number]
    if len(short) == number:
        return texts, short, vectors
    chosen = np.sort(np.concatenate([short, places[~is_short][: number - len(short)]]))  # queries come first here too
    ids = [encoder.reader.shortened(row, FEW_TOKENS) for row in texts.ids_at(chosen)]
    cut = CutTexts(ids, int((chosen < texts.num_queries).sum()))
    return cut, np.arange(number), encoder.encode_ids(ids).numpy().astype(np.float16)
