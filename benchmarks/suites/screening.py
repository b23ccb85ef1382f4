"""What the screening of layer subsets loses against exact cross-validation, and what either costs.

    python -m benchmarks.suites.screening --data FOLDER_WITH_TRANSFER_SETS [--set TREC] [--model mini-bert]

Every `--every`-th subset of layers is fitted exactly as well: the paper's logistic regressions over the same folds.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from scipy.stats import spearmanr

from benchmarks.common import new_parser
from truncate_kit.data import find_transfer
from truncate_kit.evaluation.classifiers import accuracies, divisions, prepare_task, screened_accuracies
from truncate_kit.evaluation.transfer import TransferSettings
from truncate_kit.models import load_encoder
from truncate_kit.progress import silent

PARSER = new_parser(__doc__)
PARSER.add_argument("--data", type=Path, required=True)
PARSER.add_argument("--set", default="TREC")
PARSER.add_argument("--model", default="mini-bert")
PARSER.add_argument("--rows", type=int, default=1500)
PARSER.add_argument("--every", type=int, default=4)


def main(arguments: Sequence[str] | None = None) -> None:
    """Screen, fit, compare, print."""
    options = PARSER.parse_args(arguments)
    torch.set_num_threads(1)
    settings = TransferSettings(max_rows=options.rows)
    one = next(one for one in find_transfer(options.data) if one.name == options.set)
    task = prepare_task(load_encoder(options.model), one, settings, silent)
    labels = task.labels
    rows = divisions(labels, 1, settings.test_share, settings.seed)[0][0]
    folds = divisions(labels[rows], settings.inner_splits, settings.inner_share, settings.seed)
    subsets = task.subsets(settings)[:: options.every]
    screened, screening = processor_timed(lambda: screened_accuracies(task, rows, folds, subsets))
    features = [task.features(subset) for subset in subsets]
    fits = [(values, rows[fitted], rows[held]) for values in features for fitted, held in folds]
    found, fitting = processor_timed(lambda: accuracies(fits, labels, settings))
    exact = 100 * np.reshape(found, (len(subsets), len(folds))).mean(axis=1)
    order = np.argsort(-np.array(screened), kind="stable")
    print(f"{one.name}, {len(rows):,} rows, {len(subsets)} subsets of layers, {options.model}")
    print(f"processor seconds: screening {screening:.1f}, exact {fitting:.1f}")
    print(f"exact accuracy: best {exact.max():.2f}, median {np.median(exact):.2f}", end="")
    print("".join(f", best of the {top} screened first {exact[order[:top]].max():.2f}" for top in (1, 3, 5)))
    print(f"rank correlation {spearmanr(screened, exact).statistic:.2f}")


def processor_timed(call: Callable[[], list[float]]) -> tuple[list[float], float]:
    """What the call gives, and the processor seconds it took."""
    begin = time.process_time()
    return call(), time.process_time() - begin


if __name__ == "__main__":
    main()
