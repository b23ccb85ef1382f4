"""Brier scores, reliability and regret of drop predictions, each pretraining run scored by a fit without it."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
from scipy.optimize import minimize

from benchmarks.common import write_rows
from truncate_kit.analysis.cka import relative_layers
from truncate_kit.analysis.drop import DropPrediction, predict_drop
from truncate_kit.analysis.result import LayerProfile

TEXTS = ", texts"
MODES = ("with reference", "alone", f"with reference{TEXTS}", f"alone{TEXTS}")
"""What was known: pairs and a reference, pairs, and both once more without the pairs' scores, as `finetune` asks."""
FEATURES = {
    "cka": "CKA lost at the end",
    "spearman": "change of the untrained Spearman towards the end",
    "rank": "effective rank of the last layer against the middle",
}
FITS = (("cka",), ("spearman",), ("rank",), ("cka", "spearman"), ("cka", "rank"), ("cka", "spearman", "rank"))
SCALES = {"cka": 0.15, "spearman": 5.0, "rank": math.log(2)}  # about the spread of each feature: one penalty for all
PENALTY = 0.1  # on squared slopes, against slopes without end where a feature separates all cases of a fit
BINS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One model, possibly cut: what its layers score after training, and what was predicted before.

    group: the pretraining run it goes back to. pairs: what it was trained and scored on. whole: not cut. needed: points
    that make a fall. fall: best earlier layer minus the last one, in points of the set's own score. spread: pooled
    deviation over the seeds of these two, 0 where there was one seed. predictions: by mode.
    """

    model: str
    group: str
    pairs: str
    depth: int
    whole: bool
    needed: float
    fall: float
    spread: float
    falls: bool
    scores: dict[int, float]
    predictions: dict[str, DropPrediction]

    @property
    def undecided(self) -> bool:
        """Whether the fall is so near to `needed` that other seeds might decide otherwise."""
        return abs(self.fall - self.needed) <= 2 * self.spread and self.spread > 0


SELECTIONS: dict[str, Callable[[Case], bool]] = {
    "all": lambda case: True,
    "without MRPC": lambda case: case.pairs != "MRPC",
    "without SICK, MRPC": lambda case: case.pairs not in ("SICK", "MRPC"),
    "decided": lambda case: not case.undecided,
    "whole models": lambda case: case.whole,
}
"""Cases that are scored together, beside those of each set of pairs."""
FITTED = ("all", "without MRPC")
"""Of these the forecasts that are fitted are fitted anew."""


def predictions(seen: LayerProfile, depth: int) -> dict[str, DropPrediction]:
    """What `analyze` says of the model cut at `depth`, by mode, read off the profile of the whole model.

    The states of a truncated model are those of the whole one up to its last layer, so its curves are parts of the
    profile's; intervals are left out. The reference is not compared with itself.
    """
    assert seen.reference_depth is not None
    others = relative_layers(depth, seen.reference_depth)
    spearman = None if seen.spearman is None else [value or 0.0 for value in seen.spearman[: depth + 1]]
    curves = {
        "with reference": [seen.cka_matrix[layer][other] for layer, other in enumerate(others)],
        "alone": [seen.cka_within[layer][depth // 2] for layer in range(depth + 1)],
    }
    if seen.model.partition(",")[0] == seen.reference:
        del curves["with reference"]
    return {
        mode + known: predict_drop(
            curve,
            reference=seen.reference if mode == "with reference" else None,
            effective_rank=seen.effective_rank[: depth + 1],
            anisotropy=seen.anisotropy[: depth + 1],
            block_influence=seen.block_influence[:depth],
            untrained_spearman=None if known else spearman,
        )
        for mode, curve in curves.items()
        for known in ("", TEXTS)
    }


def score_forecasts(cases: Sequence[Case], out: Path) -> None:
    """Write truncations.csv, brier.csv, sets.csv, reliability.csv and regret.csv, and print all but the first."""
    tables: dict[str, list[dict[str, object]]] = {"brier": [], "sets": [], "reliability": [], "regret": []}
    for mode in MODES:
        for selection in FITTED:
            mine = [case for case in cases if mode in case.predictions and SELECTIONS[selection](case)]
            truth = _truth(mine)
            forecasts = _forecasts(mine, mode)
            scored = {"mode": mode, "of": selection}
            for name, forecast in forecasts.items():
                tables["brier"].append(scored | {"forecast": name} | _brier(mine, truth, forecast))
                if selection == "all" and not name.startswith(("base rate", "never", "always")):
                    rows = _reliability(truth, forecast)
                    tables["reliability"] += [{"mode": mode, "forecast": name} | row for row in rows]
            tables["regret"] += [scored | row for row in _regrets(mine, mode)]
            if selection == "all":
                tables["sets"] += [{"mode": mode} | row for row in _by_set(mine, mode, forecasts)]
    write_rows(out / "truncations.csv", [_cells(case) for case in cases])
    for name, rows in tables.items():
        write_rows(out / f"{name}.csv", rows)
        print(name)
        for row in rows:
            print("  " + "  ".join(f"{value}" for value in row.values()))


def _truth(cases: Sequence[Case]) -> np.ndarray:
    return np.array([case.falls for case in cases], dtype=float)


def _by_set(cases: Sequence[Case], mode: str, forecasts: dict[str, np.ndarray]) -> list[dict[str, object]]:
    """Falls that were found, false alarms and Brier scores: all cases, selections, each set of pairs, each run.

    The forecasts are those of all cases: a base rate knows the other runs, not the set.
    """
    chosen = {name: [belongs(case) for case in cases] for name, belongs in SELECTIONS.items()}
    chosen |= {pairs: [case.pairs == pairs for case in cases] for pairs in dict.fromkeys(c.pairs for c in cases)}
    chosen |= {f"run: {run}": [case.group == run for case in cases] for run in dict.fromkeys(c.group for c in cases)}
    rows = []
    for name, belong in chosen.items():
        mine = list(itertools.compress(cases, belong))
        said = [case.predictions[mode].falls for case in mine]
        rows.append(
            {
                "of": name,
                "cases": len(mine),
                "falls": sum(case.falls for case in mine),
                "found": sum(case.falls and alarm for case, alarm in zip(mine, said, strict=True)),
                "false_alarms": sum(not case.falls and alarm for case, alarm in zip(mine, said, strict=True)),
            }
            | {
                forecast: f"{np.mean((forecasts[forecast][belong] - _truth(mine)) ** 2):.3f}"
                for forecast in ("confidence as it is", "base rate of the other runs", "never")
            }
        )
    return rows


def _forecasts(cases: Sequence[Case], mode: str) -> dict[str, np.ndarray]:
    """Probability that each case falls; whatever is fitted has not seen the pretraining run of the case."""
    truth = _truth(cases)
    signs = {sign.name for sign in cases[0].predictions[mode].signs}
    found = {
        "base rate of the other runs": _left_out(cases, lambda fit, _: np.full(len(cases), truth[fit].mean())),
        "never": np.zeros(len(cases)),
        "always one half": np.full(len(cases), 0.5),
        "confidence as it is": np.array([_said(case.predictions[mode]) for case in cases]),
    }
    for names in FITS:
        if any(FEATURES[name] not in signs for name in names):
            continue
        features = np.array([_features(case.predictions[mode], names) for case in cases])

        def fitted(fit: np.ndarray, _: str, features: np.ndarray = features) -> np.ndarray:
            weights = logistic(features[fit], truth[fit])
            return probability(features, weights)

        found["logistic of " + ", ".join(names)] = _left_out(cases, fitted)
    return found


def _left_out(cases: Sequence[Case], forecast: Callable[[np.ndarray, str], np.ndarray]) -> np.ndarray:
    """For each group the forecast of a fit on all others."""
    groups = np.array([case.group for case in cases])
    found = np.empty(len(cases))
    for group in dict.fromkeys(groups.tolist()):
        found[groups == group] = forecast(groups != group, group)[groups == group]
    return found


def logistic(features: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Intercept and slopes of least log loss plus `PENALTY` · Σ slope² / 2 over the number of cases."""
    design = np.column_stack([np.ones(len(features)), features])

    def loss(weights: np.ndarray) -> float:
        logits = design @ weights
        return float(np.mean(np.logaddexp(0, logits) - truth * logits) + PENALTY * np.sum(weights[1:] ** 2) / 2)

    return np.asarray(minimize(loss, np.zeros(design.shape[1])).x)


def probability(features: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(−(intercept + slopes · features)))."""
    return 1 / (1 + np.exp(-(weights[0] + features @ weights[1:])))


def _said(prediction: DropPrediction) -> float:
    return prediction.confidence if prediction.falls else 1 - prediction.confidence


def _features(prediction: DropPrediction, names: Sequence[str]) -> list[float]:
    """In units of `SCALES`, larger where a fall is more likely; the effective rank by its logarithm."""
    values = {sign.name: sign.value for sign in prediction.signs}
    turned: dict[str, Callable[[float], float]] = {
        "cka": lambda lost: lost,
        "spearman": lambda change: -change,
        "rank": lambda ratio: -math.log(max(ratio, 1e-3)),
    }
    return [turned[name](values[FEATURES[name]]) / SCALES[name] for name in names]


def _brier(cases: Sequence[Case], truth: np.ndarray, forecast: np.ndarray) -> dict[str, object]:
    squares = (forecast - truth) ** 2
    groups = list(dict.fromkeys(case.group for case in cases))
    by_group = [float(np.mean([s for s, case in zip(squares, cases, strict=True) if case.group == g])) for g in groups]
    return {
        "brier": f"{squares.mean():.3f}",
        "mean_of_runs": f"{fmean(by_group):.3f}",
        "hits": f"{float(((forecast > 0.5) == (truth > 0.5)).mean()):.3f}",
        "cases": len(cases),
        "falls": int(truth.sum()),
    }


def _reliability(truth: np.ndarray, forecast: np.ndarray) -> list[dict[str, object]]:
    rows = []
    for low, high in itertools.pairwise(BINS):
        inside = (forecast >= low) & ((forecast < high) | (high == BINS[-1]))
        if inside.any():
            said, seen = f"{forecast[inside].mean():.2f}", f"{truth[inside].mean():.2f}"
            rows.append({"from": low, "to": high, "cases": int(inside.sum()), "said": said, "fell": seen})
    return rows


def _regrets(cases: Sequence[Case], mode: str) -> list[dict[str, object]]:
    """Test points lost against the best layer: cutting before a predicted fall, the last layer, a random one."""

    def before(case: Case) -> float:
        first = case.predictions[mode].from_layer
        below = [layer for layer in case.scores if first is None or layer < first]
        return case.scores[max(below)]

    picks: dict[str, Callable[[Case], float]] = {
        "before the predicted fall": before,
        "last": lambda case: case.scores[max(case.scores)],
        "random (mean of all layers)": lambda case: fmean(case.scores.values()),
    }
    rows = []
    for name, pick in picks.items():
        lost = [max(case.scores.values()) - pick(case) for case in cases]
        falling = [value for value, case in zip(lost, cases, strict=True) if case.falls]
        shown = {"all": f"{fmean(lost):.2f}", "falling": f"{fmean(falling):.2f}" if falling else ""}
        rows.append({"pick": name} | shown | {"worst": f"{max(lost):.2f}"})
    return rows


def _cells(case: Case) -> dict[str, object]:
    cells: dict[str, object] = {
        "model": case.model,
        "run": case.group,
        "pairs": case.pairs,
        "depth": case.depth,
        "needed": case.needed,
        "fall": f"{case.fall:.2f}",
        "spread": f"{case.spread:.2f}" if case.spread else "",
        "undecided": int(case.undecided),
        "falls": int(case.falls),
    }
    for mode in MODES:
        found = case.predictions.get(mode)
        cells[f"{mode}: says"] = "" if found is None else int(found.falls)
        cells[f"{mode}: confidence"] = "" if found is None else found.confidence
        if mode.endswith(TEXTS):
            continue  # the signs are the same
        values = {} if found is None else {sign.name: sign.value for sign in found.signs}
        for name, sign in FEATURES.items():
            cells[f"{mode}: {name}"] = f"{values[sign]:.3f}" if sign in values else ""
    return cells
