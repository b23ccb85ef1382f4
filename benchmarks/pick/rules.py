"""Which rule takes the best layer: every rule on every case, its parameter found without the case's model.

    python -m benchmarks.pick.rules

A rule sees dev scores by layer, some also how sure these are or what cheap rankings gave, and takes a layer. It loses
the best test score of any layer minus that of its own, in points. A parameter is the one with the smallest mean loss
over the cases of all *other* models, every model counting the same. Intervals (95 %) are of the difference to best dev
on the same cases, by a bootstrap over models: where these are few, it is narrower than it should be. Where resamples of
dev were not kept, the standard error of the distance between two layers' scores is that of a correlation, also for
classes, scaled as it is in the cases of similarity of other models that have them; *resampled* are rules over the cases
alone in which nothing is guessed.

A second table says how much of that loss is the seeds': what a layer loses on a seed that had no part in its choice.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import product
from math import sqrt
from pathlib import Path
from statistics import fmean, median
from typing import get_type_hints

import numpy as np

from benchmarks.common import new_parser, print_table, read_rows, write_rows
from truncate_kit.methods.study.result import DROP_ERRORS, DROP_POINTS
from truncate_kit.methods.tmft.settings import picker

HERE = Path(__file__).parent


CASES, MEASURED = HERE.parent / "cases.csv", HERE / "measured.csv"


PUBLISHED, FIRST, BUNDLED_NOW, RANDOM, PUBLIC = "published", "first", "bundled", "random", "public"


MINILM = "all-MiniLM-L6-v2"


METRICS = {"cosine": "Spearman", "paraphrase": "F1", "entailment": "macro F1"}


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer of a case; scores are means over seeds in points, deviations are over seeds.

    gap_se: standard error of the dev score's distance to the best one, over resamples of dev pairs and seeds.
    probe, multi_exit: what the two cheap rankings of `--layer auto` gave it. None: not known.
    """

    layer: int
    dev: float
    dev_std: float | None = None
    test: float
    test_std: float | None = None
    few_shared_words: float | None = None
    gap_se: float | None = None
    probe: float | None = None
    multi_exit: float | None = None


@dataclass(frozen=True, kw_only=True)
class Case:
    """One model on one task with one budget, at every layer.

    weights: `first` or `bundled` for miniatures, `random`, `public` for all-MiniLM-L6-v2, `published` where only scores
    are known. source: where the trials are.
    """

    model: str
    weights: str
    task: str
    metric: str
    train_pairs: int
    dev_pairs: int
    rate: float
    epochs: int
    seeds: int
    source: str
    layers: tuple[Layer, ...] = field(default=())

    @property
    def name(self) -> str:
        """Name the case in tables."""
        task = f"{self.task} classes" if self.metric == METRICS["entailment"] else self.task  # scores are another case
        said = f"{self.model}, {task}, {self.train_pairs} × {self.epochs} at {self.rate:g}"
        return f"{said} ({self.weights})" if self.weights in (FIRST, RANDOM) else said

    @property
    def run(self) -> str:
        """Group a model with all its weights, and all random weights as one."""
        return RANDOM if self.weights == RANDOM else self.model

    @cached_property
    def dev(self) -> dict[int, float]:
        """Map layers to mean dev scores."""
        return {row.layer: row.dev for row in self.layers}

    @cached_property
    def test(self) -> dict[int, float]:
        """Map layers to mean test scores."""
        return {row.layer: row.test for row in self.layers}

    @property
    def similarity(self) -> bool:
        """Tell whether the task is graded similarity, not classes."""
        return self.metric == METRICS["cosine"]

    def regret(self, layer: int) -> float:
        """Return the test points lost against the best test layer."""
        return max(self.test.values()) - self.test[layer]

    @property
    def fall(self) -> float:
        """Return the best earlier test score minus the last layer's, in points."""
        *earlier, last = (row.test for row in self.layers)
        return max(earlier) - last

    @property
    def falls(self) -> bool:
        """Tell whether that is two points, and two standard errors over the seeds."""
        *earlier, last = self.layers
        best = max(earlier, key=lambda row: row.test)
        error = sqrt(sum((row.test_std or 0.0) ** 2 for row in (best, last)) / self.seeds)
        return self.fall >= DROP_POINTS and self.fall > DROP_ERRORS * error


def read_cases(path: Path = CASES) -> list[Case]:
    """Read the cases of the table."""
    kinds = get_type_hints(Case)
    found: dict[tuple[object, ...], list[Layer]] = {}
    for row in read_rows(path):
        key = tuple(kinds[one.name](row[one.name]) for one in fields(Case) if one.name != "layers")
        scores = {one.name: float(row[one.name]) for one in fields(Layer) if row[one.name]}
        # Fields by name: their types differ, which the dictionary does not say.
        found.setdefault(key, []).append(Layer(**scores | {"layer": int(row["layer"])}))  # type: ignore[arg-type]  # by name
    names = [one.name for one in fields(Case)]
    return [Case(**dict(zip(names, (*key, tuple(layers)), strict=True))) for key, layers in found.items()]


POINTS = tuple(step / 4 for step in range(33))  # 0 … 8
ERRORS = (0.0, 0.5, 1.0, 1.5, 2.0)
WEIGHTS = tuple(step / 4 for step in range(5))  # 0 … 1
DRAWS = 10_000
WHOLE = 7  # layers of the smallest whole sweep, all-MiniLM-L6-v2's
NO_DIFFERENCE = 1.96  # standard errors; what `finetune` takes for no difference between layers
FITTED_BEFORE = ("published", "tmft")  # sources of the 30 cases that the bonus of 4 points was fitted on
Values = tuple[float, ...]
Gaps = Callable[[Case], Mapping[int, float]]  # standard error of each layer's distance to the best dev score


@dataclass(frozen=True)
class Rule:
    """Takes a layer of a case.

    values: of its parameters, one for a rule without any. needs: what a case must have. printed: on the page too.
    """

    name: str
    take: Callable[[Case, Values, Gaps], int]
    values: Sequence[Values] = ((),)
    needs: str = "dev"
    printed: bool = True


def by_name(rule: str) -> Callable[[Case, Values, Gaps], int]:
    """Return a pick rule of the package, with its points if it has any."""
    return lambda case, values, _: picker(rule, values[0] if values else None).pick(case.dev)


def within_errors(choose: Callable[[Sequence[int]], int]) -> Callable[[Case, Values, Gaps], int]:
    """Return a rule on layers within some standard errors of the best dev score."""

    def take(case: Case, values: Values, gaps: Gaps) -> int:
        errors, best = gaps(case), max(case.dev.values())
        return choose([layer for layer, score in case.dev.items() if best - score <= values[0] * errors[layer] + 1e-9])

    return take


def blended(*columns: str) -> Callable[[Case, Values, Gaps], int]:
    """Return a rule on the best weighted sum of dev and other scores."""

    def take(case: Case, values: Values, _: Gaps) -> int:
        sums = {
            row.layer: row.dev + sum(w * getattr(row, column) for w, column in zip(values, columns, strict=True))
            for row in case.layers
        }
        return picker("best-dev").pick(sums)

    return take


def with_neighbours(case: Case, values: Values, _: Gaps) -> int:
    """Pick the best mean of a layer's dev score and its weighted neighbours."""
    (weight,) = values

    def smooth(layer: int) -> float:
        near = [case.dev[one] for one in (layer - 1, layer + 1) if one in case.dev]
        return (case.dev[layer] + weight * sum(near)) / (1 + weight * len(near))

    return picker("best-dev").pick({layer: smooth(layer) for layer in case.dev})


def few_shared_words(case: Case, _: Values, __: Gaps) -> int:
    """Pick the best score on the half of dev that shares the fewest words."""
    return picker("best-dev").pick({row.layer: row.few_shared_words or 0.0 for row in case.layers})


ONE = tuple((value,) for value in POINTS)
RULES = (
    Rule("best dev (the paper's)", by_name("best-dev")),
    Rule("last layer", lambda case, _, __: max(case.dev)),
    Rule("smallest within one standard error", within_errors(min), ((1.0,),)),
    Rule("smallest that dev cannot tell from the best", within_errors(min), ((NO_DIFFERENCE,),)),
    Rule("smallest within one standard error, resampled", within_errors(min), ((1.0,),), "gap_se"),
    Rule(
        "smallest that dev cannot tell from the best, resampled",
        within_errors(min),
        ((NO_DIFFERENCE,),),
        "gap_se",
        False,
    ),
    Rule("deepest within one standard error", within_errors(max), ((1.0,),)),
    Rule("smallest within t standard errors", within_errors(min), tuple((value,) for value in ERRORS), printed=False),
    Rule("deepest within t standard errors", within_errors(max), tuple((value,) for value in ERRORS), printed=False),
    Rule("smallest within t points", by_name("small"), ONE, printed=False),
    Rule("deepest within t points", by_name("robust"), ONE),
    Rule("dev + t points at the last layer", by_name("depth-bonus"), ONE),
    Rule("dev + 4 points at the last layer, not fitted here", by_name("depth-bonus"), ((4.0,),)),
    Rule("dev averaged with its neighbours, weight t", with_neighbours, tuple((w,) for w in WEIGHTS), printed=False),
    Rule("dev averaged with its neighbours, weight 0.5", with_neighbours, ((0.5,),), printed=False),
    Rule("dev half with few shared words", few_shared_words, needs="few_shared_words", printed=False),
    Rule("dev + t × that half", blended("few_shared_words"), tuple((w,) for w in WEIGHTS), "few_shared_words", False),
    Rule("dev + t × frozen probe", blended("probe"), tuple((w,) for w in WEIGHTS), "probe", False),
    Rule("dev + t × multi-exit", blended("multi_exit"), tuple((w,) for w in WEIGHTS), "multi_exit", False),
    Rule("dev + t × probe + u × multi-exit", blended("probe", "multi_exit"), tuple(product(WEIGHTS, WEIGHTS)), "probe"),
)


def has(case: Case, column: str) -> bool:
    """Tell whether every layer of a case has this score."""
    return all(getattr(row, column) is not None for row in case.layers)


def correlation_error(points: float, pairs: int) -> float:
    """Return the standard error of a Spearman correlation × 100 (Bonett and Wright 2000)."""
    rho = points / 100
    return 100 * (1 - rho**2) * sqrt((1 + rho**2 / 2) / (pairs - 3))


def gaps_without(model: str, cases: Sequence[Case]) -> Gaps:
    """Return standard errors of the distances, scaled by cases of other models if missing.

    Where no other model has resamples, two scores are taken to correlate by a half: the scale is 1.
    """
    ratios = [
        row.gap_se / correlation_error(row.dev, case.dev_pairs)
        for case in cases
        if case.run != model and case.similarity  # what the formula is made for
        for row in case.layers
        if row.gap_se
    ]
    scale = median(ratios) if ratios else 1.0

    def gaps(case: Case) -> dict[int, float]:
        return {
            row.layer: scale * correlation_error(row.dev, case.dev_pairs) if row.gap_se is None else row.gap_se
            for row in case.layers
        }

    return gaps


def by_model(cases: Sequence[Case], values: Sequence[float]) -> dict[str, float]:
    """Average the values over the cases of each model."""
    of: dict[str, list[float]] = {}
    for case, value in zip(cases, values, strict=True):
        of.setdefault(case.run, []).append(value)
    return {run: fmean(values) for run, values in of.items()}


def fit(rule: Rule, cases: Sequence[Case], gaps: Gaps) -> Values:
    """Return the parameters with the smallest loss, the middle of equal ones."""
    lost = {
        values: round(
            fmean(by_model(cases, [case.regret(rule.take(case, values, gaps)) for case in cases]).values()), 6
        )
        for values in rule.values
    }
    equal = [values for values in rule.values if lost[values] == min(lost.values())]
    return equal[len(equal) // 2]


def picks(rule: Rule, cases: Sequence[Case]) -> list[int]:
    """Return the layer that a rule takes in each case, fitted on all other models."""
    found: dict[str, tuple[Values, Gaps]] = {}
    for run in dict.fromkeys(case.run for case in cases):
        gaps = gaps_without(run, cases)
        found[run] = fit(rule, [case for case in cases if case.run != run], gaps), gaps
    return [rule.take(case, *found[case.run]) for case in cases]


def interval(cases: Sequence[Case], values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the mean over models, by a bootstrap over models."""
    means = np.array(list(by_model(cases, values).values()))
    drawn = np.random.default_rng(0).integers(0, len(means), (DRAWS, len(means)))
    low, high = np.quantile(means[drawn].mean(1), (0.025, 0.975))
    return float(low), float(high)


def scored(rule: Rule, cases: Sequence[Case]) -> dict[str, object]:
    """Return a row of the table, over the cases that have what the rule needs."""
    mine = [case for case in cases if has(case, rule.needs)]
    taken, usual = picks(rule, mine), picks(RULES[0], mine)
    lost = [case.regret(layer) for case, layer in zip(mine, taken, strict=True)]
    more = [one - case.regret(layer) for one, case, layer in zip(lost, mine, usual, strict=True)]
    blocks = [(layer - other) / max(case.dev) for layer, other, case in zip(taken, usual, mine, strict=True)]
    later = [one for one, case in zip(lost, mine, strict=True) if case.source not in FITTED_BEFORE]
    worst = max(range(len(mine)), key=lost.__getitem__)
    return {
        "rule": rule.name,
        "cases": len(mine),
        "models": len({case.run for case in mine}),
        "t_of_all": " ".join(f"{value:g}" for value in fit(rule, mine, gaps_without("", mine)))
        if len(rule.values) > 1
        else "",
        "lost_by_model": f"{fmean(by_model(mine, lost).values()):.2f}",
        "lost_by_case": f"{fmean(lost):.2f}",
        "lost_by_later_case": f"{fmean(later):.2f}" if later else "",
        "worst": f"{lost[worst]:.2f}",
        "worst_case": mine[worst].name,
        "against_best_dev": f"{fmean(by_model(mine, more).values()):+.2f}",
        "low": f"{interval(mine, more)[0]:+.2f}",
        "high": f"{interval(mine, more)[1]:+.2f}",
        "blocks_against_best_dev": f"{fmean(by_model(mine, blocks).values()):+.3f}",
        "blocks_low": f"{interval(mine, blocks)[0]:+.3f}",
        "blocks_high": f"{interval(mine, blocks)[1]:+.3f}",
    }


def case_rows(cases: Sequence[Case]) -> list[dict[str, object]]:
    """List for each case the layer that each rule takes, and the best one on test."""
    columns = {}
    for rule in RULES:
        mine = [case for case in cases if has(case, rule.needs)]
        columns[rule.name] = dict(zip((case.name for case in mine), picks(rule, mine), strict=True))
    return [
        {"case": case.name, "falls": int(case.falls), "best_on_test": max(case.test, key=case.test.__getitem__)}
        | {name: taken.get(case.name, "") for name, taken in columns.items()}
        | {"best_dev_loses": f"{case.regret(columns[RULES[0].name][case.name]):.2f}"}
        for case in cases
    ]


def lost_by_seeds(column: str, path: Path = MEASURED) -> list[float]:
    """Return points lost on one seed by the layer that the other seeds choose.

    A value for each whole sweep with three seeds or more, the mean over the seeds left out.
    """
    sweeps: dict[tuple[str, ...], dict[int, dict[int, tuple[float, float]]]] = {}
    for row in read_rows(path):
        seeds = sweeps.setdefault(tuple(row[name] for name in ("model", "task", "train_pairs", "rate")), {})
        seeds.setdefault(int(row["seed"]), {})[int(row["layer"])] = float(row[column]), float(row["test"])
    found = []
    for seeds in sweeps.values():
        layers = set.intersection(*map(set, seeds.values()))
        if len(seeds) < 3 or len(layers) < WHOLE:
            continue
        lost = []
        for left, trials in seeds.items():
            others = [scores for seed, scores in seeds.items() if seed != left]
            best = max(sorted(layers), key=lambda layer: fmean(scores[layer][0] for scores in others))
            lost.append(max(trials[layer][1] for layer in layers) - trials[best][1])
        found.append(fmean(lost))
    return found


def seed_rows() -> list[list[str]]:
    """Return sweeps and points lost, in the mean and at worst, by choosing score."""
    kinds = {f"{column} of the other seeds": lost_by_seeds(column) for column in ("test", "dev")}
    return [[name, str(len(lost)), f"{fmean(lost):.2f}", f"{max(lost):.2f}"] for name, lost in kinds.items()]


def shown(row: dict[str, object]) -> list[str]:
    """Format a row as on the page."""
    same = row["rule"] == RULES[0].name
    against = "{against_best_dev} ({low} to {high})", "{blocks_against_best_dev} ({blocks_low} to {blocks_high})"
    name = f"{row['rule']}, t = {row['t_of_all']} over all" if row["t_of_all"] else str(row["rule"])
    lost = [str(row[column]) or "–" for column in ("lost_by_model", "lost_by_case", "lost_by_later_case", "worst")]
    return [
        name,
        "{cases} ({models})".format_map(row),
        *lost,
        *("–" if same else one.format_map(row) for one in against),
    ]


SHOWN = (
    "rule",
    "cases (models)",
    "lost: models",
    "cases",
    "later cases",
    "worst",
    "against best dev",
    "share of blocks",
)
PARSER = new_parser(__doc__)
PARSER.add_argument("--out", type=Path, default=HERE)


def main(arguments: Sequence[str] | None = None) -> None:
    """Score, write rules.csv and picks.csv, print the chief rules."""
    options = PARSER.parse_args(arguments)
    cases = read_cases()
    rows = [scored(rule, cases) for rule in RULES]
    write_rows(options.out / "rules.csv", rows)
    write_rows(options.out / "picks.csv", case_rows(cases))
    print_table(SHOWN, (shown(row) for row, rule in zip(rows, RULES, strict=True) if rule.printed))
    print()
    print_table(("the best layer by", "sweeps", "lost on test of the seed left out", "worst"), seed_rows())


if __name__ == "__main__":
    main()
