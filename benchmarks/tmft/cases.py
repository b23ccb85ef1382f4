"""What each strategy of `--layer auto` loses and costs over all cases: every model on every set that was swept.

    python -m benchmarks.tmft.cases

Reads the tables beside it that run.py wrote; writes summary.csv, one row for each strategy under each pick rule, and
each-case.csv, one row for each case under what were the defaults of `finetune`.
"""

from collections.abc import Sequence
from math import sqrt
from pathlib import Path
from statistics import fmean, median

from benchmarks.common import new_parser, print_table, read_rows, write_rows

HERE = Path(__file__).parent
TOLERATED = 0.3  # points of search regret
CHEAP = 0.1  # of the exhaustive search cost
DROP = 2.0  # points between the best layer and the last, and more than two pooled deviations
DEFAULT_RULE, DEFAULT_STRATEGY = "depth-bonus", "rankings"  # of `finetune` when these tables were made
SEEDS = 3  # sweeps with fewer are no case: their best layer may be luck

Record = dict[str, str]


def falls(layers: Sequence[Record]) -> bool:
    """Whether the last layer's test score is a drop from the best one's."""
    best, last = max(layers, key=lambda row: float(row["test"])), layers[-1]
    spread = sqrt(fmean(float(row["test_std"] or 0) ** 2 for row in (best, last)))
    gap = float(best["test"]) - float(last["test"])
    return gap >= DROP and gap > 2 * spread


def cases() -> dict[tuple[str, str], tuple[bool, list[Record]]]:
    """For each sweep and model: whether the last layers fall, and the choices of every strategy and rule."""
    layers, choices = (by_case(HERE / f"{table}.csv") for table in ("layers", "choices"))
    return {
        case: (falls(layers[case]), rows)
        for case, rows in choices.items()
        if min(int(row["seeds"]) for row in layers[case]) >= SEEDS
    }


def by_case(path: Path) -> dict[tuple[str, str], list[Record]]:
    """The rows of a table by sweep and model."""
    found: dict[tuple[str, str], list[Record]] = {}
    for row in read_rows(path):
        found.setdefault((row["sweep"], row["model"]), []).append(row)
    return found


def summary(rows: Sequence[tuple[bool, Record]]) -> dict[str, object]:
    """Figures of one strategy under one rule over the cases."""
    regrets = [float(row["search_regret"]) for _, row in rows]
    dropping = [float(row["search_regret"]) for drops, row in rows if drops]
    costs = [float(row["share_of_exhaustive"]) for _, row in rows]
    return {
        "rule": rows[0][1]["rule"],
        "strategy": rows[0][1]["strategy"],
        "cases": len(rows),
        "within_0.3": f"{share(regrets, TOLERATED):.2f}",
        "drop_cases": len(dropping),
        "drop_within_0.3": f"{share(dropping, TOLERATED):.2f}" if dropping else "",
        "mean_regret": f"{fmean(regrets):.2f}",
        "worst_regret": f"{max(regrets):.2f}",
        "mean_pick_regret": f"{fmean(float(row['pick_regret']) for _, row in rows):.2f}",
        "median_cost": f"{median(costs):.3f}",
        "cost_within_0.1": f"{share(costs, CHEAP):.2f}",
    }


def default_row(name: str, drops: bool, choices: Sequence[Record]) -> dict[str, object]:
    """What `--layer auto` found in one case, how it was trained, and what that lost and cost."""
    taken = next(row for row in choices if (row["rule"], row["strategy"]) == (DEFAULT_RULE, DEFAULT_STRATEGY))
    columns = ("model", "seeds", "epochs", "train_pairs", "layer", "exhaustive_layer", "search_regret", "pick_regret")
    row = {"case": name, "falls": drops, **{column: taken[column] for column in columns}}
    return row | {"share_of_exhaustive": taken["share_of_exhaustive"]}


def share(values: Sequence[float], limit: float) -> float:
    """How many of the values are at most `limit`, 0 … 1."""
    return sum(value <= limit + 1e-9 for value in values) / len(values)


PARSER = new_parser(__doc__)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read, sum up, write, print."""
    PARSER.parse_args(arguments)
    found = cases()
    for (name, model), (drops, _) in found.items():
        print(f"{name}, {model}: {'falls' if drops else 'does not fall'}")
    groups: dict[tuple[str, str], list[tuple[bool, Record]]] = {}
    for drops, choices in found.values():
        for row in choices:
            groups.setdefault((row["rule"], row["strategy"]), []).append((drops, row))
    tables = {
        "summary": [summary(rows) for rows in groups.values()],
        "each-case": [default_row(name, *case) for (name, _), case in found.items()],
    }
    for name, rows in tables.items():
        write_rows(HERE / f"{name}.csv", rows)
        print_table(list(rows[0]), [list(row.values()) for row in rows])


if __name__ == "__main__":
    main()
