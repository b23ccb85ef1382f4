"""What each strategy of `--layer auto` finds and costs, replayed from the trials of all whole sweeps with rankings.

    python -m benchmarks.pick.searches

No model is loaded and nothing is trained: a strategy gets the trials and rankings that are kept, as `finetune` would
make them. Search regret: test points lost against the layer that the exhaustive search takes under the same rule. Pick
regret: against the best test layer. Costs are block-steps to choose, as a share of the exhaustive ones.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean, median
from types import SimpleNamespace
from typing import Any

from benchmarks.common import new_parser, print_table, write_rows
from benchmarks.pick.cases import FIRST, HERE, MEASURED, Case, measured, of_stores, rankings_in
from truncate_kit.methods.tmft.choosing import STRATEGIES, Candidates, Picker
from truncate_kit.training.settings import TrainingSettings, Trial, trial_name

TOLERATED, CHEAP = 0.3, 0.1


@dataclass
class Replay:
    """Answers a strategy as a `TrialRunner` does, from what is kept of one sweep. Raises `KeyError` for what is not."""

    trials: dict[str, Trial]
    rankings: dict[str, dict[int, float]]
    settings: Any
    task: Any
    store: Any = field(default_factory=lambda: SimpleNamespace(checkpoints=SimpleNamespace(remove=lambda _: None)))

    def steps(self, epochs: int) -> int:
        """Optimiser steps of a number of epochs."""
        return epochs * -(-int(self.task.num_examples) // int(self.settings.batch_size))

    def rank(self, names: Sequence[str], layers: Sequence[int], seed: int) -> list[dict[int, float]]:
        """The rankings of these names."""
        return [self.rankings[name] for name in names]

    def run_all(
        self, places: Iterable[tuple[int, int]], *, epochs: int | None = None, stop_after: int | None = None
    ) -> tuple[Trial, ...]:
        """The trials of these layers and seeds, or what they were after some epochs."""
        budget = epochs or self.settings.epochs
        found = [self.trials[trial_name(layer, seed, budget)] for layer, seed in places]
        return tuple(found if stop_after is None else [trial.first(stop_after) for trial in found])


def kept() -> list[tuple[Case, Replay]]:
    """Every sweep that has rankings, as a case and as what answers a strategy."""
    found = []
    for case, records in of_stores(FIRST):
        trials = {one["name"]: Trial.from_dict(one) for one in records if one["kind"] == "Trial"}
        found.append((case, replay(case, trials, rankings_in(records))))
    for case, rows in measured(MEASURED):
        if all(row.probe is not None for row in case.layers) and all(row["dev_scores"] for row in rows):
            cheap = {
                "probe": {row.layer: row.probe or 0.0 for row in case.layers},
                "multi-exit": {row.layer: row.multi_exit or 0.0 for row in case.layers},
            }
            found.append((case, replay(case, {trial.name: trial for trial in map(trial_of, rows)}, cheap)))
    return found


def trial_of(row: dict[str, str]) -> Trial:
    """A row of `measured.csv` as the trial it was."""
    scores = tuple(float(one) for one in row["dev_scores"].split(";"))
    return Trial(
        layer=int(row["layer"]),
        seed=int(row["seed"]),
        dev_scores=scores,
        best_epoch=scores.index(max(scores)) + 1,
        dev=float(row["dev"]),
        dev_pearson=None,
        test=float(row["test"]),
        test_pearson=None,
        seconds=float(row["seconds"]),
        epochs=len(scores),
        steps=len(scores) * -(-int(row["train_pairs"]) // TrainingSettings().batch_size),
    )


def replay(case: Case, trials: dict[str, Trial], rankings: dict[str, dict[int, float]]) -> Replay:
    """What a strategy may ask of a case."""
    return Replay(
        trials, rankings, TrainingSettings(epochs=case.epochs), SimpleNamespace(num_examples=case.train_pairs)
    )


class WithoutBonus(Picker):
    """Decides among layers that have not been trained out as it does among those that have."""

    def unfinished(self) -> Picker:
        """Itself."""
        return self


def rows_of(case: Case, kept_trials: Replay, rule: str) -> list[dict[str, object]]:
    """What every strategy takes in a case under a row of `RULES`, and its cost; of those whose trials are there."""
    layers, seeds, picker = sorted(case.dev), range(case.seeds), RULES[rule](depth=max(case.dev))
    everywhere = picker.pick(case.dev)
    rows: list[dict[str, object]] = []
    for name in SHOWN:
        try:
            # A replay has what strategies use of a runner, and no more.
            found = STRATEGIES[name](Candidates(kept_trials, layers, seeds, picker))  # type: ignore[arg-type]
        except KeyError:  # `guided` needs shorter trials, which only the stores have
            continue
        others = sum(max(1, layer) for layer in layers if layer != found.chosen)
        cost = found.cost / (case.seeds * kept_trials.steps(case.epochs) * others)
        rows.append(
            {
                "case": case.name,
                "falls": int(case.falls),
                "rule": rule,
                "strategy": name,
                "layer": found.chosen,
                "exhaustive_layer": everywhere,
                "search_regret": f"{case.test[everywhere] - case.test[found.chosen]:.2f}",
                "pick_regret": f"{case.regret(found.chosen):.2f}",
                "share_of_exhaustive": f"{cost:.3f}",
            }
        )
    return rows


def summary(rows: Sequence[dict[str, object]]) -> dict[str, object]:
    """One strategy under one rule over the cases."""
    regrets = [float(str(row["search_regret"])) for row in rows]
    falling = [float(str(row["search_regret"])) for row in rows if row["falls"]]
    costs = [float(str(row["share_of_exhaustive"])) for row in rows]

    def within(values: Sequence[float], limit: float) -> str:
        return f"{sum(value <= limit + 1e-9 for value in values)} of {len(values)}"

    return {
        "rule": rows[0]["rule"],
        "strategy": rows[0]["strategy"],
        "within 0.3 points": within(regrets, TOLERATED),
        "where it falls": within(falling, TOLERATED),
        "mean search regret": f"{fmean(regrets):.2f}",
        "worst": f"{max(regrets):.2f}",
        "mean pick regret": f"{fmean(float(str(row['pick_regret'])) for row in rows):.2f}",
        "median share of the cost": f"{median(costs):.3f}",
        "at most 1/10": within(costs, CHEAP),
    }


RULES: dict[str, Callable[..., Picker]] = {
    "best-dev": partial(Picker, "best-dev"),
    "best-dev, no bonus in the search": partial(WithoutBonus, "best-dev"),
    "depth-bonus": partial(Picker, "depth-bonus"),
}
SHOWN = ("exhaustive", "rankings", "guided", "multi-exit", "probe", "last")
PARSER = new_parser(__doc__)
PARSER.add_argument("--out", type=Path, default=HERE)


def main(arguments: Sequence[str] | None = None) -> None:
    """Replay, write searches.csv, print the summary."""
    options = PARSER.parse_args(arguments)
    rows = [row for rule in RULES for case, trials in kept() for row in rows_of(case, trials, rule)]
    write_rows(options.out / "searches.csv", rows)
    groups: dict[tuple[object, object], list[dict[str, object]]] = {}
    for row in rows:
        groups.setdefault((row["rule"], row["strategy"]), []).append(row)
    table = [summary(mine) for mine in groups.values()]
    print_table(list(table[0]), [list(row.values()) for row in table])


if __name__ == "__main__":
    main()
