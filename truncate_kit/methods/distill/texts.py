"""Training texts as memory-mapped token ids, and pairs scored by a model's own cosines."""

import copy
import hashlib
import json
import random
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
import torch
from numpy.typing import NDArray

from truncate_kit.core.errors import DataError, LayerOutOfRangeError, TruncateKitError, counted
from truncate_kit.core.files import replacing
from truncate_kit.core.progress import Progress, silent
from truncate_kit.core.workspace import RESULT_FILES, Workspace
from truncate_kit.data.pairs import PairSet, PairSplits, TextPair
from truncate_kit.methods.distill.settings import LOWEST_TAUGHT, DistillResult, DistillSettings
from truncate_kit.models.encoder import DOCUMENT_PROMPTS, QUERY_PROMPTS, Encoder, prompted_ids, side_prompt
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.store import add_parts, encoder_digest
from truncate_kit.models.truncation import truncate
from truncate_kit.training.examples import Ids

if TYPE_CHECKING:
    from truncate_kit.data.retrieval import RetrievalSet

FOLDER = Path("distillation") / "texts"  # of a workspace
FEWEST_TEXTS = 200
FEWEST_HELD_OUT = 42  # two halves of 2 · NEAR + 1
FEW_TEXTS, FEW_TOKENS = 2000, 64  # to try subsets on
TEXTS_FILE, TOKENS_FILE, ENDS_FILE, NOTE_FILE = "texts.jsonl", "tokens.bin", "ends.npy", "texts.json"
_AT_ONCE = 4096  # texts
NOTE = "Without labels, the full model's cosines between held-out texts are the reference."
SEARCH_NOTE = "{name} has no graded pairs: the model's cosines between queries and documents replace the grades."
PAIRS = 1000  # at most; all their cosines are computed
FEWEST_PAIRED = 10  # texts of each half


@dataclass(frozen=True, slots=True, kw_only=True)
class RawTexts:
    """Texts for `distill`.

    Attributes:
        texts: Training texts, as long as the texts to encode later; read once, in order.
        queries: Training queries, encoded with the model's query prompt.
        exclude: Texts left out of training.
        vocabulary: Texts whose word pieces the lean model keeps; by default it keeps all pieces.
    """

    texts: Iterable[str]
    queries: Iterable[str] = ()
    exclude: Collection[str] = ()
    vocabulary: Sequence[str] | None = None


class TextStore:
    """Texts written by `store_texts`, with token ids in one array; queries come first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / TEXTS_FILE  # one JSON object a line, without prompts
        note = json.loads((folder / NOTE_FILE).read_text(encoding="utf-8"))
        self.counts: dict[str, int] = note["counts"]  # see `DistillResult.texts`
        self.digest: str = note["texts"]
        self.num_queries = self.counts["num_queries"]
        self._tokens: NDArray[np.int32] = np.memmap(folder / TOKENS_FILE, dtype=np.int32, mode="r")
        self._ends: NDArray[np.int64] = np.load(folder / ENDS_FILE, mmap_mode="r")

    def __len__(self) -> int:
        return len(self._ends)

    def ids(self, place: int) -> Ids:
        """Return the token ids of one text."""
        start = int(self._ends[place - 1]) if place else 0
        row: Ids = self._tokens[start : int(self._ends[place])].tolist()
        return row

    def ids_at(self, places: NDArray[np.int64]) -> list[Ids]:
        """Return the token ids of some texts."""
        return [self.ids(place) for place in places.tolist()]

    def lengths(self) -> NDArray[np.int64]:
        """Count the tokens of each text, (n,)."""
        return np.diff(self._ends, prepend=0)

    def shortened(self, encoder: Encoder, places: NDArray[np.int64], tokens: int) -> Self:
        """Return a store of the texts at rising `places`, cut to `tokens`, in memory; `read` does not work on it."""
        rows, cut = [encoder.reader.shortened(row, tokens) for row in self.ids_at(places)], copy.copy(self)
        cut._tokens, cut._ends = np.concatenate(rows).astype(np.int32), np.cumsum([len(row) for row in rows])
        cut.num_queries = int((places < self.num_queries).sum())
        return cut

    def read(self, places: Collection[int]) -> list[str]:
        """Read texts in the order of the file, without prompts."""
        wanted = set(places)
        with self.file.open(encoding="utf-8") as lines:
            return [json.loads(line)["text"] for place, line in enumerate(lines) if place in wanted]

    def ids_for(self, encoder: Encoder, places: Sequence[int]) -> list[Ids]:
        """Tokenise texts for another encoder with the same prompts."""
        text = dict(zip(sorted(places), self.read(places), strict=True))
        ids: dict[int, Ids] = {}
        for names, asked in ((QUERY_PROMPTS, True), (DOCUMENT_PROMPTS, False)):
            side = [place for place in text if (place < self.num_queries) == asked]
            prompt = side_prompt(encoder, names) or None
            ids |= zip(side, prompted_ids(encoder, [text[place] for place in side], prompt), strict=True)
        return [ids[place] for place in places]


def store_texts(
    encoder: Encoder, raw: RawTexts, folder: Path, *, limit: int | None = None, progress: Progress = silent
) -> TextStore:
    """Tokenise the distinct texts and replace `folder` by them; only a hash of each text stays in memory.

    Queries come first, with the model's query prompt; other texts get the document prompt, or the default.
    limit: most texts, not counting queries.

    Raises `DataError` for queries alone or fewer than `FEWEST_TEXTS` distinct texts.
    """
    exclude, number = {_compared(text) for text in raw.exclude}, Counter[str]()
    lengths, digest, longest, seen = list[int](), hashlib.sha256(), encoder.max_length, set[bytes]()
    add_parts(digest, encoder_digest(encoder))

    def distinct(texts: Iterable[str]) -> Iterator[str]:
        for text in texts:
            mark = hashlib.blake2b(text.encode(), digest_size=12).digest()
            kind = "excluded" if _compared(text) in exclude else "repeated" if mark in seen else "kept"
            number[kind] += 1
            if kind == "kept":
                seen.add(mark)
                yield text

    sides = ((QUERY_PROMPTS, distinct(raw.queries)), (DOCUMENT_PROMPTS, islice(distinct(raw.texts), limit)))
    with replacing(folder) as place:
        place.mkdir()
        with (place / TEXTS_FILE).open("w", encoding="utf-8") as lines, (place / TOKENS_FILE).open("wb") as tokens:
            for names, source in sides:
                prompt = side_prompt(encoder, names) or None  # or the default
                while some := list(islice(source, _AT_ONCE)):
                    rows = prompted_ids(encoder, some, prompt)
                    full = [(prompt or "") + text for text, ids in zip(some, rows, strict=True) if len(ids) >= longest]
                    number["cut"] += encoder.reader.num_longer(full, prompt=prompt is None)  # some fit exactly
                    number["queries"] += len(some) * (names is QUERY_PROMPTS)
                    for text, ids in zip(some, rows, strict=True):
                        lines.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
                        np.asarray(ids, dtype=np.int32).tofile(tokens)
                        lengths.append(len(ids))
                        add_parts(digest, names[0], text)
                    progress("Reading texts", len(lengths), len(lengths) + 1)
        count = len(lengths)
        if count < FEWEST_TEXTS or count == number["queries"]:
            raise DataError(
                f"Only {counted(count - number['queries'], 'distinct text')} and "
                f"{counted(number['queries'], 'query', 'queries')} to learn from; "
                f"{counted(number['excluded'], 'text')} in `exclude` or the evaluation data left out.",
                hint=f"At least {FEWEST_TEXTS} are needed, tens of thousands are better: give other `texts`, a larger "
                "`max_texts`, or fewer to `exclude`.",
            )
        progress("Reading texts", len(lengths), len(lengths))
        np.save(place / ENDS_FILE, np.cumsum(lengths, dtype=np.int64))
        counts = {"num_texts": len(lengths), "num_queries": number["queries"], "compared": len(exclude)}
        counts |= {name: number[name] for name in ("repeated", "excluded", "cut")} | {"tokens": sum(lengths)}
        counts |= {name: int(np.quantile(lengths, share)) for name, share in (("middle", 0.5), ("long", 0.95))}
        note = {"texts": digest.hexdigest(), "counts": counts}
        (place / NOTE_FILE).write_text(json.dumps(note), encoding="utf-8")
    return TextStore(folder)


def words_of(text: str) -> list[str]:
    """Split a text into lower-case words without punctuation, to compare texts."""
    return re.findall(r"\w+", text.lower()) or text.split()


def _compared(text: str) -> str:
    return " ".join(words_of(text))


def held_out_places(
    number: int, settings: DistillSettings
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Split text indices at random into choosing, reporting and training texts."""
    order = np.random.default_rng(settings.seed).permutation(number)
    held = max(FEWEST_HELD_OUT, min(settings.held_out, number // 10))
    return order[: held // 2], order[held // 2 : held], order[held:]


Taught = tuple[TextStore, NDArray[np.int64], NDArray[np.float16]]
"""Texts, indices of training texts, and the teacher's vectors of all texts."""


def few_texts(
    encoder: Encoder, texts: TextStore, places: NDArray[np.int64], vectors: NDArray[np.float16]
) -> Taught | None:
    """Return the first short texts; if too few, add truncated texts and encode all again. Needs ten texts.

    places: in random order.
    """
    number = min(FEW_TEXTS, len(places) // 10)
    if not number:
        return None
    is_short = texts.lengths()[places] <= FEW_TOKENS
    short = places[is_short][:number]
    if len(short) == number:
        return texts, short, vectors
    chosen = np.sort(np.concatenate([short, places[~is_short][: number - len(short)]]))  # queries stay first
    cut, all_places = texts.shortened(encoder, chosen, FEW_TOKENS), np.arange(number)
    return cut, all_places, encoder.encode_ids(cut.ids_at(all_places)).numpy().astype(np.float16)


def teacher_of(encoder: Encoder, layer: int | None) -> Encoder:
    """Return the full model, cut at the target layer if given. Raises `LayerOutOfRangeError`."""
    if layer is not None and layer > encoder.depth:
        raise LayerOutOfRangeError(layer, encoder.depth, lowest=LOWEST_TAUGHT)
    return encoder if layer is None or layer == encoder.depth else truncate(encoder, layer)


def own_pairs(encoder: Encoder, texts: Sequence[str], name: str = "") -> PairSet:
    """Pair each text with its nearest or a random text, scored by the encoder's cosine; needs two texts."""
    some = list(dict.fromkeys(texts))
    unit = torch.nn.functional.normalize(encoder.vectors(some), dim=1)
    cosines = (unit @ unit.T).fill_diagonal_(-2)
    steps = torch.randint(1, len(some), (len(some),), generator=torch.Generator().manual_seed(0))
    first = torch.arange(len(some))
    second = torch.where(first % 2 == 0, cosines.argmax(1), (first + steps) % len(some))
    scores, others = cosines[first, second].tolist()[:PAIRS], second.tolist()
    pairs = tuple(TextPair(some[place], some[others[place]], score) for place, score in enumerate(scores))
    return PairSet(name=name or f"cosines of {encoder.name}", pairs=pairs, scale=(-1.0, 1.0))


def own_pairs_of(workspace: Workspace) -> PairSplits | None:
    """Pair the held-out texts of a distillation: choosing texts become dev, reporting texts test.

    No pairs if texts are missing or the user named data.
    """
    result = DistillResult.read_if_whole(workspace.folder / RESULT_FILES["distill"])
    if result is None or workspace.remembered().data.name:
        return None
    try:
        store = TextStore(workspace.folder / FOLDER)
        teacher = teacher_of(load_encoder(workspace.full), result.settings.layer)
        if store.counts != result.texts:  # texts of another, stopped distillation
            return None
        halves = [store.read(half.tolist()) for half in held_out_places(len(store), result.settings)[:2]]
        return _splits(teacher, halves, f"cosines of {result.model}", NOTE)
    except (OSError, ValueError, KeyError, TruncateKitError):  # missing or damaged
        return None


def texts_of(data: "RetrievalSet") -> list[str]:
    """Return the distinct queries and documents. Raises `DataError` for fewer than 20."""
    texts = [text for text in dict.fromkeys((*data.queries, *data.documents)) if text]
    if len(texts) < 2 * FEWEST_PAIRED:
        raise DataError(
            f"{data.name} has {counted(len(texts), 'distinct text')}, too few to check a graph.",
            hint=f"Give at least {2 * FEWEST_PAIRED} queries and documents, or graded pairs.",
        )
    return texts


def search_pairs_of(encoder: Encoder, data: "RetrievalSet") -> PairSplits:
    """Pair the texts of a retrieval set, one half as dev, the other as test."""
    texts = texts_of(data)
    random.Random(0).shuffle(texts)
    middle = min(len(texts) // 2, PAIRS)
    name, note = f"cosines of {encoder.name} in {data.name}", SEARCH_NOTE.format(name=data.name)
    return _splits(encoder, (texts[:middle], texts[middle : 2 * middle]), name, note)


def _splits(encoder: Encoder, halves: Sequence[Sequence[str]], name: str, note: str) -> PairSplits:
    dev, test = (
        own_pairs(encoder, texts, f"{name}/{split}") for texts, split in zip(halves, ("dev", "test"), strict=True)
    )
    return PairSplits(name=name, dev=dev, test=test, notes=(note,))
