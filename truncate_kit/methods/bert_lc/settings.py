"""Settings and results of the search for layer combinations; does not import torch."""

from collections.abc import Sequence

from truncate_kit.core.errors import UsageError
from truncate_kit.core.results import COUNT, DATA, LAYERS, Bounds, Result, setting
from truncate_kit.core.vectors import Span, mean_and_std

OVER = ("mean", "max")
SEARCHES = ("auto", "exact", "beam")
MOST_EXACT = 2**27 - 1  # 27 layers
MOST_LAYERS = 62  # bits of a mask


class CombineSettings(Result):
    """Settings of `combine`.

    Unlike in BERT-LC, dev and test are split from one set, pairs with the same texts stay in one split, and the
    baseline of random layers is a mean over 100 subsets. `max` and `head` try all subsets of up to 14 layers; for more
    layers, only small subsets.
    """

    over: str = setting("mean", "Combine layers by this.", LAYERS, choices=OVER)
    head: bool = setting(False, "Pass the mean through the model's trained pooler head.", LAYERS, name="--head")
    up_to: int | None = setting(
        None, "Largest number of layers in a combination; by default all.", LAYERS, bounds=COUNT, name="--layers-up-to"
    )
    search: str = setting("auto", "auto is exact up to 27 layers.", LAYERS, choices=SEARCHES)
    width: int = setting(
        64, "Beam width: combinations of each size that are kept.", LAYERS, bounds=COUNT, name="--beam-width"
    )
    dev_pairs: int = setting(350, "Pairs to select on; the remaining pairs are for testing.", DATA, bounds=Bounds(3))
    splits: int = setting(5, "Number of random splits into dev and test.", DATA, bounds=COUNT)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.head and self.over == "max":
            raise UsageError("The pooler head needs the mean over layers.", hint='Use `over="mean"` with `head`.')
        if self.search == "beam" and not self.has_grams:
            hint = "Leave out `search`; `up_to` limits sizes."
            raise UsageError("Beam search needs the mean over layers, without `head`.", hint=hint)

    @property
    def has_grams(self) -> bool:
        """Return whether Gram matrices suffice to compute the cosines."""
        return self.over == "mean" and not self.head


LAST, LAST_FOUR, RANDOM = "last layer", "last four layers", "random layers"
CLS, POOLER = "CLS of the last layer", "CLS pooler"  # plain; through the pooler, as in the paper
BASELINES = (LAST, CLS, POOLER, LAST_FOUR, RANDOM)
Combination = tuple[tuple[int, ...], float, float | None]
"""Layers (ascending; 0: embeddings), and Spearman × 100 on dev and on test (None if undefined)."""


class SplitReport(Result):
    """One random split: the best combinations on dev, with dev and test scores."""

    num_dev: int
    best: Combination
    by_size: tuple[Combination | None, ...]  # index k − 1: best of k layers
    without: tuple[Combination | None, ...]  # index l: best without layer l
    baselines: dict[str, tuple[float | None, float | None]]  # dev and test


class CombinationReport(Result):
    """Result of `combine`; scores are Spearman × 100."""

    model: str
    data: str
    settings: CombineSettings
    pooling: str  # of tokens
    depth: int  # L blocks, so L + 1 layers
    method: str  # `exact` or `beam`
    up_to: int
    num_subsets: int  # scored for each split
    num_pairs: int
    splits: tuple[SplitReport, ...]  # by seed, from 0
    chosen: tuple[int, ...]  # best mean dev score over all splits
    chosen_dev: float
    unseen: float | None  # score on pairs outside all dev sets
    num_unseen: int
    seconds: float

    def best(self, side: str) -> Span | None:
        """Return the best combination's mean and standard deviation over splits; side: `dev` or `test`."""
        return _span([split.best[1:] for split in self.splits], side)

    def baseline(self, name: str, side: str) -> Span | None:
        """Return a baseline's mean and standard deviation, if defined."""
        return _span([split.baselines.get(name) for split in self.splits], side)

    def size(self, layers: int, side: str) -> Span | None:
        """Return mean and standard deviation of the best score with `layers` layers, if defined."""
        rows = [split.by_size[layers - 1] for split in self.splits]
        return _span([None if row is None else row[1:] for row in rows], side)

    def effects(self) -> dict[int, tuple[float, float]]:
        """Return, for layers scored on all splits, the change in points on dev and test without that layer."""
        effects = {}
        for layer in range(self.depth + 1):
            rows = [None if (row := split.without[layer]) is None else row[1:] for split in self.splits]
            ends = [(_span(rows, side), self.best(side)) for side in ("dev", "test")]
            changes = [without[0] - best[0] for without, best in ends if without is not None and best is not None]
            if len(changes) == 2:
                effects[layer] = changes[0], changes[1]
        return effects


def _span(scores: Sequence[tuple[float | None, float | None] | None], side: str) -> Span | None:
    values = [None if score is None else score[side == "test"] for score in scores]
    known = [value for value in values if value is not None]
    return mean_and_std(known) if known and len(known) == len(values) else None
