"""What a diagnosis holds: facts about the machine, and findings that follow from them."""

from dataclasses import dataclass
from typing import Literal

from truncate_kit.doctor.metadata import extras
from truncate_kit.errors import UsageError
from truncate_kit.precisions import GRAPH_FILES, TRAINING_PRECISIONS
from truncate_kit.results import Result

DEVICES = ("cpu", "cuda")
RUNTIMES = ("torch", "onnx")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(Result):
    """What has to run.

    Raises `UsageError`: an unknown name, a precision of graphs in torch, or one of torch in graphs.
    """

    # None asks for none in particular; one that is given has to run torch and exported graphs.
    device: str | None = None
    extras: tuple[str, ...] = ()  # of this package that have to be installed
    precision: str | None = None  # fp16 and int8 ask for graphs, fp16 for CUDA unless `device` is the CPU
    runtime: str | None = None  # `torch` or `onnx` asks for one of them only, None for both

    def __post_init__(self) -> None:
        for name, value, known in (
            ("device", self.device, DEVICES),
            ("runtime", self.runtime, RUNTIMES),
            *(("extras", extra, extras()) for extra in self.extras),
            ("precision", self.precision, tuple(dict.fromkeys([*GRAPH_FILES, *TRAINING_PRECISIONS]))),
        ):
            if value is not None and value not in known:
                raise UsageError(f"`{name}` {value!r} is not known here.", hint=f"Use one of: {', '.join(known)}.")
        if self.runtime == "torch" and self._in_graphs_only:
            raise UsageError(
                f"{self.precision} is a precision of exported graphs, and torch runs none.",
                hint=f"Leave out `runtime`, or use {' or '.join(TRAINING_PRECISIONS)} as `precision`.",
            )

        if self.runtime == "onnx" and self.precision is not None and self.precision not in GRAPH_FILES:
            raise UsageError(
                f"{self.precision} is no precision of exported graphs.",
                hint=f"Leave out `runtime`, or use {' or '.join(GRAPH_FILES)} as `precision`.",
            )

    @property
    def cuda(self) -> bool:
        """Whether anything that was asked for needs CUDA."""
        return self.device == "cuda" or "gpu" in self.extras or (self.precision == "fp16" and self.device is None)

    @property
    def graphs(self) -> bool:
        """Whether exported graphs have to run."""
        named = self.runtime is None and self.device is not None
        return named or self.runtime == "onnx" or self._in_graphs_only

    @property
    def _in_graphs_only(self) -> bool:
        return self.precision is not None and self.precision not in TRAINING_PRECISIONS

    @property
    def cuda_graphs(self) -> bool:
        """Whether exported graphs have to run on CUDA."""
        return "gpu" in self.extras or (self.cuda and self.graphs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement(Result):
    """One package that truncate-kit names. extra: None for what it always needs. installed: None where it is not."""

    name: str
    wanted: str
    installed: str | None
    fits: bool
    extra: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider(Result):
    """Whether a session, or torch, really started there. reason: what it said where it did not."""

    name: str
    starts: bool
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaVersions(Result):
    """Versions as "major.minor", None for what is missing."""

    driver: str | None = None  # the newest CUDA that the driver runs
    torch: str | None = None  # what it is built for
    cudnn: str | None = None  # what torch loads
    onnxruntime: str | None = None  # what it is built for


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor(Result):
    """The processor, its cores and instructions."""

    name: str
    cores: int  # logical ones of the machine
    usable: int  # cores that this process may keep busy
    quota: float | None  # CPU time that the container grants, in cores; None where it is not limited
    torch_threads: int | None  # None where torch cannot be imported
    omp_num_threads: str | None
    bf16: str | None  # name of the instructions, None without them
    int8: str | None  # the same


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding(Result):
    """Something that does not fit."""

    severity: Literal["problem", "warning"]  # what was asked for cannot run, or runs worse than it could
    text: str
    remedy: str  # the command or change that mends it


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts(Result):
    """The machine as it was found."""

    python: str
    torch_problem: str | None  # why it cannot be imported
    requirements: tuple[Requirement, ...]
    wheels: dict[str, str]  # distributions that install the module `onnxruntime`, by name and version
    providers: tuple[Provider, ...]
    cuda: CudaVersions
    processor: Processor

    def provider(self, name: str) -> Provider | None:
        """The provider of that name, None where nothing here could start it."""
        return next((row for row in self.providers if row.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis(Result):
    """Facts, what was asked for, and what follows."""

    request: Request
    facts: Facts
    findings: tuple[Finding, ...]

    @property
    def able(self) -> bool:
        """Whether everything that was asked for can run."""
        return all(finding.severity != "problem" for finding in self.findings)
