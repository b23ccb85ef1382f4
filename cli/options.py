"""Options that several commands share, and the panels under which `--help` lists all options."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from truncate_kit.errors import UsageError
from truncate_kit.files import local_path
from truncate_kit.naming import blocks_named

Number = TypeVar("Number", int, float)


def _option(panel: str, text: str, *names: str, **details: Any) -> Any:
    """An option of a help panel, called like its parameter where no other name is given."""
    return typer.Option(*names, help=text, rich_help_panel=panel, **details)


data_option = partial(_option, "Data")
layers_option = partial(_option, "Layers")
training_option = partial(_option, "Training")
machine_option = partial(_option, "Machine")
results_option = partial(_option, "Results")

Model = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="Model folder, hub name or bundled miniature; by default the one that was last analyzed, trained or cut.",
        show_default=False,
    ),
]
Finished = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="Model folder, hub name or bundled miniature; by default WORKSPACE/lean.",
        show_default=False,
    ),
]
Data = Annotated[
    str | None,
    data_option(
        "Pairs: a CSV, TSV, JSONL or Parquet file, a folder of splits, or a hub name such as stsb; by default those "
        "of the last command that analyzed, trained or exported, else the bundled set."
    ),
]
PairsOrRetrieval = Annotated[
    str | None,
    data_option(
        "Pairs as for finetune, or queries and documents: a folder of corpus.jsonl, queries.jsonl and qrels/test.tsv "
        "(BEIR's layout); by default the pairs of the last command that analyzed, trained or exported, else the "
        "bundled set."
    ),
]
SearchMetric = Annotated[
    str | None,
    data_option("What queries choose by: ndcg (the default), mrr or recall, each at 10."),
]
Columns = Annotated[str | None, data_option("Columns, if their names do not say it.", metavar="FIRST,SECOND,SCORE")]
Scale = Annotated[str | None, data_option("Lowest and highest possible score; else inferred.", metavar="LOW,HIGH")]
Pooling = Annotated[str | None, data_option("mean, cls, max or last; by default the model's own, else mean.")]
MaxLength = Annotated[int | None, data_option("Tokens per text; by default the model's limit.")]
Dimensions = Annotated[int | None, data_option("Keep only this number of dimensions of a vector, the first ones.")]
Layers = Annotated[
    str | None,
    layers_option("auto (the default), all, or layers such as 3, 3,6,9 or 2..5; with --blocks those of what is kept."),
]
Blocks = Annotated[str | None, layers_option("Keep these blocks alone, such as 1,4,6 or 1..3,6.")]
Seeds = Annotated[int, training_option("Number of seeds, from 0.")]
Rate = Annotated[
    float | None,
    training_option(
        "Peak learning rate; by default 2e-5 at width 768, the TMFT paper's for all models, up to 5e-4 at 128."
    ),
]
VocabularyFrom = Annotated[
    Path | None,
    layers_option(
        "Drop word pieces that these texts never use, lines of a file; texts without them keep their vectors."
    ),
]
Precision = Annotated[str, training_option("fp32, or bf16 autocast where the processor has it.")]
Device = Annotated[str | None, machine_option("cpu or cuda; an error if it is not there.")]
Threads = Annotated[int | None, machine_option("CPU threads; by default all cores.", min=1)]
SharedThreads = Annotated[
    int | None,
    machine_option("CPU threads; by default all cores, shared by --workers, and on Ray one for each task.", min=1),
]
Graph = Annotated[
    str | None,
    machine_option(
        "Which graph of the folder: fp32, fp16 or int8. Where none is named and one is used, what suits the device: on "
        "the CPU fp32, else int8; on CUDA fp16, else fp32."
    ),
]
Engine = Annotated[str, machine_option("Where the work is done: local (this machine) or ray (a Ray cluster).")]
Workers = Annotated[
    int | None, machine_option("Processes on this machine that share the work; with --device cuda each has a GPU.")
]
RayAddress = Annotated[
    str | None, machine_option("HOST:PORT of the cluster's head; by default the cluster of this machine.")
]
Gpus = Annotated[float | None, machine_option("Ray: such as 1 or 0.5; by default 1 with --device cuda, else none.")]
Tensorboard = Annotated[
    bool, results_option("Log losses and scores of every trial to tensorboard/ beside the trials.", "--tensorboard")
]
WorkspaceFolder = Annotated[
    Path,
    results_option(
        "Folder in which each command finds what the one before it left.",
        "--workspace",
        callback=lambda folder: local_path(folder),  # shells leave the "~" of --workspace=~/w
    ),
]
Push = Annotated[
    str | None, results_option("Upload the lean model to the hub, as a private one.", metavar="OWNER/NAME")
]
Public = Annotated[bool, results_option("With --push-to: let everyone see it.", "--public")]
Json = Annotated[bool, results_option("Print the result as JSON, and nothing else on stdout.", "--json")]

WORKSPACE = Path("exported")


def given(**values: Any) -> dict[str, Any]:
    """The values that are not None: what is left out keeps the default of the settings it goes into."""
    return {name: value for name, value in values.items() if value is not None}


def names_in(text: str | None) -> tuple[str, ...] | None:
    """What stands between commas; None where nothing was given."""
    return None if text is None else tuple(part.strip() for part in text.split(","))


def whole_numbers_in(text: str, option: str) -> tuple[int, ...]:
    """The whole numbers between commas. Raises `UsageError` naming the option."""
    return _converted(text, option, int, "a list of whole numbers", "1,32")


def shares_in(text: str, option: str) -> tuple[float, ...]:
    """The shares between commas. Raises `UsageError` naming the option."""
    return _converted(text, option, float, "a list of numbers", "0.1,0.5,1")


def scale_in(text: str | None) -> tuple[float, ...] | None:
    """The ends of `--scale`, None where it was not given. Raises `UsageError`."""
    return None if text is None else _converted(text.replace("..", ","), "--scale", float, "two numbers", "0,5")


def _converted(text: str, option: str, kind: type[Number], what: str, example: str) -> tuple[Number, ...]:
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError as error:
        raise UsageError(f"{option} {text!r} is not {what}.", hint=f"Write it as {option} {example}.") from error


def refuse(goes_with: str, **values: object) -> None:
    """Raise `UsageError` for an option that was given and would be ignored. goes_with: what it needs, in words."""
    for name, value in values.items():
        if value is not None and value is not False:
            option = "--" + name.replace("_", "-")
            raise UsageError(f"{option} goes with {goes_with} only.", hint=f"Leave out {option}.")


def blocks_in(text: str | None) -> tuple[int, ...] | None:
    """The blocks of `--blocks`, None where it was not given. Raises `UsageError`."""
    return None if text is None else blocks_named(text)


def kept(layer: int | None, blocks: str | None) -> int | tuple[int, ...] | None:
    """Where to cut: the layer, or the blocks that were named; None for neither. Raises `UsageError`."""
    if layer is not None and blocks is not None:
        raise UsageError("--layer and --blocks both say what to keep.", hint="Leave out --layer, or --blocks.")
    return layer if blocks is None else blocks_in(blocks)


def use_threads(threads: int | None) -> None:
    """Let torch use this number of threads; None leaves its choice. Raises `UsageError`."""
    if threads is not None:
        from truncate_kit.hardware import check_threads

        check_threads(threads)
        import torch

        torch.set_num_threads(threads)
