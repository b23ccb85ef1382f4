"""How often 95 % intervals hold on drawn data: `python -m benchmarks.intervals [--draws 1000]`."""

import argparse
import functools
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from truncate_kit.analysis.cka import StreamedCKA, compare_layers
from truncate_kit.core.vectors import DRAWS, draw_counts, rank_correlations
from truncate_kit.methods.tmft.finetune import best_layers

WIDTH = 12
LAYERS = 9
ALL_TEXTS = 200_000  # for the true CKA


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
        curve, _ = compare_layers(*(states[None] for states in paired_states(pairs, seed)), groups=groups)
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


CASES: dict[str, Callable[[int], tuple[float, float]]] = {
    f"CKA, {2 * pairs:,} texts of pairs, blocks of {'pairs' if grouped else 'texts'}": (
        lambda draws, pairs=pairs, grouped=grouped: cka_of_pairs(pairs, draws, grouped=grouped)
    )
    for pairs in (100, 1000)
    for grouped in (True, False)
}
CASES |= {
    f"all of {LAYERS} equal layers, {pairs} dev pairs, seeds: {seeds}": (
        lambda draws, seeds=seeds, pairs=pairs: best_of_equal(seeds, pairs, draws)
    )
    for seeds, pairs in ((1, 100), (3, 100))
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
