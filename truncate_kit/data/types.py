"""Sentence pairs with a graded score: one pair, one set, the splits of a set."""

import hashlib
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, combinations
from typing import Literal, NamedTuple

from truncate_kit.core.errors import DataError, UsageError
from truncate_kit.core.results import Result
from truncate_kit.core.wording import counted

ScaleSource = Literal["given", "inferred", "known"]
TextTuple = tuple[str, str]
SPLIT_NAMES = ("train", "dev", "test")


@dataclass(frozen=True, slots=True)
class TextPair:
    """Two texts and how similar they are on the scale of the set the pair belongs to, or the place of its class."""

    first: str
    second: str
    target: float


def pairs_in_rows(rows: Iterable[Sequence[str]]) -> frozenset[frozenset[str]]:
    """Return any two texts of one row, each pair as a set, so that their order does not matter."""
    return frozenset(frozenset(pair) for row in rows for pair in combinations(row, 2))


def pairs_fingerprint(pairs: Iterable[TextPair]) -> str:
    """Return the SHA-256 of texts and scores, whatever their order and scale."""
    lines = sorted(f"{len(one.first)} {float(one.target)!r} {one.first} {one.second}" for one in pairs)
    return hashlib.sha256("\n".join(f"{len(line)} {line}" for line in lines).encode()).hexdigest()


def distinct_texts(pairs: Iterable[TextPair]) -> list[str]:
    """Return the distinct texts in the order in which they first appear, first text before second."""
    return list(dict.fromkeys(text for pair in pairs for text in (pair.first, pair.second)))


class PlacedPairs(NamedTuple):
    """Distinct texts, and where among them the first and the second text of each pair stand."""

    texts: list[str]
    first: list[int]
    second: list[int]

    @classmethod
    def of(cls, pairs: Sequence[TextPair], texts: Sequence[str] | None = None) -> "PlacedPairs":
        """Return the places of `pairs` among `texts`, which hold them all; None takes their own distinct texts."""
        texts = distinct_texts(pairs) if texts is None else list(texts)
        place = {text: index for index, text in enumerate(texts)}
        return cls(texts, [place[pair.first] for pair in pairs], [place[pair.second] for pair in pairs])


def check_scores(scores: Iterable[float], source: str = "") -> None:
    """Raise `DataError` for the first score that is not finite. source: name of the pairs, for the message."""
    for number, score in enumerate(scores, start=1):
        if not math.isfinite(score):
            place = f"{source}, pair {number:,}: the" if source else f"Pair {number:,}: the"
            raise DataError(f"{place} score {score} is not finite.", hint="Give a number, or leave the pair out.")


def check_ranks(scores: Sequence[float], source: str = "The set") -> None:
    """Raise `DataError` for scores that nothing can be correlated with, such as those of a test set kept secret."""
    check_scores(scores)
    different = len(set(scores))
    if len(scores) < 3 or different < 2:
        raise DataError(
            f"{source} holds {counted(len(scores), 'pair')} with {counted(different, 'score')}: a correlation needs at "
            "least three pairs with two different scores.",
            hint="Use a larger set, or check that the score column is the right one.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap(Result):
    """Pairs and sentences that splits share; None where a split is missing.

    Attributes:
        train_dev, train_test, dev_test: Distinct pairs in both: with their texts in the same order, and in either.
        test_sentences: Distinct texts of test.
        test_sentences_in_train: How many of them train holds as well.
    """

    train_dev: tuple[int, int] | None
    train_test: tuple[int, int] | None
    dev_test: tuple[int, int] | None
    test_sentences: int | None
    test_sentences_in_train: int | None


def overlap_of(
    train: Sequence[TextTuple] | None, dev: Sequence[TextTuple] | None, test: Sequence[TextTuple] | None
) -> Overlap:
    """Count what the splits share. Texts are compared character by character; None is a missing split."""

    def shared(left: Sequence[TextTuple] | None, right: Sequence[TextTuple] | None) -> tuple[int, int] | None:
        if left is None or right is None:
            return None
        either = set(map(frozenset, left)) & set(map(frozenset, right))
        return len(set(left) & set(right)), len(either)

    test_texts = set(chain.from_iterable(test or ()))
    train_texts = set(chain.from_iterable(train or ()))
    return Overlap(
        train_dev=shared(train, dev),
        train_test=shared(train, test),
        dev_test=shared(dev, test),
        test_sentences=None if test is None else len(test_texts),
        test_sentences_in_train=None if test is None or train is None else len(test_texts & train_texts),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PairSet:
    """Pairs of one file or split, on a scale that is known. Raises `DataError` for a score that is no number."""

    name: str
    pairs: tuple[TextPair, ...] = field(repr=False)  # thousands, which nobody reads in a notebook
    scale: tuple[float, float]  # lowest and highest possible score
    scale_source: ScaleSource = "known"  # given by the user, inferred from the values, or known for this set
    path: str
    columns: tuple[str, str, str]  # names of the columns of first text, second text and score
    classes: tuple[str, ...] = ()  # names of the classes, whose places are then the targets; empty for graded pairs

    def __post_init__(self) -> None:
        check_scores((pair.target for pair in self.pairs), self.name)

    def __len__(self) -> int:
        return len(self.pairs)

    def __iter__(self) -> Iterator[TextPair]:
        return iter(self.pairs)

    def scores(self) -> list[float]:
        """Return the scores as they are in the file, one per pair."""
        return [pair.target for pair in self.pairs]

    def scores01(self) -> list[float]:
        """Return the scores with the scale's ends moved to 0 and 1, one per pair."""
        low, high = self.scale
        return [(pair.target - low) / (high - low) for pair in self.pairs]

    def texts(self) -> list[str]:
        """Return the distinct texts, see `distinct_texts`."""
        return distinct_texts(self.pairs)

    def check_ranked(self) -> None:
        """Raise `DataError` for scores that nothing can be correlated with."""
        check_ranks(self.scores(), self.name)

    def check_graded(self) -> None:
        """Raise `DataError` where the targets are classes, whose numbers are no scores."""
        if self.classes:
            raise DataError(f"{self.name} holds classes, not scores.", hint="Give pairs with graded scores.")

    def fingerprint(self) -> str:
        """Return the SHA-256 of texts, scores and scale, in order, whatever the file is called."""
        digest = hashlib.sha256(f"{float(self.scale[0])!r} {float(self.scale[1])!r}\n".encode())
        for name in self.classes:
            digest.update(f"{len(name)} {name}\n".encode())
        for pair in self.pairs:  # lengths first, so that no two different sets can run together to the same bytes
            digest.update(f"{len(pair.first)} {len(pair.second)} {pair.target!r} {pair.first} {pair.second}\n".encode())
        return digest.hexdigest()


SHARES = (0.70, 0.15, 0.15)  # of train, dev and test, where word sets are divided anew for every seed


@dataclass(frozen=True, slots=True, kw_only=True)
class PairSplits:
    """The splits of one set, all on the same scale; each may be missing, at least one is there."""

    name: str
    train: PairSet | None = None
    dev: PairSet | None = None
    test: PairSet | None = None
    notes: tuple[str, ...] = ()  # sentences the user has to see, such as how a single file was split
    one_file: bool = False  # a single file that is not divided yet; what its name says of it binds nobody
    # of train, dev and test, drawn anew from `train` for every seed; None where the splits are fixed
    shares: tuple[float, float, float] | None = None

    def items(self) -> list[tuple[str, PairSet]]:
        """Return the splits that are there, with their names, in the order train, dev, test."""
        found = ((name, getattr(self, name)) for name in SPLIT_NAMES)
        return [(name, pairs) for name, pairs in found if pairs is not None]

    def texts(self) -> list[str]:
        """Return the distinct texts of all splits, see `distinct_texts`."""
        return distinct_texts(pair for _, pairs in self.items() for pair in pairs)

    @property
    def evaluation(self) -> PairSet:
        """Return the set to measure on: test where there is one, otherwise dev, otherwise the only set there is."""
        return self.items()[-1][1]

    def split(self, name: str | None) -> PairSet:
        """Return the split called `name`; None is `evaluation`. Raises `UsageError` when it is not there."""
        if name is None:
            return self.evaluation
        found = dict(self.items())
        if name not in found:
            hint = f"Use one of: {', '.join(found)}."
            hint = "It is one file: leave out `split`, or give a folder of splits." if self.one_file else hint
            raise UsageError(f"{self.name} has no split {name!r}.", hint=hint)
        return found[name]

    def first(self, count: int) -> "PairSplits":
        """Keep the first `count` pairs of each split, for a quick try."""
        some = {name: replace(pairs, pairs=pairs.pairs[:count]) for name, pairs in self.items()}
        return replace(self, **some)  # type: ignore[arg-type]  # splits by their names

    def without_texts(self, texts: Collection[str]) -> "PairSplits":
        """Leave out training pairs that hold one of `texts`; a note says how many these were.

        Raises `DataError` where no pair is left.
        """
        if self.train is None:
            return self
        unseen, kept = frozenset(texts), self.train.pairs
        kept = tuple(pair for pair in kept if pair.first not in unseen and pair.second not in unseen)
        if not kept:
            hint = "Choose by texts that are not learned from."
            raise DataError(f"All training pairs of {self.name} hold a text that is held out.", hint=hint)
        left_out = len(self.train) - len(kept)
        note = f"{left_out:,} training pairs were left out: they hold a text that is held out."
        notes = (*self.notes, note) if left_out else self.notes
        return replace(self, train=replace(self.train, pairs=kept), notes=notes)

    @property
    def overlap(self) -> Overlap:
        """Count what the splits share, on every access."""
        pairs = {name: [(pair.first, pair.second) for pair in split] for name, split in self.items()}
        return overlap_of(pairs.get("train"), pairs.get("dev"), pairs.get("test"))

    def fingerprint(self) -> str:
        """Return the SHA-256 over the names and fingerprints of the splits."""
        parts = [f"{name} {split.fingerprint()}" for name, split in self.items()]
        if self.shares not in (None, SHARES):
            parts.append(repr(self.shares))
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()
