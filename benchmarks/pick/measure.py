"""Peak rates by width, and every layer of the bundled models on small training sets: a row for each trial.

    python -m benchmarks.pick.measure --data FOLDER_OF_EVALUATION_SETS --minilm FOLDER_OF_ALL_MINILM_L6_V2

Trials are trained as `truncate-kit finetune` trains them, in bfloat16 or with `--precision fp32`. Each is a row of
measured.csv, appended when it is done: the command may be stopped at any time and continues where it was. `--only
rates` or `--only sweeps` runs a part. A row holds, beside the scores, the score on the half of dev whose two texts
share the fewest words, and the dev scores of resamples of the dev pairs, the same for every trial of a set: differences
between rows are paired.

Widths without a model of their own are slices of all-MiniLM-L6-v2: its first 192 or 256 dimensions and as many heads as
these hold. What is left of it knows less, but its weights are of the size that pretraining gives.
"""

import argparse
import csv
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from pathlib import Path

import torch
from transformers import AutoModel, AutoTokenizer

from benchmarks.common import names, new_parser, numbers, part_of_train, read_rows, spread_out
from truncate_kit.core.hardware import Precision
from truncate_kit.data.pairs import BUNDLED, PairSplits, TextPair, load_pairs
from truncate_kit.methods.tmft.trials import TrialWork
from truncate_kit.models.encoder import Encoder
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.truncation import layers_held, truncate
from truncate_kit.training.examples import LabelledTask, PairEvaluator
from truncate_kit.training.loop import TrainingRun
from truncate_kit.training.settings import TrainingSettings

MEASURED = Path(__file__).parent / "measured.csv"
RANKINGS = MEASURED.with_name("rankings.csv")
MINIATURES = ("mini-electra-generator", "mini-bert", "mini-electra-discriminator")
MINILM, SLICES = "all-MiniLM-L6-v2", {"all-MiniLM-L6-v2, 192 dimensions": 192, "all-MiniLM-L6-v2, 256 dimensions": 256}
HEAD = 32  # dimensions of a head of all-MiniLM-L6-v2
RATES = (2e-4, 5e-4, 1e-4, 4e-5, 1e-3, 2e-3)
LOWEST = 1e-4  # but for all-MiniLM-L6-v2, whose default was 4e-5
SWEEP_RATES = dict.fromkeys(MINIATURES, 5e-4) | {MINILM: 1e-4}  # the miniatures' is good at every layer, by `RATES`
TASKS = {
    "stsb/en": "cosine",
    "sick": "cosine",
    "bundled": "cosine",
    "stsb/de": "cosine",
    "mrpc": "paraphrase",
}
"""What is learned from each set: folders of the evaluation data, and the bundled pairs."""
SIZES = (500, 2000, 5749)  # training pairs, or as many as a set has; the last is all of the largest
WIDTHS = dict(zip(MINIATURES, (64, 128, 128), strict=True)) | SLICES | {MINILM: 384}
DEPTHS = dict.fromkeys(MINIATURES, 8) | dict.fromkeys((MINILM, *SLICES), 6)
DEV_PAIRS, TEST_PAIRS = 500, 2000  # at most, at equal distances
DRAWS = 100  # resamples of the dev pairs
SEEDS = 3


def epochs_of(train_pairs: int) -> int:
    """Return the epochs, fewer for larger sets."""
    return 10 if train_pairs <= 500 else 5 if train_pairs <= 2500 else 3


def few_shared_words(pairs: Sequence[TextPair]) -> list[int]:
    """Return the places of the half of the pairs that share the fewest words."""

    def shared(pair: TextPair) -> float:
        first, second = (set(re.findall(r"\w+", text.lower())) for text in (pair.first, pair.second))
        return len(first & second) / max(1, len(first | second))

    order = sorted(range(len(pairs)), key=lambda place: shared(pairs[place]))
    return sorted(order[: len(pairs) // 2])


@dataclass(frozen=True, kw_only=True)
class Job:
    """A trial: what it is and what it is named by in the table."""

    model: str
    task: str
    train_pairs: int
    rate: float
    layer: int
    seed: int = 0

    @property
    def cells(self) -> dict[str, str]:
        """Return the columns of the table."""
        return {name: str(value) for name, value in asdict(self).items()} | {"epochs": str(epochs_of(self.train_pairs))}


def rate_jobs(models: Sequence[str]) -> Iterator[Job]:
    """List a low layer and the last one of each model at every rate, cheapest first."""
    places = [(layer, model) for model in models for layer in (DEPTHS[model] // 4, DEPTHS[model])]
    for layer, model in sorted(places, key=lambda place: place[0] * WIDTHS[place[1]] ** 2):
        for rate in RATES:
            if rate >= LOWEST or model == MINILM:
                yield Job(model=model, task="stsb/en", train_pairs=500, rate=rate, layer=layer)


def sweep_jobs(options: argparse.Namespace) -> Iterator[Job]:
    """List every layer with every seed, set after set."""
    for size, task, seed, model in product(options.sizes, options.tasks, range(options.seeds), options.models):
        train_pairs = min(size, len(load_set(options.data, task).split("train")))
        for layer in range(DEPTHS[model] + 1):
            rate = SWEEP_RATES[model]
            yield Job(model=model, task=task, train_pairs=train_pairs, rate=rate, layer=layer, seed=seed)


def sliced(folder: str, width: int) -> Encoder:
    """Cut all-MiniLM-L6-v2 to its first `width` dimensions and their heads."""
    whole = AutoModel.from_pretrained(folder, add_pooling_layer=False)
    config = type(whole.config).from_dict(
        whole.config.to_dict()
        | {"hidden_size": width, "num_attention_heads": width // HEAD, "intermediate_size": 4 * width}
    )
    part = AutoModel.from_config(config, add_pooling_layer=False)
    weights = whole.state_dict()
    part.load_state_dict(
        {name: weights[name][tuple(map(slice, value.shape))].clone() for name, value in part.state_dict().items()}
    )
    with tempfile.TemporaryDirectory() as place:
        part.save_pretrained(place)
        AutoTokenizer.from_pretrained(folder).save_pretrained(place)
        return load_encoder(place, max_length=128)


def load(model: str, minilm: str | None) -> Encoder:
    """Load a model of the plan. Raises `SystemExit` if its folder was not given."""
    if model in MINIATURES:
        return load_encoder(model)
    if minilm is None:
        raise SystemExit(f"{model} needs --minilm.")
    return sliced(minilm, SLICES[model]) if model in SLICES else load_encoder(minilm, max_length=128)


def load_set(folder: str, task: str) -> PairSplits:
    """Load the whole set of a task."""
    return load_pairs(BUNDLED if task == "bundled" else f"{folder}/{task}")


def splits(folder: str, job: Job) -> PairSplits:
    """Return the set of a job, its parts no larger than needed."""
    data = load_set(folder, job.task)
    assert data.dev is not None
    assert data.test is not None
    data = replace(data, dev=spread_out(data.dev, min(DEV_PAIRS, len(data.dev))))
    data = replace(data, test=spread_out(data.test, min(TEST_PAIRS, len(data.split("test")))))
    return part_of_train(data, job.train_pairs)


def settings_of(job: Job, precision: Precision) -> TrainingSettings:
    """Return the training settings of a job."""
    return TrainingSettings(
        objective=TASKS[job.task], epochs=epochs_of(job.train_pairs), learning_rate=job.rate, precision=precision
    )


def measure(full: Encoder, data: PairSplits, job: Job, precision: Precision) -> dict[str, str]:
    """Train one trial and return its scores."""
    assert data.dev is not None
    assert data.train is not None
    encoder = truncate(full, job.layer)
    examples, dev, test = LabelledTask(full, data, TASKS[job.task]).trial(encoder, job.seed)
    assert isinstance(dev, PairEvaluator)
    state = TrainingRun(encoder, examples, dev, settings_of(job, precision), seed=job.seed).train()
    vectors = encoder.encode_ids(dev.texts())
    outcomes, targets = dev.outcomes(vectors), data.dev.scores()
    few = few_shared_words(data.dev.pairs)
    few_score, _ = dev.score_outcomes([outcomes[place] for place in few], [targets[place] for place in few])
    return {
        "dev_pairs": str(len(targets)),
        "dev": f"{dev.score(encoder)[0]:.3f}",
        "dev_few_shared_words": f"{few_score:.3f}",
        "test": f"{test.score(encoder)[0]:.3f}",
        "seconds": f"{state.seconds:.0f}",
        "dev_scores": ";".join(f"{one:.2f}" for one in state.scores),
        "dev_draws": ";".join(f"{score:.2f}" for score in dev.resampled(vectors)[:DRAWS]),
        "precision": precision,
    }


def append(path: Path, row: dict[str, str]) -> None:
    """Add a row to a table, and begin it if it is missing."""
    new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, fieldnames=list(row), lineterminator="\n")
        if new:
            table.writeheader()
        table.writerow(row)


def run(jobs: Iterator[Job], options: argparse.Namespace) -> None:
    """Train what is missing, in order."""
    done = read_rows(options.out) if options.out.exists() else []
    held = {tuple(row[one.name] for one in fields(Job)) for row in done}
    full, loaded = None, ""
    for job in jobs:
        if tuple(str(value) for value in asdict(job).values()) in held:
            continue
        if loaded != job.model:
            full, loaded = load(job.model, options.minilm).to(options.device), job.model
        assert full is not None
        if job.layer not in layers_held(full.backbone.config):
            continue
        found = measure(full, splits(options.data, job), job, options.precision)
        append(options.out, job.cells | found)
        shown = {name: value for name, value in (job.cells | found).items() if name not in ("dev_draws", "dev_scores")}
        print(time.strftime("%H:%M:%S"), *shown.values(), flush=True)


def rank(jobs: Iterator[Job], options: argparse.Namespace) -> None:
    """Run the missing cheap rankings of `--layer auto` for each sweep among the jobs."""
    done = {
        tuple(row[name] for name in ("model", "task", "train_pairs", "rate"))
        for row in (read_rows(options.rankings) if options.rankings.exists() else [])
    }
    for job in {(job.model, job.task, job.train_pairs, job.rate): job for job in jobs}.values():
        if (job.model, job.task, str(job.train_pairs), str(job.rate)) in done:
            continue
        full, data = load(job.model, options.minilm).to(options.device), splits(options.data, job)
        task, settings = LabelledTask(full, data, TASKS[job.task]), settings_of(job, options.precision)
        layers = layers_held(full.backbone.config)
        work = TrialWork(full, task, settings, None, Path())
        probe, exits = (work.rank(name, layers, 0) for name in ("probe", "multi-exit"))
        for layer in layers:
            cheap = {"probe": f"{probe[layer]:.3f}", "multi_exit": f"{exits[layer]:.3f}"}
            row = job.cells | {"seed": "0", "layer": str(layer)} | cheap
            append(options.rankings, row)
        print(time.strftime("%H:%M:%S"), "ranked", job, flush=True)


PARSER = new_parser(__doc__)
PARSER.add_argument("--data", required=True, help="folder that holds the sets")
PARSER.add_argument("--minilm", help="folder of all-MiniLM-L6-v2, for the rates at widths from 192 to 384")
PARSER.add_argument("--out", type=Path, default=MEASURED)
PARSER.add_argument("--rankings", type=Path, default=RANKINGS)
PARSER.add_argument("--only", choices=("rates", "sweeps"))
PARSER.add_argument("--tasks", type=names, default=list(TASKS), help="of the sweeps, separated by commas")
PARSER.add_argument("--precision", choices=("bf16", "fp32"), default="bf16")
PARSER.add_argument("--models", type=names, default=list(MINIATURES), help="of the sweeps, separated by commas")
PARSER.add_argument("--sizes", type=numbers, default=SIZES, help="training pairs of the sweeps")
PARSER.add_argument("--seeds", type=int, default=SEEDS, help="of the sweeps")
PARSER.add_argument("--threads", type=int, default=1)
PARSER.add_argument("--device", default="cpu")


def main(arguments: Sequence[str] | None = None) -> None:
    """Train what is missing."""
    options = PARSER.parse_args(arguments)
    torch.set_num_threads(options.threads)
    if options.only != "sweeps":
        run(rate_jobs((*MINIATURES, *([MINILM, *SLICES] if options.minilm else []))), options)
    if options.only != "rates":
        run(sweep_jobs(options), options)
        rank(sweep_jobs(options), options)


if __name__ == "__main__":
    main()
