"""What one export is asked for, validated once."""

from dataclasses import dataclass

from truncate_kit.core.precisions import Precision, Target, check_target
from truncate_kit.core.results import Result
from truncate_kit.core.settings import MACHINE, RESULTS, Bounds, check_settings, setting

EMBED_LIMIT = 1_900_000_000  # bytes of weights inside the graph's own file; protobuf ends at 2 GiB
_POINTS, _BYTES = Bounds(0, 200, whole=False), Bounds(0, EMBED_LIMIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSettings(Result):
    """One graph of an encoder.

    Attributes:
        precision: `fp32` is written to `model.onnx`, `fp16` (for CUDA) to `model_fp16.onnx`, `int8` (for the CPU) to
            `model_int8.onnx`.
        target: `cpu` or `cuda`, whose kernels the graph is made for; the checks run on the CPU.
        normalize: True ends in unit vectors, False leaves a final Normalize out, None does what the encoder does.
        budget: Spearman points that int8 may cost on the pairs it is searched on.
        embed_limit: bytes of weights that the graph's own file may hold; more of them go to a file beside it.

    Raises:
        UsageError: a precision or target that is not known, a target that the precision is not made for, or a budget
            below 0.
    """

    precision: Precision = setting(
        "fp32", "fp32, fp16 (for CUDA) or int8 (for the CPU); each has its own file.", MACHINE
    )
    target: Target = setting(
        "cpu", "cpu or cuda, whose kernels the graph is for; by default cpu, for fp16 cuda.", MACHINE, default=None
    )
    normalize: bool | None = setting(
        None,
        "Vectors of length 1, or not; by default as the model does.",
        RESULTS,
        kind=bool,
        name="--normalize/--no-normalize",
        show_default=False,
    )
    budget: float = setting(
        0.3,
        "With int8: Spearman points it may cost on dev pairs; by default 0.3.",
        MACHINE,
        bounds=_POINTS,
        default=None,
    )
    embed_limit: int = setting(EMBED_LIMIT, bounds=_BYTES)

    def __post_init__(self) -> None:
        check_target(self.precision, self.target)
        check_settings(self)
