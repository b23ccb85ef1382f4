"""What one export is asked for, validated once."""

from dataclasses import dataclass

from truncate_kit.bounds import Bounds, check_numbers
from truncate_kit.precisions import Precision, Target, check_target
from truncate_kit.results import Result

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

    precision: Precision = "fp32"
    target: Target = "cpu"
    normalize: bool | None = None
    budget: float = 0.3
    embed_limit: int = EMBED_LIMIT

    def __post_init__(self) -> None:
        check_target(self.precision, self.target)
        check_numbers(self, budget=_POINTS, embed_limit=_BYTES)
