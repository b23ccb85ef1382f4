"""Time the exact search of layer combinations against trying one subset after another, and at 25 layers.

States are random with a seed: the time does not depend on them. Each part is a process of its own, written to
results.json when it is done, and not run again while it is there (--again does).

    python -m benchmarks.combine.speed
    python -m benchmarks.combine.speed --layers 9 --deep-layers 16    # a quick look, nothing written
"""

import json
import multiprocessing
import os
import resource
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from benchmarks.common import machine, measured_once, new_parser
from truncate_kit.core.hardware import watch_processor
from truncate_kit.methods.bert_lc.search import RankCorrelation, layers_in, pair_grams, search_exact

RESULTS = Path(__file__).parent / "results.json"
WIDTH = 768
ROUNDS = 3  # of our search; the plain way is run once, it is an average over thousands of subsets
PROCESSES = 5  # whatever disturbs OpenMP slows the plain way down most: the smallest ratio is reported, beside all
CHECKED = 200


def states(layers: int, pairs: int) -> tuple[Tensor, Tensor, list[float]]:
    """Draw layer means of both texts, (L', n, d) float32 each, and targets on 26 levels."""
    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(0, 26, (pairs,), generator=generator) / 5
    first = torch.randn(pairs, WIDTH, generator=generator)
    second = first * targets[:, None] / 5 + torch.randn(pairs, WIDTH, generator=generator)
    spread = torch.linspace(0.3, 1.5, layers)
    sides = [
        torch.stack([side + share * torch.randn(pairs, WIDTH, generator=generator) for share in spread])
        for side in (first, second)
    ]
    return sides[0], sides[1], targets.tolist()


def one_after_another(first: Tensor, second: Tensor, targets: list[float]) -> Callable[[int], float]:
    """Score one subset by BERT-LC's Method 2, vectorised over pairs.

    Layers are summed in place, which is three times as fast as indexing and `mean`. Ranks of the cosines by two
    argsorts: there are no ties among them.
    """
    gold = torch.tensor(stats.rankdata(targets))
    gold -= gold.mean()
    gold /= gold.norm()

    def score(mask: int) -> float:
        lowest, *others = layers_in(mask)
        a, b = first[lowest].clone(), second[lowest].clone()
        for layer in others:
            a += first[layer]
            b += second[layer]
        ranks = torch.cosine_similarity(a, b).argsort().argsort().double()
        ranks -= ranks.mean()
        return float(ranks @ gold / ranks.norm())

    return score


def against_one_after_another(layers: int, pairs: int, threads: int) -> dict[str, Any]:
    """Time all subsets of few layers both ways, and assert equal Spearman on some."""
    torch.set_num_threads(threads)
    first, second, targets = states(layers, pairs)
    both, places = torch.cat([first, second], dim=1), list(range(2 * pairs))
    work = watch_processor()

    def ours() -> Any:
        grams = pair_grams(both, places[:pairs], places[pairs:], threads=threads)
        return search_exact(grams, RankCorrelation(targets), up_to=layers, threads=threads)

    ours()
    seconds = []
    for _ in range(ROUNDS):
        start = perf_counter()
        best_subsets = ours()
        seconds.append(perf_counter() - start)
    plain = one_after_another(first, second, targets)
    for mask in range(1, 50):
        plain(mask)
    start = perf_counter()
    scores = [plain(mask) for mask in range(1, 1 << layers)]
    plain_seconds = perf_counter() - start
    exact = one_after_another(first.double(), second.double(), targets)
    grams, ranks = pair_grams(both, places[:pairs], places[pairs:]), RankCorrelation(targets)
    drawn = np.random.default_rng(0).integers(1, 1 << layers, CHECKED).tolist()
    difference = max(abs(exact(mask) - float(ranks.of(grams.cosines(layers_in(mask))[None])[0])) for mask in drawn)
    difference = max(difference, abs(exact(-best_subsets.best[2]) - best_subsets.best[0]))
    assert difference < 1e-12, difference
    assert abs(max(scores) - best_subsets.best[0]) < 1e-4  # the plain way ran in float32
    return {
        "subsets": best_subsets.count,
        "pairs": pairs,
        "threads": threads,
        "seconds": median(seconds),
        "all_seconds": seconds,
        "plain_seconds": plain_seconds,
        "ratio": plain_seconds / median(seconds),
        "largest_difference": difference,
        "machine": machine(threads, work()),
    }


def deep(layers: int, pairs: int, threads: int) -> dict[str, Any]:
    """Time all subsets of many layers, and measure peak memory."""
    torch.set_num_threads(threads)
    first, second, targets = states(layers, pairs)
    work, places = watch_processor(), list(range(2 * pairs))
    start = perf_counter()
    grams = pair_grams(torch.cat([first, second], dim=1), places[:pairs], places[pairs:], threads=threads)

    def show(task: str, done: int, total: int) -> None:
        if done % max(1, total // 16) == 0:
            print(f"{done}/{total} {perf_counter() - start:.0f} s", flush=True)

    best_subsets = search_exact(grams, RankCorrelation(targets), up_to=layers, threads=threads, progress=show)
    seconds = perf_counter() - start
    best = best_subsets.best
    exact = one_after_another(first.double(), second.double(), targets)
    assert best_subsets.count == 2**layers - 1
    assert best is not None
    assert abs(exact(-best[2]) - best[0]) < 1e-12
    return {
        "subsets": best_subsets.count,
        "pairs": pairs,
        "threads": threads,
        "seconds": seconds,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "best": list(layers_in(-best[2])),
        "machine": machine(threads, work()),
    }


def in_a_new_process(part: Callable[..., dict[str, Any]], values: tuple[int, ...]) -> dict[str, Any]:
    """Return the result of `part` from a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(part, values)


def slowest_ratio(processes: int, part: Callable[..., dict[str, Any]], values: tuple[int, ...]) -> dict[str, Any]:
    """Return the process with the smallest ratio, with the ratios of all."""
    runs = sorted((in_a_new_process(part, values) for _ in range(processes)), key=lambda run: run.get("ratio", 0.0))
    return runs[0] if processes == 1 else runs[0] | {"ratios": [run["ratio"] for run in runs]}


PARSER = new_parser(__doc__)
PARSER.add_argument("--layers", type=int, default=13)
PARSER.add_argument("--pairs", type=int, default=1000)
PARSER.add_argument("--deep-layers", type=int, default=25)
PARSER.add_argument("--deep-pairs", type=int, default=350)
PARSER.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
PARSER.add_argument("--again", action="store_true")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the parts that are not in results.json yet."""
    options = PARSER.parse_args(arguments)
    whole = (options.layers, options.pairs, options.deep_layers, options.deep_pairs) == (13, 1000, 25, 350)
    parts = {
        f"plain, {options.threads} threads": (
            PROCESSES if whole else 1,
            against_one_after_another,
            (options.layers, options.pairs, options.threads),
        ),
        f"deep, {options.threads} threads": (1, deep, (options.deep_layers, options.deep_pairs, options.threads)),
    }
    for name, (processes, part, values) in parts.items():
        measure = partial(slowest_ratio, processes, part, values)
        result = measured_once(RESULTS, name, measure, again=options.again) if whole else measure()
        print(name, json.dumps({key: value for key, value in result.items() if key != "machine"}), flush=True)


if __name__ == "__main__":
    main()
