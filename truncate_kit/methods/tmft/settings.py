"""What a sweep tries and how it chooses; importing this imports no torch."""

from dataclasses import dataclass

from truncate_kit.core.errors import UsageError
from truncate_kit.core.results import Result
from truncate_kit.core.settings import LAYERS, Bounds, as_text, check_seeds, check_settings, seeds_setting, setting
from truncate_kit.methods.tmft.choosing import DEFAULT_RULE, PICK_RULES, STRATEGIES

_POINTS = Bounds(0, 100, whole=False)
_WITHIN = ", ".join(f"{row.within:g} for {row.name}" for row in PICK_RULES.values() if row.within)


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
        UsageError: A value is impossible, or two do not go together.
    """

    layers: str = "auto"
    strategy: str | None = setting(
        None,
        f"Behind auto: {', '.join(STRATEGIES)}; by default the first.",
        LAYERS,
        choices=STRATEGIES,
        kind=str,
    )
    pick: str = setting(DEFAULT_RULE, f"Among trained layers: {', '.join(PICK_RULES)}.", LAYERS, choices=PICK_RULES)
    within: float | None = setting(None, f"Points of --pick; by default {_WITHIN}.", LAYERS, bounds=_POINTS, kind=float)
    seeds: tuple[int, ...] = seeds_setting((0, 1, 2), "Number of seeds, from 0; the TMFT paper has 5.")

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", as_text(self.layers))
        check_settings(self)
        check_seeds(self.seeds)
        if self.within is not None and not PICK_RULES[self.pick].within:
            raise UsageError(
                f"`within` says nothing to `pick` {self.pick}.", hint=f"Leave it out; the defaults are {_WITHIN}."
            )
