"""Time the lean loop against sentence-transformers' recipe of the same job: the same student, texts and machine.

Their recipe (`examples/sentence_transformer/training/distillation`): a `SentenceTransformerTrainer` with `MSELoss` on
texts and the full model's vectors. Both learn from the same texts, with the same batch and number of steps; teacher
vectors are made before and not timed. Texts a second are counted over the steps alone.

    pip install accelerate datasets
    python -m benchmarks.lean.peer --model MODEL --data DATA --work WORK
"""

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import nn

from benchmarks.common import new_parser, write_rows
from benchmarks.lean.texts import corpus_lines, mixed
from truncate_kit.methods.distill.learning import RawTexts, TaughtTexts, store_texts, student_run
from truncate_kit.methods.distill.settings import DistillSettings
from truncate_kit.models.encoder import Encoder
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.pipeline import save_encoder
from truncate_kit.models.truncation import keep
from truncate_kit.training.loop import Evaluator

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer

ROWS = Path(__file__).parent / "peer.csv"
ROUNDS = 3
BATCH = 64


class Flat(Evaluator):
    """Scores nothing: evaluation is no part of the comparison."""

    def score(self, encoder: Encoder) -> tuple[float, float | None]:
        """Return 0."""
        return 0.0, None


Rates = tuple[float, float]
"""Texts a second by the clock, and by the processor's time, which other work on the machine does not change."""


def timed(learn: Callable[[], object], num_texts: int) -> Rates:
    """Return the rates of one call."""
    wall, busy = time.perf_counter(), time.process_time()
    learn()
    return num_texts / (time.perf_counter() - wall), num_texts / (time.process_time() - busy)


def ours(full: Encoder, blocks: tuple[int, ...], work: Path, texts: list[str], precision: str) -> Rates:
    """Return the rates of the lean loop."""
    store = store_texts(full, RawTexts(texts=texts), work / "texts")
    store.vectors = full.encode_ids([store.ids(place) for place in range(len(store))]).numpy().astype(np.float16)
    settings = DistillSettings(batch_size=BATCH, precision=precision)  # type: ignore[arg-type]  # checked there
    examples = TaughtTexts(store, np.arange(len(store)), settings)
    run = student_run(keep(full, blocks), examples, Flat(), settings)
    return timed(run.train, len(store))


def theirs(student: Path, full: Encoder, texts: list[str], work: Path, *, bf16: bool) -> Rates:
    """Return the rates of sentence-transformers' trainer."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.losses import MSELoss

    model = SentenceTransformer(str(student), device="cpu")
    return timed(trainer(model, MSELoss(model), texts, full.encode(texts), work, bf16=bf16).train, len(texts))


def trainer(
    model: "SentenceTransformer",
    loss: nn.Module,
    texts: Sequence[str],
    vectors: ArrayLike,
    work: Path,
    *,
    bf16: bool,
    rate: float = 5e-4,
) -> "SentenceTransformerTrainer":
    """Train one epoch of sentence-transformers' trainer on the full model's vectors."""
    from datasets import Dataset
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments

    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(work / "peer"),
        num_train_epochs=1,
        per_device_train_batch_size=BATCH,
        learning_rate=rate,
        warmup_ratio=0.05,
        bf16=bf16,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    data = Dataset.from_dict({"sentence": list(texts), "label": np.asarray(vectors).tolist()})
    return SentenceTransformerTrainer(model=model, args=arguments, train_dataset=data, loss=loss)


PARSER = new_parser(__doc__)
PARSER.add_argument("--model", required=True)
PARSER.add_argument("--data", type=Path, required=True)
PARSER.add_argument("--work", type=Path, required=True)
PARSER.add_argument("--threads", type=int, default=2)
PARSER.add_argument("--steps", type=int, default=24)
PARSER.add_argument("--blocks", default="1,3,6")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run rounds of all contestants in turn, and print medians."""
    given = PARSER.parse_args(arguments)
    torch.set_num_threads(given.threads)
    full, blocks = load_encoder(given.model, max_length=256), tuple(int(part) for part in given.blocks.split(","))
    student = save_encoder(keep(full, blocks), given.work / "student")
    texts = list(dict.fromkeys(mixed(corpus_lines(given.data), BATCH * given.steps, 0.1, 0.1)))
    found: dict[str, list[Rates]] = {}
    for _ in range(ROUNDS):
        for name, measure in {
            "truncate-kit, fp32": lambda: ours(full, blocks, given.work, texts, "fp32"),
            "truncate-kit, bf16": lambda: ours(full, blocks, given.work, texts, "bf16"),
            "sentence-transformers MSELoss, fp32": lambda: theirs(student, full, texts, given.work, bf16=False),
            "sentence-transformers MSELoss, bf16": lambda: theirs(student, full, texts, given.work, bf16=True),
        }.items():
            found.setdefault(name, []).append(measure())
            print(name, "{:.1f} by the clock, {:.1f} by the processor".format(*found[name][-1]), flush=True)
    rows = [
        {
            "contestant": name,
            "texts_per_second": f"{statistics.median(rate for rate, _ in rates):.1f}",
            "texts_per_processor_second": f"{statistics.median(rate for _, rate in rates):.1f}",
            "rounds": ROUNDS,
            "texts": len(texts),
        }
        for name, rates in found.items()
    ]
    write_rows(ROWS, rows)


if __name__ == "__main__":
    main()
