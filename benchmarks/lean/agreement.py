"""Agreement of briefly trained students, by texts held out and by texts among which the nearest are looked for.

python -m benchmarks.lean.agreement --model MODEL --data DATA --work WORK
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr

from benchmarks.common import new_parser, write_rows
from benchmarks.lean.texts import learned_lines, mixed
from truncate_kit.data.pairs import load_pairs
from truncate_kit.evaluation.graded import evaluate
from truncate_kit.methods.distill.learning import RawTexts, TaughtTexts, add_vectors, store_texts, student_run
from truncate_kit.methods.distill.settings import AMONG, NEAR, Blocks, DistillSettings
from truncate_kit.models.encoder import Encoder
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.truncation import keep
from truncate_kit.training.loop import Evaluator

ROWS = Path(__file__).parent / "agreement.csv"
SUBSETS = ((1, 3, 6), (1, 6), (1, 2, 5, 6), (6,), (1, 2, 3, 5, 6))
HELD_OUT = (42, 250, 1000)
PARSER = new_parser(__doc__)
PARSER.add_argument("--model", required=True)
PARSER.add_argument("--data", type=Path, required=True, help="the folder of the evaluation data")
PARSER.add_argument("--work", type=Path, required=True, help="folder of texts and vectors")
PARSER.add_argument("--texts", type=int, default=5000)


def agreement(full: NDArray[np.float32], lean: NDArray[np.float32], among: int, near: int) -> float:
    """Return agreement from all cosines, as the nearest of the following `among` − 1 texts."""
    places = np.arange(len(full))[:, None]
    mine, its = (
        unit @ unit.T for unit in (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (lean, full))
    )
    others = (places + np.arange(1, among)) % len(full)
    nearest = np.take_along_axis(others, np.argsort(-its[places, others], axis=1)[:, :near], axis=1)
    random = (places + np.random.default_rng(0).integers(1, len(full), (len(full), near))) % len(full)
    pairs = places, np.hstack([nearest, random])
    return 100 * float(spearmanr(mine[pairs].ravel(), its[pairs].ravel()).statistic)


def cells(full: NDArray[np.float32], lean: NDArray[np.float32]) -> dict[str, str]:
    """Return agreement by texts held out, with fixed neighbourhoods and with the ten nearest of all; means of parts."""
    row = {}
    for name, fixed in (("fixed", True), ("all", False)):
        for number in HELD_OUT:
            parts = [slice(start, start + number) for start in range(0, len(full) - number + 1, number)]
            size = (AMONG, NEAR) if fixed else (number, 10)
            row[f"{name}_{number}"] = f"{np.mean([agreement(full[part], lean[part], *size) for part in parts]):.2f}"
    return row


class Measured(Evaluator):
    """Measures the student, before training and twice in an epoch."""

    def __init__(self, blocks: Blocks, ids: list[list[int]], vectors: torch.Tensor, data: Path) -> None:
        self._ids, self._full, self._blocks = ids, vectors.numpy(), " ".join(map(str, blocks))
        self._test = load_pairs(str(data / "stsb" / "en")).test or ()
        self.rows: list[dict[str, object]] = []

    def score(self, encoder: Encoder) -> tuple[float, float | None]:
        """Add a row and return its score."""
        found = evaluate(encoder, self._test).spearman
        shown = cells(self._full, encoder.encode_ids(self._ids).numpy())
        self.rows.append({"blocks": self._blocks, "checkpoint": len(self.rows), "stsb": f"{found:.2f}", **shown})
        return found, None


def main(arguments: Sequence[str] | None = None) -> None:
    """Train every subset on few texts, and write the table."""
    given = PARSER.parse_args(arguments)
    torch.set_num_threads(1)
    full = load_encoder(given.model, max_length=256)
    store = store_texts(full, RawTexts(texts=mixed(learned_lines(given.data), given.texts, 0.15, 0.05)), given.work)
    add_vectors(full, store)
    order, rows = np.random.default_rng(0).permutation(len(store)), list[dict[str, object]]()
    held, learned = order[: HELD_OUT[-1]], order[HELD_OUT[-1] :]
    for blocks in SUBSETS:
        student, settings = keep(full, blocks), DistillSettings(precision="bf16")
        settings = replace(settings, learning_rate=settings.rate(full.width, 1 - len(blocks) / full.depth))
        measured = Measured(blocks, store.ids_at(held), store.vectors_at(held.tolist()), given.data)
        measured.score(student)
        run = student_run(student, TaughtTexts(store, learned, settings), measured, settings)
        run.interval, run.stages = -(-run.total // 2), 2
        run.train()
        rows += measured.rows
    write_rows(ROWS, rows)


if __name__ == "__main__":
    main()
