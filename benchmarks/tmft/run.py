"""TMFT at every layer of several models, and what each strategy of `--layer auto` would have chosen.

    python benchmarks/tmft/run.py --data FOLDER --models mini-electra-discriminator mini-bert --seeds 3 --epochs 10
    python benchmarks/tmft/run.py --data FOLDER --models PATH_OF_ALL_MINILM_L6_V2 --seeds 1 --epochs 3 --name NAME
    python benchmarks/tmft/run.py --data FOLDER_OF_SICK --objective entailment --columns sentence1,sentence2,label …
    python benchmarks/tmft/run.py --data FOLDER --train-pairs 2000 --epochs 3 …    # less work: a part of the pairs

Every trial is one small JSON file in `trials/`, written once: the command may be stopped at any time and continues
where it was. `--summary` trains no layer with the full budget any more: tables and figure come from the trials that
are there. The drop is predicted as `truncate-kit finetune` does it, from the training texts alone. Strategies that
draw by chance or train a ranking use the first seed.
"""

import argparse
import csv
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev

import matplotlib.pyplot as plt

from truncate_kit.analysis import profile
from truncate_kit.data import PairSplits, load_pairs
from truncate_kit.encoders import Encoder, default_reference, layers_held, load_encoder, parameters_kept
from truncate_kit.sweep.finetune import CONFIDENT
from truncate_kit.sweep.picking import PICK_RULES, pick
from truncate_kit.sweep.results import SweepSettings, Trial
from truncate_kit.sweep.store import TrialStore, fingerprint
from truncate_kit.sweep.strategies import STRATEGIES
from truncate_kit.sweep.tasks import METRICS, LabelledTask
from truncate_kit.sweep.trials import TrialRunner
from truncate_kit.training import TrainingSettings

HERE = Path(__file__).parent
ANALYSED_TEXTS = 2000  # as the command line does


def part_of_train(data: PairSplits, count: int) -> PairSplits:
    """With `count` of the training pairs, drawn once and the same for every model and seed."""
    assert data.train is not None
    places = sorted(random.Random(0).sample(range(len(data.train)), min(count, len(data.train))))
    return replace(data, train=replace(data.train, pairs=tuple(data.train.pairs[place] for place in places)))


def runner_for(encoder: Encoder, data: PairSplits, settings: TrainingSettings) -> TrialRunner:
    """The same store for the same model, data and settings, whatever the machine."""
    task = LabelledTask(encoder, data, settings.objective)
    key = fingerprint(encoder, settings.to_json(), data.fingerprint(), type(task).__name__)
    label = Path(encoder.name).name if Path(encoder.name).exists() else encoder.name
    store = TrialStore(HERE / "trials", key, {"model": label, "data": data.name, "training": settings.to_dict()})
    return TrialRunner(encoder, task, settings, store, lambda task, done, total: None)


def sweep(runner: TrialRunner, layers: Sequence[int], seeds: Sequence[int]) -> None:
    """All trials, seed by seed, so that a part of the work is a whole table."""
    for seed in seeds:
        for layer in layers:
            trial = runner.run(layer, seed)
            print(
                f"{time.strftime('%H:%M:%S')} layer {layer} seed {seed}: dev {trial.dev:.2f} test {trial.test:.2f}"
                f" in {trial.seconds:.0f} s",
                flush=True,
            )


def finished(runner: TrialRunner, layers: Sequence[int], seeds: Sequence[int]) -> list[Trial]:
    """The trials that are there."""
    found = (runner.store.read(layer, seed, runner.settings.epochs) for layer in layers for seed in seeds)
    return [trial for trial in found if trial is not None]


def layer_rows(name: str, encoder: Encoder, trials: Sequence[Trial]) -> list[dict[str, object]]:
    """Means over the seeds that are there, one row for each layer."""
    kept = parameters_kept(encoder.backbone.config)
    rows = []
    for layer in sorted({trial.layer for trial in trials}):
        mine = [trial for trial in trials if trial.layer == layer]
        test = [trial.test for trial in mine if trial.test is not None]
        pearson = [trial.test_pearson for trial in mine if trial.test_pearson is not None]
        rows.append(
            {
                "model": name,
                "layer": layer,
                "parameters": kept[layer],
                "seeds": len(mine),
                "dev": f"{fmean(trial.dev for trial in mine):.2f}",
                "test": f"{fmean(test):.2f}",
                "test_std": f"{stdev(test):.2f}" if len(test) > 1 else "",
                "test_pearson": f"{fmean(pearson):.2f}" if pearson else "",  # classes have none
                # Of several runs on a shared machine the fastest was disturbed least.
                "fastest_seconds": f"{min(trial.seconds for trial in mine):.0f}",
            }
        )
    return rows


def predicted_drop(encoder: Encoder, data: PairSplits) -> int | None:
    """The layer from which on the end is expected to fall, None where it is not."""
    assert data.train is not None
    usual = default_reference(encoder.name)
    drop = profile(
        encoder, data.train.texts(), reference=load_encoder(usual) if usual else None, max_texts=ANALYSED_TEXTS
    ).drop
    print(drop.sentence)
    return drop.from_layer if drop.confidence >= CONFIDENT else None


def choice_rows(
    name: str,
    runner: TrialRunner,
    layers: Sequence[int],
    trials: Sequence[Trial],
    seeds: Sequence[int],
    drop_from: int | None,
) -> list[dict[str, object]]:
    """What every strategy takes under each pick rule, and what that costs; needs every layer with every seed."""
    mean = {
        split: {layer: fmean(getattr(t, split) for t in trials if t.layer == layer) for layer in layers}
        for split in ("dev", "test")
    }
    rows = []
    for rule in PICK_RULES:
        settings = SweepSettings(pick=rule, seeds=tuple(seeds))
        everywhere = pick(mean["dev"], rule, drop_from=drop_from)
        for strategy, search in STRATEGIES.items():
            found = search(runner, layers, settings, drop_from)
            full_cost = (
                len(seeds)
                * runner.steps(runner.settings.epochs)
                * sum(max(1, layer) for layer in layers if layer != found.chosen)
            )
            # For random the mean of all layers: one draw would only tell how lucky it was.
            found_test = fmean(mean["test"].values()) if strategy == "random" else mean["test"][found.chosen]
            rows.append(
                {
                    "model": name,
                    "seeds": len(seeds),
                    "epochs": runner.settings.epochs,
                    "train_pairs": runner.task.num_examples,
                    "rule": rule,
                    "drop_from": "" if drop_from is None else drop_from,
                    "strategy": strategy,
                    "layer": "any" if strategy == "random" else found.chosen,
                    "exhaustive_layer": everywhere,
                    "search_regret": f"{mean['test'][everywhere] - found_test:.2f}",
                    "pick_regret": f"{max(mean['test'].values()) - found_test:.2f}",
                    "block_steps": found.cost,
                    "share_of_exhaustive": f"{found.cost / full_cost:.3f}",
                }
            )
    return rows


def write(path: Path, rows: Sequence[dict[str, object]]) -> None:
    """Write a table as CSV, and show it."""
    if rows:
        with path.open("w", newline="") as handle:
            table = csv.DictWriter(handle, fieldnames=list(rows[0]), lineterminator="\n")
            table.writeheader()
            table.writerows(rows)
        print(path.read_text())


def draw(path: Path, rows: Sequence[dict[str, object]], metric: str) -> None:
    """Dev and test against the layer, one panel for each model, with a band of one standard deviation."""
    models = list(dict.fromkeys(str(row["model"]) for row in rows))
    figure, panels = plt.subplots(1, len(models), figsize=(4.5 * len(models), 3.6), squeeze=False, layout="constrained")
    for panel, model in zip(panels[0], models, strict=True):
        mine = [row for row in rows if row["model"] == model]
        layers = [int(str(row["layer"])) for row in mine]
        for split in ("dev", "test"):
            means = [float(str(row[split])) for row in mine]
            (line,) = panel.plot(layers, means, marker="o", markersize=3, label=split)
            if all(row["test_std"] for row in mine) and split == "test":
                spread = [float(str(row["test_std"])) for row in mine]
                low, high = ([mean + sign * std for mean, std in zip(means, spread, strict=True)] for sign in (-1, 1))
                panel.fill_between(layers, low, high, alpha=0.2, color=line.get_color(), linewidth=0)
        seeds = mine[0]["seeds"]
        panel.set(title=f"{model}, {seeds} seed{'s' if seeds != 1 else ''}", xlabel="layer", xticks=layers)
        panel.legend(frameon=False)
    panels[0][0].set_ylabel(metric)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main() -> None:
    """Run what is missing, then write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder with train, dev and test pairs (STS Benchmark)")
    parser.add_argument("--models", nargs="+", required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--train-pairs", type=int, help="train on so many of the pairs (default: all)")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--rate", type=float, help="peak learning rate (default: by the width of the model)")
    parser.add_argument("--objective", default="cosine", help="cosine, paraphrase or entailment")
    parser.add_argument("--columns", help="first text, second text, score or label")
    parser.add_argument("--name", default="stsb-en", help="prefix of the tables")
    parser.add_argument("--summary", action="store_true")
    options = parser.parse_args()
    columns = options.columns.split(",") if options.columns else None
    data = load_pairs(options.data, columns=columns, classes=options.objective == "entailment")
    if options.train_pairs:
        data = part_of_train(data, options.train_pairs)
    seeds = range(options.seeds)
    settings = TrainingSettings(
        objective=options.objective,
        epochs=options.epochs,
        precision=options.precision,
        learning_rate=options.rate,
    )
    scores: list[dict[str, object]] = []
    choices: list[dict[str, object]] = []
    for model in options.models:
        encoder = load_encoder(model)
        name = Path(model).parent.name if Path(model).name == "model" else Path(model).name
        runner = runner_for(encoder, data, settings)
        layers = layers_held(encoder.backbone.config)
        with runner.store.open():
            if not options.summary:
                print(f"{name}: layers {layers}, seeds {list(seeds)}", flush=True)
                sweep(runner, layers, seeds)
            trials = finished(runner, layers, seeds)
            scores += layer_rows(name, encoder, trials)
            if len(trials) == len(layers) * options.seeds:
                choices += choice_rows(name, runner, layers, trials, seeds, predicted_drop(encoder, data))
    write(HERE / f"{options.name}-layers.csv", scores)
    write(HERE / f"{options.name}-choices.csv", choices)
    draw(HERE / f"{options.name}.png", scores, METRICS[options.objective])


if __name__ == "__main__":
    main()
