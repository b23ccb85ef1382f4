"""The ways to make a sentence encoder of one pretrained model, as commands of the product, and what they read."""

import json
import subprocess
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.common import COMMAND, timed, write_rows
from benchmarks.layer_attention.rows import training_rows
from truncate_kit.data import find_sts, load_pairs, read_texts
from truncate_kit.evaluation.graded import evaluate
from truncate_kit.methods.distill.result import DistillResult
from truncate_kit.models import load_encoder, save_encoder, truncate
from truncate_kit.origin import RESULT_FILES

RAW_TEXTS = 20_000


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
            typed = [str(argument) for argument in (*arguments, "--workspace", out)]
            print("truncate-kit", *typed, flush=True)
            subprocess.run([*COMMAND, *typed, "--json"], check=True, stdout=subprocess.DEVNULL)
            (out / "done").touch()
        return out

    def trained(self, name: str, model: object, *arguments: object, by: str = "finetune") -> Path:
        """Train `model` on the graded pairs, with the command `by`."""
        budget = ("--seeds", self.seeds, "--epochs", self.epochs, "--data", self.stsb)
        return self.command(name, by, model, *arguments, *budget)

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
        return _fine_tuned(self.trained("tmft", self.base))

    def full(self) -> Made:
        """The same fine-tuning at the last layer."""
        self.tmft()
        return _fine_tuned(self.work / "tmft", "full")

    def tuned_combination(self) -> Made:
        """The same fine-tuning of the combination."""
        return _fine_tuned(self.trained("tuned-combination", self.combination().folder, "--strategy", "last"))

    def distilled(self) -> Made:
        """The fine-tuned full model's vectors, learned on raw text by its best choice of blocks of the same number."""
        teacher = self.full()
        layer = _sweep(self.work / "tmft")["chosen"]
        depth = load_encoder(teacher.folder).depth
        # A model with all blocks is the teacher itself: half of it stands for what distillation does.
        blocks = layer if layer < depth else depth // 2
        out = self.command(
            "distilled",
            *("distill", teacher.folder, "--blocks", blocks, "--texts", self.inputs / "texts.txt"),
            *("--data", self.stsb),
        )
        student = DistillResult.read(out / RESULT_FILES["distill"]).student
        return Made(out / "lean", (teacher.seconds or 0) + student.seconds)

    def layer_attention(self) -> Made:
        """Attention over the layers of the whole model, contrastive training with hard negatives."""
        out = self.trained(
            "layer-attention",
            *(self.base, "--pooling", "layer-attention", "--objective", "hard-negatives"),
            *("--triplets", self.inputs / "triplets.csv"),
            by="contrast",
        )
        return Made(out / "lean", json.loads((out / "contrastive.json").read_text())["seconds"])

    def frozen(self) -> Made:
        """Heads over the frozen states of all blocks, autoencoders first."""
        out = self.command(
            "frozen",
            *("freeze", self.base, "--texts", self.inputs / "texts.txt"),
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


def _sweep(out: Path) -> dict[str, Any]:
    """What `finetune` wrote of its sweep."""
    found: dict[str, Any] = json.loads((out / "sweep.json").read_text())
    return found


def _fine_tuned(out: Path, which: str = "lean") -> Made:
    """The lean or the full model of a sweep; seconds of its full-budget trials, the search apart, mean of the seeds."""
    sweep = _sweep(out)
    layer = sweep["chosen"] if which == "lean" else sweep["full"]["layer"]
    return Made(out / which, fmean(trial["seconds"] for trial in sweep["trials"] if trial["layer"] == layer))


def off_the_shelf(model: Path, work: Path) -> dict[str, Callable[[], Made]]:
    """What people would take instead: the model as it is, and static vectors distilled from it by model2vec."""

    def as_it_is() -> Made:
        save_encoder(load_encoder(model), work / "model")
        return Made(work / "model")

    def static() -> Made:
        from model2vec.distill import distill

        _, seconds = timed(lambda: distill(str(model)).save_pretrained(str(work / "static")))
        return Made(work / "static", seconds, static=True)

    return {"all-MiniLM-L6-v2": as_it_is, "model2vec of all-MiniLM-L6-v2": static}


def prepare(data: Path, folder: Path, *, small: bool) -> Path:
    """What the commands read: graded pairs, triplets, and raw text without a dev or test sentence of any set."""
    folder.mkdir(parents=True, exist_ok=True)
    pairs = load_pairs(data / "stsb/en")
    for split, found in pairs.items():
        kept = found.pairs[:200] if small else found.pairs
        rows = [{"sentence1": pair.first, "sentence2": pair.second, "score": pair.target} for pair in kept]
        write_rows(folder / "stsb" / f"{split}.csv", rows)
    triplets = training_rows(data).rows
    write_rows(folder / "triplets.csv", [asdict(row) for row in (triplets[:100] if small else triplets)])
    held_out = {text for one in find_sts(data) for pair in one.pairs for text in (pair.first, pair.second)}
    unseen = [text for text in read_texts(data / "captions/sentences.en.txt.gz") if text not in held_out]
    count = 200 if small else RAW_TEXTS
    (folder / "texts.txt").write_text("\n".join(unseen[:: len(unseen) // count][:count]) + "\n")
    return folder
