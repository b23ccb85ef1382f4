"""What a diagnosis holds: facts about the machine, and findings that follow from them."""

from dataclasses import dataclass
from typing import Literal

from truncate_kit.doctor.metadata import extras
from truncate_kit.errors import UsageError
from truncate_kit.results import Result

DEVICES = ("cpu", "cuda")
RUNTIMES = ("torch", "onnx")
PRECISIONS = ("fp32", "fp16", "bf16", "int8")
_GRAPHS_ONLY = ("fp16", "int8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish(Result):
    """What the user wants to run.

    device: None asks for none in particular; one that is named has to run torch and exported graphs. runtime: `torch`
    or `onnx` asks for one of them only, None for both. precision: fp16 and int8 ask for graphs, fp16 for CUDA unless
    `device` is the CPU. Raises `UsageError` on unknown names and on graphs' precisions in torch.
    """

    device: str | None = None
    extras: tuple[str, ...] = ()
    precision: str | None = None
    runtime: str | None = None

    def __post_init__(self) -> None:
        for option, value, known in (
            ("--device", self.device, DEVICES),
            ("--runtime", self.runtime, RUNTIMES),
            *(("--extra", extra, extras()) for extra in self.extras),
            ("--precision", self.precision, PRECISIONS),
        ):
            if value is not None and value not in known:
                raise UsageError(f"{option} {value!r} is not known here.", hint=f"Use one of: {', '.join(known)}.")
        if self.runtime == "torch" and self.precision in _GRAPHS_ONLY:
            raise UsageError(
                f"--precision {self.precision} is one of exported graphs, and --runtime torch runs none.",
                hint="Leave out --runtime torch, or use --precision fp32 or bf16.",
            )

    @property
    def cuda(self) -> bool:
        """Whether anything that was asked for needs CUDA."""
        return self.device == "cuda" or "gpu" in self.extras or (self.precision == "fp16" and self.device is None)

    @property
    def graphs(self) -> bool:
        """Whether exported graphs have to run."""
        named = self.runtime is None and self.device is not None
        return named or self.runtime == "onnx" or self.precision in _GRAPHS_ONLY

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
    """Versions as "major.minor", None for what is missing.

    driver: the newest CUDA that the driver runs. torch, onnxruntime: what they are built for. cudnn: what torch loads.
    """

    driver: str | None = None
    torch: str | None = None
    cudnn: str | None = None
    onnxruntime: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor(Result):
    """cores: logical ones of the machine; quota: CPU time that the container grants, in cores; usable: what is left.

    torch_threads: None where torch cannot be imported. bf16, int8: names of the instructions, None without them.
    """

    name: str
    cores: int
    usable: int
    quota: float | None
    torch_threads: int | None
    omp_num_threads: str | None
    bf16: str | None
    int8: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding(Result):
    """Something that does not fit. `problem`: what was asked for cannot run; `warning`: it runs worse than it could.

    remedy: the command or change that mends it.
    """

    severity: Literal["problem", "warning"]
    text: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts(Result):
    """The machine as it was found.

    wheels: distributions that install the module `onnxruntime`, by name and version. torch_problem: why torch cannot
    be imported.
    """

    python: str
    torch_problem: str | None
    requirements: tuple[Requirement, ...]
    wheels: dict[str, str]
    providers: tuple[Provider, ...]
    cuda: CudaVersions
    processor: Processor

    def provider(self, name: str) -> Provider | None:
        """The provider of that name, None where nothing here could start it."""
        return next((row for row in self.providers if row.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis(Result):
    """Facts, what was asked for, and what follows."""

    wish: Wish
    facts: Facts
    findings: tuple[Finding, ...]

    @property
    def able(self) -> bool:
        """Whether everything that was asked for can run."""
        return all(finding.severity != "problem" for finding in self.findings)
