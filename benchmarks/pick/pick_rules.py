"""Which pick rule loses the fewest test points, judged by leave-one-model-out.

    python -m benchmarks.pick.pick_rules --published tmft_per_layer.csv --own benchmarks/tmft

--published: the TMFT authors' released scores by layer (ir2718/similarity-embedding-quality), dev and test. --own: the
folder of the tables that `benchmarks.tmft.run` writes. A rule sees dev scores by layer only; its pick regret is the
best test score of any layer minus the test score of the layer it takes, in points. A rule with a parameter gets the
value that has the smallest mean regret on all other models (leave one model out); own sweeps are judged with the value
fitted on all published models. Rules that stop before the drop which the analysis predicts take it from `choices.csv`
beside `layers.csv`; for the published models, whose weights are not here, nothing is predicted.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from benchmarks.common import new_parser, print_table, read_rows
from truncate_kit.files import write_json
from truncate_kit.sweep.picking import PICK_RULES, Picker

Scores = Mapping[int, float]  # points by layer
POINTS = tuple(step / 4 for step in range(33))  # 0 … 8
DEFAULT = PICK_RULES["depth-bonus"].within


@dataclass(frozen=True)
class Model:
    """Mean scores of one model at every layer. name: with the table in brackets where a model is in several.

    drop_from: the layer from which on the end is predicted to fall, None where it is not.
    """

    name: str
    dev: Scores
    test: Scores
    drop_from: int | None = None

    @property
    def base(self) -> str:
        """The model, whatever the set."""
        return self.name.split(" (")[0]

    def regret(self, layer: int) -> float:
        """Test points lost by taking this layer."""
        return max(self.test.values()) - self.test[layer]

    @property
    def drops(self) -> bool:
        """Whether its last layer is two points or more below its best."""
        return self.regret(max(self.test)) >= 2


@dataclass(frozen=True)
class Rule:
    """Takes a layer from dev scores; `values` are the parameters to choose from, one for a rule without any.

    bounded: it sees only the layers before the predicted drop.
    """

    name: str
    take: Callable[[Scores, float], int]
    values: Sequence[float]
    bounded: bool = False

    def regret(self, model: Model, value: float) -> float:
        """Test points that the rule loses on a model."""
        return model.regret(self.layer(model, value))

    def layer(self, model: Model, value: float) -> int:
        """The layer it takes."""
        if not self.bounded or model.drop_from is None:
            return self.take(model.dev, value)
        # Layers from the drop on keep their place, because a bonus counts in shares of the depth.
        return self.take(
            {layer: score if layer < model.drop_from else -math.inf for layer, score in model.dev.items()}, value
        )


def shrinking(dev: Scores, points: float) -> int:
    """The deepest layer within a tolerance that grows from 0 at the best layer's depth 0 to `points` at the top."""
    best = Picker("best-dev", 0).pick(dev)
    return max(layer for layer in dev if dev[layer] >= dev[best] - points * layer / max(dev) or layer == best)


def smoothed(dev: Scores, width: float) -> int:
    """The best dev score after averaging each layer with its neighbours, `width` on either side."""
    reach = int(width)

    def around(layer: int) -> float:
        return fmean(dev[near] for near in range(layer - reach, layer + reach + 1) if near in dev)

    return max(dev, key=lambda layer: (around(layer), -layer))


RULES = (
    Rule("best dev score (the paper's)", lambda dev, _: Picker("best-dev", 0).pick(dev), (0,)),
    Rule("last layer", lambda dev, _: max(dev), (0,)),
    Rule("deepest within t points", lambda dev, points: Picker("robust", points).pick(dev), POINTS),
    Rule("deepest within 2.5 points, not fitted", lambda dev, points: Picker("robust", points).pick(dev), (2.5,)),
    Rule("deepest within t points × relative depth", shrinking, POINTS),
    Rule(
        "best dev score + t points × relative depth",
        lambda dev, points: Picker("depth-bonus", points).pick(dev),
        POINTS,
    ),
    Rule("the same as it is by default (depth-bonus)", lambda dev, _: Picker("depth-bonus").pick(dev), (DEFAULT,)),
    Rule("best dev score averaged over ± t layers", smoothed, (0, 1, 2, 3)),
    Rule("smallest within t points (small)", lambda dev, points: Picker("small", points).pick(dev), POINTS),
    Rule("best dev score before the predicted drop", lambda dev, _: Picker("best-dev").pick(dev), (0,), bounded=True),
    Rule(
        "last layer before the predicted drop",
        lambda dev, _: max(layer for layer, score in dev.items() if score > -math.inf),
        (0,),
        bounded=True,
    ),
    Rule(
        "deepest within 2.5 points before it (robust)", lambda dev, _: Picker("robust").pick(dev), (2.5,), bounded=True
    ),
    Rule(
        "depth-bonus before the predicted drop",
        lambda dev, _: Picker("depth-bonus").pick(dev),
        (DEFAULT,),
        bounded=True,
    ),
)


def fit(rule: Rule, models: Sequence[Model]) -> float:
    """The parameter with the smallest mean regret, of equal ones the middle: as far from doing worse as it can be."""
    mean = {value: round(fmean(rule.regret(model, value) for model in models), 6) for value in rule.values}
    equal = [value for value in rule.values if mean[value] == min(mean.values())]
    return equal[len(equal) // 2]


def judge(rule: Rule, published: Sequence[Model], own: Sequence[Model]) -> dict[str, object]:
    """Regrets of one rule: published models each with the parameter of the others, own ones with that of all.

    together: both, each case with the parameter of all cases of other models.
    """
    values = {model.name: fit(rule, [other for other in published if other is not model]) for model in published}
    values |= dict.fromkeys((model.name for model in own), fit(rule, published))
    picks = {model.name: rule.layer(model, values[model.name]) for model in (*published, *own)}
    regrets = {model.name: model.regret(picks[model.name]) for model in (*published, *own)}
    row: dict[str, object] = {"rule": rule.name, "parameter": fit(rule, published), "picks": picks, "regrets": regrets}
    groups = {"published": published, "falling": [model for model in published if model.drops], "own": own}
    found = {group: [regrets[model.name] for model in models] for group, models in groups.items()}
    everything = [*published, *own]
    if own:
        found["together"] = [
            rule.regret(model, fit(rule, [other for other in everything if other.base != model.base]))
            for model in everything
        ]
        row["parameter_of_all"] = fit(rule, everything)
    for group, losses in found.items():
        if losses:
            row |= {f"{group}_mean": fmean(losses), f"{group}_worst": max(losses)}
    return row


def read_published(path: Path) -> list[Model]:
    """The models of the release that have dev and test scores in English, without any prior."""
    scores: dict[str, dict[str, dict[int, float]]] = {}
    for row in read_rows(path):
        if (row["setting"], row["dataset"], row["metric"]) == ("plain", "stsb/en", "spearman"):
            by_split = scores.setdefault(row["name"], {})
            by_split.setdefault(row["split"], {})[int(row["layer"])] = 100 * float(row["mean"])
    return [Model(name, found["dev"], found["test"]) for name, found in scores.items() if len(found) == 2]


def read_own(folder: Path) -> list[Model]:
    """The models of every sweep that `benchmarks.tmft.run` wrote to its tables, with the drops that were predicted."""
    scores: dict[str, tuple[dict[int, float], dict[int, float]]] = {}
    for row in read_rows(folder / "layers.csv"):
        by_split = scores.setdefault(f"{row['model']} ({row['sweep']})", ({}, {}))
        for layers, split in zip(by_split, ("dev", "test"), strict=True):
            layers[int(row["layer"])] = float(row[split])
    drops = {
        f"{row['model']} ({row['sweep']})": int(row["drop_from"])
        for row in read_rows(folder / "choices.csv")
        if row["drop_from"]
    }
    return [Model(name, *found, drops.get(name)) for name, found in scores.items()]


PARSER = new_parser(__doc__)
PARSER.add_argument("--published", type=Path, required=True)
PARSER.add_argument("--own", type=Path, help="folder of layers.csv and choices.csv")
PARSER.add_argument("--out", type=Path, default=Path(__file__).parent / "results.json")


def main(arguments: Sequence[str] | None = None) -> None:
    """Judge every rule, write the JSON, print the table."""
    options = PARSER.parse_args(arguments)
    published, own = read_published(options.published), read_own(options.own) if options.own else []
    rows = [judge(rule, published, own) for rule in RULES]
    write_json(options.out, {"models": [model.name for model in (*published, *own)], "rules": rows})
    groups = [group for group in ("published", "falling", "own", "together") if f"{group}_mean" in rows[0]]
    columns = [f"{group}_{what}" for group in groups for what in ("mean", "worst")]
    lines = [[row["rule"], f"{row['parameter']:g}", *(f"{row[column]:.2f}" for column in columns)] for row in rows]
    print_table(["rule", "parameter", *columns], lines)


if __name__ == "__main__":
    main()
