"""How combinations are searched."""

from dataclasses import dataclass

from truncate_kit.core.errors import UsageError
from truncate_kit.core.results import Result
from truncate_kit.core.settings import DATA, LAYERS, Bounds, check_settings, setting

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

    over: str = setting("mean", "mean or max over the layers.", LAYERS, choices=OVER)
    head: bool = setting(False, "Feed the mean through the model's trained pooler head.", LAYERS, name="--head")
    up_to: int | None = setting(
        None,
        "Most layers in a combination; by default all, where BERT-LC has 8 for large models.",
        LAYERS,
        bounds=_LAYERS,
        kind=int,
        name="--layers-up-to",
        metavar="SIZE",
    )
    search: str = setting(
        "auto",
        "exact, beam, or auto: exact up to 27 layers; max and --head try all up to 14 layers, else smaller sizes.",
        LAYERS,
        choices=SEARCHES,
    )
    width: int = setting(64, "Combinations of each size that a beam keeps.", LAYERS, bounds=_WIDTH, name="--beam-width")
    dev_pairs: int = setting(
        350,
        "Pairs to choose on; the rest is for testing. Pairs with the same two texts stay together.",
        DATA,
        bounds=_PAIRS,
    )
    splits: int = setting(5, "Random divisions into dev and test.", DATA, bounds=_SPLITS)

    def __post_init__(self) -> None:
        check_settings(self)
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
