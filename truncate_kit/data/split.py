"""Dividing a set that comes without splits: the same everywhere for the same seed, and no pair on two sides."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace

from truncate_kit.data.types import SPLIT_NAMES, PairSet, PairSplits, TextPair
from truncate_kit.errors import DataError, UsageError
from truncate_kit.wording import counted

FRACTIONS = (0.8, 0.1, 0.1)


def split_pairs(pairs: PairSet, seed: int = 0, fractions: Sequence[float] = FRACTIONS) -> PairSplits:
    """Divide one set into train, dev and test; a fraction of 0 leaves that split out.

    Rows with the same two texts, in either order, stay together. The split of a pair depends on its texts and the seed
    only, not on the order of the rows; the rows of each split keep their order.

    Args:
        pairs: The set to divide.
        seed: Of the draw.
        fractions: Shares of train, dev and test, which sum to 1.

    Raises:
        UsageError: The fractions are not such shares.
        DataError: A wanted split would get fewer than two pairs.
    """
    if len(fractions) != 3 or min(fractions) < 0 or not math.isclose(sum(fractions), 1):
        raise UsageError(f"{tuple(fractions)} are not the shares of train, dev and test.", hint="Use (0.8, 0.1, 0.1).")
    groups: dict[frozenset[str], list[int]] = {}
    for row, pair in enumerate(pairs):
        groups.setdefault(frozenset((pair.first, pair.second)), []).append(row)
    shuffled = sorted(groups.items(), key=lambda group: _draw(seed, group[0]))
    ends = [round(len(pairs) * sum(fractions[: index + 1])) for index in range(3)]
    rows: dict[str, list[int]] = {name: [] for name in SPLIT_NAMES}
    placed = 0
    for _, members in shuffled:
        rows[SPLIT_NAMES[next(index for index in range(3) if placed < ends[index])]] += members
        placed += len(members)
    wanted = (name for name, fraction in zip(SPLIT_NAMES, fractions, strict=True) if fraction > 0)
    sets = {name: _part(pairs, name, sorted(rows[name])) for name in wanted}
    sizes = ", ".join(f"{name} {len(rows[name]):,}" for name in sets)
    shares = "/".join(f"{100 * fraction:g}" for fraction in fractions if fraction > 0)
    return PairSplits(
        name=pairs.name,
        train=sets.get("train"),
        dev=sets.get("dev"),
        test=sets.get("test"),
        notes=(f"{pairs.name} was divided into {sizes} ({shares} %, seed {seed}) by its distinct pairs.",),
    )


def complete_splits(splits: PairSplits, seed: int = 0) -> PairSplits:
    """Take what training needs and `splits` lacks out of train: a tenth for dev, a tenth for test.

    Splits that are there stay as they are, but for train when something is taken from it; a single file is divided,
    whatever it is called. What was done is in `notes`. A set that is divided anew for every seed (`shares`) comes back
    as it is, for `splits_for`. Raises `DataError` when there is no train split or it is too small.
    """
    if splits.shares is not None:
        return splits
    if splits.one_file:
        splits = replace(splits, train=splits.evaluation, dev=None, test=None, one_file=False)
    if splits.train is None:
        raise DataError(
            f"{splits.name} has no train split, only {', '.join(name for name, _ in splits.items())}.",
            hint="Add a train file to the folder, or name a single file: it is divided into train, dev and test.",
        )
    dev, test = (FRACTIONS[1] * (split is None) for split in (splits.dev, splits.test))
    if not dev and not test:
        return splits
    parts = split_pairs(splits.train, seed, (1 - dev - test, dev, test))
    return replace(
        splits,
        train=parts.train,
        dev=splits.dev or parts.dev,
        test=splits.test or parts.test,
        notes=(*splits.notes, *parts.notes),
    )


def splits_for(splits: PairSplits, seed: int) -> PairSplits:
    """The splits that a run with this seed uses: the ones there are, or those that `shares` draws from train."""
    if splits.shares is None or splits.train is None:
        return splits
    return split_pairs(splits.train, seed, splits.shares)


def _draw(seed: int, texts: frozenset[str]) -> bytes:
    # Not `random`: the draw of one pair must not move when other rows are added.
    return hashlib.sha256("\n".join([str(seed), *sorted(texts)]).encode()).digest()


def _part(pairs: PairSet, name: str, rows: Sequence[int]) -> PairSet:
    if len(rows) < 2:
        hint = "Give at least 20 pairs, or a folder with train, dev and test files."
        raise DataError(
            f"{pairs.name} holds {counted(len(pairs), 'pair')}: too few to take a {name} split from.", hint=hint
        )
    chosen: tuple[TextPair, ...] = tuple(pairs.pairs[row] for row in rows)
    return replace(pairs, name=f"{pairs.name}/{name}", pairs=chosen)
