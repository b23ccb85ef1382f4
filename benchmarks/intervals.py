"""Simulate how often 95 % intervals hold the true value: `python -m benchmarks.intervals [--draws 1000]`."""

import argparse
import functools
from collections.abc import Callable, Sequence
from functools import partial
from math import asin, pi
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from truncate_kit.analysis.cka import StreamedCKA, compare_layers
from truncate_kit.analysis.result import AnalysisSettings
from truncate_kit.core.vectors import (
    DRAWS,
    LEVEL,
    changed_queries,
    draw_counts,
    interval,
    rank_correlations,
    sign_test,
)
from truncate_kit.evaluation.graded import paired_difference
from truncate_kit.evaluation.retrieval import estimated
from truncate_kit.methods.distill.distilling import speeds
from truncate_kit.methods.distill.learning import AgreementEvaluator
from truncate_kit.methods.distill.settings import Agreement
from truncate_kit.methods.tmft.finetune import best_layers

WIDTH = 12
LAYERS = 9
ALL_TEXTS = 200_000  # for the true CKA
GAINS = 100 / np.log2(np.arange(2, 13)) * (np.arange(11) < 10)  # nDCG@10 by the rank of the only relevant document


def paired_states(pairs: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draw states (2 × pairs, WIDTH) of two models; the texts of a pair differ by a fifth of the deviation."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(pairs, WIDTH, generator=draw).repeat_interleave(2, 0)
    x = x + 0.2 * torch.randn(2 * pairs, WIDTH, generator=draw)
    noise = torch.randn(pairs, WIDTH, generator=draw).repeat_interleave(2, 0)
    return x, x * torch.linspace(0.2, 2, WIDTH) + noise


@functools.cache
def true_cka() -> float:
    """Return CKA of `ALL_TEXTS` texts."""
    streamed = StreamedCKA()
    streamed.update(*(states[None] for states in paired_states(ALL_TEXTS // 2, 2**31)))
    return float(streamed.result())


def cka_of_pairs(pairs: int, draws: int, *, grouped: bool) -> tuple[float, float]:
    """Return the coverage of CKA's interval over `pairs` pairs, and the mean error of CKA."""
    true, groups = true_cka(), torch.arange(pairs).repeat_interleave(2) if grouped else None
    held, error = 0, 0.0
    for seed in range(draws):
        states = [one[None] for one in paired_states(pairs, seed)]
        curve, _ = compare_layers(states, AnalysisSettings(outliers=0), groups=groups)
        held += curve.low[0] <= true <= curve.high[0]
        error += (curve.values[0] - true) / draws
    return held / draws, error


def best_of_equal(seeds: int, pairs: int, draws: int) -> tuple[float, float]:
    """Return how often the set of best layers holds all of `LAYERS` equally good ones, and the mean share left out.

    Cosines correlate with the scores of `pairs` dev pairs by 0.75, with several seeds ± 0.01; of their errors 60 % are
    common to all layers, 10 % a seed's own.
    """
    counts, left_out = np.vstack([np.ones((1, pairs), np.int64), draw_counts(pairs, DRAWS)]), np.zeros(draws)
    for seed in range(draws):
        draw = np.random.default_rng(seed)
        true, common, own = (draw.standard_normal(shape) for shape in (pairs, pairs, (LAYERS, 1, pairs)))
        errors = 0.6**0.5 * common + 0.3**0.5 * own + 0.1**0.5 * draw.standard_normal((LAYERS, seeds, pairs))
        slope = 0.75 + 0.01 * (seeds > 1) * draw.standard_normal((LAYERS, seeds, 1))
        cosines = (slope * true + (1 - slope**2) ** 0.5 * errors).reshape(-1, pairs)
        scores = 100 * np.array([rank_correlations(row, true, counts) for row in cosines]).reshape(LAYERS, seeds, -1)
        left_out[seed] = 1 - len(best_layers(scores[..., 0], scores[..., 1:])[0]) / LAYERS
    return float((left_out == 0).mean()), float(left_out.mean())


def held(ends: tuple[float, float], value: float, true: float) -> tuple[bool, float]:
    """Return whether an interval holds the true value, and the error of the estimate."""
    return ends[0] <= true <= ends[1], value - true


def of_pairs(pairs: int, draw: np.random.Generator, *, slopes: tuple[float, ...]) -> tuple[bool, float]:
    """Estimate Spearman × 100, or its difference between two models.

    slopes: correlation of each model's cosines with normal scores; the errors of two models correlate by 0.8.
    """
    true, common, *own = draw.standard_normal((2 + len(slopes), pairs))
    errors = [0.8**0.5 * common + 0.2**0.5 * row for row in own]
    rows = [(slope * true + (1 - slope**2) ** 0.5 * row).tolist() for slope, row in zip(slopes, errors, strict=True)]
    exact = [600 / pi * asin(slope / 2) for slope in slopes]  # Pearson 1907
    if len(rows) == 2:
        scores, ends, *_ = paired_difference(*rows, true.tolist())
        return held(ends, scores[0] - scores[1], exact[0] - exact[1])
    counts = np.vstack([np.ones((1, pairs), np.int64), draw_counts(pairs, DRAWS)])
    score, *resampled = 100 * rank_correlations(*rows, true.tolist(), counts)
    return held(interval(resampled), score, *exact)


def of_queries(queries: int, draw: np.random.Generator, *, lost: float = 0) -> tuple[bool, float]:
    """Estimate nDCG × 100, or its difference if a lean model ranks a share of the answers lower."""
    differences = np.subtract.outer(GAINS, GAINS)
    if not lost:
        value, ends = estimated(draw.choice(GAINS, queries))
        return held(ends, value, GAINS.mean())
    losses = -abs(draw.choice(differences.ravel(), queries)) * (draw.random(queries) < lost)
    return held(*estimated(losses)[::-1], -lost * abs(differences).mean())


def of_signs(queries: int, draw: np.random.Generator, *, changed: float) -> tuple[bool, float]:
    """Return whether the sign test takes equally good models for such, if a share of the queries changes."""
    differences = np.subtract(*draw.choice(GAINS, (2, queries))) * (draw.random(queries) < changed)
    return sign_test(*changed_queries(differences)) > 1 - LEVEL, differences.mean()


@functools.cache
def drawn_agreement(texts: int, seed: int) -> Agreement:
    """Draw vectors of a full model and of a lean one with noise, and return their agreement."""
    full, errors = torch.randn(2, texts, WIDTH, generator=torch.Generator().manual_seed(seed))
    return AgreementEvaluator([[]] * texts, full).agreement_of(full + 0.5 * errors)


def of_agreement(texts: int, draws: int, *, fields: tuple[str, str, str]) -> tuple[float, float]:
    """Return the coverage and the mean error of a field of `Agreement`; the true value is the mean of 20,000 texts."""
    true = np.mean([getattr(drawn_agreement(2_000, 2**31 + seed), fields[0]) for seed in range(10)])
    found = [drawn_agreement(texts, seed) for seed in range(draws)]
    cells = [held((low, high), value, true) for value, low, high in map(attrgetter(*fields), found)]
    return tuple(np.mean(cells, axis=0))


def of_speed(rounds: int, draw: np.random.Generator) -> tuple[bool, float]:
    """Estimate a speedup of 2; a round's disturbance (10 %) is common, 5 % a run's own."""
    seconds = np.exp(0.1 * draw.standard_normal(rounds) + 0.05 * draw.standard_normal((2, rounds)))
    (full, _), (lean, ends) = speeds(seconds * [[2], [1]], 1, 0)
    return held(ends, lean / full, 2)


def repeated(case: Callable[..., tuple[bool, float]], number: int, draws: int, **options: Any) -> tuple[float, float]:
    """Return the coverage and the mean error of an estimate from `number` rows."""
    found = [case(number, np.random.default_rng(seed), **options) for seed in range(draws)]
    return tuple(np.mean(found, axis=0))


CASES: dict[str, Callable[[int], tuple[float, float]]] = {
    "CKA, 200 texts of pairs, blocks of pairs": partial(cka_of_pairs, 100, grouped=True),
    "CKA, 200 texts of pairs, blocks of texts": partial(cka_of_pairs, 100, grouped=False),
    "CKA, 2,000 texts of pairs, blocks of pairs": partial(cka_of_pairs, 1000, grouped=True),
    "CKA, 2,000 texts of pairs, blocks of texts": partial(cka_of_pairs, 1000, grouped=False),
    f"all of {LAYERS} equal layers, 100 dev pairs, seeds: 1": partial(best_of_equal, 1, 100),
    f"all of {LAYERS} equal layers, 100 dev pairs, seeds: 3": partial(best_of_equal, 3, 100),
    "score of 200 graded pairs": partial(repeated, of_pairs, 200, slopes=(0.7,)),
    "difference of two models, 200 graded pairs": partial(repeated, of_pairs, 200, slopes=(0.7, 0.75)),
    "nDCG of 50 queries": partial(repeated, of_queries, 50),
    "difference of nDCG, 100 queries, 40 % worse": partial(repeated, of_queries, 100, lost=0.4),
    "not printed: 100 queries, 5 % worse": partial(repeated, of_queries, 100, lost=0.05),
    "not printed: 50 queries, 5 % worse": partial(repeated, of_queries, 50, lost=0.05),
    "sign test instead, equal models, 50 queries, 5 % changed": partial(repeated, of_signs, 50, changed=0.05),
    "sign test instead, equal models, 100 queries, 15 % changed": partial(repeated, of_signs, 100, changed=0.15),
    "speedup, 5 rounds": partial(repeated, of_speed, 5),
    "speedup, 25 rounds": partial(repeated, of_speed, 25),
    "agreement, 200 texts": partial(of_agreement, 200, fields=("correlation", "low", "high")),
    "nearest texts in common, 200 texts": partial(of_agreement, 200, fields=("overlap", "overlap_low", "overlap_high")),
}
"""Coverage and mean error of each case for a number of draws."""


PARSER = argparse.ArgumentParser(description=__doc__)
PARSER.add_argument("--draws", type=int, default=1000)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a Markdown table."""
    draws = PARSER.parse_args(arguments).draws
    print("| 95 % interval | holds, % | mean error |\n|---|---|---|")
    for name, case in CASES.items():
        coverage, error = case(draws)
        print(f"| {name} | {100 * coverage:.1f} | {error:+.3f} |", flush=True)


if __name__ == "__main__":
    main()
