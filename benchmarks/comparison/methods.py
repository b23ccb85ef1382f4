"""The ways to make a sentence encoder of one pretrained model, as commands of the product, and what they read."""

import csv
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "layer_attention"))
from rows import training_rows

from truncate_kit.data import find_sts, load_pairs, read_texts
from truncate_kit.encoders import load_encoder, save_encoder, truncate
from truncate_kit.training.evaluation import evaluate

RAW_TEXTS = 20_000
CLI = (sys.executable, "-c", "from truncate_kit_cli.app import main; main()")


@dataclass(frozen=True, slots=True)
class Made:
    """A model's folder, and the seconds of training it took."""

    folder: Path
    seconds: float | None = None
    static: bool = False


@dataclass(frozen=True, slots=True)
class Maker:
    """The ways to make an encoder of one base; every method leaves an ordinary model folder under `work`."""

    base: str
    work: Path
    inputs: Path
    epochs: int
    seeds: int

    @property
    def stsb(self) -> Path:
        """Folder of the graded pairs."""
        return self.inputs / "stsb"

    def command(self, name: str, *arguments: object) -> Path:
        """Run a command of the product into a folder of its own, unless it was."""
        out = self.work / name
        if not (out / "done").exists():
            told = [str(argument) for argument in arguments]
            print("truncate-kit", *told, "--out", out, flush=True)
            subprocess.run([*CLI, *told, "--out", str(out), "--json"], check=True, stdout=subprocess.DEVNULL)
            (out / "done").touch()
        return out

    def trained(self, name: str, model: object, *arguments: object) -> Path:
        """Fine-tune `model` on the graded pairs."""
        budget = ("--seeds", self.seeds, "--epochs", self.epochs, "--data", self.stsb)
        return self.command(name, "finetune", model, *arguments, *budget)

    def last(self) -> Made:
        """The base as it is, mean-pooled at its last layer."""
        return Made(self._cut("last", load_encoder(self.base).depth))

    def best(self) -> Made:
        """The single layer with the best dev score, nothing trained."""
        encoder, dev = load_encoder(self.base), load_pairs(self.stsb).split("dev")
        scores = {layer: evaluate(truncate(encoder, layer), dev.pairs).spearman for layer in range(encoder.depth + 1)}
        return Made(self._cut("best", max(scores, key=lambda layer: scores[layer])))

    def _cut(self, name: str, layer: int) -> Path:
        folder = self.work / name
        save_encoder(truncate(load_encoder(self.base), layer), folder)
        return folder

    def combination(self) -> Made:
        """The best mean of layers on dev (BERT-LC), nothing trained."""
        out = self.command("combination", "combine", self.base, "--data", self.stsb, "--split", "dev")
        return Made(out / "combined")

    def tmft(self) -> Made:
        """TMFT at the layer that the search chose."""
        out = self.trained("tmft", self.base)
        told = json.loads((out / "sweep.json").read_text())
        return Made(out / "lean", _own_seconds(told, told["chosen"]))

    def full(self) -> Made:
        """The same fine-tuning at the last layer."""
        self.tmft()
        out = self.work / "tmft"
        told = json.loads((out / "sweep.json").read_text())
        return Made(out / "full", _own_seconds(told, told["full"]["layer"]))

    def tuned_combination(self) -> Made:
        """The same fine-tuning of the combination."""
        out = self.trained("tuned-combination", self.combination().folder, "--strategy", "last")
        told = json.loads((out / "sweep.json").read_text())
        return Made(out / "lean", _own_seconds(told, told["chosen"]))

    def distilled(self) -> Made:
        """The fine-tuned full model's vectors, learned on raw text by its own lower layers."""
        teacher = self.full()
        layer = json.loads((self.work / "tmft" / "sweep.json").read_text())["chosen"]
        depth = load_encoder(teacher.folder).depth
        # A distilled model at the last layer is the teacher itself: half of it stands for what distillation does.
        cut = layer if layer < depth else depth // 2
        out = self.command(
            "distilled",
            *(
                "finetune",
                teacher.folder,
                "--objective",
                "distill",
                "--layer",
                cut,
                "--texts",
                self.inputs / "texts.txt",
            ),
            *("--seeds", self.seeds, "--epochs", self.epochs, "--data", self.stsb),
        )
        told = json.loads((out / "sweep.json").read_text())
        return Made(out / "lean", (teacher.seconds or 0) + _own_seconds(told, cut))

    def layer_attention(self) -> Made:
        """Attention over the layers of the whole model, contrastive training with hard negatives."""
        out = self.trained(
            "layer-attention",
            *(self.base, "--pooling", "layer-attention", "--objective", "hard-negatives"),
            *("--triplets", self.inputs / "triplets.csv"),
        )
        return Made(out / "lean", json.loads((out / "contrastive.json").read_text())["seconds"])

    def frozen(self) -> Made:
        """Heads over the frozen states of all blocks, autoencoders first."""
        out = self.command(
            "frozen",
            *("finetune", self.base, "--method", "frozen", "--texts", self.inputs / "texts.txt"),
            *("--seeds", self.seeds, "--data", self.stsb),
        )
        report = out / "frozen-heads" / "frozen.json"
        return Made(out / "frozen", json.loads(report.read_text())["seconds"])

    def methods(self) -> dict[str, Callable[[], Made]]:
        """The rows of the table, in its order."""
        return {
            "last layer": self.last,
            "best single layer": self.best,
            "combination": self.combination,
            "fine-tuned, last layer": self.full,
            "TMFT": self.tmft,
            "TMFT of the combination": self.tuned_combination,
            "distilled truncation": self.distilled,
            "layer attention": self.layer_attention,
            "frozen heads": self.frozen,
        }


def _own_seconds(sweep: dict[str, object], layer: object) -> float:
    """Seconds of the full-budget trials at one layer, the search apart; mean of the seeds."""
    trials = sweep["trials"]
    assert isinstance(trials, list)
    seconds = [float(trial["seconds"]) for trial in trials if trial["layer"] == layer]
    return sum(seconds) / len(seconds)


def off_the_shelf(model: Path, work: Path) -> dict[str, Callable[[], Made]]:
    """What people would take instead: the model as it is, and static vectors distilled from it by model2vec."""

    def as_it_is() -> Made:
        save_encoder(load_encoder(model), work / "model")
        return Made(work / "model")

    def static() -> Made:
        from model2vec.distill import distill

        start = time.perf_counter()
        distill(str(model)).save_pretrained(str(work / "static"))
        return Made(work / "static", time.perf_counter() - start, static=True)

    return {"all-MiniLM-L6-v2": as_it_is, "model2vec of all-MiniLM-L6-v2": static}


def prepare(data: Path, folder: Path, *, small: bool) -> Path:
    """What the commands read: graded pairs, triplets, and raw text without a dev or test sentence of any set."""
    folder.mkdir(parents=True, exist_ok=True)
    pairs = load_pairs(data / "stsb/en")
    (folder / "stsb").mkdir(exist_ok=True)
    for split, found in pairs.items():
        rows = [(p.first, p.second, p.target) for p in (found.pairs[:200] if small else found.pairs)]
        _write_csv(folder / "stsb" / f"{split}.csv", ("sentence1", "sentence2", "score"), rows)
    triplets = training_rows(data).rows
    _write_csv(
        folder / "triplets.csv",
        ("anchor", "positive", "negative"),
        [(row.anchor, row.positive, row.negative) for row in (triplets[:100] if small else triplets)],
    )
    held_out = {text for one in find_sts(data) for pair in one.pairs for text in (pair.first, pair.second)}
    unseen = [text for text in read_texts(data / "captions/sentences.en.txt.gz") if text not in held_out]
    count = 200 if small else RAW_TEXTS
    (folder / "texts.txt").write_text("\n".join(unseen[:: len(unseen) // count][:count]) + "\n")
    return folder


def _write_csv(path: Path, names: tuple[str, ...], rows: list[tuple[object, ...]]) -> None:
    with path.open("w", newline="") as handle:
        table = csv.writer(handle, lineterminator="\n")
        table.writerow(names)
        table.writerows(rows)
