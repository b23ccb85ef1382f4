"""Made data: pairs, classes and triplets of random words that there is something to learn from."""

import dataclasses
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from tests.support.families import WORDS
from tests.support.files import graded_file
from truncate_kit.data.pairs import PairSet, PairSplits, TextPair
from truncate_kit.data.triplets import TripletSet

NOUNS = ["cat", "dog", "tree", "mat", "big", "small", "red", "blue"]
SENTENCES = [f"the {a} and a {b} on {c}" for a in NOUNS for b in NOUNS[:3] for c in ("a", "the mat")]


def _pair_set(pairs: Sequence[TextPair]) -> PairSet:
    return PairSet(name="words", pairs=tuple(pairs), scale=(0.0, 5.0), scale_source="given")


def make_pairs(count: int, seed: int = 0) -> PairSet:
    """Pairs of random words; the score is the share of words in common, so that there is something to learn."""
    generator = torch.Generator().manual_seed(seed)
    pairs = []
    for _ in range(count):
        length = 2 + int(torch.randint(6, (), generator=generator))
        first = [WORDS[int(place)] for place in torch.randint(12, (length,), generator=generator)]
        second = [_word_like(word, generator) for word in first]
        shared = len(set(first) & set(second)) / len(set(first) | set(second))
        pairs.append(TextPair(" ".join(first), " ".join(second), 5 * shared))
    return _pair_set(pairs)


def _word_like(word: str, generator: torch.Generator) -> str:
    """The word itself, or, every other time, another."""
    stays = torch.rand((), generator=generator) < 0.5
    return word if stays else WORDS[int(torch.randint(12, (), generator=generator))]


def write_splits(folder: Path, count: int) -> Path:
    """Write train, dev and test files of made pairs, and raw.txt with their texts joined."""
    for seed, split in enumerate(("train", "dev", "test")):
        graded_file(folder / f"{split}.csv", make_pairs(count, seed))
    (folder / "raw.txt").write_text("\n".join(f"{pair.first} and {pair.second}" for pair in make_pairs(40, 9)))
    return folder


def word_splits() -> PairSplits:
    """64 pairs to train on, 30 each for dev and test."""
    return PairSplits(name="words", train=make_pairs(64), dev=make_pairs(30, 1), test=make_pairs(30, 2))


def labelled_pairs(count: int, seed: int = 0, cuts: Sequence[float] = (0.4,)) -> PairSet:
    """Pairs of words that share more or fewer of them, in as many classes as there are cuts, and one."""
    graded = make_pairs(count, seed)
    pairs = tuple(
        dataclasses.replace(pair, target=float(sum(share >= cut for cut in cuts)))
        for pair, share in zip(graded, graded.scores01(), strict=True)
    )
    names = tuple("abc"[: len(cuts) + 1]) if len(cuts) > 1 else ()
    return dataclasses.replace(graded, pairs=pairs, scale=(0.0, float(len(cuts))), classes=names)


def labelled_splits(cuts: Sequence[float] = (0.4,)) -> PairSplits:
    first, dev, test = (labelled_pairs(count, seed, cuts) for seed, count in enumerate((64, 40, 40)))
    return PairSplits(name="words", train=first, dev=dev, test=test)


def sentence_pairs(count: int = 40) -> PairSet:
    """Pairs of like sentences under random scores; two of them have the same text twice."""
    generator = np.random.default_rng(0)
    pairs = [TextPair(SENTENCES[3], SENTENCES[3], 5.0), TextPair(SENTENCES[4], SENTENCES[4], 5.0)]
    while len(pairs) < count:
        first, second = generator.choice(len(SENTENCES), 2, replace=False)
        pairs.append(TextPair(SENTENCES[first], SENTENCES[second], float(generator.integers(0, 6))))
    return _pair_set(pairs)


def word_triplets(count: int = 14) -> TripletSet:
    generator = torch.Generator().manual_seed(4)
    texts = [" ".join(WORDS[int(p)] for p in torch.randint(16, (5,), generator=generator)) for _ in range(3 * count)]
    triplets = tuple(tuple(texts[place : place + 3]) for place in range(0, len(texts), 3))
    return TripletSet(name="words", rows=triplets, note=f"Training: words ({count} rows).")


def made_texts(count: int, *, seed: int = 0) -> list[str]:
    """Distinct texts of two to nine known words."""
    draw = random.Random(seed)
    texts: dict[str, None] = {}
    while len(texts) < count:
        texts[" ".join(draw.choices(WORDS, k=draw.randint(2, 9)))] = None
    return list(texts)


def pairs_of(texts: Sequence[str]) -> list[TextPair]:
    """80 pairs of these texts under random scores."""
    draw = random.Random(1)
    return [TextPair(draw.choice(texts), draw.choice(texts), draw.uniform(0, 5)) for _ in range(80)]


TEXTS = made_texts(60)
