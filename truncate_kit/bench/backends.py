"""What a bench compares: its settings, and the runtimes, one row each."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from truncate_kit.core.errors import UsageError
from truncate_kit.core.hardware import check_threads
from truncate_kit.core.precisions import GRAPH_FILES, PRECISIONS, Precision
from truncate_kit.core.results import Result
from truncate_kit.core.settings import MACHINE, SEED, TEXTS, Bounds, check_settings, names, setting, whole_numbers

if TYPE_CHECKING:
    import torch


Runtime = Literal["torch", "onnx", "sentence-transformers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One runtime at one precision."""

    name: str
    title: str  # by which tables and figures call it
    runtime: Runtime
    precision: Precision
    marker: str  # in figures
    compiled: bool = False  # by torch.compile, for any shape
    static: bool = False  # compiled for each shape anew
    captured: bool = False  # as CUDA graphs, one for each shape
    attention: str | None = None  # the name that transformers gives a kernel, None for its own choice
    tensorrt: bool = False  # by TensorRT inside ONNX Runtime, from a graph without ONNX Runtime's own operators

    @property
    def dtype(self) -> "torch.dtype | None":
        """What torch turns all weights to, None where they stay as they are."""
        import torch  # here, because the page of a run reads titles only

        weights = PRECISIONS[self.precision].weights
        return None if weights in (None, "float32") else getattr(torch, str(weights))

    @property
    def only_exported(self) -> bool:
        """Whether it runs only what `export` made before: its precision needs pairs or a GPU's kernels."""
        return self.runtime == "onnx" and self.precision != "fp32" and not self.tensorrt

    @property
    def on_cuda(self) -> bool:
        """Whether it makes no sense, or has no kernels, on the CPU."""
        in_torch = self.runtime != "onnx" and PRECISIONS[self.precision].cuda_only
        return in_torch or self.captured or self.tensorrt

    @property
    def rival(self) -> bool:
        """Whether it is measured only when asked for."""
        other = self.runtime == "sentence-transformers" or self.tensorrt
        return other or self.static or self.captured or self.attention is not None

    @property
    def fixed_shapes(self) -> bool:
        """Whether texts of all lengths cannot be run: each new shape would be compiled."""
        return self.runtime == "torch" and (self.static or self.captured)


def _row(name: str, title: str, runtime: Runtime, marker: str, **traits: Any) -> Backend:
    """Make the row of a name that ends in its precision; title: without that."""
    precision = next(known for known in PRECISIONS if name.endswith(f"-{known}"))
    what, _, how = title.partition(", ")
    title = f"{what} {precision}" + (f", {how}" if how else "")
    return Backend(name=name, title=title, runtime=runtime, precision=precision, marker=marker, **traits)


_FLASH = "flash_attention_2"
_PEER: Final = "sentence-transformers"
_ROWS = (
    _row("torch-fp32", "torch", "torch", "o"),
    _row("torch-tf32", "torch", "torch", "o"),
    _row("torch-bf16", "torch", "torch", "o"),
    _row("torch-fp16", "torch", "torch", "o"),
    _row("flash-fp16", "torch, variable-length flash attention", "torch", "<", attention=_FLASH),
    _row("compile-fp32", "torch.compile", "torch", "s", compiled=True),
    _row("compile-bf16", "torch.compile", "torch", "s", compiled=True),
    _row("compile-fp16", "torch.compile", "torch", "s", compiled=True),
    _row("compile-static-fp16", "torch.compile, static shapes", "torch", "h", compiled=True, static=True),
    _row("compile-graphs-fp16", "torch.compile, CUDA graphs", "torch", "^", compiled=True, static=True, captured=True),
    _row("st-fp32", _PEER, _PEER, "P"),
    _row("st-bf16", _PEER, _PEER, "P"),
    _row("st-fp16", _PEER, _PEER, "P"),
    _row("st-flash-fp16", f"{_PEER}, flash attention without padding", _PEER, "*", attention=_FLASH),
    _row("onnx-fp32", "ONNX Runtime", "onnx", "D"),
    _row("onnx-fp16", "ONNX Runtime", "onnx", "D"),
    _row("onnx-graphs-fp16", "ONNX Runtime, CUDA graphs", "onnx", "v", captured=True),
    _row("tensorrt-fp16", "ONNX Runtime TensorRT", "onnx", "X", tensorrt=True),
    _row("onnx-int8", "ONNX Runtime", "onnx", "D"),
)
BACKENDS: dict[str, Backend] = {row.name: row for row in _ROWS}
BASE = "torch-fp32"
GRAPH = "onnx-fp32"


def select_backends(
    names: Sequence[str] | None, device: "torch.device", folders: Sequence[Path] = (), *, slow_starts: bool = True
) -> tuple[Backend, ...]:
    """The rows of the given names in the order of `BACKENDS`; `["all"]` gives every row that makes sense on `device`.

    None: all but rivals on CUDA, on the CPU, or without `slow_starts`, those that start at once; fp16 and int8 graphs
    only where one of `folders` holds one, and where the device has kernels for them. Raises `UsageError` for a name
    that is not known.
    """
    cuda = device.type == "cuda"
    sensible = tuple(row for row in _ROWS if cuda or not row.on_cuda)
    if names is None:

        def held(row: Backend) -> bool:
            files = (folder / GRAPH_FILES[row.precision] for folder in folders)
            return device.type in PRECISIONS[row.precision].preference and any(file.is_file() for file in files)

        at_once = (row for row in sensible if not row.rival and (not row.compiled or (cuda and slow_starts)))
        return tuple(row for row in at_once if not row.only_exported or held(row))
    if list(names) == ["all"]:
        return sensible
    unknown = [name for name in names if name not in BACKENDS]
    if unknown or not names:
        raise UsageError(
            f"There is no backend {unknown[0]!r}." if unknown else "No backend is named.",
            hint=f'Use `backends=["all"]`, or some of: {", ".join(BACKENDS)}.',
        )
    return tuple(row for row in _ROWS if row.name in names)


_ROUNDS = Bounds(1, 10_000)
_TOKENS = Bounds(1, 1_000_000)  # of a text, and texts of a batch


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSettings(Result):
    """One bench.

    Attributes:
        batch_sizes: texts per batch of the throughput; latency is timed at batch 1 in any case.
        lengths: tokens per text; None for 16 and 128, or what the models can take.
        backends: names of `BACKENDS`, `("all",)`, or None for those that start at once, and on a GPU what compiles.
        compile: whether what compiles is among them on a GPU: a minute and more for each model and precision.
        repeats: rounds, each of which times every model in turn; latency has ten calls in each.
        threads: of torch and ONNX Runtime, None for torch's own choice.
        device: `cpu` or `cuda[:i]`; None is the CPU.
        memory: whether peak memory is measured too, in one fresh process per contestant.
        max_texts: most texts of the real set, evenly spread over those given.
        seed: of the bootstrap.
        blocks: those that are kept of the lean model, as by `keep`, and compared with all of it; None for all.

    Raises:
        UsageError: a number out of its bounds.
    """

    batch_sizes: tuple[int, ...] = setting(
        (1, 32),
        "Texts per batch; latency is always timed.",
        MACHINE,
        bounds=_TOKENS,
        parse=whole_numbers,
        default="1,32",
    )
    lengths: tuple[int, ...] | None = setting(
        None, "Tokens per text; by default 16,128 or the models' limit.", MACHINE, bounds=_TOKENS, parse=whole_numbers
    )
    backends: tuple[str, ...] | None = setting(
        None,
        f"all, or some of {', '.join(BACKENDS)}; by default torch and ONNX Runtime, on CUDA compiled as well but with "
        "--quick.",
        MACHINE,
        parse=names,
    )
    compile: bool = True
    repeats: int = setting(
        5,
        "Rounds, each of which times every model in turn; by default 5, 3 with --quick.",
        MACHINE,
        bounds=_ROUNDS,
        default=None,
    )
    threads: int | None = None
    device: str | None = None
    memory: bool = True
    max_texts: int = setting(1000, bounds=TEXTS)
    seed: int = setting(0, bounds=SEED)
    blocks: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        check_settings(self)
        object.__setattr__(self, "threads", check_threads(self.threads))


QUICK = BenchSettings(repeats=3, memory=False, max_texts=256, compile=False)
"""For a first look: fewer rounds and sentences, no memory, nothing that compiles."""
