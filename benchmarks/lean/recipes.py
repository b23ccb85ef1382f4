"""Half of the blocks by recipes of sentence-transformers and by this loop, each learning for the same time.

Their recipes: every second block taught with `MSELoss`, and `AdaptiveLayerLoss` over it, whose model is cut after its
first blocks. Each contestant is timed on a few batches and then gets as many texts as fill its time; the full model's
vectors were made before and are not counted.

    pip install accelerate datasets
    python -m benchmarks.lean.recipes --model MODEL --data DATA --work WORK --minutes 6 --threads 1
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks.common import new_parser, read_rows, write_rows
from benchmarks.lean.peer import BATCH, Flat, timed, trainer
from benchmarks.lean.texts import learned_lines, mixed, scores_of
from truncate_kit.methods.distill.learning import (
    RawTexts,
    TaughtTexts,
    TextStore,
    add_vectors,
    store_texts,
    student_run,
)
from truncate_kit.methods.distill.settings import DistillSettings
from truncate_kit.models.encoder import Encoder
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.pipeline import save_encoder
from truncate_kit.models.truncation import keep

ROWS = Path(__file__).parent / "recipes.csv"
PASSAGES, JOINED = 0.15, 0.05  # as in the rows of run.py
TIMED = 8  # batches
RECIPE_RATE = 1e-4
"""Peak rate of sentence-transformers' example of distillation to fewer layers."""


@dataclass(frozen=True, slots=True)
class Contest:
    """What all contestants share."""

    full: Encoder
    model: str
    store: TextStore
    texts: list[str]
    work: Path
    threads: int

    def ours(self, blocks: Sequence[int], num_texts: int) -> Encoder:
        """Run the lean loop on the first texts, as `distill` does."""
        settings, student = DistillSettings(precision="bf16"), keep(self.full, blocks)
        examples = TaughtTexts(self.store, np.arange(num_texts), settings)
        student_run(student, examples, Flat(), settings).train()
        return student

    def mse(self, blocks: Sequence[int], num_texts: int, rate: float) -> Encoder:
        """Train `MSELoss` with a student of these blocks."""
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.losses import MSELoss

        model = SentenceTransformer(str(save_encoder(keep(self.full, blocks), self.work / "student")), device="cpu")
        texts, vectors = self.texts[:num_texts], self.store.vectors[:num_texts]
        trainer(model, MSELoss(model), texts, vectors, self.work, bf16=True, rate=rate).train()
        model.save(str(self.work / "taught"))
        return load_encoder(self.work / "taught", max_length=256)

    def adaptive(self, blocks: Sequence[int], num_texts: int, rate: float) -> Encoder:
        """Train `AdaptiveLayerLoss` over `MSELoss` on the whole model, and keep the first blocks."""
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.losses import AdaptiveLayerLoss, MSELoss

        model = SentenceTransformer(self.model, device="cpu")
        loss = AdaptiveLayerLoss(model, MSELoss(model))
        texts, vectors = self.texts[:num_texts], self.store.vectors[:num_texts]
        trainer(model, loss, texts, vectors, self.work, bf16=True, rate=rate).train()
        model.save(str(self.work / "taught"))
        return keep(load_encoder(self.work / "taught", max_length=256), blocks)

    def contestants(self) -> dict[str, tuple[Sequence[int], Callable[[Sequence[int], int], Encoder]]]:
        """Return each contestant's blocks and training function."""
        return {
            "truncate-kit": ((1, 5, 6), self.ours),
            "MSELoss, every second block": ((2, 4, 6), lambda kept, number: self.mse(kept, number, RECIPE_RATE)),
            "AdaptiveLayerLoss": ((1, 2, 3), lambda kept, number: self.adaptive(kept, number, RECIPE_RATE)),
            "MSELoss, every second block, rate 5e-4": (
                (2, 4, 6),
                lambda kept, number: self.mse(kept, number, 5e-4),
            ),
        }


PARSER = new_parser(__doc__)
PARSER.add_argument("--model", required=True)
PARSER.add_argument("--data", type=Path, required=True)
PARSER.add_argument("--work", type=Path, required=True)
PARSER.add_argument("--minutes", type=float, default=6.0, help="of learning, for each contestant")
PARSER.add_argument("--texts", type=int, default=40_000, help="at most, for each contestant")
PARSER.add_argument("--threads", type=int, default=1)


def main(arguments: Sequence[str] | None = None) -> None:
    """Add the rows that are missing."""
    given = PARSER.parse_args(arguments)
    torch.set_num_threads(given.threads)
    full = load_encoder(given.model, max_length=256)
    lines = mixed(learned_lines(given.data), given.texts, PASSAGES, JOINED)
    texts = list(dict.fromkeys(lines))
    store = store_texts(full, RawTexts(texts=texts), given.work / "texts")
    assert len(store) == len(texts)  # so that both read the same text with the same vector
    add_vectors(full, store)
    contest = Contest(full, given.model, store, texts, given.work, given.threads)
    for name, (blocks, learn) in contest.contestants().items():
        rows = read_rows(ROWS) if ROWS.exists() else []
        if any(row["contestant"] == name for row in rows):
            continue
        rate, _ = timed(partial(learn, blocks, TIMED * BATCH), TIMED * BATCH)
        number = min(len(texts), max(BATCH, int(rate * 60 * given.minutes)))
        begin = time.perf_counter()
        lean = learn(blocks, number)
        row = {
            "contestant": name,
            "blocks": " ".join(map(str, blocks)),
            "threads": given.threads,
            "texts": number,
            "minutes": f"{(time.perf_counter() - begin) / 60:.1f}",
            **scores_of(lean, full, given.data).row(),
        }
        print(row, flush=True)
        write_rows(ROWS, [*rows, row])


if __name__ == "__main__":
    main()
