"""What a sweep tries and how it chooses; importing this imports no torch."""

from dataclasses import dataclass

from truncate_kit.bounds import seeds_of
from truncate_kit.methods.tmft.picking import DEFAULT_RULE
from truncate_kit.naming import as_text
from truncate_kit.results import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSettings(Result):
    """What is searched and how the choice is made.

    Attributes:
        layers: `auto`, `all`, layer numbers as text ("3,6,9", "2..5"), one number, or several; kept as text.
        strategy: Behind `auto`, a row of `STRATEGIES`; None is `rankings`, which was most often within 0.3 points of
            an exhaustive search (benchmarks/pick).
        pick: A row of `PICK_RULES`.
        within: Points of the pick rule, None takes its own.
        seeds: Of the full trials.

    Raises:
        UsageError: There are no seeds, or too many.
    """

    layers: str = "auto"
    strategy: str | None = None
    pick: str = DEFAULT_RULE
    within: float | None = None
    seeds: tuple[int, ...] = (0, 1, 2)

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", as_text(self.layers))
        object.__setattr__(self, "seeds", seeds_of(self.seeds))
