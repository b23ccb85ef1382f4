"""How combinations are searched."""

from dataclasses import dataclass

from truncate_kit.bounds import Bounds, check_numbers
from truncate_kit.errors import UsageError
from truncate_kit.results import Result

OVER = ("mean", "max")
SEARCHES = ("auto", "exact", "beam")
MOST_EXACT = 2**27 - 1  # subsets up to which `auto` tries all of them: every subset of 27 layers
MOST_LAYERS = 62  # a combination is a number of 64 bits
_LAYERS, _WIDTH, _PAIRS, _SPLITS = Bounds(1, 1024), Bounds(1, 1_000_000), Bounds(3, 10**9), Bounds(1, 10_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class CombineSettings(Result):
    """What is combined and how the best is found.

    Other than in BERT-LC: one split is divided, where it joins all subsets of a set; pairs with the same two texts stay
    on one side; the baseline of random layers is the mean over 100 subsets, of which it gives no number.

    Attributes:
        over: `mean` or `max` over the layers.
        head: Feed the mean through the model's trained pooler head.
        up_to: Largest number of layers in a combination; None for no limit, where BERT-LC has 8 for large models.
        search: `exact`, `beam`, or `auto`: exact while there are at most 2²⁷ − 1 subsets.
        width: Number of combinations of each size that a beam search goes on from.
        dev_pairs: Number of pairs to choose on; the rest is for testing.
        splits: Number of random divisions into such pairs and the rest.

    Raises:
        UsageError: A value makes no sense, alone or beside another.
    """

    over: str = "mean"
    head: bool = False
    up_to: int | None = None
    search: str = "auto"
    width: int = 64
    dev_pairs: int = 350
    splits: int = 5

    def __post_init__(self) -> None:
        for name, value, known in (("over", self.over, OVER), ("search", self.search, SEARCHES)):
            if value not in known:
                raise UsageError(f"`{name}` {value!r} is not known.", hint=f"Use one of: {', '.join(known)}.")
        check_numbers(self, up_to=_LAYERS, width=_WIDTH, dev_pairs=_PAIRS, splits=_SPLITS)
        if self.head and self.over == "max":
            raise UsageError("The pooler head takes the mean over layers.", hint='Use `over="mean"` with `head`.')
        if self.search == "beam" and not self.has_grams:
            raise UsageError(
                "The beam search is for the mean over layers.", hint="Leave out `search`; `up_to` limits sizes."
            )

    @property
    def has_grams(self) -> bool:
        """Whether the cosines follow from Gram matrices."""
        return self.over == "mean" and not self.head
