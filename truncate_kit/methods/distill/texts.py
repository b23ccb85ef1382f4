"""The texts to learn from: token ids in a memory-mapped file, and the few that choices of blocks are tried out on."""

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from truncate_kit.errors import DataError
from truncate_kit.evaluation.searching import DOCUMENT_PROMPTS, QUERY_PROMPTS, prompted_ids, side_prompt
from truncate_kit.files import replacing
from truncate_kit.methods.distill.result import TextCounts
from truncate_kit.models import Encoder, encoder_digest
from truncate_kit.models.digest import Digest
from truncate_kit.progress import Progress, silent
from truncate_kit.results import sealed, unsealed
from truncate_kit.text_lists import check_several, check_text
from truncate_kit.training.examples import Ids
from truncate_kit.wording import counted

FEWEST_TEXTS = 200
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

    Raises:
        UsageError: One text, or the path of a file, stands where several texts belong.
    """

    texts: Iterable[str]
    queries: Iterable[str] = ()
    exclude: Collection[str] = ()
    vocabulary: Sequence[str] | None = None

    def __post_init__(self) -> None:
        check_several(self.texts)
        check_several(self.queries)
        check_several(self.exclude)


class TextStore:
    """Token ids of all texts by their places, read from a memory-mapped file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.counts = TextCounts.from_dict(_note(folder)["counts"])
        self.digest: str = _note(folder)["texts"]
        self._ends: NDArray[np.int64] = np.load(folder / ENDS_FILE, mmap_mode="r")
        self._tokens: NDArray[np.int32] = np.memmap(folder / TOKENS_FILE, dtype=np.int32, mode="r")

    def __len__(self) -> int:
        return len(self._ends)

    def ids(self, place: int) -> Ids:
        """Token ids of one text."""
        start = int(self._ends[place - 1]) if place else 0
        found: Ids = self._tokens[start : int(self._ends[place])].tolist()
        return found

    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each text, (n,)."""
        return np.diff(self._ends, prepend=0)

    def read(self, places: Collection[int]) -> list[str]:
        """The texts at some places, in the order of the file, prompts not included."""
        wanted = set(places)
        with self.file.open(encoding="utf-8") as lines:
            return [json.loads(line)["text"] for place, line in enumerate(lines) if place in wanted]

    def ids_for(self, encoder: Encoder, places: Sequence[int]) -> list[Ids]:
        """Token ids of the texts at some places by another tokenizer, which has the same prompts; in that order."""
        text = dict(zip(sorted(places), self.read(places), strict=True))
        found: dict[int, Ids] = {}
        for names, asked in ((QUERY_PROMPTS, True), (DOCUMENT_PROMPTS, False)):
            side = [place for place in text if (place < self.counts.num_queries) == asked]
            prompt = side_prompt(encoder, names) or None
            found |= zip(side, prompted_ids(encoder, [text[place] for place in side], prompt), strict=True)
        return [found[place] for place in places]

    @property
    def file(self) -> Path:
        """The texts themselves, one JSON object a line, prompts not included."""
        return self.folder / TEXTS_FILE


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
    with replacing(folder) as place:
        place.mkdir()
        counts, digest = _write(encoder, raw, place, limit, progress)
        note = {"texts": digest, "counts": counts.to_dict()}
        (place / NOTE_FILE).write_text(json.dumps(sealed(note)), encoding="utf-8")
    return TextStore(folder)


def _write(
    encoder: Encoder, raw: RawTexts, place: Path, limit: int | None, progress: Progress
) -> tuple[TextCounts, str]:
    distinct, lengths = _Distinct({" ".join(words_of(text)) for text in raw.exclude}), list[int]()
    digest, cut, num_queries = Digest(), 0, 0
    digest.add(encoder_digest(encoder))
    with (place / TEXTS_FILE).open("w", encoding="utf-8") as lines, (place / TOKENS_FILE).open("wb") as tokens:
        for names, source, most in ((QUERY_PROMPTS, raw.queries, None), (DOCUMENT_PROMPTS, raw.texts, limit)):
            num_queries = len(lengths)  # of the first source, once the second one begins
            prompt = side_prompt(encoder, names) or None  # where there is none for a side, the default one
            for some in _chunks(islice(distinct.of(source), most)):
                rows = prompted_ids(encoder, some, prompt)
                cut += _number_cut(encoder, some, rows, prompt)
                for text, ids in zip(some, rows, strict=True):
                    lines.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
                    np.asarray(ids, dtype=np.int32).tofile(tokens)
                    lengths.append(len(ids))
                    digest.add(names[0], text)
                progress("Reading texts", len(lengths), len(lengths) + 1)
    if len(lengths) == num_queries > 0:
        hint = "Give `texts` that these search, or leave out `queries` and give them as `texts`."
        raise DataError(f"There are {counted(num_queries, 'query', 'queries')} and no texts to learn from.", hint=hint)
    if len(lengths) < FEWEST_TEXTS:
        raise _too_few(len(lengths), distinct.excluded, limited=len(lengths) - num_queries == limit)
    progress("Reading texts", len(lengths), len(lengths))
    np.save(place / ENDS_FILE, np.cumsum(lengths, dtype=np.int64))
    counts = TextCounts(
        num_texts=len(lengths),
        num_queries=num_queries,
        repeated=distinct.repeated,
        excluded=distinct.excluded,
        tokens=sum(lengths),
        middle=int(np.quantile(lengths, 0.5)),
        long=int(np.quantile(lengths, 0.95)),
        cut=cut,
        compared=distinct.compared,
    )
    return counts, digest.hexdigest()


def _too_few(count: int, excluded: int, *, limited: bool) -> DataError:
    """The error for fewer distinct texts than are learned from, which are all that is left where others had to go."""
    hint = f"At least {FEWEST_TEXTS} are needed; tens of thousands are better."
    if limited:
        return DataError(f"`max_texts` leaves {counted(count, 'distinct text')} to learn from.", hint=hint)
    if not excluded:
        return DataError(f"Only {counted(count, 'distinct text')} to learn from.", hint=hint)
    return DataError(
        f"Only {counted(count, 'distinct text')} to learn from: {excluded:,} of those read are left out, because "
        "they are to be excluded or stand in the data for evaluation.",
        hint=f"Give other `texts`, or fewer to `exclude`. {hint}",
    )


def _number_cut(encoder: Encoder, texts: list[str], rows: list[Ids], prompt: str | None) -> int:
    """How many of the texts are longer than the model takes; those that fit exactly have as many tokens as they."""
    longest = [text for text, ids in zip(texts, rows, strict=True) if len(ids) >= encoder.max_length]
    return encoder.reader.num_longer([(prompt or "") + text for text in longest], prompt=prompt is None)


class _Distinct:
    """Texts that were not seen before and are not excluded, as which they count without case and punctuation."""

    def __init__(self, exclude: set[str]) -> None:
        self._exclude, self._seen = exclude, set[bytes]()
        self.repeated = self.excluded = 0
        self.compared = len(exclude)

    def of(self, texts: Iterable[str]) -> Iterator[str]:
        for number, text in enumerate(texts, start=1):
            check_text(text, f"Text {number:,}")
            if " ".join(words_of(text)) in self._exclude:
                self.excluded += 1
                continue
            mark = hashlib.blake2b(text.encode(), digest_size=12).digest()
            if mark in self._seen:
                self.repeated += 1
                continue
            self._seen.add(mark)
            yield text


def words_of(text: str) -> list[str]:
    """The words by which texts are compared, without case and punctuation; all that there is where there is no word."""
    return re.findall(r"\w+", text.lower()) or text.split()


def _chunks(texts: Iterator[str]) -> Iterator[list[str]]:
    while some := list(islice(texts, _AT_ONCE)):
        yield some


def _note(folder: Path) -> dict[str, Any]:
    return unsealed(json.loads((folder / NOTE_FILE).read_text(encoding="utf-8")), folder / NOTE_FILE)


FEW_TEXTS, FEW_TOKENS = 2000, 64
"""How many texts, a tenth of all where these are few; and the length to which they are cut where too few are short."""


class CutTexts:
    """Some of the stored texts, cut, by places of their own; read as a `TextStore`.

    Args:
        tokens: That are left of a longer text, the one that closes it included.
    """

    def __init__(self, encoder: Encoder, texts: TextStore, places: NDArray[np.int64], tokens: int) -> None:
        places = np.sort(places)  # queries come first there as well
        self._ids = [encoder.reader.shortened(texts.ids(int(place)), tokens) for place in places]
        num_queries = int((places < texts.counts.num_queries).sum())
        self.counts = replace(texts.counts, num_texts=len(places), num_queries=num_queries)

    def ids(self, place: int) -> Ids:
        """Token ids of one text."""
        return self._ids[place]

    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each text, (n,)."""
        return np.array([len(row) for row in self._ids])

    def vectors(self, encoder: Encoder) -> NDArray[np.float16]:
        """What the teacher gives to the texts as they are cut, (n, out): the whole ones have other vectors."""
        return encoder.encode_ids(self._ids).numpy().astype(np.float16)


Taught = tuple[TextStore | CutTexts, NDArray[np.int64], NDArray[np.float16]]
"""Texts, the places of those that are learned from, and the full model's vectors of all."""


def few_texts(
    encoder: Encoder, texts: TextStore, places: NDArray[np.int64], vectors: NDArray[np.float16]
) -> Taught | None:
    """The first short ones of `places`; where these are too few, longer ones as well, cut. None where no text is left.

    Args:
        encoder: The teacher.
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
    longer = places[~is_short][: number - len(short)]
    cut = CutTexts(encoder, texts, np.concatenate([short, longer]), FEW_TOKENS)
    return cut, np.arange(number), cut.vectors(encoder)
