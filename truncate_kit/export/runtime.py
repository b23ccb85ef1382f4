"""Run an exported encoder in ONNX Runtime or OpenVINO."""

import contextlib
import shutil
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from truncate_kit.core.errors import (
    ModelError,
    UsageError,
    known_name,
    require,
)
from truncate_kit.core.files import digest_of, local_path, replacing
from truncate_kit.core.hardware import (
    GRAPH_RUNTIMES,
    GRAPH_SUFFIXES,
    RUNTIMES,
    check_precision,
    check_threads,
    in_halves,
    runtime_of,
    select_device,
    usable_cores,
)
from truncate_kit.core.progress import Send
from truncate_kit.core.results import COUNT, check_number
from truncate_kit.core.vectors import Rows, VectorFormat, paired_rows
from truncate_kit.core.workspace import folder_of
from truncate_kit.export.record import ExportReport, check_bits, check_runnable, find_graph
from truncate_kit.export.sessions import (
    EXPORT_HINT,
    INPUTS,
    OUTPUT,
    Feeds,
    OpenVinoSession,
    Vectors,
    cuda_providers,
    open_openvino,
    open_session,
    running,
)
from truncate_kit.models.encoder import (
    Encoder,
    LayerHeads,
    Row,
    SentenceEncoder,
    Slice,
    TextReader,
    length_batches,
    padded,
)
from truncate_kit.models.loading import load_encoder, load_reader, state_of
from truncate_kit.models.pipeline import Normalize, read_layer_heads, read_modules
from truncate_kit.models.store import reader_parts, sha256_of

# Tokens per batch: to fit the cache of one core (benchmarks/encoding), or to fill a GPU.
_BATCH_TOKENS = {"cpu": 256, "cuda": 16_384}
_WAITING = 16  # batches per thread, while the next slice is tokenized


# Shapes of batches


def bucket(batch: int, length: int, longest: int | None = None) -> tuple[int, int]:
    """Round batch size and length up to powers of two, the length to at least 8 and at most `longest`."""
    width = max(8, 1 << (length - 1).bit_length())
    return 1 << (batch - 1).bit_length(), width if longest is None else max(length, min(width, longest))


def stepped(length: int, longest: int | None) -> int:
    """Round a length up by at most an eighth (56 lengths up to 512), if `longest` is known."""
    if longest is None:
        return length
    step = 1 << max(0, length.bit_length() - 4)
    return max(length, min(-(-length // step) * step, longest))


# Buffers on a device


def _on_device(array: NDArray[Any], device: torch.device) -> Any:
    return require("onnxruntime", extra="cpu").OrtValue.ortvalue_from_numpy(array, device.type, device.index or 0)


def _bound(session: Any, feeds: Feeds, device: torch.device) -> tuple[Any, dict[str, Any]]:
    binding, inputs = session.io_binding(), {name: _on_device(ids, device) for name, ids in feeds.items()}
    for name, value in inputs.items():
        binding.bind_ortvalue_input(name, value)
    return binding, inputs


# Encoders


def graph_files(graph: Path) -> list[Path]:
    """Return the graph file and its weight files."""
    if runtime_of(graph) == "openvino":
        return [graph, graph.with_suffix(".bin")]
    return [graph, *sorted(graph.parent.glob(f"{graph.name}*.data"))]


def bytes_of_rows(graph: Path, rows: int) -> int:
    """Return the bytes per word: of one row of each weight with `rows` rows."""
    import onnx_ir as ir

    weights = (value.const_value for value in ir.load(graph).graph.initializers.values())
    return sum(weight.nbytes // rows for weight in weights if weight is not None and weight.shape[0:1] == (rows,))


class GraphEncoder(SentenceEncoder):
    """An exported graph. Many batches run on one CPU core each; few use all cores.

    Args:
        reader: The tokenizer; needed to encode texts.
        threads: CPU cores, by default all.
        device: `cpu` (by default) or `cuda[:i]`.
        batch_tokens: Maximum tokens per batch.
        heads: Score pairs, instead of the cosine.
        precision: As exported, by default by `report`.
        most_texts: Maximum texts per batch.
    """

    runtime: str  # for reports
    few_shapes = False
    _buckets = False

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
        precision: str | None = None,
        most_texts: int | None = None,
    ) -> None:
        self.precision = precision or ("fp32" if report is None else report.precision)
        self.file, self.reader, self.report, self.heads = file, reader, report, heads
        self._place = file.absolute()  # the working folder may change
        self.home: Any = None  # of an unpickled graph, removed with it
        self.device = select_device(device)
        self.threads = check_threads(threads) or usable_cores()
        self.batch_tokens = check_number("batch_tokens", batch_tokens, COUNT) or _BATCH_TOKENS[self.device.type]
        self._most_texts = most_texts
        self._state = state_of(folder_of(self._place), graph_files(self._place))
        self._opening = threading.Lock()
        self._session = self._opened(self.threads)
        self._one_core: Any = None
        shape = self._output_shape()
        if len(shape) != 2 or isinstance(shape[0], int) or not isinstance(shape[1], int):
            shown = " × ".join(map(str, shape))
            raise ModelError(
                f"{file} gives {shown} numbers, not any number of texts × a known width.", hint=EXPORT_HINT
            )
        self.width = shape[1]
        self._longest = None if reader is None else reader.max_length

    @classmethod
    def load(cls, path: str | Path, *, precision: str | None = None, device: str | None = None, **options: Any) -> Self:
        """Load a graph with the tokenizer in its folder.

        path: A folder, or an .onnx or .xml file.
        precision: `fp32`, `bf16`, `fp16` or `int8` in a folder; by default the best for the device.
        device, options: See the class, such as `threads` and `batch_tokens`.

        Raises:
            ModelError: The graph is missing, or export.json does not match.
            DeviceError: The device is inactive, or cannot run the graph.
            UsageError: `precision` with a single file.
            MissingExtraError: The runtime is missing.
        """
        path, where = local_path(path), select_device(device).type
        if precision is not None and path.is_file():
            raise UsageError(
                f"{path} is a single graph, so its precision is fixed.",
                hint="Leave out `precision`, or give the folder to choose a graph.",
            )
        ours = path.suffix in GRAPH_SUFFIXES and runtime_of(path) == cls.runtime and not path.is_dir()
        file = path if ours else find_graph(path, precision, where, cls.runtime)
        if not file.is_file():
            raise ModelError(f"There is no exported graph {file}.", hint=EXPORT_HINT)
        folder = folder_of(file)
        report, reader = check_runnable(file, where, precision), load_reader(folder)
        places = [place for kind, place in read_modules(folder) if kind == "LayerHeads"]
        heads = read_layer_heads(places[0]) if places else None
        return cls(file, reader, device=device, report=report, heads=heads, **options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.file)!r}: {self.width} numbers)"

    def check_unreplaced(self) -> None:
        """Raise `ModelError` if the graph's files were replaced since loading."""
        if state_of(folder_of(self._place), graph_files(self._place)) != self._state:
            hint = "Wait until no other process writes to this folder, then run again."
            raise ModelError(f"{folder_of(self._place)} was changed while it was read.", hint=hint)

    def digest(self) -> str:
        """Return the SHA-256 of graph and tokenizer. Raises as `check_unreplaced`."""
        self.check_unreplaced()
        reading = () if self.reader is None else reader_parts(self.reader)
        return sha256_of((*map(digest_of, graph_files(self._place)), *reading))

    def _opened(self, threads: int) -> Any:
        """Open a session on this many cores."""
        raise NotImplementedError

    def _output_shape(self) -> Sequence[Any]:
        raise NotImplementedError

    def _computed(self, session: Any, feeds: Feeds) -> Vectors:
        vectors: Vectors = session.run([OUTPUT], feeds)[0]
        return vectors

    def _on_one_core(self) -> Any:
        """Return a session on one core, unless the files were replaced."""
        with self._opening, contextlib.suppress(ModelError):
            if self._one_core is None:
                session = self._opened(1)
                self.check_unreplaced()
                self._one_core = session
        return self._one_core

    def vectors(self, texts: Sequence[str], **options: Any) -> Tensor:
        """Return vectors (n, out) as a tensor on the CPU."""
        if self.reader is None:
            raise ModelError(f"{self.file} has no tokenizer in its folder.", hint="Export a model with a tokenizer.")
        return super().vectors(texts, **options)

    def save_pretrained(self, folder: str | Path) -> None:
        """Copy the graph's folder, with the model in it."""
        self.check_unreplaced()
        with replacing(local_path(folder)) as place:
            shutil.copytree(folder_of(self._place), place)

    def _move(self, device: str) -> None:
        if select_device(device) != self.device:
            hint = f"Load the graph with `device={device!r}`."
            raise UsageError(f"{self.file} is loaded on {self.device}, not on {device}.", hint=hint)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the graph as its files, which are read again on the same device."""
        self.check_unreplaced()
        files = {file.name: file.read_bytes() for file in graph_files(self._place)}
        options = {"report": self.report, "heads": self.heads, "batch_tokens": self.batch_tokens}
        return _unpickled, (self._place.name, files, self.reader, options | {"threads": self.threads}, str(self.device))

    def encode_slices(self, slices: Iterable[Slice], count: int, *, batch_size: int | None = None) -> Tensor:
        """Return vectors (count, out) of token ids."""
        vectors: Vectors = np.empty((count, self.width), np.float32)
        batches = self.batches(slices, batch_size)
        first = list(islice(batches, 2 * self.threads))  # as many or more batches run on one core each
        many = not self._buckets and self.device.type == "cpu" and len(first) == 2 * self.threads > 2
        one_core = self._on_one_core() if many else None

        def compute(batch: Sequence[Row]) -> None:
            places, rows = map(list, zip(*batch, strict=True))
            size, length = self._shape(len(rows), max(1, *map(len, rows)))
            rows += [rows[0][:1]] * (size - len(rows))  # fill up by texts of one token
            vectors[places] = self.run(self._padded(rows, length), one_core)[: len(places)]

        def finish(batch: Sequence[Row]) -> None:
            list(in_halves(compute, batch))

        if one_core is None:
            for batch in chain(first, batches):
                finish(batch)
            return torch.from_numpy(vectors)
        with ThreadPoolExecutor(self.threads) as pool:
            waiting: deque[Future[None]] = deque()
            for batch in chain(first, batches):
                waiting.append(pool.submit(finish, batch))
                if len(waiting) > _WAITING * self.threads:  # bounds memory
                    waiting.popleft().result()
            for future in waiting:
                future.result()
        return torch.from_numpy(vectors)

    def batches(self, slices: Iterable[Slice], batch_size: int | None = None) -> Iterator[list[Row]]:
        """Yield each slice's batches of at most `batch_tokens` tokens."""
        for places, ids in slices:
            lengths = [stepped(len(row), self._longest) if self.few_shapes else len(row) for row in ids]
            for batch in length_batches(lengths, batch_size or self._most_texts or len(ids), self.batch_tokens):
                yield [(places[index], ids[index]) for index in batch]

    def _padded(self, rows: Sequence[Sequence[int]], length: int | None = None) -> Feeds:
        return padded(rows, 0 if self.reader is None else self.reader.padding_id, length)

    def _shape(self, batch: int, length: int) -> tuple[int, int]:
        if self._buckets:
            return bucket(batch, length, self._longest)
        if not self.few_shapes:
            return batch, length
        length = stepped(length, self._longest)
        return max(batch, min(1 << (batch - 1).bit_length(), self.batch_tokens // length)), length

    @torch.no_grad()
    def similarities(self, first: Rows, second: Rows) -> Tensor:
        """Return scores (n,) of vector pairs (n, out), by heads or cosine."""
        first, second = paired_rows(first, second)
        if self.heads is not None:
            return self.heads.similarities(first, second)
        return torch.nn.functional.cosine_similarity(first, second)

    def run(self, feeds: Feeds, session: Any = None) -> Vectors:
        """Return vectors (b, out) of one batch of inputs."""
        with running(runtime=GRAPH_RUNTIMES[self.runtime].title):
            vectors = self._computed(session or self._session, feeds)
        if vectors.shape != (wanted := (len(feeds[INPUTS[0]]), self.width)):
            raise ModelError(f"{self.file} gave vectors of shape {vectors.shape}, not {wanted}.", hint=EXPORT_HINT)
        return vectors

    def prepare(self, ids: Sequence[Sequence[int]]) -> Callable[[], None]:
        """Return a function that runs this batch; not thread-safe."""
        raise NotImplementedError


class OnnxEncoder(GraphEncoder):
    """A `GraphEncoder` in ONNX Runtime.

    buckets: Round batch shapes by `bucket` and record CUDA graphs: faster for single texts.
    on_cuda: See `cuda_providers`.
    """

    runtime = "onnx"

    def __init__(
        self,
        file: Path,
        reader: TextReader | None,
        *,
        device: str | None = None,
        buckets: bool = False,
        on_cuda: Sequence[Any] | None = None,
        **others: Any,
    ) -> None:
        place = select_device(device)
        # On Hopper, cuDNN needs 60 ms or more to plan each new shape (benchmarks/gpu).
        self.few_shapes = place.type == "cuda"
        on_cuda = on_cuda or cuda_providers(place.index, captured=buckets)
        self._on_cuda = on_cuda if place.type == "cuda" else ()
        self._buckets, self._turn = buckets, threading.Lock()  # threads would overwrite each other's inputs
        self._held: dict[tuple[int, int], tuple[dict[str, Any], Any, Any, Any]] = {}
        super().__init__(file, reader, device=device, **others)

    def _opened(self, threads: int) -> Any:
        return open_session(self._place, threads=threads, on_cuda=self._on_cuda)

    def _output_shape(self) -> Sequence[Any]:
        return next(value.shape for value in self._session.get_outputs() if value.name == OUTPUT)

    def _computed(self, session: Any, feeds: Feeds) -> Vectors:
        if self._buckets:
            with self._turn:
                output, binding, options = self._filled(feeds)
                self._session.run_with_iobinding(binding, options)
                fixed: Vectors = output.numpy().copy()  # on the CPU, numpy() returns a view of the buffer
            return fixed
        if self.device.type == "cpu":  # 0.1 ms faster than a binding
            return super()._computed(session, feeds)
        binding, _ = _bound(session, feeds, self.device)
        binding.bind_output(OUTPUT, self.device.type, self.device.index or 0)
        session.run_with_iobinding(binding)
        vectors: Vectors = binding.get_outputs()[0].numpy()
        return vectors

    def prepare(self, ids: Sequence[Sequence[int]]) -> Callable[[], None]:
        """Return a function that runs this batch from fixed buffers; not thread-safe."""
        _, binding, options = self._filled(self._padded(ids))

        def call() -> None:
            self._session.run_with_iobinding(binding, options)
            binding.synchronize_outputs()

        return call

    def _filled(self, feeds: Feeds) -> tuple[Any, Any, Any]:
        """Fill this shape's buffers, which CUDA records as a graph; return output, binding and run options."""
        batch, length = next(iter(feeds.values())).shape
        if (batch, length) not in self._held:
            options = require("onnxruntime", extra="cpu").RunOptions()
            # Copied: on the CPU, buffers share memory with numpy.
            binding, inputs = _bound(self._session, {name: ids.copy() for name, ids in feeds.items()}, self.device)
            output = _on_device(np.zeros((batch, self.width), np.float32), self.device)
            binding.bind_ortvalue_output(OUTPUT, output)
            options.add_run_config_entry("gpu_graph_id", str(len(self._held) + 1))
            self._held[batch, length] = inputs, output, binding, options
        inputs, output, binding, options = self._held[batch, length]
        for name, value in feeds.items():
            inputs[name].update_inplace(value)
        return output, binding, options


class OpenVinoEncoder(GraphEncoder):
    """An exported graph in OpenVINO, on the CPU."""

    runtime = "openvino"

    def _opened(self, threads: int) -> OpenVinoSession:
        check_precision(self.precision, self.device)
        work = {"threads": self.threads, "streams": self.threads // threads}
        return open_openvino(self._place, precision=self.precision, outputs=[OUTPUT], **work)

    def _output_shape(self) -> Sequence[Any]:
        shape = self._session.compiled.output(OUTPUT).partial_shape
        return [size.get_length() if size.is_static else str(size) for size in shape]

    def prepare(self, ids: Sequence[Sequence[int]]) -> Callable[[], None]:
        """Return a function that runs this batch; not thread-safe."""
        request, feeds = self._session.compiled.create_infer_request(), self._padded(ids)
        return lambda: request.infer(feeds, share_inputs=True)


ENCODERS: dict[str, type[GraphEncoder]] = {"onnx": OnnxEncoder, "openvino": OpenVinoEncoder}


def load_text_encoder(
    name: str | Path,
    *,
    runtime: str | None = None,
    pooling: str | None = None,
    max_length: int | None = None,
    precision: str | None = None,
    threads: int | None = None,
    device: str | None = None,
) -> Encoder | GraphEncoder:
    """Load a model in torch (see `load_encoder`) or a graph (see `GraphEncoder.load`).

    The default runtime is that of an .onnx or .xml file, else the first with a given precision, else `torch`. Raises
    `UsageError` if parameters conflict.
    """
    graph = Path(name).suffix in GRAPH_SUFFIXES
    holding = (
        "torch"
        if precision is None
        else next((one for one, row in GRAPH_RUNTIMES.items() if precision in row.files), "onnx")
    )
    chosen = runtime or (runtime_of(name) if graph else holding)
    if known_name("runtime", chosen, RUNTIMES) == "torch":
        if precision is not None:
            raise UsageError("`precision` is of graphs; torch runs none.", hint='Use `runtime="onnx"` or "openvino".')
        return load_encoder(name, pooling=pooling, max_length=max_length, device=device)
    if pooling is not None or max_length is not None:
        raise UsageError("The pooling and length of a graph are fixed.", hint="Leave out `pooling` and `max_length`.")
    return ENCODERS[chosen].load(name, precision=precision, threads=threads, device=device)


def gives_unit_vectors(encoder: Encoder | GraphEncoder) -> bool:
    """Return whether vectors are scaled to length 1 at the end."""
    if isinstance(encoder, GraphEncoder):
        return encoder.report is not None and encoder.report.normalized
    return bool(len(encoder.tail)) and isinstance(encoder.tail[-1], Normalize)


def _unpickled(
    name: str, files: Mapping[str, bytes], reader: TextReader | None, options: Mapping[str, Any], device: str
) -> GraphEncoder:
    if options["report"] is not None:
        check_bits(options["report"])
    home = tempfile.TemporaryDirectory(prefix="truncate-kit-")
    for place, content in files.items():
        Path(home.name, place).write_bytes(content)
    encoder = ENCODERS[runtime_of(name)](Path(home.name, name), reader, device=device, **options)
    encoder.home = home
    return encoder


Chunk = tuple[int, list[Any]]
"""Index of the first text, and texts that are encoded together."""


class EncodingWork:
    """Encoding as work for an engine; a graph is pickled as its files."""

    def __init__(self, encoder: Encoder | GraphEncoder, form: VectorFormat) -> None:
        self._encoder: Any = encoder  # a pickled graph is a tuple of files and metadata
        self._form = form

    def move(self, device: str) -> None:
        """Put the model, or a pickled graph, on the device."""
        if isinstance(self._encoder, tuple):
            name, files, reader, options, _ = self._encoder
            options |= {"threads": torch.get_num_threads(), "batch_tokens": None}
            self._encoder = _unpickled(name, files, reader, options, device)
        elif isinstance(self._encoder, Encoder):
            self._encoder.to(device)

    def perform(self, chunk: Chunk, send: Send) -> tuple[bytes, int]:
        """Return the stored rows of a chunk, and the number of truncated texts."""
        _, texts = chunk
        rows, reader = self._form.store(self._encoder.vectors(texts)).tobytes(), self._encoder.reader
        return rows, 0 if reader is None else reader.num_cut(texts)

    def __getstate__(self) -> dict[str, Any]:
        encoder = self._encoder
        packed = encoder.__reduce__()[1] if isinstance(encoder, GraphEncoder) else encoder
        return {"_encoder": packed, "_form": self._form}
