"""Run an exported encoder in ONNX Runtime: texts in, sentence vectors out."""

import contextlib
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from truncate_kit.core.errors import DeviceError, ModelError, UsageError, first_line, known_name, require
from truncate_kit.core.files import local_path
from truncate_kit.core.hardware import check_threads, in_halves, is_out_of_memory, select_device, usable_cores
from truncate_kit.core.settings import BATCH, check_number, listed_texts
from truncate_kit.core.vectors import Rows, paired_rows
from truncate_kit.export.graph import INPUTS, OUTPUT, Feeds, graph_files
from truncate_kit.export.record import ExportReport, check_runnable, find_graph
from truncate_kit.models.encoder import Encoder
from truncate_kit.models.layer_heads import LayerHeads
from truncate_kit.models.loading import load_encoder, load_reader
from truncate_kit.models.model_folder import check_unreplaced, state_of
from truncate_kit.models.pipeline import Digest, read_pipeline
from truncate_kit.models.tokenizer import TextReader, padded

RUNTIMES = ("torch", "onnx")
Vectors = NDArray[np.float32]
# Tokens per batch. On the CPU the states of a batch have to stay in the cache of one core (benchmarks/encoding);
# on a GPU a batch has to be large enough to fill it.
CPU_BATCH_TOKENS = 256
CUDA_BATCH_TOKENS = 16_384
_CUDA, _TENSORRT = "CUDAExecutionProvider", "TensorrtExecutionProvider"
_EXPORT_HINT = "Export the model again with `export_onnx()`."
_GPU_FAILURE = re.compile("CUDA failure|CUBLAS|CUDNN|allocate memory", re.IGNORECASE)  # of ONNX Runtime's messages
# Slower on the CPU than the Add and LayerNormalization it replaces; see trace.py.
_SLOW_ON_CPU = ["SkipLayerNormFusion"]


def token_batches(lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Places of the texts, longest first, in batches of at most `tokens` tokens, padding included, or one text."""
    order = sorted(range(len(lengths)), key=lambda place: -lengths[place])
    start = 0
    while start < len(order):
        size = max(1, tokens // max(1, lengths[order[start]]))
        yield order[start : start + size]
        start += size


def bucket(batch: int, length: int, longest: int | None = None) -> tuple[int, int]:
    """The shape that a batch of this number of texts is brought to: the next power of two of both, at least 8 tokens.

    Args:
        batch: Number of texts.
        length: Of the texts, in tokens.
        longest: Most tokens that the graph takes, None where it is not known; one that takes 512 has seven lengths.
    """
    width = max(8, 1 << (length - 1).bit_length())
    return 1 << (batch - 1).bit_length(), width if longest is None else max(length, min(width, longest))


def stepped(length: int, longest: int | None) -> int:
    """The length, at most an eighth above it, that texts of `length` tokens are filled up to: 56 lengths up to 512.

    Args:
        length: Of the texts, in tokens.
        longest: Most tokens that the graph takes; None where it is not known, and then the length stays as it is.
    """
    if longest is None:
        return length
    step = 1 << max(0, length.bit_length() - 4)
    return max(length, min(-(-length // step) * step, longest))


def filled(batch: int, most: int) -> int:
    """The number of texts that a batch is filled up to: the next power of two, but no more than a whole batch has."""
    return max(batch, min(1 << (batch - 1).bit_length(), most))


def cuda_providers(
    index: int | None, *, captured: bool = False, stream: int | None = None, tensorrt: Mapping[str, Any] | None = None
) -> list[Any]:
    """List the providers for the GPU of that index, with their options; without TF32, as torch's float32.

    Args:
        index: None is the first one.
        captured: Fixed shapes may be recorded as CUDA graphs (`FixedShapes`).
        stream: Handle of the CUDA stream that a session works on, None for one of its own.
        tensorrt: Options of the TensorRT provider, which then comes before CUDA's.
    """
    # A lean and a full model, or two servers, share the GPU: memory is taken as needed, not doubled each time.
    options: dict[str, Any] = {"device_id": index or 0, "use_tf32": 0, "arena_extend_strategy": "kSameAsRequested"}
    if captured:
        options["enable_cuda_graph"] = 1
    if stream is not None:
        options["user_compute_stream"] = str(stream)
    cuda: list[Any] = [(_CUDA, options)]
    return cuda if tensorrt is None else [(_TENSORRT, {"device_id": index or 0, **tensorrt}), *cuda]


def open_session(file: Path, *, device: torch.device, threads: int, on_cuda: Sequence[Any] | None = None) -> Any:
    """Open a session on `device` that uses `threads` CPU threads per call; on_cuda: `cuda_providers` as wanted.

    Raises `MissingExtraError`, `DeviceError` when CUDA is not active in the session, `ModelError` for a file that is
    missing, damaged, lacks its weights or is no exported sentence encoder.
    """
    cuda = device.type == "cuda"
    runtime = require("onnxruntime", extra="gpu" if cuda else "cpu")
    if not file.is_file():
        raise ModelError(f"There is no exported graph {file}.", hint=_EXPORT_HINT)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4  # what goes wrong is raised as well
    providers: list[Any] = ["CPUExecutionProvider"]
    on_cuda = on_cuda or cuda_providers(device.index)
    if cuda:
        runtime.set_default_logger_severity(3)  # since 1.31 a warning for each session says that no plugin is there
        _check_active(runtime, runtime.get_available_providers())
        providers = [*on_cuda, *providers]
    try:
        session = runtime.InferenceSession(
            str(file), options, providers=providers, disabled_optimizers=None if cuda else _SLOW_ON_CPU
        )
    except Exception as error:  # the runtime has a class of its own for each status, all plain exceptions
        reason = first_line(error)
        if cuda and _GPU_FAILURE.search(str(error)):
            raise DeviceError(
                f"The GPU fails while {file} is loaded: {reason}.",
                hint="Free its memory, or look at what `diagnose()` finds.",
            ) from error
        raise ModelError(f"ONNX Runtime cannot load {file}: {reason}.", hint=_EXPORT_HINT) from error
    if cuda:
        _check_active(runtime, session.get_providers())  # what runs, not what the build could run
        if on_cuda[0][0] == _TENSORRT and _TENSORRT not in session.get_providers():
            problem = "TensorRT was asked for but is not active in ONNX Runtime."
            raise DeviceError(problem, hint="Install it with: pip install tensorrt")
    inputs, outputs = ([value.name for value in values] for values in (session.get_inputs(), session.get_outputs()))
    if set(inputs) != set(INPUTS) or OUTPUT not in outputs:
        raise ModelError(
            f"{file} is not an exported sentence encoder: it has inputs {', '.join(inputs)} and outputs "
            f"{', '.join(outputs)}.",
            hint=_EXPORT_HINT,
        )
    return session


def bound_to(session: Any, feeds: Feeds, device: torch.device) -> Any:
    """A binding whose inputs are on the device, and whose vectors stay there."""
    runtime = require("onnxruntime", extra="cpu")
    binding, place = session.io_binding(), (device.type, device.index or 0)
    for name, value in feeds.items():
        binding.bind_ortvalue_input(name, runtime.OrtValue.ortvalue_from_numpy(value, *place))
    binding.bind_output(OUTPUT, *place)
    return binding


def repeated(session: Any, binding: Any, options: Any = None) -> Callable[[], None]:
    """A call that runs what is bound again and again, waits, and fetches nothing."""

    def call() -> None:
        session.run_with_iobinding(binding, options)
        binding.synchronize_outputs()

    return call


def run_bound(session: Any, feeds: Feeds, *, device: torch.device) -> Vectors:
    """Sentence vectors (b, out) of one batch by IO binding: ids go to the device once, only the vectors come back."""
    binding = bound_to(session, feeds, device)
    with _running():
        session.run_with_iobinding(binding)
    vectors: Vectors = binding.get_outputs()[0].numpy()
    return vectors


@contextlib.contextmanager
def _running() -> Iterator[None]:
    """Turn what a graph fails at into `ModelError` or `DeviceError`, but for a lack of memory, which is halved."""
    try:
        yield
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        if _GPU_FAILURE.search(str(error)):
            raise DeviceError(
                f"The GPU fails while the graph runs: {first_line(error)}.",
                hint="Look at what `diagnose()` finds.",
            ) from error
        raise ModelError(f"ONNX Runtime cannot run the graph: {first_line(error)}.", hint=_EXPORT_HINT) from error


class FixedShapes:
    """Runs of one session over buffers that stay where they are, so that each shape is recorded once as a CUDA graph.

    A graph is replayed with one call instead of one for every kernel; at small batches those calls are most of the
    time. On the CPU the same buffers are used and nothing is recorded. width: of the vectors.
    """

    def __init__(self, session: Any, device: torch.device, width: int) -> None:
        self.session, self.device, self.width = session, device, width
        self._held: dict[tuple[int, int], tuple[dict[str, Any], Any, Any, Any]] = {}
        self._turn = threading.Lock()  # one thread would overwrite the inputs of another

    def run(self, feeds: Feeds) -> Vectors:
        """Vectors (b, out) of one batch whose inputs are (b, t) each."""
        with self._turn:
            output, binding, options = self._filled(feeds)
            with _running():
                self.session.run_with_iobinding(binding, options)
            vectors: Vectors = output.numpy()
            return vectors if self.device.type == "cuda" else vectors.copy()  # a view on the CPU

    def bound(self, feeds: Feeds) -> Callable[[], None]:
        """A call that runs these feeds again and again, waits, and fetches nothing; for one thread."""
        _, binding, options = self._filled(feeds)
        return repeated(self.session, binding, options)

    def _filled(self, feeds: Feeds) -> tuple[Any, Any, Any]:
        """Output, binding and options of a run of these feeds, which stand in its buffers."""
        batch, length = next(iter(feeds.values())).shape
        if (batch, length) not in self._held:
            runtime = require("onnxruntime", extra="cpu")
            place = (self.device.type, self.device.index or 0)
            empty = np.zeros((batch, length), np.int64)
            inputs = {name: runtime.OrtValue.ortvalue_from_numpy(empty.copy(), *place) for name in INPUTS}
            output = runtime.OrtValue.ortvalue_from_numpy(np.zeros((batch, self.width), np.float32), *place)
            binding, options = self.session.io_binding(), runtime.RunOptions()
            for name, value in inputs.items():
                binding.bind_ortvalue_input(name, value)
            binding.bind_ortvalue_output(OUTPUT, output)
            options.add_run_config_entry("gpu_graph_id", str(len(self._held) + 1))
            self._held[batch, length] = inputs, output, binding, options
        inputs, output, binding, options = self._held[batch, length]
        for name, value in feeds.items():
            inputs[name].update_inplace(value)
        return output, binding, options


def _check_active(runtime: Any, providers: Sequence[str]) -> None:
    """Raise `DeviceError` unless CUDA is among the given providers."""
    if _CUDA not in providers:
        raise DeviceError(
            f"CUDA was asked for but is not active in ONNX Runtime {runtime.__version__}: it has "
            f"{', '.join(providers)}.",
            hint="Install it with: pip install 'truncate-kit[gpu]' (CUDA 13, cuDNN 9), or use `device=\"cpu\"`.",
        )


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
        on_cuda: `cuda_providers`; None for what `buckets` needs.
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
        on_cuda: Sequence[Any] | None = None,
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
        self._on_cuda = on_cuda or cuda_providers(self.device.index, captured=buckets)
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
            raise ModelError(f"There is no exported graph {file}.", hint=_EXPORT_HINT)
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
        return open_session(file, device=self.device, threads=threads, on_cuda=self._on_cuda)

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

    def run(self, feeds: Feeds) -> Vectors:
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
