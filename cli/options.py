"""Options that several commands share."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from truncate_kit.errors import UsageError

ModelArg = Annotated[
    str | None,
    typer.Argument(
        metavar="[MODEL]",
        help="Model folder, hub name or bundled miniature; by default what the last command left, else a miniature.",
        show_default=False,
    ),
]
DataOpt = Annotated[
    str | None,
    typer.Option(
        "--data",
        help="Pairs: a CSV, TSV, JSONL or Parquet file, a folder of splits, or a hub name such as stsb; "
        "by default the bundled set.",
    ),
]
ColumnsOpt = Annotated[
    str | None, typer.Option("--columns", metavar="FIRST,SECOND,SCORE", help="Columns, if their names do not tell.")
]
ScaleOpt = Annotated[
    str | None, typer.Option("--scale", metavar="LOW,HIGH", help="Lowest and highest possible score; else inferred.")
]
PoolingOpt = Annotated[
    str | None, typer.Option("--pooling", help="mean, cls, max or last; by default the model's own, else mean.")
]
MaxLengthOpt = Annotated[
    int | None, typer.Option("--max-length", help="Tokens per text; by default the model's limit.")
]
DeviceOpt = Annotated[str | None, typer.Option("--device", help="cpu or cuda; an error if it is not there.")]
ThreadsOpt = Annotated[int | None, typer.Option("--threads", min=1, help="CPU threads; by default all cores.")]
DimensionsOpt = Annotated[
    int | None,
    typer.Option("--dimensions", help="Keep the first so many dimensions of a vector.", show_default=False),
]
OutOpt = Annotated[Path, typer.Option("--out", help="Folder for results.")]
JsonOpt = Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else on stdout.")]

DEFAULT_OUT = Path("exported")
GRAPH_HELP = (
    "Which graph of the folder: fp32, fp16 or int8. By default what suits the device: on the CPU fp32, else int8; "
    "on CUDA fp16, else fp32."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedOptions:
    """Options of every way to fine-tune, as they were given."""

    model: str | None
    layer: str
    seeds: int
    epochs: int | None
    batch_size: int | None
    learning_rate: float | None
    precision: str
    objective: str
    texts: Path | None
    data: str | None
    columns: str | None
    scale: str | None
    pooling: str | None
    max_length: int | None
    device: str | None
    out: Path
    as_json: bool


def columns_of(text: str | None) -> tuple[str, str, str] | None:
    """The three names of `--columns`, None when it was not given. Raises `UsageError`."""
    if text is None:
        return None
    names = tuple(part.strip() for part in text.split(","))
    if len(names) != 3 or not all(names):
        raise UsageError(
            f"--columns {text!r} does not name three columns.", hint="Write it as --columns FIRST,SECOND,SCORE."
        )
    return names[0], names[1], names[2]


def triplet_columns_of(text: str | None) -> tuple[str, ...] | None:
    """The two or three names of `--triplet-columns`, None when it was not given. Raises `UsageError`."""
    if text is None:
        return None
    names = tuple(part.strip() for part in text.split(","))
    if len(names) not in (2, 3) or not all(names):
        raise UsageError(
            f"--triplet-columns {text!r} does not name two or three columns.",
            hint="Write it as --triplet-columns ANCHOR,POSITIVE[,NEGATIVE].",
        )
    return names


def scale_of(text: str | None) -> tuple[float, float] | None:
    """The two numbers of `--scale`, None when it was not given. Raises `UsageError`."""
    if text is None:
        return None
    parts = text.replace("..", ",").split(",")
    try:
        low, high = (float(part) for part in parts)
    except ValueError as error:
        raise UsageError(f"--scale {text!r} is not two numbers.", hint="Write it as --scale 0,5.") from error
    return low, high


def numbers_of(text: str, option: str) -> tuple[int, ...]:
    """Whole numbers separated by commas. Raises `UsageError` naming the option."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise UsageError(
            f"{option} {text!r} is not a list of whole numbers.", hint=f"Write it as {option} 1,32."
        ) from error


def refuse(kind: str, **told: object) -> None:
    """Raise `UsageError` for an option that was told and would be ignored. kind: the one that takes them, in words."""
    for option, value in told.items():
        if value is not None and value is not False:
            name = "--" + option.replace("_", "-")
            raise UsageError(f"{name} goes with {kind} only.", hint=f"Leave out {name}.")


def use_threads(threads: int | None) -> None:
    """Let torch use so many threads; None leaves its choice."""
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
