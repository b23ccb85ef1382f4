"""Every sweep with dev and test scores by layer, in one table, benchmarks/cases.csv: by it all is scored.

    python -m benchmarks.pick.cases --published FILE_OF_PUBLISHED_FIGURES
    python -m benchmarks.pick.cases    # the rows of the published models stay as they are

--published: the scores by layer that the TMFT authors released (ir2718/similarity-embedding-quality, MIT), of which the
12 English models have both dev and test. All other rows are means over the seeds of committed trials: of
`benchmarks/tmft` and of `second_dev-trials.csv`, made with the first miniatures; of `benchmarks/miniatures`, with the
bundled ones and with random weights; of `measured.csv`, with the bundled ones; and, on SICK's classes, the scores of
these in `benchmarks/miniatures/one-seed.csv`. A sweep that lacks layers is no case.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from benchmarks.common import new_parser, read_rows, write_rows
from benchmarks.pick.measure import TASKS
from truncate_kit.methods.study.result import DROP_ERRORS, DROP_POINTS
from truncate_kit.methods.tmft.choosing import Picker
from truncate_kit.methods.tmft.result import spread_over_seeds, variance_of_mean
from truncate_kit.training.settings import Trial
from truncate_kit.training.store import Journal

HERE = Path(__file__).parent
CASES, MEASURED = HERE.parent / "cases.csv", HERE / "measured.csv"
# Columns of `MEASURED` that make a case
SWEEP = ("model", "task", "train_pairs", "rate", "epochs", "dev_pairs", "precision")
PUBLISHED, FIRST, BUNDLED_NOW, RANDOM, PUBLIC = "published", "first", "bundled", "random", "public"
STORES = {
    FIRST: HERE.parent / "tmft" / "study" / "trials" / "trials.jsonl",
    BUNDLED_NOW: HERE.parent / "miniatures" / "trials" / "trials.jsonl",
}
ONE_SEED = HERE.parent / "miniatures" / "one-seed.csv"
TRAIN_PAIRS = (500, 1000, 2000, 2500, 5749)  # of the sweeps in the stores, which say their steps only
MINILM = "all-MiniLM-L6-v2"
USUAL_RATES = {MINILM: 4e-5}  # what None was when the stores were written; 1e-4 for the miniatures
DEV_PAIRS = {"stsb": 1500, "sick": 500, "mrpc": 500}  # of the sets as they are
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
        """In tables."""
        task = f"{self.task} classes" if self.metric == METRICS["entailment"] else self.task  # scores are another case
        said = f"{self.model}, {task}, {self.train_pairs} × {self.epochs} at {self.rate:g}"
        return f"{said} ({self.weights})" if self.weights in (FIRST, RANDOM) else said

    @property
    def run(self) -> str:
        """What is left out together: a model with all its weights, and all random weights as one."""
        return RANDOM if self.weights == RANDOM else self.model

    @cached_property
    def dev(self) -> dict[int, float]:
        """Mean dev score by layer."""
        return {row.layer: row.dev for row in self.layers}

    @cached_property
    def test(self) -> dict[int, float]:
        """Mean test score by layer."""
        return {row.layer: row.test for row in self.layers}

    @property
    def similarity(self) -> bool:
        """Whether graded similarity is what is learned, not classes."""
        return self.metric == METRICS["cosine"]

    def regret(self, layer: int) -> float:
        """Test points lost against the best test layer."""
        return max(self.test.values()) - self.test[layer]

    @property
    def fall(self) -> float:
        """Best earlier test score minus that of the last layer, in points."""
        *earlier, last = (row.test for row in self.layers)
        return max(earlier) - last

    @property
    def falls(self) -> bool:
        """Whether that is two points, and two standard errors of the difference of two means over the seeds."""
        *earlier, last = self.layers
        best = max(earlier, key=lambda row: row.test)
        error = sqrt(sum((row.test_std or 0.0) ** 2 for row in (best, last)) / self.seeds)
        return self.fall >= DROP_POINTS and self.fall > DROP_ERRORS * error


def read_cases(path: Path = CASES) -> list[Case]:
    """The cases of the table."""
    found: dict[tuple[str, ...], list[Layer]] = {}
    for row in read_rows(path):
        key = tuple(row[one.name] for one in fields(Case) if one.name != "layers")
        scores = {one.name: float(row[one.name]) for one in fields(Layer) if row[one.name]}
        # Fields by name: their types differ, which the dictionary does not say.
        found.setdefault(key, []).append(Layer(**scores | {"layer": int(row["layer"])}))  # type: ignore[arg-type]
    return [_case(key, layers) for key, layers in found.items()]


def _case(key: Sequence[str], layers: Sequence[Layer]) -> Case:
    model, weights, task, metric, train_pairs, dev_pairs, rate, epochs, seeds, source = key
    return Case(
        model=model,
        weights=weights,
        task=task,
        metric=metric,
        train_pairs=int(train_pairs),
        dev_pairs=int(dev_pairs),
        rate=float(rate),
        epochs=int(epochs),
        seeds=int(seeds),
        source=source,
        layers=tuple(layers),
    )


def published(path: Path) -> Iterator[Case]:
    """The models of the release that have dev and test scores in English, without any prior."""
    scores: dict[str, dict[str, dict[int, tuple[float, float | None]]]] = {}
    for row in read_rows(path):
        if (row["setting"], row["dataset"], row["metric"]) == ("plain", "stsb/en", "spearman"):
            std = 100 * float(row["std"]) if row["std"] else None
            by_split = scores.setdefault(row["name"], {})
            by_split.setdefault(row["split"], {})[int(row["layer"])] = (100 * float(row["mean"]), std)
    for name, found in scores.items():
        if len(found) == 2:
            layers = [
                Layer(layer=layer, dev=dev[0], dev_std=dev[1], test=test[0], test_std=test[1])
                for layer, dev in sorted(found["dev"].items())
                for test in [found["test"][layer]]
            ]
            yield _case(
                (name, PUBLISHED, "stsb/en", METRICS["cosine"], "5749", "1500", "2e-5", "10", "5", PUBLISHED), layers
            )


Records = list[dict[str, Any]]


def of_stores(weights: str) -> Iterator[tuple[Case, Records]]:
    """The whole sweeps among the trials of a file of stores, each with the records of its store."""
    records = Journal(STORES[weights]).read()[0]
    for said in (record for record in records if record["kind"] == "settings"):
        mine = [record for record in records if record["store"] == said["store"] and record is not said]
        case = _of_store(weights, said, mine)
        if case is not None:
            yield case, mine


def _of_store(weights: str, said: dict[str, Any], records: Records) -> Case | None:
    training = said["training"]
    trials = [Trial.from_dict(one) for one in records if one["kind"] == "Trial" and one["test"] is not None]
    model = said["model"] if isinstance(said["model"], str) else said["model"]["name"]
    model = MINILM if model == "model" else model
    layers = _layers([(t.layer, t.seed, t.dev, t.test) for t in trials if t.test is not None], rankings_in(records))
    if layers is None:
        return None
    steps = trials[0].steps // training["epochs"]
    task = str(said.get("data", said.get("task"))).removeprefix("data/")
    return _case(
        (
            model.partition(",")[0],
            RANDOM if "random" in model else PUBLIC if model == MINILM else weights,
            task,
            METRICS[training["objective"]],
            str(next(pairs for pairs in TRAIN_PAIRS if -(-pairs // training["batch_size"]) == steps)),
            str(DEV_PAIRS.get(task.partition("/")[0], 500)),
            str(training["learning_rate"] or USUAL_RATES.get(model, 1e-4)),
            str(training["epochs"]),
            str(len({trial.seed for trial in trials})),
            STORES[weights].relative_to(HERE.parent).parts[0],
        ),
        layers,
    )


def rankings_in(records: Records) -> dict[str, dict[int, float]]:
    """The scores by layer of each cheap ranking among the records of a store."""
    return {
        one["name"].partition("-seed")[0]: dict(zip(one["layers"], one["scores"], strict=True))
        for one in records
        if one["kind"] == "Ranking"
    }


def _layers(
    rows: Sequence[tuple[int, int, float, float]], ranked: dict[str, dict[int, float]] | None = None
) -> list[Layer] | None:
    """Means over seeds of (layer, seed, dev, test); None unless every layer up to the last has every seed."""
    layers, seeds = sorted({row[0] for row in rows}), {row[1] for row in rows}
    if not layers or layers[-1] - layers[0] + 1 != len(layers) or len(rows) != len(layers) * len(seeds):
        return None
    found = []
    for layer in layers:
        dev, test = ([row[column] for row in rows if row[0] == layer] for column in (2, 3))
        cheap = {name.replace("-", "_"): scores[layer] for name, scores in (ranked or {}).items()}
        found.append(
            Layer(layer=layer, dev=fmean(dev), dev_std=_std(dev), test=fmean(test), test_std=_std(test), **cheap)
        )
    return found


def _std(values: Sequence[float]) -> float | None:
    return stdev(values) if len(values) > 1 else None


def second_dev() -> Iterator[Case]:
    """The sweeps behind `second_dev.py`: they also have the scores of dev pairs with few shared words."""
    rows = [row for row in read_rows(HERE / "second_dev-trials.csv") if row["trained_on"] == "train"]
    for named in dict.fromkeys(row["case"] for row in rows):
        mine = [row for row in rows if row["case"] == named]
        model, task, _ = named.split(", ", 2)
        seeds = str(len({row["seed"] for row in mine}))
        key = (model, FIRST, task, METRICS["cosine"], "1000", "1500", "1e-4", "3", seeds, "second_dev")
        yield _case(key, _with_words(mine, "few_shared_words"))


def _with_words(rows: Sequence[dict[str, str]], column: str) -> list[Layer]:
    layers = _layers([(int(row["layer"]), int(row["seed"]), float(row["dev"]), float(row["test"])) for row in rows])
    assert layers is not None
    few = {one.layer: fmean(float(row[column]) for row in rows if int(row["layer"]) == one.layer) for one in layers}
    return [replace(one, few_shared_words=few[one.layer]) for one in layers]


def measured(path: Path) -> Iterator[tuple[Case, list[dict[str, str]]]]:
    """The sweeps of `measure.py`, with the seeds that every layer has, each with its rows."""
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in read_rows(path):
        groups.setdefault(tuple(row[name] for name in SWEEP), []).append(row)
    ranked = read_rows(path.with_name("rankings.csv")) if path.with_name("rankings.csv").exists() else []
    for said, rows in groups.items():
        model, task, train_pairs, rate, epochs, dev_pairs, _ = said
        layers = set(range((6 if model == MINILM else 8) + 1))
        by_seed = {row["seed"]: {int(one["layer"]) for one in rows if one["seed"] == row["seed"]} for row in rows}
        seeds = [seed for seed, held in sorted(by_seed.items()) if held == layers]
        mine = [row for row in rows if row["seed"] in seeds]
        if not mine:
            continue
        weights = PUBLIC if model == MINILM else BUNDLED_NOW
        seeds_held, source = str(len(seeds)), "measured"
        key = (model, weights, task, METRICS[TASKS[task]], train_pairs, dev_pairs, rate, epochs, seeds_held, source)
        cheap = {int(row["layer"]): row for row in ranked if tuple(row[name] for name in SWEEP[:4]) == said[:4]}
        errors = gap_errors(mine)
        yield (
            _case(
                key,
                [
                    replace(
                        one,
                        gap_se=errors[one.layer],
                        probe=float(cheap[one.layer]["probe"]) if cheap else None,
                        multi_exit=float(cheap[one.layer]["multi_exit"]) if cheap else None,
                    )
                    for one in _with_words(mine, "dev_few_shared_words")
                ],
            ),
            mine,
        )


def entailment() -> Iterator[Case]:
    """The sweeps of `benchmarks/miniatures/entailment.toml`: all 4,500 pairs, three epochs, one seed."""
    rows = [row for row in read_rows(ONE_SEED) if row["task"] == "SICK, entailment"]
    for model in dict.fromkeys(row["model"] for row in rows):
        mine = [(int(row["layer"]), 0, float(row["dev"]), float(row["test"])) for row in rows if row["model"] == model]
        layers = _layers(mine)
        assert layers is not None
        key = (model, BUNDLED_NOW, "sick", METRICS["entailment"], "4500", "500", "5e-4", "3", "1", "miniatures")
        yield _case(key, layers)


def gap_errors(rows: Sequence[dict[str, str]]) -> dict[int, float]:
    """Standard error, by layer, of the distance of its dev score to the best one's: paired over dev pairs and seeds.

    rows: of the seeds that every layer has.
    """
    draws = {
        int(layer): np.array(
            [
                [float(one) for one in row["dev_draws"].split(";")]
                for row in sorted(rows, key=lambda row: row["seed"])
                if row["layer"] == layer
            ]
        )
        for layer in {row["layer"] for row in rows}
    }
    dev = {layer: fmean(float(row["dev"]) for row in rows if int(row["layer"]) == layer) for layer in draws}
    best = Picker("best-dev").pick(dev)
    spread = spread_over_seeds([values.mean(1) for values in draws.values()])
    return {
        layer: 0.0 if layer == best else sqrt(ahead.mean(0).var(ddof=1) + variance_of_mean(ahead, spread))
        for layer, values in draws.items()
        for ahead in [draws[best] - values]
    }


def all_cases(published_figures: Path | None) -> list[Case]:
    """Every case, published ones first; these from the table where their file is not given."""
    theirs = (
        list(published(published_figures))
        if published_figures
        else [case for case in read_cases() if case.weights == PUBLISHED]
    )
    first, later = of_stores(FIRST), [*of_stores(BUNDLED_NOW), *measured(MEASURED)]
    return [*theirs, *(case for case, _ in first), *second_dev(), *(case for case, _ in later), *entailment()]


def table_rows(cases: Sequence[Case]) -> list[dict[str, object]]:
    """One row for each layer of each case."""
    return [
        {one.name: getattr(case, one.name) for one in fields(Case) if one.name != "layers"}
        | {name: f"{value:.3f}" if isinstance(value, float) else value for name, value in asdict(layer).items()}
        for case in cases
        for layer in case.layers
    ]


PARSER = new_parser(__doc__)
PARSER.add_argument("--published", type=Path, help="tmft_per_layer.csv")
PARSER.add_argument("--out", type=Path, default=CASES)


def main(arguments: Sequence[str] | None = None) -> None:
    """Collect, write, and say what there is."""
    options = PARSER.parse_args(arguments)
    cases = all_cases(options.published)
    write_rows(options.out, table_rows(cases))
    for case in cases:
        print(f"{case.name}: {case.seeds} seeds, {'falls' if case.falls else 'does not fall'} ({case.fall:+.1f})")


if __name__ == "__main__":
    main()
