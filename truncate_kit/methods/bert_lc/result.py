"""What a search of combinations found."""

from collections.abc import Sequence
from dataclasses import dataclass

from truncate_kit.core.results import Result
from truncate_kit.core.statistics import Span
from truncate_kit.methods.bert_lc.settings import CombineSettings

LAST, LAST_FOUR, RANDOM = "last layer", "last four layers", "random layers"
CLS, POOLER = "CLS of the last layer", "CLS pooler"  # the state itself; the paper's: that state through the pooler
BASELINES = (LAST, CLS, POOLER, LAST_FOUR, RANDOM)


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination(Result):
    """Layers (rising; 0 = embeddings) and their Spearman correlation × 100; None where it is not defined."""

    layers: tuple[int, ...]
    dev: float
    test: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline(Result):
    """What people take without a search; Spearman × 100, None where it is not defined."""

    name: str
    dev: float | None
    test: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitReport(Result):
    """One division of the pairs: chosen on dev, reported on test."""

    seed: int
    num_dev: int  # number of pairs to choose on
    num_test: int  # number of the other pairs
    best: Combination
    by_size: tuple[Combination | None, ...]  # at k − 1 the best of k layers; None where none has a correlation
    without: tuple[Combination | None, ...]  # at l the best of those without layer l; None likewise
    baselines: tuple[Baseline, ...]  # what no search is needed for


@dataclass(frozen=True, slots=True, kw_only=True)
class CombinationReport(Result):
    """The outcome of `combine`; scores are Spearman × 100."""

    model: str
    data: str
    settings: CombineSettings
    pooling: str  # how the tokens of a layer are pooled
    depth: int  # L, so that there are L + 1 layers
    method: str  # `exact` or `beam`
    up_to: int  # largest number of layers in a combination
    num_subsets: int  # number of combinations scored for each split
    num_pairs: int
    splits: tuple[SplitReport, ...]
    chosen: tuple[int, ...]  # of the splits' best combinations the one with the best mean dev score over all splits
    chosen_dev: float  # that mean
    unseen: float | None  # its score on the pairs that no split chose on; None where there are too few
    num_unseen: int  # number of these pairs
    # most points that a beam search lost against an exact one on any split; None after an exact search
    beam_loss: float | None
    beam_layers: tuple[int, ...] | None  # layers on which that was tried
    seconds: float

    def best(self, side: str) -> Span | None:
        """Score of each split's winner; side is `dev` or `test`."""
        return _span([getattr(split.best, side) for split in self.splits])

    def baseline(self, name: str, side: str) -> Span | None:
        """Score of a baseline; None where it is not defined on every split."""
        rows = [row for split in self.splits for row in split.baselines if row.name == name]
        return _span([getattr(row, side) for row in rows])

    def size(self, layers: int, side: str) -> Span | None:
        """Score of the best combination of that number of layers."""
        rows = [split.by_size[layers - 1] for split in self.splits]
        return _span([None if row is None else getattr(row, side) for row in rows])

    def effects(self) -> dict[int, tuple[float, float]]:
        """Return by layer what leaving it out changes on dev and test, in points, mean over the splits.

        That is the best without it minus the best of all; a layer is missing where that is not defined on every split.
        """
        found = {}
        for layer in range(self.depth + 1):
            changes = [
                (row.dev - split.best.dev, row.test - split.best.test)
                for split in self.splits
                if (row := split.without[layer]) is not None and row.test is not None and split.best.test is not None
            ]
            if len(changes) == len(self.splits):
                dev, test = (sum(side) / len(changes) for side in zip(*changes, strict=True))
                found[layer] = dev, test
        return found


def _span(scores: Sequence[float | None]) -> Span | None:
    """None where a score is not defined."""
    known = [score for score in scores if score is not None]
    return Span.of(known) if known and len(known) == len(scores) else None
