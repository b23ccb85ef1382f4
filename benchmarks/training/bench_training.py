"""Training throughput: this package's loop against sentence-transformers' trainer, side by side in one run.

    python benchmarks/training/bench_training.py --model FOLDER --data FOLDER --pairs 1280 --repeats 3

Same model, pairs, batch size, epochs, loss (mean squared error on the cosine), optimiser settings, threads. Each
repeat runs every row once, in turn, so that a drift of the machine's speed meets all of them; medians are quoted.
Seconds are those of training alone, without loading and without evaluation. Tokenising counts for every row.
"""

import argparse
import gc
import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import torch
import transformers

from truncate_kit.data import PairSet, load_pairs
from truncate_kit.encoders import Encoder, load_encoder, truncate
from truncate_kit.files import write_json
from truncate_kit.training import GradedPairs, TrainingSettings, train
from truncate_kit.training.examples import Ids

RATE = 2e-5


class NoJudge:
    """Takes no time and likes every epoch better than the last."""

    def __init__(self) -> None:
        self._epochs = 0.0

    def texts(self) -> Sequence[Ids]:
        """Nothing held out."""
        return []

    def renumber(self, ids: Callable[[Ids], Ids]) -> None:
        """Nothing to renumber."""

    def score(self, encoder: Encoder) -> tuple[float, float | None]:
        """One more than the last time."""
        self._epochs += 1
        return self._epochs, None


def ours(model: str, layer: int | None, pairs: PairSet, epochs: int, **options: object) -> float:
    """Seconds of our loop."""
    full = load_encoder(model)
    encoder = truncate(full, full.depth if layer is None else layer)
    settings = TrainingSettings.from_dict(
        TrainingSettings(epochs=epochs, learning_rate=RATE).to_dict() | options  # type: ignore[arg-type]
    )
    start = time.perf_counter()
    first = encoder.token_ids([pair.first for pair in pairs])
    second = encoder.token_ids([pair.second for pair in pairs])
    train(encoder, GradedPairs(first, second, pairs.scores01()), NoJudge(), settings, seed=0)
    return time.perf_counter() - start


def sentence_transformers(model: str, pairs: PairSet, epochs: int, *, bf16: bool) -> float:
    """Seconds of the trainer's own `train()`."""
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.losses import CosineSimilarityLoss

    with tempfile.TemporaryDirectory() as folder:
        encoder = SentenceTransformer(model, device="cpu")
        columns = {
            "sentence1": [pair.first for pair in pairs],
            "sentence2": [pair.second for pair in pairs],
            "score": pairs.scores01(),
        }
        arguments = SentenceTransformerTrainingArguments(
            output_dir=folder,
            num_train_epochs=epochs,
            per_device_train_batch_size=32,
            learning_rate=RATE,
            weight_decay=0.01,
            warmup_steps=round(0.1 * epochs * len(pairs) / 32),
            bf16=bf16,
            use_cpu=True,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        trainer = SentenceTransformerTrainer(
            model=encoder, args=arguments, train_dataset=Dataset.from_dict(columns), loss=CosineSimilarityLoss(encoder)
        )
        start = time.perf_counter()
        trainer.train()
        return time.perf_counter() - start


def main() -> None:
    """Run all rows and write `results.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--pairs", type=int, default=1280)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    whole = load_pairs(options.data).train
    if whole is None:
        raise SystemExit("The data has no train set.")
    pairs = PairSet(
        name=whole.name,
        pairs=whole.pairs[: options.pairs],
        scale=whole.scale,
        scale_source=whole.scale_source,
        num_scale_values=whole.num_scale_values,
        path=whole.path,
        columns=whole.columns,
    )
    model, epochs = options.model, options.epochs
    depth = load_encoder(model).depth
    rows: dict[str, Callable[[], float]] = {
        "sentence-transformers fp32": lambda: sentence_transformers(model, pairs, epochs, bf16=False),
        "sentence-transformers bf16": lambda: sentence_transformers(model, pairs, epochs, bf16=True),
        "ours fp32, random batches, whole vocabulary": lambda: ours(
            model, None, pairs, epochs, buckets=False, compact_vocabulary=False
        ),
        "ours fp32, + buckets": lambda: ours(model, None, pairs, epochs, compact_vocabulary=False),
        "ours fp32, + compact vocabulary (default)": lambda: ours(model, None, pairs, epochs),
        "ours bf16": lambda: ours(model, None, pairs, epochs, precision="bf16"),
        f"ours fp32, cut at layer {depth // 2}": lambda: ours(model, depth // 2, pairs, epochs),
        f"ours bf16, cut at layer {depth // 2}": lambda: ours(model, depth // 2, pairs, epochs, precision="bf16"),
    }
    seconds: dict[str, list[float]] = {name: [] for name in rows}
    for repeat in range(options.repeats + 1):  # the first round warms up and is not counted
        for name, run in rows.items():
            taken = run()
            gc.collect()
            print(f"round {repeat} {name}: {len(pairs) * epochs / taken:.1f} pairs/s", flush=True)
            if repeat:
                seconds[name].append(taken)
    base = median(seconds["sentence-transformers fp32"])
    table = {
        name: {
            "pairs_per_second": len(pairs) * epochs / median(values),
            "ratio": base / median(values),
            "seconds": values,
        }
        for name, values in seconds.items()
    }
    write_json(
        Path(__file__).parent / "results.json",
        {
            "model": Path(model).name if Path(model).exists() else model,
            "pairs": len(pairs),
            "epochs": epochs,
            "batch_size": 32,
            "threads": options.threads,
            "processor": platform.processor() or platform.machine(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "rows": table,
        },
    )
    for name, row in table.items():
        print(f"{row['pairs_per_second']:8.1f} pairs/s  {row['ratio']:.2f}x  {name}")


if __name__ == "__main__":
    main()
