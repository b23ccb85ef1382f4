"""The division of pairs into those to choose a combination on and those to test it on."""

from dataclasses import dataclass

from truncate_kit.combine.ranking import RankCorrelation
from truncate_kit.data import PairSet, split_pairs
from truncate_kit.errors import DataError


@dataclass(frozen=True, slots=True)
class Division:
    """Places of the dev and the test pairs, and the correlation with their targets."""

    seed: int
    dev: list[int]
    test: list[int]
    dev_ranks: RankCorrelation
    test_ranks: RankCorrelation


def divide(pairs: PairSet, seed: int, dev_pairs: int) -> Division:
    """Draw `dev_pairs` pairs for dev, the rest is test; rows with the same two texts stay on one side.

    Raises `DataError` when either side has too few pairs, or one score only.
    """
    share = dev_pairs / len(pairs)
    dev = {frozenset((pair.first, pair.second)) for pair in split_pairs(pairs, seed, (0.0, share, 1 - share)).dev or ()}
    sides: dict[bool, list[int]] = {True: [], False: []}
    for place, pair in enumerate(pairs):
        sides[frozenset((pair.first, pair.second)) in dev].append(place)
    scores = pairs.scores()
    ranks = {side: RankCorrelation([scores[place] for place in places]) for side, places in sides.items()}
    return Division(seed, sides[True], sides[False], ranks[True], ranks[False])


def dev_size(pairs: PairSet, wanted: int) -> int:
    """Pairs to choose on: as many as wanted, at most half of all. Raises `DataError` for fewer than eight pairs."""
    if len(pairs) < 8:
        raise DataError(
            f"{pairs.name} holds {len(pairs)} pairs: too few to choose a combination on some and test it on others.",
            hint="Give at least 8 pairs; some hundred make the choice steady.",
        )
    return min(wanted, len(pairs) // 2)
