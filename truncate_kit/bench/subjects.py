"""The two models that are compared: where they are, and where their graphs are."""

import time
from functools import cached_property
from pathlib import Path

from truncate_kit.bench.backends import Backend
from truncate_kit.bench.bench_report import BenchedModel, Role
from truncate_kit.bench.running import AbsentError
from truncate_kit.bench.yardstick import blocks_kept, was_trained
from truncate_kit.errors import MissingExtraError, ModelError, TruncateKitError
from truncate_kit.export.exporting import export_graph
from truncate_kit.export.graph_files import GRAPH_FILE, save_graph
from truncate_kit.export.record import check_record, export_call, graph_sentence, is_graph_of, read_exports
from truncate_kit.export.tracing import build_graph
from truncate_kit.file_digests import digest_of
from truncate_kit.models import Encoder, encoder_digest, keep, load_encoder, resolve, save_encoder
from truncate_kit.precisions import GRAPH_FILES, Precision, Target


class Subject:
    """One of the two models, from its folder or in memory; nothing is written into its own folder.

    scratch: folder for what is made only for this bench. graphs: folder in which an exported graph is kept under the
    digest of its model; None keeps none, and neither are those of random weights. blocks: those that are kept of the
    source; None for all. target: what graphs are made for.
    """

    def __init__(
        self,
        role: Role,
        source: Path | Encoder,
        scratch: Path,
        graphs: Path | None = None,
        blocks: tuple[int, ...] | None = None,
        target: Target = "cpu",
    ) -> None:
        self.role, self.target = role, target
        self.blocks = blocks
        self.folder = None if isinstance(source, Encoder) else resolve(source)
        self.fine_tuned = None if self.folder is None else was_trained(self.folder)  # unknown of one in memory
        self.encoder = source if isinstance(source, Encoder) else load_encoder(source)
        if blocks is not None:  # what else the folder holds is not of these blocks
            self.folder, self.encoder = None, keep(self.encoder, blocks)
        self.scratch = scratch / role
        self.notes: list[str] = []
        self._kept = None if self.encoder.tokenizer is None else graphs
        self._graphs: dict[str, Path | AbsentError] = {}

    @cached_property
    def _digest(self) -> str:
        return encoder_digest(self.encoder)

    def facts(self) -> BenchedModel:
        """What the report says about this model."""
        weights = list(self.folder.rglob("*.safetensors")) if self.folder else []
        main = self.folder and self.folder / "model.safetensors"
        return BenchedModel(
            role=self.role,
            name=self.encoder.name,
            layer=self.encoder.depth,
            width=self.encoder.width,
            parameters=self.encoder.num_parameters,
            max_length=self.encoder.max_length,
            weights_bytes=sum(file.stat().st_size for file in weights) or None,
            fine_tuned=self.fine_tuned,
            blocks=self.blocks or (None if self.folder is None else blocks_kept(self.folder)),
            weights_sha256=digest_of(main) if main and main.is_file() else None,
        )

    def graph(self, backend: Backend) -> Path:
        """The ONNX graph that a backend runs; one in fp32 is exported where the model's folder has none.

        Raises `AbsentError`, and `ModelError` where the folder's export.json is damaged or describes another model.
        """
        name = "plain" if backend.tensorrt else backend.precision
        if name not in self._graphs:
            try:
                self._graphs[name] = self._trace() if backend.tensorrt else self._find_or_export(backend.precision)
            except AbsentError as error:
                self._graphs[name] = error
        found = self._graphs[name]
        if isinstance(found, AbsentError):
            raise found
        return found

    def _trace(self) -> Path:
        """The float32 graph as traced, without ONNX Runtime's own operators, for other runtimes."""
        folder = self.scratch / "plain"
        folder.mkdir(parents=True)
        try:
            save_graph(build_graph(self.encoder, fused=False), folder / GRAPH_FILE)
        except TruncateKitError as error:
            raise AbsentError(f"not traced: {str(error).rstrip('.')}") from error
        return folder / GRAPH_FILE

    def _find_or_export(self, precision: Precision) -> Path:
        if self.folder is not None:
            read_exports(self.folder)  # raises where it is damaged: that is no trait of this machine
            graph = self.folder / GRAPH_FILES[precision]
            if graph.is_file():
                report = check_record(graph)
                if report is not None and report.encoder != self._digest:
                    raise ModelError(
                        f"{graph} was made from another model than the one beside it.",
                        hint="Export the model again with `export_onnx()`.",
                    )
                if report is not None and report.target != self.target:
                    self.notes.append(f"The {self.role} model: {graph_sentence(graph, report, self.target)}")
                return graph
        if precision != "fp32":
            name = GRAPH_FILES[precision]
            where = "" if self.folder is None or self.role == "lean" else f" in {self.folder}"
            raise AbsentError(f"no {name}{where}: make it with {export_call(precision)}")
        return self._export()

    def _export(self) -> Path:
        """The graph that was kept under the digest of this model, else a new one."""
        name = self._digest[:16] + ("" if self.target == "cpu" else f"-{self.target}")
        folder = (self._kept or self.scratch) / name
        graph, begin = folder / GRAPH_FILE, time.perf_counter()
        if is_graph_of(graph, self._digest):  # else it is made again
            return graph
        try:
            export_graph(self.encoder, folder, self.target)
        except MissingExtraError as error:
            raise AbsentError(f"{error} {error.hint}") from error
        except TruncateKitError as error:
            raise AbsentError(f"not exported: {error}") from error
        if self._kept is not None:
            seconds = time.perf_counter() - begin
            self.notes.append(
                f"The {self.role} model has no {graph.name}: one was exported to {graph} in {seconds:.0f} s."
            )
        return graph

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
