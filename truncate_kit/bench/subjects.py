"""The two models that are compared: where they are, what is known of their training, where their graph is."""

import json
import time
from pathlib import Path

from truncate_kit.bench.backends import AbsentError
from truncate_kit.bench.results import BenchedModel, QualityDifference, Role
from truncate_kit.encoders import Encoder, load_encoder, save_encoder
from truncate_kit.errors import MissingExtraError, TruncateKitError
from truncate_kit.export import GRAPH_FILES, build_graph, export_onnx, read_exports, save_graph


class Subject:
    """One of the two models. scratch: a folder for what is made only for this bench."""

    def __init__(self, role: Role, source: Path | Encoder, scratch: Path) -> None:
        self.role = role
        self.folder = None if isinstance(source, Encoder) else Path(source)
        self.encoder = source if isinstance(source, Encoder) else load_encoder(source)
        self.scratch = scratch / role
        self.notes: list[str] = []
        self._graphs: dict[str, Path | AbsentError] = {}

    @property
    def fine_tuned(self) -> bool | None:
        """False for a plain pretrained transformer, True for a sentence-transformers folder, None when in memory."""
        return None if self.folder is None else (self.folder / "modules.json").is_file()

    def facts(self) -> BenchedModel:
        """What the report says about this model."""
        weights = list(self.folder.rglob("*.safetensors")) if self.folder else []
        return BenchedModel(
            role=self.role,
            name=self.encoder.name,
            layer=self.encoder.depth,
            width=self.encoder.width,
            parameters=self.encoder.num_parameters,
            max_length=self.encoder.max_length,
            weights_bytes=sum(file.stat().st_size for file in weights) or None,
            fine_tuned=self.fine_tuned,
        )

    def graph(self, precision: str = "fp32") -> Path:
        """The ONNX graph in this precision; that in fp32 is exported into the model's own folder where it has none yet.

        precision: `plain` is the float32 graph as traced, without ONNX Runtime's own operators, for other runtimes. A
        model that is only in memory is exported to the scratch folder. Raises `AbsentError` with the reason, and
        `ModelError` where the folder's export.json is damaged.
        """
        if precision not in self._graphs:
            try:
                make = self._trace if precision == "plain" else self._find_or_export
                self._graphs[precision] = make(precision)
            except AbsentError as error:
                self._graphs[precision] = error
        found = self._graphs[precision]
        if isinstance(found, AbsentError):
            raise found
        return found

    def _trace(self, precision: str) -> Path:
        folder = self.scratch / precision
        folder.mkdir(parents=True)
        try:
            save_graph(build_graph(self.encoder, fused=False), folder / GRAPH_FILES["fp32"])
        except TruncateKitError as error:
            raise AbsentError(f"not traced: {error}") from error
        return folder / GRAPH_FILES["fp32"]

    def _find_or_export(self, precision: str) -> Path:
        name = GRAPH_FILES[precision]
        if self.folder is not None and (self.folder / name).is_file():
            return self.folder / name
        if precision != "fp32":
            raise AbsentError(f"no {name}: make it with truncate-kit export MODEL --onnx --precision {precision}")
        target = self.folder or self.scratch / "onnx"
        read_exports(target)  # raises where it is damaged: that is no trait of this machine
        begin = time.perf_counter()
        try:
            export_onnx(self.encoder, target)
        except MissingExtraError as error:
            raise AbsentError(f"{error} {error.hint}") from error
        except TruncateKitError as error:
            raise AbsentError(f"not exported: {error}") from error
        if self.folder is not None:
            self.notes.append(
                f"The {self.role} model had no ONNX graph: exported to {target / name} "
                f"in {time.perf_counter() - begin:.0f} s."
            )
        return target / name

    def for_worker(self) -> Path:
        """What a process of its own loads: the folder, or a configuration where the weights are random anyway."""
        if self.folder is not None:
            return self.folder
        if self.encoder.tokenizer is not None:
            return save_encoder(self.encoder, self.scratch / "saved")
        self.scratch.mkdir(parents=True, exist_ok=True)
        path = self.scratch / "config.json"
        self.encoder.backbone.config.to_json_file(path, use_diff=False)
        return path


def judge_yardstick(lean: Subject, full: Subject) -> tuple[bool, list[str]]:
    """Whether the difference in quality may be stated, and the warnings that belong to it.

    A model that was not fine-tuned is never the yardstick for one that was. Both had the same budget for certain only
    where `finetune` wrote them side by side, with its `sweep.json`.
    """
    if lean.fine_tuned != full.fine_tuned and None not in (lean.fine_tuned, full.fine_tuned):
        raw, tuned = ("lean", "full") if full.fine_tuned else ("full", "lean")
        return False, [
            f"Warning: the {raw} model was not fine-tuned and the {tuned} one was: their scores cannot be compared, "
            "so no difference is stated."
        ]
    if lean.fine_tuned is False:
        return True, ["Warning: neither model was fine-tuned: their scores say little about fine-tuned ones."]
    found = _swept(lean, full)
    if found is None:
        return True, [
            "Warning: nothing says that both models had the same fine-tuning budget; `finetune` makes such a pair."
        ]
    if found != (lean.encoder.depth, full.encoder.depth):
        return True, [
            f"Warning: the yardstick differs: sweep.json tells of layers {found[0]} and {found[1]}, these models end "
            f"at {lean.encoder.depth} and {full.encoder.depth}."
        ]
    return True, []


def _swept(lean: Subject, full: Subject) -> tuple[int, int] | None:
    """Layers of the pair that `finetune` recorded beside the two folders, None where there is no record."""
    if lean.folder is None or full.folder is None or lean.folder.resolve().parent != full.folder.resolve().parent:
        return None
    try:
        record = json.loads((lean.folder.resolve().parent / "sweep.json").read_text(encoding="utf-8"))
        return int(record["chosen"]), int(record["full"]["layer"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def quality_sentence(quality: QualityDifference) -> str:
    """The difference with its interval, and what may be read from it, for the user."""
    verdict = "no difference shown" if quality.low <= 0 <= quality.high else "lean is "
    if verdict == "lean is ":
        verdict += "better" if quality.low > 0 else "worse"
    return (
        f"Spearman lean {quality.lean:.2f}, full {quality.full:.2f}: {quality.difference:+.2f} points "
        f"({quality.level:.0%} interval {quality.low:+.2f} to {quality.high:+.2f}, paired bootstrap over "
        f"{quality.num_pairs:,} pairs, {quality.resamples:,} resamples): {verdict}."
    )
