"""Precisions of training, export and measurement, one row each."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from truncate_kit.core.errors import UsageError, known_name

Precision = Literal["fp32", "tf32", "bf16", "fp16", "int8"]
Target = Literal["cpu", "cuda"]
TARGETS: tuple[Target, ...] = get_args(Target)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionRow:
    """Uses of one precision."""

    trains: bool = False
    # Torch's type of weights and products, if it has fast ones.
    weights: str | None = "float32"
    products: Literal["highest", "high"] = "highest"  # of float32 matrices; `high` is TF32
    cuda_only: bool = False
    graph_file: str | None = None  # if exported
    # Targets of its graph; the lowest number is the default.
    preference: Mapping[str, int] = field(default_factory=dict)
    elsewhere: str = ""  # effect on the other target
    runs_elsewhere: bool = True
    # Largest difference of vectors from the encoder's; None if the score decides.
    vector_limit: float | None = None
    # Largest change of Spearman and Pearson in points; None only reports it.
    score_limit: float | None = None
    color: str  # in figures, from Okabe and Ito's colour-blind palette


# Names of transformers.js and the hub.
PRECISIONS: dict[Precision, PrecisionRow] = {
    "fp32": PrecisionRow(trains=True, graph_file="model.onnx", preference={"cpu": 0, "cuda": 1}, vector_limit=1e-4,
                         score_limit=0.01, color="#0072B2"),
    "tf32": PrecisionRow(products="high", cuda_only=True, color="#56B4E9"),
    "bf16": PrecisionRow(trains=True, weights="bfloat16", color="#009E73"),
    "fp16": PrecisionRow(weights="float16", cuda_only=True, graph_file="model_fp16.onnx", preference={"cuda": 0},
                         elsewhere="on the CPU its numbers are converted back and forth, which takes longer",
                         vector_limit=2e-2, score_limit=0.1, color="#D55E00"),
    "int8": PrecisionRow(weights=None, graph_file="model_int8.onnx", preference={"cpu": 1},
                         elsewhere="ONNX Runtime has no kernels on CUDA for it, and its nodes would run on the CPU",
                         runs_elsewhere=False, color="#CC79A7"),
}  # fmt: skip
TRAINING_PRECISIONS = tuple(name for name, row in PRECISIONS.items() if row.trains)
GRAPH_FILES = {name: row.graph_file for name, row in PRECISIONS.items() if row.graph_file is not None}
EXPORT_RECORD = "export.json"
"""Record beside the graphs."""


def precisions_for(device: str) -> list[Precision]:
    """Return the precisions for graphs on `cpu` or `cuda`, the default first."""
    made = [name for name, row in PRECISIONS.items() if device in row.preference]
    return sorted(made, key=lambda name: PRECISIONS[name].preference[device])


def other_graph(precision: Precision, device: str, parameter: str = "device") -> str:
    """Return a hint for a graph that is not made for `device`."""
    own = next(iter(PRECISIONS[precision].preference))
    return f'Use {" or ".join(precisions_for(device))} as `precision`, or `{parameter}="{own}"`.'


def check_graph_precision(name: str) -> Precision:
    """Check that graphs are exported in this precision. Raises `UsageError`."""
    return known_name("export precision", name, GRAPH_FILES)


def check_target(name: str, target: str | None = None) -> tuple[Precision, Target]:
    """Return a graph's precision and target (default: its first). Raises `UsageError`."""
    precision = check_graph_precision(name)
    row = PRECISIONS[precision]
    for known in TARGETS:
        if target in (known, None) and known in row.preference:
            return precision, known
    other = known_name("export target", target, TARGETS)
    raise UsageError(
        f"A graph in {precision} is not made for {other}: {row.elsewhere}.",
        hint=other_graph(precision, other, "target"),
    )
