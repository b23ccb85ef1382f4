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
from truncate_kit.evaluation.fitting import accuracies, divisions, inner_divisions
from truncate_kit.evaluation.settings import TransferSettings
from truncate_kit.evaluation.transfer_task import layered_task, prepare_task
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
    layered = layered_task(prepare_task(load_encoder(options.model), one, settings, silent))
    assert layered is not None
    labels = layered.task.labels.numpy()
    rows = divisions(labels, settings)[0][0]
    folds = inner_divisions(labels[rows], settings, settings.seed)
    places = [(torch.from_numpy(fitted), torch.from_numpy(held)) for fitted, held in folds]
    subsets = layered.subsets(settings)[:: options.every]
    screened, screening = processor_timed(lambda: layered.screen(torch.from_numpy(rows), places, subsets))
    features = [layered.features(subset) for subset in subsets]
    fits = [(values, rows[fitted], rows[held]) for values in features for fitted, held in folds]
    found, fitting = processor_timed(lambda: accuracies(fits, labels, settings))
    exact = 100 * np.reshape(found, (len(subsets), len(folds))).mean(axis=1)
    order = np.argsort(-np.array(screened), kind="stable")
    print(f"{one.name}, {len(rows):,} rows, {len(subsets)} subsets of {len(layered.states)} layers, {options.model}")
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
