"""Number formats that models are trained, exported and measured in, one row each."""

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

    trains: bool = False  # training computes in it
    # Torch's name of the type of weights and products, if torch has fast products of it.
    weights: str | None = "float32"
    products: Literal["highest", "high"] = "highest"  # how torch multiplies float32 matrices, `high` for TF32
    cuda_only: bool = False  # torch computes in it on CUDA only
    graph_file: str | None = None  # name of its graph in an exported folder, if it is exported
    # Targets that its graph is made for; by default the graph with the lowest number runs.
    preference: Mapping[str, int] = field(default_factory=dict)
    elsewhere: str = ""  # what happens to its graph on the other target
    runs_elsewhere: bool = True  # its graph is run there nevertheless
    # Largest difference of the graph's vectors from the encoder's, unless the score decides.
    vector_limit: float | None = None
    # Largest change of the graph's Spearman and Pearson score in points, unless it is only reported.
    score_limit: float | None = None
    color: str  # in figures, from Okabe and Ito's palette for colour-blind readers


# Every loader expects the exact graph as `model.onnx`; the other names are those of transformers.js and the hub.
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
"""Name of the record beside the graphs."""


def precisions_for(device: str) -> list[Precision]:
    """Return the precisions whose graphs are made for `cpu` or `cuda`, the default first."""
    made = [name for name, row in PRECISIONS.items() if device in row.preference]
    return sorted(made, key=lambda name: PRECISIONS[name].preference[device])


def other_graph(precision: Precision, device: str, parameter: str = "device") -> str:
    """Return a hint for a graph in `precision` that is not made for `device`. parameter: name of that option."""
    own = next(iter(PRECISIONS[precision].preference))
    return f'Use {" or ".join(precisions_for(device))} as `precision`, or `{parameter}="{own}"`.'


def check_graph_precision(name: str) -> Precision:
    """Return `name` if graphs are exported in it; raises `UsageError` otherwise."""
    return known_name("export precision", name, GRAPH_FILES)


def check_target(name: str, target: str | None = None) -> tuple[Precision, Target]:
    """Return a graph's precision and its target, by default the first it is made for. Raises `UsageError`."""
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
