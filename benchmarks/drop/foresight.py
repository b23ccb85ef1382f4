"""Does the last layer of a whole model fall? What was said before training, against every sweep that came after it.

    python -m benchmarks.drop.foresight --data FOLDER_OF_SETS    # profiles what is not in profiles.jsonl
    python -m benchmarks.drop.foresight                          # from what is there

Cases: those of `benchmarks/pick/cases.csv` whose weights are known, with what the analysis said of them: of the first
miniatures and all-MiniLM-L6-v2 in `cases.csv` beside this, of the bundled ones in `profiles.jsonl` (from training
pairs, with the usual reference where the model has one, as `analyze` does it), of random weights in the first snapshots
of `benchmarks/miniatures`. Whatever is fitted has not seen the model that it forecasts. The rule's constants came
before the cases of the bundled miniatures and of random weights: these are scored apart, too. One half where no fall is
predicted, which is what the sentence says now, was settled before the sweeps in German, and after most others.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from benchmarks.common import new_parser, print_table, read_rows, write_rows
from benchmarks.drop.run import PROFILES
from benchmarks.drop.scoring import logistic, probability
from benchmarks.pick.cases import BUNDLED_NOW, RANDOM, Case, read_cases
from benchmarks.pick.measure import MINIATURES, TASKS, load_set
from truncate_kit.analysis.foresight import ANALYSED_TEXTS
from truncate_kit.analysis.layer_profile import LayerProfile
from truncate_kit.analysis.profiling import profile
from truncate_kit.analysis.settings import AnalysisSettings
from truncate_kit.encoders import default_reference, load_encoder

HERE = Path(__file__).parent
SNAPSHOTS = HERE.parent / "miniatures" / "snapshots.csv"
SETS = {"stsb/en": "English", "stsb/de": "German", "sick": "SICK", "mrpc": "MRPC", "bundled": "bundled"}
BINS = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreseen:
    """A case with what was said before. said: whether a fall; sure: of that, 0.5 to 1."""

    case: Case
    said: bool
    sure: float

    @property
    def probability(self) -> float:
        """Of a fall, as it was said."""
        return self.sure if self.said else 1 - self.sure


def said_of_first(model: str, task: str) -> tuple[bool, float] | None:
    """What the analysis said of a whole model of the first weights, with the reference where it has one."""
    mine = [
        row
        for row in read_rows(HERE / "cases.csv")
        if row["pairs"] == SETS[task] and row["model"].partition(",")[0] == model
    ]
    if not mine:
        return None
    whole = max(mine, key=lambda row: int(row["depth"]))
    mode = "with reference" if whole["with reference: says"] else "alone"
    return whole[f"{mode}: says"] == "1", float(whole[f"{mode}: confidence"])


def said_of_random(model: str) -> tuple[bool, float]:
    """What the analysis said of a miniature's shape before any training, on STS Benchmark."""
    moments = [row for row in read_rows(SNAPSHOTS) if row["model"] == model.removeprefix("mini-")]
    row = min(moments, key=lambda row: int(row["step"]))
    return bool(row["predicted_from"]), float(row["confidence"])


def name_of(model: str, task: str) -> str:
    """Of what was said of a bundled miniature, in `PROFILES`."""
    return f"bundled {model}, {task}"


def say(data: Path) -> None:
    """Profile each bundled miniature on the training pairs of each set of the sweeps, where that is not done."""
    for model, task in product(MINIATURES, TASKS):
        if (name := name_of(model, task)) in PROFILES:
            continue
        pairs = load_set(str(data), task).split("train")
        usual = default_reference(model)
        settings = AnalysisSettings(max_texts=ANALYSED_TEXTS, intervals=0, outliers=0)
        reference = load_encoder(usual) if usual else None
        seen = profile(load_encoder(model), pairs=list(pairs), reference=reference, settings=settings)
        PROFILES.add(name, replace(seen, model=name).to_dict())


def said_of_bundled(model: str, task: str) -> tuple[bool, float] | None:
    """What the analysis said of a bundled miniature."""
    if (name := name_of(model, task)) not in PROFILES:
        return None
    drop = LayerProfile.from_dict(PROFILES[name]).drop
    assert drop is not None
    return drop.falls, round(drop.confidence, 2)


def foreseen() -> list[Foreseen]:
    """Every case of which something was said before."""
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
            found.append(Foreseen(case=case, said=said[0], sure=said[1]))
    return found


Fit = Callable[[Sequence[Foreseen], Foreseen], float]


def base_rate(others: Sequence[Foreseen], _: Foreseen) -> float:
    """How often the other models fell."""
    return float(np.mean([one.case.falls for one in others]))


def like_it(others: Sequence[Foreseen], mine: Foreseen) -> float:
    """How often other models of which the same was said fell, one fall and one that was none added to both."""
    alike = [one.case.falls for one in others if one.said == mine.said]
    return (sum(alike) + 1) / (len(alike) + 2)


def logistic_of_it(others: Sequence[Foreseen], mine: Foreseen) -> float:
    """Logistic regression of falls on the log odds of what was said."""

    def odds(one: Foreseen) -> list[float]:
        said = min(0.95, max(0.05, one.probability))
        return [float(np.log(said / (1 - said)))]

    weights = logistic(np.array([odds(one) for one in others]), np.array([one.case.falls for one in others], float))
    return float(probability(np.array([odds(mine)]), weights)[0])


FORECASTS: dict[str, Fit] = {
    "base rate of the other models": base_rate,
    "never falls": lambda _, __: 0.0,
    "one half": lambda _, __: 0.5,
    "the confidence as it is": lambda _, mine: mine.probability,
    "that of a fall, else one half": lambda _, mine: mine.probability if mine.said else 0.5,
    "share of falls where the same was said": like_it,
    "logistic of the confidence": logistic_of_it,
}
SELECTIONS: dict[str, Callable[[Foreseen], bool]] = {
    "similarity": lambda one: one.case.similarity,
    "similarity, after the rule": lambda one: one.case.similarity and one.case.weights in (BUNDLED_NOW, RANDOM),
    "classes": lambda one: not one.case.similarity,
}


def forecasts(cases: Sequence[Foreseen]) -> dict[str, np.ndarray]:
    """Of each case by each forecast, fitted on the cases of other models of the same kind."""
    found = {}
    for name, forecast in FORECASTS.items():
        found[name] = np.array(
            [forecast([one for one in cases if one.case.run != mine.case.run], mine) for mine in cases]
        )
    return found


def scored(cases: Sequence[Foreseen]) -> list[dict[str, object]]:
    """Brier scores of every forecast, on each selection."""
    rows: list[dict[str, object]] = []
    for similarity in (True, False):
        kind = [one for one in cases if one.case.similarity == similarity]
        for name, values in forecasts(kind).items():
            for selection, belongs in SELECTIONS.items():
                places = [place for place, one in enumerate(kind) if belongs(one)]
                if places:
                    truth = np.array([kind[place].case.falls for place in places], float)
                    brier = float(np.mean((values[places] - truth) ** 2))
                    counts: dict[str, object] = {"of": selection, "cases": len(places), "falls": int(truth.sum())}
                    rows.append(counts | {"forecast": name, "brier": f"{brier:.3f}"})
    return rows


def case_rows(cases: Sequence[Foreseen]) -> list[dict[str, object]]:
    """What was said of each case, and what came of it."""
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
    """Reliability: how often a fall came, against how probable it was said to be, on similarity."""
    kind = [one for one in cases if one.case.similarity]
    truth = np.array([one.case.falls for one in kind], float)
    figure, panel = plt.subplots(figsize=(4.2, 4.0), layout="constrained")
    panel.plot([0, 1], [0, 1], ":", color="grey", linewidth=1)
    found = forecasts(kind)
    for name in ("the confidence as it is", "logistic of the confidence"):
        values, said, fell, counts = found[name], [], [], []
        for low, high in pairwise(BINS):
            inside = (values >= low) & ((values < high) | (high == BINS[-1]))
            if inside.any():
                said.append(float(values[inside].mean()))
                fell.append(float(truth[inside].mean()))
                counts.append(int(inside.sum()))
        (line,) = panel.plot(said, fell, "o-", label=name)
        for x, y, count in zip(said, fell, counts, strict=True):
            panel.annotate(f" {count}", (x, y), color=line.get_color())
    panel.set(xlabel="probability of a fall that was said", ylabel="share that fell (numbers: cases)")
    panel.legend(frameon=False, fontsize="small")
    figure.savefig(path, dpi=150)
    plt.close(figure)


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
    print_table(list(rows[0]), [list(row.values()) for row in rows])


if __name__ == "__main__":
    main()
