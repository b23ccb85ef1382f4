"""Training throughput: this package's loop, sentence-transformers' trainer and the TMFT paper's way, side by side.

    python -m benchmarks.training.run --model FOLDER --data FOLDER --pairs 1280 --repeats 3
    python -m benchmarks.training.run --model FOLDER --data FOLDER --random 12 --name random12

Rows: layers 3, L/2 and L, each in float32 and bfloat16, by sentence-transformers' trainer on the model cut there, by
the paper's way (all layers computed, the loss on the states of that layer, random batches) and by this package; and
what each of this package's measures gains at L. --random: as many layers, of random weights, instead of the model's.
Same model, pairs, batch size, epochs, loss (mean squared error on the cosine), optimiser settings, threads. Each
repeat runs every row once, in turn, so that a drift of the machine's speed meets all of them; medians are quoted.
Seconds are those of training alone, without loading and without evaluation. Tokenising counts for every row. The
pairs are taken at equal distances from the whole file, so that their lengths are those of the set. At the end one run
of this package at L is profiled in each precision: the share of its time that matrix products take bounds what any
further saving could gain.
"""

import contextlib
import gc
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
import transformers
from torch import Tensor

from benchmarks.common import machine, named_model, new_parser, spread_out
from truncate_kit.core.files import write_json
from truncate_kit.data.pairs import PairSet, load_pairs
from truncate_kit.models.encoder import Encoder
from truncate_kit.models.loading import load_encoder, random_encoder
from truncate_kit.models.pipeline import save_encoder
from truncate_kit.models.truncation import truncate
from truncate_kit.training import loop
from truncate_kit.training.examples import Pairs, cosine_mse
from truncate_kit.training.loop import Evaluator, TrainingRun
from truncate_kit.training.settings import TrainingSettings

RATE = 2e-5
BATCH = 32
MATRIX_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "mkldnn::_linear_pointwise")
METHODS = ("sentence-transformers", "paper's way", "this package")


class NoEvaluator(Evaluator):
    """Takes no time and likes every epoch better than the last."""

    def __init__(self) -> None:
        self._epochs = 0.0

    def score(self, encoder: Encoder) -> tuple[float, float | None]:
        """Return one more than the last time."""
        self._epochs += 1
        return self._epochs, None


def ours(model: str, pairs: PairSet, epochs: int, *, kernels: bool = True, **options: object) -> float:
    """Time our loop. kernels: False leaves all functions to torch."""
    encoder = load_encoder(model)
    settings = TrainingSettings.from_dict(TrainingSettings(epochs=epochs, learning_rate=RATE).to_dict() | options)
    start = time.perf_counter()
    first = encoder.token_ids([pair.first for pair in pairs])
    second = encoder.token_ids([pair.second for pair in pairs])
    with contextlib.nullcontext() if kernels else patch.object(loop, "FasterOnCPU", contextlib.nullcontext):
        TrainingRun(
            encoder, Pairs(first, second, pairs.scores01(), cosine_mse), NoEvaluator(), settings, seed=0
        ).train()
    return time.perf_counter() - start


def paper(model: str, layer: int, pairs: PairSet, epochs: int, *, bf16: bool) -> float:
    """Time the loop of the TMFT paper's authors: no layer is cut off.

    Each sentence of the pairs has a forward pass of its own through all layers, padded to the longest of its batch;
    random batches. Gradients reach the layers up to `layer` alone, and AdamW visits no others.
    """
    from transformers import AutoModel, AutoTokenizer

    tokenizer, backbone = AutoTokenizer.from_pretrained(model), AutoModel.from_pretrained(model).train()
    limit = load_encoder(model).max_length

    def vectors(texts: list[str]) -> Tensor:
        batch = tokenizer(texts, padding=True, truncation=True, max_length=limit, return_tensors="pt")
        states = backbone(**batch, output_hidden_states=True).hidden_states[layer]
        weights = batch["attention_mask"].unsqueeze(-1).to(states.dtype)
        mean: Tensor = (states * weights).sum(1) / weights.sum(1)
        return mean.float()

    decayed = [parameter for parameter in backbone.parameters() if parameter.ndim > 1]
    plain = [parameter for parameter in backbone.parameters() if parameter.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=RATE)
    total = epochs * -(-len(pairs) // BATCH)
    schedule = transformers.get_linear_schedule_with_warmup(optimiser, round(0.1 * total), total)
    scores = torch.tensor(pairs.scores01())
    start = time.perf_counter()
    for _ in range(epochs):
        for places in torch.randperm(len(pairs)).split(BATCH):
            chosen = [pairs.pairs[place] for place in places.tolist()]
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                first = vectors([pair.first for pair in chosen])
                second = vectors([pair.second for pair in chosen])
            cosine_mse(first, second, scores[places]).backward()
            torch.nn.utils.clip_grad_norm_(backbone.parameters(), 1.0)
            optimiser.step()
            schedule.step()
            optimiser.zero_grad()
    return time.perf_counter() - start


def sentence_transformers(model: str, pairs: PairSet, epochs: int, *, bf16: bool) -> float:
    """Time the trainer's own `train()`."""
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
            per_device_train_batch_size=BATCH,
            learning_rate=RATE,
            weight_decay=0.01,
            warmup_steps=round(0.1 * epochs * len(pairs) / BATCH),
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


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that is timed. run: seconds, from the number of epochs."""

    method: str
    layer: int
    precision: str
    run: Callable[[], float]


def rows(full: Encoder, folder: Path, pairs: PairSet, epochs: int) -> list[Row]:
    """Run every method at every layer in both precisions, then our measures one by one."""
    places = {}
    for layer in sorted({min(3, full.depth), max(1, full.depth // 2), full.depth}):
        places[layer] = str(save_encoder(truncate(full, layer), folder / str(layer)))
    whole, found = places[full.depth], []
    for layer, cut in places.items():
        for precision in ("fp32", "bf16"):
            runs: tuple[Callable[[], float], ...] = (
                partial(sentence_transformers, cut, pairs, epochs, bf16=precision == "bf16"),
                partial(paper, whole, layer, pairs, epochs, bf16=precision == "bf16"),
                partial(ours, cut, pairs, epochs, precision=precision),
            )
            found += [Row(method, layer, precision, run) for method, run in zip(METHODS, runs, strict=True)]
    for precision in ("fp32", "bf16"):
        slower = partial(ours, whole, pairs, epochs, kernels=False, precision=precision)
        found.append(Row("this package, torch's kernels", full.depth, precision, slower))
    slower = partial(slower, precision="fp32", compact_vocabulary=False)
    found.append(Row("… and whole vocabulary", full.depth, "fp32", slower))
    found.append(Row("… and random batches", full.depth, "fp32", partial(slower, buckets=False)))
    return found


def matrix_share(run: Callable[[], float]) -> float:
    """Return the share of matrix products in a run's time, by torch's profiler."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
        run()
    times = {event.key: float(event.self_cpu_time_total) for event in profiled.key_averages()}
    return sum(times.get(name, 0.0) for name in MATRIX_PRODUCTS) / sum(times.values())


def shape(name: str, layers: int | None) -> Encoder:
    """Load the model, or random weights of its shape with `layers` layers."""
    encoder = load_encoder(name)
    if layers is not None:
        encoder.backbone.config.num_hidden_layers = layers
        torch.manual_seed(0)
        encoder.backbone = random_encoder(encoder.backbone.config).backbone
    return encoder


def report(found: Sequence[dict[str, Any]]) -> None:
    """Print pairs a second by layer and precision, and our factors over the others."""
    speed = {(row["layer"], row["precision"], row["method"]): row["pairs_per_second"] for row in found}
    print("layer  precision  " + "  ".join(METHODS) + "  × sentence-transformers  × paper")
    for layer, precision in dict.fromkeys((row["layer"], row["precision"]) for row in found):
        theirs, papers, mine = (speed[layer, precision, method] for method in METHODS)
        shown = f"{theirs:.1f}  {papers:.1f}  {mine:.1f}  {mine / theirs:.2f}  {mine / papers:.2f}"
        print(f"{layer}  {precision}  {shown}")


PARSER = new_parser(__doc__)
PARSER.add_argument("--model", required=True)
PARSER.add_argument("--data", required=True)
PARSER.add_argument("--random", type=int, help="number of layers of random weights, in the shape of the model")
PARSER.add_argument("--pairs", type=int, default=1280)
PARSER.add_argument("--epochs", type=int, default=1)
PARSER.add_argument("--repeats", type=int, default=3)
PARSER.add_argument("--threads", type=int, default=torch.get_num_threads())
PARSER.add_argument("--name", default="results", help="of the file that is written")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all rows and write `results.json`, or results of another name."""
    options = PARSER.parse_args(arguments)
    torch.set_num_threads(options.threads)
    pairs = spread_out(load_pairs(options.data, divide=False).split("train"), options.pairs)
    full = shape(options.model, options.random)
    with tempfile.TemporaryDirectory() as folder:
        timed = rows(full, Path(folder), pairs, options.epochs)
        seconds: list[list[float]] = [[] for _ in timed]
        for repeat in range(options.repeats + 1):  # the first round warms up and is not counted
            for row, taken in zip(timed, seconds, strict=True):
                taken.append(row.run())
                gc.collect()
                speed = len(pairs) * options.epochs / taken[-1]
                print(f"round {repeat} layer {row.layer} {row.precision} {row.method}: {speed:.1f} pairs/s", flush=True)
        shares = {
            row.precision: matrix_share(row.run)
            for row in timed
            if row.method == "this package" and row.layer == full.depth
        }
    found = [
        {
            "method": row.method,
            "layer": row.layer,
            "precision": row.precision,
            "pairs_per_second": len(pairs) * options.epochs / median(taken[1:]),
            "seconds": taken[1:],
        }
        for row, taken in zip(timed, seconds, strict=True)
    ]
    write_json(
        Path(__file__).parent / f"{options.name}.json",
        {
            "model": named_model(options.model)[0],
            "depth": full.depth,
            "random_weights": options.random is not None,
            "pairs": len(pairs),
            "epochs": options.epochs,
            "batch_size": BATCH,
            "machine": machine(),
            "matrix_product_share": shares,
            "rows": found,
        },
    )
    report(found)
    for precision, share in shares.items():
        print(f"matrix products take {share:.0%} of this package's time at layer {full.depth} in {precision}")


if __name__ == "__main__":
    main()
