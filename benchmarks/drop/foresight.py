"""Does the last layer of a whole model fall? What was said before training, against every sweep that came after it.

    python -m benchmarks.drop.foresight --data FOLDER_OF_SETS    # profiles what is not in predictions.jsonl
    python -m benchmarks.drop.foresight                          # from what is there

Cases: those of `benchmarks/cases.csv` whose weights are known, with what the analysis said of them: of the first
miniatures and all-MiniLM-L6-v2 in `truncations.csv` beside this, of the bundled ones in `predictions.jsonl` (from
training pairs, with the usual reference, as `analyze` does it), of random weights in the first snapshots
of `benchmarks/miniatures`. Whatever is fitted has not seen the model that it forecasts, with any weights. *Bundled* are
the cases of the bundled miniatures alone. The constants of the rule are not free of them: they came before these
weights, but for the level of CKA, which was changed for a snapshot that the bundled discriminator goes on from.
*With curves* are the cases whose untrained scores and effective rank are known: all but those of random weights. The
logistic of both, fitted on all of them and, for its level, on 21 published sweeps, is `LOG_ODDS` of the package; it is
printed at the end.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, product
from math import log2
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from scipy.optimize import minimize

from benchmarks.common import new_parser, print_table, read_rows, write_rows
from benchmarks.pick import rules
from benchmarks.pick.measure import MINIATURES, TASKS, load_set
from benchmarks.pick.rules import BUNDLED_NOW, RANDOM, Case, by_model, interval, read_cases
from benchmarks.records import PUBLISHED, Records
from truncate_kit.analysis.profile import ANALYSED_TEXTS, profile
from truncate_kit.analysis.result import LEAST_RANK, AnalysisSettings, DropPrediction
from truncate_kit.core.workspace import default_reference
from truncate_kit.models.loading import load_encoder

HERE = Path(__file__).parent
SNAPSHOTS = HERE.parent / "miniatures" / "snapshots.csv"
SETS = {"stsb/en": "English", "stsb/de": "German", "sick": "SICK", "mrpc": "MRPC", "bundled": "bundled"}
BINS = (0.0, 0.25, 0.5, 0.75, 1.0)

FEATURES = {
    "cka": "CKA lost at the end",
    "spearman": "change of the untrained Spearman towards the end",
    "rank": "effective rank of the last layer against the middle",
}
PENALTY = 0.1  # on squared slopes, against slopes without end where a feature separates all cases of a fit
PREDICTIONS = Records(Path(__file__).parent / "predictions.jsonl")


def logistic(features: np.ndarray, truth: np.ndarray, counts: np.ndarray | None = None) -> np.ndarray:
    """Fit intercept and slopes by log loss, weighted by `counts`, plus `PENALTY` · Σ slope² / 2 over the cases."""
    design = np.column_stack([np.ones(len(features)), features])

    def loss(weights: np.ndarray) -> float:
        logits = design @ weights
        losses = np.logaddexp(0, logits) - truth * logits
        return float(np.average(losses, weights=counts) + PENALTY * np.sum(weights[1:] ** 2) / 2)

    return np.asarray(minimize(loss, np.zeros(design.shape[1])).x)


def probability(features: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(−(intercept + slopes · features)))."""
    return 1 / (1 + np.exp(-(weights[0] + features @ weights[1:])))


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreseen:
    """A case with what was said before.

    said: whether a fall; sure: of that, 0.5 to 1. signs: CKA lost at the end, points of Spearman that the untrained
    last layer lacks, and how often its effective rank is halved; empty where they are not known.
    """

    case: Case
    said: bool
    sure: float
    signs: tuple[float, ...] = ()

    @property
    def probability(self) -> float:
        """Of a fall, as it was said."""
        return self.sure if self.said else 1 - self.sure


Said = tuple[bool, float, tuple[float, ...]]


def signs_of(values: Mapping[str, float]) -> tuple[float, float, float]:
    """Return `Foreseen.signs` from a prediction's values, by their names in `FEATURES`."""
    return values["cka"], -values["spearman"], -log2(max(values["rank"], LEAST_RANK))


def said_of_first(model: str, task: str) -> Said | None:
    """Return the prediction for a whole model of the first weights."""
    rows = [row for row in read_rows(HERE / "truncations.csv") if row["pairs"] == SETS[task]]
    mine = [row for row in rows if row["model"].partition(",")[0] == model]
    if not mine:
        return None
    whole = max(mine, key=lambda row: int(row["depth"]))
    mode = "with reference" if whole["with reference: says"] else "alone"
    signs = signs_of({name: float(whole[f"{mode}: {name}"]) for name in FEATURES})
    return whole[f"{mode}: says"] == "1", float(whole[f"{mode}: confidence"]), signs


def said_of_random(model: str) -> Said:
    """Return the prediction for a miniature's shape before any training."""
    moments = [row for row in read_rows(SNAPSHOTS) if row["model"] == model.removeprefix("mini-")]
    row = min(moments, key=lambda row: int(row["step"]))
    return bool(row["predicted_from"]), float(row["confidence"]), ()


def say(data: Path) -> None:
    """Profile each bundled miniature on the training pairs of each set, if missing."""
    for model, task in product(MINIATURES, TASKS):
        if (name := f"bundled {model}, {task}") in PREDICTIONS:
            continue
        pairs = load_set(str(data), task).split("train")
        settings = AnalysisSettings(max_texts=ANALYSED_TEXTS, intervals=0, outliers=0)
        reference = load_encoder(usual) if (usual := default_reference(model)) else None
        seen = profile(load_encoder(model), pairs=list(pairs), reference=reference, settings=settings)
        assert seen.drop is not None
        PREDICTIONS.add(name, seen.drop.to_dict())


def said_of_bundled(model: str, task: str) -> Said | None:
    """Return the prediction for a bundled miniature."""
    if (name := f"bundled {model}, {task}") not in PREDICTIONS:
        return None
    drop = DropPrediction.from_dict(PREDICTIONS[name])
    signs = signs_of({short: drop.signs[name] for short, name in FEATURES.items()})
    return drop.from_layer is not None, round(drop.confidence, 2), signs


def foreseen() -> list[Foreseen]:
    """Return every case with a prediction."""
    found = []
    for case in read_cases():
        said = None
        if case.weights == BUNDLED_NOW:
            said = said_of_bundled(case.model, case.task)
        elif case.weights == RANDOM and case.task == "stsb/en":
            said = said_of_random(case.model)
        elif case.weights not in (RANDOM, "published"):
            said = said_of_first(case.model, case.task)
        if said is not None:
            found.append(Foreseen(case=case, said=said[0], sure=said[1], signs=said[2]))
    return found


Fit = Callable[[Sequence[Foreseen], Foreseen], float]


def base_rate(others: Sequence[Foreseen], _: Foreseen) -> float:
    """Return the other models' share of drops."""
    return float(np.mean([one.case.falls for one in others]))


def like_it(others: Sequence[Foreseen], mine: Foreseen) -> float:
    """Return the share of drops among other models with the same prediction, smoothed."""
    alike = [one.case.falls for one in others if one.said == mine.said]
    return (sum(alike) + 1) / (len(alike) + 2)


def logistic_of_it(others: Sequence[Foreseen], mine: Foreseen) -> float:
    """Forecast by a logistic regression on the log odds of the prediction."""

    def odds(one: Foreseen) -> list[float]:
        said = min(0.95, max(0.05, one.probability))
        return [float(np.log(said / (1 - said)))]

    weights = logistic(np.array([odds(one) for one in others]), np.array([one.case.falls for one in others], float))
    return float(probability(np.array([odds(mine)]), weights)[0])


UNITS = np.array([0.15, 5.0, 1.0])  # about the spread of each sign, so that one penalty suits all
CKA, SPEARMAN, RANK = 0, 1, 2  # places in `Foreseen.signs`


def logistic_of(*places: int, fit: Callable[[Sequence[Foreseen], Sequence[int]], np.ndarray] | None = None) -> Fit:
    """Forecast by a logistic regression on some signs, by default `fitted`; one half without signs."""

    def forecast(others: Sequence[Foreseen], mine: Foreseen) -> float:
        return float(probability(units([mine], places), (fit or fitted)(others, places))[0]) if mine.signs else 0.5

    return forecast


def units(cases: Sequence[Foreseen], places: Sequence[int]) -> np.ndarray:
    """Return some signs of cases, in `UNITS`."""
    return (np.array([one.signs for one in cases]) / UNITS)[:, list(places)]


def fitted(cases: Sequence[Foreseen], places: Sequence[int]) -> np.ndarray:
    """Fit intercept and slopes, in `UNITS`, over the cases that have signs."""
    known = [one for one in cases if one.signs]
    return logistic(units(known, places), np.array([one.case.falls for one in known], float))


@cache
def published() -> list[tuple[np.ndarray, bool]]:
    """Return signs of each published sweep, in `UNITS`, and whether its last layer falls.

    The signs of these models are not known: they are the means over the miniatures of the same kind.
    """
    sweeps = [("-D-" in case.model, case.falls) for case in read_cases() if case.weights == rules.PUBLISHED]
    table = read_rows(PUBLISHED / "tmft_languages.csv")
    sweeps += [(row["kind"] == "discriminator", row["falls"] == "1") for row in table]
    mine = [one for one in foreseen() if one.case.similarity and one.signs and "mini-" in one.case.run]
    typical = {}
    for kind in (False, True):
        runs = sorted({one.case.run for one in mine if ("discriminator" in one.case.run) == kind})
        means = [units([one for one in mine if one.case.run == run], (SPEARMAN, RANK)).mean(0) for run in runs]
        typical[kind] = np.mean(means, 0)
    return [(typical[kind], falls) for kind, falls in sweeps]


def levelled(cases: Sequence[Foreseen], places: Sequence[int] = (SPEARMAN, RANK)) -> np.ndarray:
    """Fit Spearman and rank on these and the published sweeps as the package does; every model counts once."""
    known = [one for one in cases if one.signs]
    signs, runs = [*units(known, places)], [one.case.run for one in known]
    counts, truth = [1 / runs.count(run) for run in runs], [one.case.falls for one in known]
    others = published()
    signs, truth = [*signs, *(row for row, _ in others)], [*truth, *(falls for _, falls in others)]
    return logistic(np.array(signs), np.array(truth, float), np.array([*counts, *[1.0] * len(others)]))


def calibration(cases: Sequence[Foreseen]) -> tuple[float, ...]:
    """Fit `truncate_kit.analysis.result.LOG_ODDS` on all cases of similarity with signs."""
    weights = levelled([one for one in cases if one.case.similarity])
    return float(weights[0]), *map(float, weights[1:] / UNITS[[SPEARMAN, RANK]])


FORECASTS: dict[str, Fit] = {
    "base rate of the other models": base_rate,
    "never drops": lambda _, __: 0.0,
    "one half": lambda _, __: 0.5,
    "the confidence unchanged": lambda _, mine: mine.probability,
    "the confidence if a drop is predicted, else one half": lambda _, mine: mine.probability if mine.said else 0.5,
    "share of drops after the same prediction": like_it,
    "logistic of the confidence": logistic_of_it,
    "logistic of the CKA lost": logistic_of(CKA),
    "logistic of the change of untrained Spearman": logistic_of(SPEARMAN),
    "logistic of the effective rank": logistic_of(RANK),
    "logistic of CKA and Spearman": logistic_of(CKA, SPEARMAN),
    "logistic of Spearman and rank": logistic_of(SPEARMAN, RANK),
    "logistic of all three": logistic_of(CKA, SPEARMAN, RANK),
    "Spearman and rank, all sweeps": logistic_of(SPEARMAN, RANK, fit=levelled),
}
SELECTIONS: dict[str, Callable[[Foreseen], bool]] = {
    "similarity": lambda one: one.case.similarity,
    "similarity, with curves": lambda one: one.case.similarity and bool(one.signs),
    "similarity, bundled": lambda one: one.case.similarity and one.case.weights == BUNDLED_NOW,
    "classes": lambda one: not one.case.similarity,
}


def forecasts(cases: Sequence[Foreseen], names: Iterable[str] = FORECASTS) -> dict[str, np.ndarray]:
    """Forecast each case, fitted on the cases of other models of the same kind."""
    others = [[one for one in cases if one.case.run != mine.case.run] for mine in cases]
    return {name: np.array(list(map(FORECASTS[name], others, cases))) for name in names}


def scored(cases: Sequence[Foreseen]) -> list[dict[str, object]]:
    """Compute Brier scores of every forecast by selection, and the difference to the rate of these cases.

    This rate is a forecast that knows how many of these cases drop; the interval (95 %) of the difference is a
    bootstrap over models.
    """
    rows: list[dict[str, object]] = []
    for similarity in (True, False):
        kind = [one for one in cases if one.case.similarity == similarity]
        for name, values in forecasts(kind).items():
            for selection, belongs in SELECTIONS.items():
                places = [place for place, one in enumerate(kind) if belongs(one)]
                if places:
                    rows.append({"of": selection} | score([kind[place] for place in places], name, values[places]))
    return sorted(rows, key=lambda row: list(SELECTIONS).index(str(row["of"])))


def score(cases: Sequence[Foreseen], name: str, values: np.ndarray) -> dict[str, object]:
    """Return a row of the table."""
    truth = np.array([one.case.falls for one in cases], float)
    errors, known = (values - truth) ** 2, (truth.mean() - truth) ** 2
    of = [one.case for one in cases]
    low, high = interval(of, list(errors - known))
    return {
        "cases": len(cases),
        "falls": int(truth.sum()),
        "forecast": name,
        "brier": f"{errors.mean():.3f}",
        "by_model": f"{np.mean(list(by_model(of, list(errors)).values())):.3f}",
        "known_rate": f"{known.mean():.3f}",
        "against_it": f"{np.mean(list(by_model(of, list(errors - known)).values())):+.3f}",
        "low": f"{low:+.3f}",
        "high": f"{high:+.3f}",
        "right_side": f"{np.mean((values > 0.5) == (truth > 0.5)):.2f}" if (values != 0.5).any() else "",
    }


def case_rows(cases: Sequence[Foreseen]) -> list[dict[str, object]]:
    """List each case with its prediction and outcome."""
    words = {(True, True): "found", (False, False): "right", (True, False): "false alarm", (False, True): "missed"}
    return [
        {
            "case": one.case.name,
            "kind": "similarity" if one.case.similarity else "classes",
            "said": "falls" if one.said else "stays",
            "confidence": f"{one.sure:.2f}",
            "fall": f"{one.case.fall:.2f}",
            "falls": int(one.case.falls),
            "verdict": words[one.said, one.case.falls],
        }
        for one in cases
    ]


def draw(cases: Sequence[Foreseen], path: Path) -> None:
    """Draw the frequency of drops against their predicted probability, on similarity."""
    kind = [one for one in cases if one.case.similarity and one.signs]
    truth = np.array([one.case.falls for one in kind], float)
    figure, panel = plt.subplots(figsize=(4.2, 4.0), layout="constrained")
    panel.plot([0, 1], [0, 1], ":", color="grey", linewidth=1)
    # The first line is left of the second almost everywhere: numbers on the outer sides are on no line.
    sides = {
        "the confidence unchanged": (-6, 4, "right"),
        "Spearman and rank, all sweeps": (6, -12, "left"),
    }
    found = forecasts(kind, sides)
    for name, (across, up, side) in sides.items():
        values, said, fell, counts = found[name], [], [], []
        for low, high in pairwise(BINS):
            inside = (values >= low) & ((values < high) | (high == BINS[-1]))
            if inside.any():
                said.append(float(values[inside].mean()))
                fell.append(float(truth[inside].mean()))
                counts.append(int(inside.sum()))
        (line,) = panel.plot(said, fell, "o-", label=name)
        for x, y, count in zip(said, fell, counts, strict=True):
            place = {"xytext": (across, up), "textcoords": "offset points", "ha": side}
            place["bbox"] = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # over the dotted line
            panel.annotate(str(count), (x, y), color=line.get_color(), **place)
    panel.set(xlabel="predicted probability of a drop", ylabel="share that dropped (numbers: cases)")
    panel.margins(0.08)
    panel.legend(frameon=False, fontsize="small", loc="lower right")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def shown(rows: Sequence[dict[str, object]]) -> tuple[list[str], list[list[str]]]:
    """Return the page's table: a row for each forecast, Brier scores by selection."""
    by = {(row["forecast"], row["of"]): row for row in rows}
    first = {of: by["never drops", of] for of in SELECTIONS}
    head = ["forecast", *("{}: {cases} cases, {falls} drop".format(of, **first[of]) for of in SELECTIONS)]
    head.insert(2, "difference to the rate of these cases, by model")
    lines = [["*rate of these cases*", *(str(first[of]["known_rate"]) for of in SELECTIONS)]]
    lines[0].insert(2, "–")
    for name in FORECASTS:
        cells = [str(by[name, of]["brier"]) for of in SELECTIONS]
        cells.insert(1, "{against_it} ({low} to {high})".format(**by[name, "similarity"]))
        lines.append([name, *cells])
    return head, lines


PARSER = new_parser(__doc__)
PARSER.add_argument("--data", type=Path, help="holds stsb and sick")
PARSER.add_argument("--out", type=Path, default=HERE)


def main(arguments: Sequence[str] | None = None) -> None:
    """Score, write foresight.csv, foresight-brier.csv and foresight.png, print the second."""
    options = PARSER.parse_args(arguments)
    if options.data is not None:
        say(options.data)
    cases = foreseen()
    write_rows(options.out / "foresight.csv", case_rows(cases))
    rows = scored(cases)
    write_rows(options.out / "foresight-brier.csv", rows)
    draw(cases, options.out / "foresight.png")
    print_table(*shown(rows))
    print("LOG_ODDS =", tuple(round(value, 3) for value in calibration(cases)))


if __name__ == "__main__":
    main()
