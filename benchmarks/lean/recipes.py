"""Half of the blocks by recipes of sentence-transformers and by this loop, each learning for the same time.

Their recipes: evenly spaced blocks taught with `MSELoss` (`examples/sentence_transformer/training/distillation`), and
`AdaptiveLayerLoss` over it, whose model is cut after its first blocks. Each contestant is timed on a few batches and
then gets as many texts as fill its time; the full model's vectors were made before and are not counted.

    pip install accelerate datasets
    python -m benchmarks.lean.recipes --model MODEL --data DATA --work WORK --minutes 6 --threads 1
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import nn

from benchmarks.common import named_model, new_parser, numbers, read_rows, timed, write_rows
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
from truncate_kit.training.loop import Evaluator

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer

ROWS = Path(__file__).parent / "recipes.csv"
PASSAGES, JOINED = 0.15, 0.05  # as in the rows of run.py
BATCH, TIMED = 64, 8
RECIPE_RATE = 1e-4
"""Peak rate of sentence-transformers' example of distillation to fewer layers."""


class Flat(Evaluator):
    """Scores nothing: evaluation is no part of the comparison."""

    def score(self, encoder: Encoder) -> tuple[float, float | None]:
        """Return 0."""
        return 0.0, None


def trainer(
    model: "SentenceTransformer", loss: nn.Module, texts: Sequence[str], vectors: ArrayLike, work: Path, *, rate: float
) -> "SentenceTransformerTrainer":
    """Return sentence-transformers' trainer of one epoch in bf16 on the full model's vectors."""
    from datasets import Dataset
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments

    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(work / "peer"),
        num_train_epochs=1,
        per_device_train_batch_size=BATCH,
        learning_rate=rate,
        warmup_ratio=0.05,
        bf16=True,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    data = Dataset.from_dict({"sentence": list(texts), "label": np.asarray(vectors).tolist()})
    return SentenceTransformerTrainer(model=model, args=arguments, train_dataset=data, loss=loss)


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
        trainer(model, MSELoss(model), texts, vectors, self.work, rate=rate).train()
        model.save(str(self.work / "taught"))
        return load_encoder(self.work / "taught")

    def adaptive(self, blocks: Sequence[int], num_texts: int, rate: float) -> Encoder:
        """Train `AdaptiveLayerLoss` over `MSELoss` on the whole model, and keep the first blocks."""
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.losses import AdaptiveLayerLoss, MSELoss

        model = SentenceTransformer(self.model, device="cpu")
        loss = AdaptiveLayerLoss(model, MSELoss(model))
        texts, vectors = self.texts[:num_texts], self.store.vectors[:num_texts]
        trainer(model, loss, texts, vectors, self.work, rate=rate).train()
        model.save(str(self.work / "taught"))
        return keep(load_encoder(self.work / "taught"), blocks)

    def contestants(
        self, chosen: Sequence[int]
    ) -> dict[str, tuple[Sequence[int], Callable[[Sequence[int], int], Encoder]]]:
        """Return each contestant's blocks and training function; chosen: ours."""
        depth, size = self.full.depth, len(chosen)
        even = tuple(depth * place // size for place in range(1, size + 1))
        return {
            "truncate-kit": (chosen, self.ours),
            "MSELoss, every second block": (even, lambda kept, number: self.mse(kept, number, RECIPE_RATE)),
            "AdaptiveLayerLoss": (range(1, size + 1), lambda kept, number: self.adaptive(kept, number, RECIPE_RATE)),
            "MSELoss, every second block, rate 5e-4": (even, lambda kept, number: self.mse(kept, number, 5e-4)),
        }


PARSER = new_parser(__doc__)
PARSER.add_argument("--model", required=True)
PARSER.add_argument("--data", type=Path, required=True)
PARSER.add_argument("--work", type=Path, required=True)
PARSER.add_argument("--blocks", type=numbers, default=(1, 5, 6), help="that this loop keeps")
PARSER.add_argument("--minutes", type=float, default=6.0, help="of learning, for each contestant")
PARSER.add_argument("--texts", type=int, default=40_000, help="at most, for each contestant")
PARSER.add_argument("--threads", type=int, default=1)


def main(arguments: Sequence[str] | None = None) -> None:
    """Add the rows that are missing."""
    given = PARSER.parse_args(arguments)
    torch.set_num_threads(given.threads)
    full = load_encoder(given.model)
    lines = mixed(learned_lines(given.data), given.texts, PASSAGES, JOINED)
    texts = list(dict.fromkeys(lines))
    store = store_texts(full, RawTexts(texts=texts), given.work / "texts")
    assert len(store) == len(texts)  # so that both read the same text with the same vector
    add_vectors(full, store)
    contest = Contest(full, given.model, store, texts, given.work, given.threads)
    model = named_model(given.model)[0]
    for name, (blocks, learn) in contest.contestants(given.blocks).items():
        rows = read_rows(ROWS) if ROWS.exists() else []
        if any((row["model"], row["contestant"]) == (model, name) for row in rows):
            continue
        _, tried = timed(partial(learn, blocks, TIMED * BATCH))
        number = min(len(texts), max(BATCH, int(60 * given.minutes * TIMED * BATCH / tried)))
        lean, seconds = timed(partial(learn, blocks, number))
        row = {
            "model": model,
            "contestant": name,
            "blocks": " ".join(map(str, blocks)),
            "threads": given.threads,
            "texts": number,
            "minutes": f"{seconds / 60:.1f}",
            **scores_of(lean, full, given.data).row(),
        }
        print(row, flush=True)
        write_rows(ROWS, [*rows, row])


if __name__ == "__main__":
    main()
