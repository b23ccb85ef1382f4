"""Would a second dev set, or folds over train, pick a better layer than the dev score does?

    python -m benchmarks.pick.second_dev --data FOLDER_OF_STSB_EN --models mini-electra-discriminator --train-pairs 1000
    python -m benchmarks.pick.second_dev --table

Every layer is trained as `truncate-kit finetune` does it, and scored on

- dev, on the half of dev whose words occur least in train, and on the half whose two texts share the fewest words;
- each of three folds of train, after training on the other two with one seed: folds of rows that follow each other,
  which come from other sources where a set is sorted by source, and folds drawn by chance;
- test.

Each trial is a row of `second_dev-trials.csv`, written when it is done: the command may be stopped at any time and
continues where it was. `--table` prints what every pick loses on test, and how like test it orders the layers, from
the rows that are there.
"""

import argparse
import csv
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from benchmarks.common import named_model, new_parser, part_of_train, print_table, read_rows
from truncate_kit.data import PairSet, PairSplits, TextPair, load_pairs
from truncate_kit.evaluation.graded import correlate
from truncate_kit.methods.tmft.choosing import Picker
from truncate_kit.models import Encoder, layers_held, load_encoder, truncate
from truncate_kit.training.evaluators import PairEvaluator
from truncate_kit.training.loop import TrainingRun
from truncate_kit.training.settings import TrainingSettings
from truncate_kit.training.tasks import LabelledTask

TRIALS = Path(__file__).parent / "second_dev-trials.csv"
COLUMNS = ("case", "trained_on", "layer", "seed", "dev", "rare_words", "few_shared_words", "test", "seconds")
FOLDS = 3
Scores = Mapping[int, float]  # points by layer


def words(text: str) -> set[str]:
    """The distinct words of a text, in lower case."""
    return set(re.findall(r"\w+", text.lower()))


def lower_half(pairs: Sequence[TextPair], overlap: Callable[[TextPair], float]) -> list[int]:
    """Places of the half of the pairs with the smallest overlap."""
    order = sorted(range(len(pairs)), key=lambda place: overlap(pairs[place]))
    return sorted(order[: len(pairs) // 2])


def halves(dev: PairSet, train_set: PairSet) -> dict[str, list[int]]:
    """Places in dev of the two second dev sets."""
    known = {word for text in train_set.texts() for word in words(text)}

    def known_share(pair: TextPair) -> float:
        mine = words(pair.first) | words(pair.second)
        return len(mine & known) / max(1, len(mine))

    def shared(pair: TextPair) -> float:
        first, second = words(pair.first), words(pair.second)
        return len(first & second) / max(1, len(first | second))

    return {"rare_words": lower_half(dev.pairs, known_share), "few_shared_words": lower_half(dev.pairs, shared)}


def part(data: PairSplits, places: Sequence[int]) -> PairSet:
    """These rows of the train split."""
    assert data.train is not None
    return replace(data.train, pairs=tuple(data.train.pairs[place] for place in places))


def divisions(data: PairSplits, seeds: int) -> Iterator[tuple[str, int, PairSplits]]:
    """What is trained on, the seed, and the splits: all of train with every seed, then the folds."""
    assert data.train is not None
    for seed in range(seeds):
        yield "train", seed, data
    rows = list(range(len(data.train)))
    mixed = random.Random(0).sample(rows, len(rows))
    for kind, order in (("blocks", rows), ("random", mixed)):
        for fold in range(FOLDS):
            held = set(order[fold * len(rows) // FOLDS : (fold + 1) * len(rows) // FOLDS])
            kept = [place for place in rows if place not in held]
            yield f"{kind}{fold}", fold, replace(data, train=part(data, kept), dev=part(data, sorted(held)))


def measure(full: Encoder, layer: int, seed: int, data: PairSplits, settings: TrainingSettings) -> dict[str, object]:
    """Train one layer; its scores on dev, both halves of it, and test."""
    assert data.train is not None
    assert data.dev is not None
    assert data.test is not None
    encoder = truncate(full, layer)
    examples, dev, test = LabelledTask(full, data).trial(encoder, seed)
    assert isinstance(dev, PairEvaluator)
    state = TrainingRun(encoder, examples, dev, settings, seed=seed).train()
    cosines, targets = dev.cosines(encoder.encode_ids(dev.texts())), data.dev.scores()
    scores = {
        name: correlate([cosines[place] for place in places], [targets[place] for place in places]).spearman
        for name, places in halves(data.dev, data.train).items()
    }
    scores |= {"dev": dev.score(encoder)[0], "test": test.score(encoder)[0]}
    return {name: f"{score:.3f}" for name, score in scores.items()} | {"seconds": f"{state.seconds:.0f}"}


def finished() -> list[dict[str, str]]:
    """The trials that are there."""
    return read_rows(TRIALS) if TRIALS.exists() else []


def run(options: argparse.Namespace) -> None:
    """Train what is missing."""
    data = part_of_train(load_pairs(options.data), options.train_pairs)
    count = len(data.split("train"))
    settings = TrainingSettings(epochs=options.epochs, precision=options.precision)
    done = {(row["case"], row["trained_on"], row["layer"], row["seed"]) for row in finished()}
    for model in options.models:
        full = load_encoder(model)
        case = f"{named_model(model)[0]}, {data.name}, {count:,} pairs × {options.epochs} epochs"
        for trained_on, seed, splits in divisions(data, options.seeds):
            for layer in layers_held(full.backbone.config)[1:]:
                if (case, trained_on, str(layer), str(seed)) in done:
                    continue
                found = measure(full, layer, seed, splits, settings)
                row = {"case": case, "trained_on": trained_on, "layer": layer, "seed": seed} | found
                new = not TRIALS.exists()
                with TRIALS.open("a", newline="", encoding="utf-8") as handle:
                    table = csv.DictWriter(handle, fieldnames=COLUMNS, lineterminator="\n")
                    if new:
                        table.writeheader()
                    table.writerow(row)
                print(f"{time.strftime('%H:%M:%S')} {row}", flush=True)


def by_layer(rows: Sequence[dict[str, str]], column: str) -> Scores:
    """The mean of a column for each layer."""
    layers = sorted({int(row["layer"]) for row in rows})
    return {layer: fmean(float(row[column]) for row in rows if int(row["layer"]) == layer) for layer in layers}


def ways(rows: Sequence[dict[str, str]]) -> dict[str, Scores]:
    """What each way of picking goes by: scores by layer, from the trials of one case."""
    whole = [row for row in rows if row["trained_on"] == "train"]
    dev = by_layer(whole, "dev")
    found = {"dev": dev}
    for name, column in (("dev half: rare words", "rare_words"), ("dev half: few shared words", "few_shared_words")):
        found[name] = by_layer(whole, column)
    for kind, way in (("blocks", "folds, row after row"), ("random", "folds, by chance")):
        folds = [row for row in rows if row["trained_on"].startswith(kind)]
        if {row["trained_on"] for row in folds} == {f"{kind}{fold}" for fold in range(FOLDS)}:
            scores = by_layer(folds, "dev")
            if scores.keys() == dev.keys():
                found[way] = scores
                found[f"dev and {way}"] = {layer: (dev[layer] + scores[layer]) / 2 for layer in dev}
    return found


def show() -> None:
    """Two Markdown tables: what the best score of each way loses on test, and how it orders the layers."""
    rows = finished()
    cases = list(dict.fromkeys(row["case"] for row in rows))
    regrets: dict[str, dict[str, float]] = {}
    orders: dict[str, dict[str, float]] = {}
    for case in cases:
        mine = [row for row in rows if row["case"] == case]
        test = by_layer([row for row in mine if row["trained_on"] == "train"], "test")
        found = ways(mine)
        taken = {way: Picker("best-dev").pick(scores) for way, scores in found.items()}
        for way, layer in {
            **taken,
            "dev, `depth-bonus`": Picker("depth-bonus").pick(found["dev"]),
            "last": max(test),
        }.items():
            regrets.setdefault(way, {})[case] = max(test.values()) - test[layer]
        for way, scores in found.items():
            alike = correlate([scores[layer] for layer in test], list(test.values()))
            orders.setdefault(way, {})[case] = alike.spearman / 100
    table(regrets, cases, "worst", max)
    table(orders, cases, "worst", min)


def table(
    found: Mapping[str, Mapping[str, float]], cases: Sequence[str], last: str, of: Callable[[list[float]], float]
) -> None:
    """A row for each way, a column for each case, then the mean and one figure more."""
    rows = []
    for way, by_case in found.items():
        cells = [f"{by_case[case]:.2f}" if case in by_case else "–" for case in cases]
        values = list(by_case.values())
        rows.append([way, *cells, f"{fmean(values):.2f}", f"{of(values):.2f}"])
    print_table(["", *cases, "mean", last], rows)


PARSER = new_parser(__doc__)
PARSER.add_argument("--data", help="folder with train, dev and test pairs")
PARSER.add_argument("--models", nargs="+", default=[])
PARSER.add_argument("--train-pairs", type=int, default=1000)
PARSER.add_argument("--epochs", type=int, default=3)
PARSER.add_argument("--seeds", type=int, default=2, help="with all of train; each fold has one")
PARSER.add_argument("--precision", default="bf16")
PARSER.add_argument("--table", action="store_true")


def main(arguments: Sequence[str] | None = None) -> None:
    """Train what is missing, or show the table."""
    options = PARSER.parse_args(arguments)
    if options.models:
        run(options)
    show()


if __name__ == "__main__":
    main()
