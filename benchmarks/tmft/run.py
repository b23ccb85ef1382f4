"""TMFT at every layer of several models, and what each strategy of `--layer auto` would have chosen.

    python -m benchmarks.tmft.run --data FOLDER --models mini-electra-discriminator mini-bert --seeds 3 --epochs 10
    python -m benchmarks.tmft.run --data FOLDER --models PATH_OF_ALL_MINILM_L6_V2 --seeds 1 --epochs 3 --name NAME
    python -m benchmarks.tmft.run --data FOLDER_OF_SICK --objective entailment --columns sentence1,sentence2,label …
    python -m benchmarks.tmft.run --data FOLDER --train-pairs 2000 --epochs 3 …    # less work: a part of the pairs

Finished trials are kept in `study/trials`: the command may be stopped at any time and continues where it was. It writes
the rows of its name in `layers.csv` and `choices.csv`. `--summary` trains no layer with the full budget: the rows come
from the trials that are there. The drop is predicted as `truncate-kit finetune` does it, from the training texts alone.
Strategies that draw by chance or train a ranking use the first seed.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev

import matplotlib.pyplot as plt

from benchmarks.common import (
    named_model,
    names,
    new_parser,
    part_of_train,
    print_table,
    read_rows,
    write_rows,
)
from benchmarks.records import trial_runner
from truncate_kit.analysis.profile import profile
from truncate_kit.analysis.result import AnalysisSettings
from truncate_kit.data import PairSplits, load_pairs
from truncate_kit.methods.tmft.choosing import PICK_RULES, STRATEGIES, Candidates, Picker
from truncate_kit.methods.tmft.finetune import CONFIDENT
from truncate_kit.methods.tmft.trials import TrialRunner
from truncate_kit.models import Encoder, layers_held, load_encoder, parameters_kept
from truncate_kit.naming import default_reference
from truncate_kit.training.objectives import OBJECTIVES
from truncate_kit.training.settings import TrainingSettings, Trial

HERE = Path(__file__).parent
ANALYSED_TEXTS = 2000  # as the command line does


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
    found = (runner.stored(layer, seed) for layer in layers for seed in seeds)
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
        encoder,
        data.train.texts(),
        reference=load_encoder(usual) if usual else None,
        settings=AnalysisSettings(max_texts=ANALYSED_TEXTS),
    ).drop
    print(drop.sentence)
    return drop.from_layer if drop.sure >= CONFIDENT else None


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
        picker = Picker(rule, drop_from=drop_from, depth=max(layers))
        everywhere = picker.pick(mean["dev"])
        for strategy, search in STRATEGIES.items():
            found = search(Candidates(runner, layers, seeds, picker))
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


def update(path: Path, name: str, rows: Sequence[dict[str, object]]) -> None:
    """Put rows in the place of those of this sweep in a table of all sweeps, and show them."""
    if rows:
        others = [row for row in read_rows(path) if row["sweep"] != name]
        own = [{"sweep": name, **row} for row in rows]
        write_rows(path, sorted([*others, *own], key=lambda row: str(row["sweep"])))
        print_table(list(own[0]), [list(row.values()) for row in own])


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


PARSER = new_parser(__doc__)
PARSER.add_argument("--data", required=True, help="folder with train, dev and test pairs (STS Benchmark)")
PARSER.add_argument("--models", nargs="+", required=True)
PARSER.add_argument("--seeds", type=int, default=3)
PARSER.add_argument("--epochs", type=int, default=10)
PARSER.add_argument("--train-pairs", type=int, help="number of pairs to train on (default: all)")
PARSER.add_argument("--precision", default="fp32")
PARSER.add_argument("--rate", type=float, help="peak learning rate (default: by the width of the model)")
PARSER.add_argument("--objective", default="cosine", help="cosine, paraphrase or entailment")
PARSER.add_argument("--columns", type=names, help="first text, second text, score or label")
PARSER.add_argument("--name", default="stsb-en", help="of this sweep in the tables")
PARSER.add_argument("--summary", action="store_true", help="train no layer with the full budget")
PARSER.add_argument("--figure", action="store_true", help="draw dev and test by layer, too")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing, then write the tables."""
    options = PARSER.parse_args(arguments)
    data = load_pairs(options.data, columns=options.columns, classes=OBJECTIVES[options.objective].data == "classes")
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
        encoder, name = load_encoder(model), named_model(model)[0]
        runner = trial_runner(encoder, data, settings, HERE / "study" / "trials", name=name, data=data.name)
        layers = layers_held(encoder.backbone.config)
        with runner.store.open():
            if not options.summary:
                print(f"{name}: layers {layers}, seeds {list(seeds)}", flush=True)
                sweep(runner, layers, seeds)
            trials = finished(runner, layers, seeds)
            scores += layer_rows(name, encoder, trials)
            if len(trials) == len(layers) * options.seeds:
                choices += choice_rows(name, runner, layers, trials, seeds, predicted_drop(encoder, data))
    update(HERE / "layers.csv", options.name, scores)
    update(HERE / "choices.csv", options.name, choices)
    if options.figure:
        draw(HERE / f"{options.name}.png", scores, OBJECTIVES[options.objective].metric)


if __name__ == "__main__":
    main()
