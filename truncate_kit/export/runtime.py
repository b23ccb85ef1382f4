"""An exported encoder in ONNX Runtime: texts in, sentence vectors out."""

import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from truncate_kit.bounds import BATCH, check_number
from truncate_kit.errors import ModelError, UsageError, known_name
from truncate_kit.export.export_report import ExportReport
from truncate_kit.export.graph_files import OUTPUT, graph_files
from truncate_kit.export.record import check_runnable, find_graph
from truncate_kit.export.sessions import CudaOptions, FixedShapes, open_session, run_bound
from truncate_kit.export.shapes import bucket, filled, stepped, token_batches
from truncate_kit.files import local_path
from truncate_kit.hardware import check_threads, in_halves, select_device, usable_cores
from truncate_kit.models import Encoder, LayerHeads, load_encoder
from truncate_kit.models.digest import Digest
from truncate_kit.models.loading import load_reader
from truncate_kit.models.model_folder import check_unreplaced, state_of
from truncate_kit.models.pipeline import read_pipeline
from truncate_kit.models.tokenizer import TextReader, padded
from truncate_kit.text_lists import listed_texts
from truncate_kit.vectors import Rows, paired_rows

RUNTIMES = ("torch", "onnx")
Vectors = NDArray[np.float32]
# Tokens per batch. On the CPU the states of a batch have to stay in the cache of one core (benchmarks/encoding);
# on a GPU a batch has to be large enough to fill it.
CPU_BATCH_TOKENS = 256
CUDA_BATCH_TOKENS = 16_384


class OnnxEncoder:
    """The graph of one encoder. Many texts run as batches side by side, one core each; few use all cores per call.

    Args:
        file: the graph.
        reader: None for a graph without a tokenizer; it then takes ids only.
        threads: CPU cores in all; None takes those that this process may use.
        device: `cpu` or `cuda[:i]`; None is the CPU.
        batch_tokens: most tokens of a batch; None suits the device.
        report: on the graph, None where nothing is known of it.
        heads: what scores its vectors, None for their cosine.
        buckets: bring every batch into one of a few shapes (`bucket`), and on CUDA record each as a CUDA graph: for
            small batches and single texts, where starting the kernels takes longer than running them; threads take
            turns.
        cuda_options: None for what `buckets` needs.
    """

    def __init__(
        self,
        file: Path,
        reader: TextReader | None,
        *,
        threads: int | None = None,
        device: str | None = None,
        batch_tokens: int | None = None,
        report: ExportReport | None = None,
        heads: LayerHeads | None = None,
        buckets: bool = False,
        cuda_options: CudaOptions | None = None,
    ) -> None:
        self.file = file
        self._place = file.absolute()  # it is read again, wherever the process has gone by then
        self.reader = reader
        self.report = report
        self.heads = heads
        self.device = select_device(device)
        self.threads = check_threads(threads) or usable_cores()
        usual = CUDA_BATCH_TOKENS if self.device.type == "cuda" else CPU_BATCH_TOKENS
        self.batch_tokens = check_number("batch_tokens", batch_tokens, BATCH) or usual
        # cuDNN, whose attention runs on Hopper, plans 60 ms and more for each new shape (benchmarks/gpu).
        self.few_shapes = self.device.type == "cuda"
        self._cuda_options = cuda_options or CudaOptions(captured=buckets)
        self._state = state_of(self._place.parent, graph_files(self._place))
        self._opening = threading.Lock()
        self._session = self._opened(self.file, self.threads)
        self._one_core: Any = None
        outputs = self._session.get_outputs()
        self.width = next(int(value.shape[-1]) for value in outputs if value.name == OUTPUT)
        noted = None if report is None else report.max_length
        self._longest = noted if reader is None else reader.max_length
        self._fixed = FixedShapes(self._session, self.device, self.width) if buckets else None

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        precision: str | None = None,
        threads: int | None = None,
        device: str | None = None,
        batch_tokens: int | None = None,
        buckets: bool = False,
    ) -> Self:
        """Load a graph of a folder, or an .onnx file, with the tokenizer beside it.

        Args:
            path: A folder with a graph, or an .onnx file.
            precision: `fp32`, `fp16` or `int8`; None suits the device, see `find_graph`.
            threads: As of the class.
            device: As of the class.
            batch_tokens: As of the class.
            buckets: As of the class.

        Raises:
            ModelError: No graph is there, or export.json was changed or describes another graph.
            DeviceError: The device is not active, or the graph is not made for it.
            UsageError: A precision is given for one file.
            MissingExtraError: ONNX Runtime is not installed.
        """
        path, where = local_path(path), select_device(device).type
        if precision is not None and path.is_file():
            raise UsageError(f"{path} is one graph.", hint="Name its folder to choose one by precision.")
        file = find_graph(path, precision, where) if path.is_dir() else path
        if not file.is_file():
            raise ModelError(
                f"There is no exported graph {file}.",
                hint="Make one with `export_onnx()`, and name the folder that it writes.",
            )
        if not (file.parent / "config.json").is_file():
            raise ModelError(
                f"There is no config.json beside {file}.",
                hint="Leave the graph in the folder that export wrote: its tokenizer and configuration are there.",
            )
        report = check_runnable(file, where)
        return cls(
            file,
            load_reader(file.parent),
            threads=threads,
            device=device,
            batch_tokens=batch_tokens,
            report=report,
            heads=read_pipeline(file.parent).heads,
            buckets=buckets,
        )

    def check_unreplaced(self) -> None:
        """Raise `ModelError` where the files that it was loaded from are no longer those: they are another model's."""
        check_unreplaced(self._place.parent, self._state, graph_files(self._place))

    def digest(self) -> str:
        """SHA-256 over all that its vectors depend on: the graph with its weights, and how texts become ids.

        Raises `ModelError` where the graph was replaced since it was loaded.
        """
        digest = Digest()
        self.check_unreplaced()
        for file in graph_files(self._place):
            digest.add_file(file)
        self.check_unreplaced()
        if self.reader is not None:
            digest.add_reader(self.reader)
        return digest.hexdigest()

    def _opened(self, file: Path, threads: int) -> Any:
        return open_session(file, device=self.device, threads=threads, cuda_options=self._cuda_options)

    def _on_one_core(self) -> Any:
        """The graph on one core, opened when it is first asked for; None where another model has taken its place."""
        with self._opening:
            if self._one_core is None:
                with contextlib.suppress(ModelError):
                    self.check_unreplaced()
                    session = self._opened(self._place, 1)
                    self.check_unreplaced()
                    self._one_core = session
            return self._one_core

    def encode(self, texts: str | Sequence[str], *, prompt: bool = True) -> Vectors:
        """Sentence vectors (n, out) in float32, in the order of `texts`; repeated texts are computed once.

        `vectors` gives them as a tensor.

        Args:
            texts: A single one gives one vector, (out,).
            prompt: Put the model's default prompt before each text.
        """
        found: Vectors = self.vectors([texts] if isinstance(texts, str) else texts, prompt=prompt).numpy()
        return found[0] if isinstance(texts, str) else found

    def vectors(self, texts: Sequence[str], *, prompt: bool = True) -> Tensor:
        """As `encode`, a tensor on the CPU."""
        if self.reader is None:
            raise ModelError(f"{self.file} has no tokenizer beside it.", hint="Export a model that has one.")
        texts = listed_texts(texts)  # checked by their places here, not among the distinct ones
        distinct = list(dict.fromkeys(texts))
        vectors = self.encode_ids(self.reader.token_ids(distinct, prompt=prompt))
        if len(distinct) == len(texts):
            return vectors
        place = {text: index for index, text in enumerate(distinct)}
        return vectors[torch.tensor([place[text] for text in texts])]

    def encode_ids(self, ids: Sequence[Sequence[int]]) -> Tensor:
        """`vectors` of texts that are already ids, as `token_ids` gives them."""
        vectors: Vectors = np.empty((len(ids), self.width), np.float32)
        lengths = [stepped(len(row), self._longest) if self.few_shapes else len(row) for row in ids]
        batches = list(token_batches(lengths, self.batch_tokens))
        many = self._fixed is None and self.device.type == "cpu" and len(batches) >= 2 * self.threads > 2
        if many and (session := self._on_one_core()) is not None:
            with ThreadPoolExecutor(self.threads) as pool:
                list(pool.map(self._runner(session, ids, vectors), batches))
        else:
            run = self._runner(self._session, ids, vectors)
            for batch in batches:
                run(batch)
        return torch.from_numpy(vectors)

    @torch.no_grad()
    def similarities(self, first: Rows, second: Rows) -> Tensor:
        """How alike the texts of each row are, (n,), from their vectors (n, out): the heads' score, else the cosine.

        Raises `UsageError` where there are not as many of both.
        """
        first, second = paired_rows(first, second)
        if self.heads is not None:
            return self.heads.similarities(first, second)
        return torch.nn.functional.cosine_similarity(first, second)

    def run(self, feeds: dict[str, NDArray[np.int64]]) -> Vectors:
        """Vectors (b, out) of one batch as it is, under the names of the graph's inputs."""
        if self._fixed is not None:
            return self._fixed.run(feeds)
        vectors: Vectors = self._session.run([OUTPUT], feeds)[0]
        return vectors

    def _shape(self, batch: int, length: int) -> tuple[int, int]:
        """The shape that a batch is brought to."""
        if self._fixed is not None:
            return bucket(batch, length, self._longest)
        if not self.few_shapes:
            return batch, length
        length = stepped(length, self._longest)
        return filled(batch, self.batch_tokens // length), length

    def _runner(self, session: Any, ids: Sequence[Sequence[int]], vectors: Vectors) -> Callable[[Sequence[int]], None]:
        padding = self.reader.padding_id if self.reader is not None else 0

        def compute(places: Sequence[int]) -> None:
            rows = [ids[place] for place in places]
            batch, length = self._shape(len(rows), max(1, *map(len, rows)))
            rows += [rows[0][:1]] * (batch - len(rows))  # one token, so that no text is empty
            feeds = padded(rows, padding, length)
            found = run_bound(session, feeds, device=self.device) if self._fixed is None else self._fixed.run(feeds)
            vectors[places] = found[: len(places)]

        def run(places: Sequence[int]) -> None:
            for _ in in_halves(compute, places):
                pass

        return run


def load_text_encoder(
    name: str | Path,
    *,
    runtime: str | None = None,
    pooling: str | None = None,
    max_length: int | None = None,
    precision: str | None = None,
    threads: int | None = None,
    device: str | None = None,
) -> Encoder | OnnxEncoder:
    """A model by folder, hub name, miniature or .onnx file, in torch or in ONNX Runtime.

    Args:
        name: The folder, hub name, miniature or .onnx file.
        runtime: `torch` or `onnx`; None is `onnx` for an .onnx file or where a precision is given, and else `torch`.
        pooling: For torch, as in `load_encoder`.
        max_length: For torch, as in `load_encoder`.
        precision: For a graph, as in `OnnxEncoder.load`.
        threads: For a graph, as in `OnnxEncoder.load`.
        device: As in `load_encoder` and `OnnxEncoder`.

    Raises:
        ModelError: There is no such model or graph, or it is damaged.
        DeviceError: The device is not active, or the graph is not made for it.
        UsageError: Parameters do not go together.
    """
    chosen = runtime or ("onnx" if str(name).endswith(".onnx") or precision is not None else "torch")
    if known_name("runtime", chosen, RUNTIMES) == "torch":
        if precision is not None:
            raise UsageError(
                "A precision chooses among exported graphs; torch runs none.", hint='Use `runtime="onnx"`.'
            )
        return load_encoder(name, pooling=pooling, max_length=max_length, device=device)
    if pooling is not None or max_length is not None:
        raise UsageError("A graph has its pooling and its length inside.", hint="Leave out `pooling` and `max_length`.")
    return OnnxEncoder.load(name, precision=precision, threads=threads, device=device)
