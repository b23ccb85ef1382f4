"""Which precision goes with which target, and what its graph is called."""

from typing import Literal, get_args

from truncate_kit.errors import UsageError

Precision = Literal["fp32", "fp16", "int8"]
Target = Literal["cpu", "cuda"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
TARGETS: tuple[Target, ...] = get_args(Target)
# `model.onnx` stays what every loader expects, the exact graph; the others bear the names that transformers.js and the
# hub use for these types.
GRAPH_FILES: dict[str, str] = {"fp32": "model.onnx", "fp16": "model_fp16.onnx", "int8": "model_int8.onnx"}


def check_precision(precision: str) -> Precision:
    """Return `precision` if it is one of `PRECISIONS`; raises `UsageError` otherwise."""
    if precision not in PRECISIONS:
        raise UsageError(f"There is no export precision {precision!r}.", hint=f"Use one of: {', '.join(PRECISIONS)}.")
    return precision


def check_combination(precision: str, target: str) -> tuple[Precision, Target]:
    """Return both if they exist and make sense together; raises `UsageError` otherwise."""
    chosen = check_precision(precision)
    if target not in TARGETS:
        raise UsageError(f"There is no export target {target!r}.", hint=f"Use one of: {', '.join(TARGETS)}.")
    if (chosen, target) == ("fp16", "cpu"):
        raise UsageError(
            "fp16 gains nothing on the CPU: ONNX Runtime has no float16 attention there and converts back and forth.",
            hint="Use --precision int8 for the CPU, or --target cuda.",
        )
    if (chosen, target) == ("int8", "cuda"):
        raise UsageError(
            "Dynamic int8 has no kernels in ONNX Runtime's CUDA provider: its nodes would run on the CPU.",
            hint="Use --precision fp16 for CUDA, or --target cpu.",
        )
    return chosen, target
