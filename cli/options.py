"""Define command options and the workspace. Invalid values raise `UsageError`."""

import dataclasses
import functools
import inspect
import json
import pkgutil
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer

import truncate_kit
from truncate_kit.core import results
from truncate_kit.core.errors import DataError, TruncateKitError, UsageError
from truncate_kit.core.files import check_there, check_writable, run_lock
from truncate_kit.core.hardware import GraphPrecision, check_device, check_threads
from truncate_kit.core.progress import Engine
from truncate_kit.core.results import (
    DATA,
    LAYERS,
    MACHINE,
    RESULTS,
    TRAINING,
    Result,
    file_for,
    names,
    numbers,
    setting,
)
from truncate_kit.core.workspace import Source, depth_of, read_origin
from truncate_kit.core.workspace import Workspace as Places

from .console import note

if TYPE_CHECKING:
    from truncate_kit.data.pairs import PairSplits
    from truncate_kit.data.retrieval import RetrievalSet
    from truncate_kit.export.runtime import GraphEncoder
    from truncate_kit.models.encoder import Encoder

WORKSPACE = Path("exported")


class Command:
    """A function as a command: each field of a settings parameter becomes an option.

    Quoted annotations delay imports; `"Annotated[dict[str, Any], SomeSettings]"` gives a dict of the given values.
    """

    def __init__(self, function: Callable[..., Any], examples: tuple[str, ...], result: str) -> None:
        functools.update_wrapper(self, function)
        self.__annotations__ = {}
        self.function, self.examples, self.result = function, examples, result
        self.parameters = inspect.signature(function).parameters

    def schema(self) -> str:
        """Return the JSON Schema of `--json`."""
        from truncate_kit.core.results import json_schema

        kind = pkgutil.resolve_name(f"truncate_kit.{self.result}")
        return json.dumps(json_schema(self.function.__name__, [kind]), indent=1)

    def _print_schema(self, wanted: bool) -> None:
        if wanted:
            typer.echo(self.schema())
            raise typer.Exit

    @functools.cached_property
    def settings(self) -> dict[str, type]:
        """Return the settings class of each parameter that has one."""
        kinds = {}
        for name, parameter in self.parameters.items():
            kind = parameter.annotation
            if isinstance(kind, str):
                kind = getattr(truncate_kit, kind.rstrip("]").rpartition(" ")[2])
            if dataclasses.is_dataclass(kind):
                kinds[name] = kind
        return kinds  # type: ignore[return-value]  # no instances

    @functools.cached_property
    def __signature__(self) -> inspect.Signature:
        typed: list[inspect.Parameter] = []
        for name, parameter in self.parameters.items():
            if name in self.settings:
                typed += [_parameter(field) for field in _options_of(self.settings[name])]
            else:
                choices = getattr(parameter.default, "choices", ())
                kind = Literal[tuple(choices)] | None if choices else parameter.annotation
                typed.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=kind))
        eager: dict[str, Any] = {"is_eager": True, "callback": self._print_schema, "expose_value": False}
        shared = [
            ("as_json", results_option(False, "Print only the result on stdout, as JSON.", "--json")),
            ("quiet", results_option(False, "Print results and problems only.", "--quiet", "-q")),
            ("verbose", results_option(False, "Print every table, with all columns.", "--verbose", "-v")),
            (
                "json_schema",
                results_option(False, "Print the JSON Schema of --json and exit.", "--json-schema", **eager),
            ),
        ]
        for name, option in shared if self.result else shared[1:3]:
            typed.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=bool))
        return inspect.Signature(typed)

    def __call__(self, **values: Any) -> Any:
        """Run the function; missing values get their defaults."""
        typed = self.__signature__.parameters
        defaults = {name: getattr(one.default, "default", one.default) for name, one in typed.items()}
        values = {name: value for name, value in defaults.items() if value is not ...} | values
        for name in ("as_json", "quiet", "verbose", "json_schema"):
            values.pop(name, None)
        for name, kind in self.settings.items():
            own = {field.name: _value(field, values.pop(field.name)) for field in _options_of(kind)}
            own = without_none(**own)
            values[name] = own if str(self.parameters[name].annotation).startswith("Annotated") else kind(**own)
        for name in typed.keys() & values.keys():
            info = getattr(typed[name].annotation, "__metadata__", (typed[name].default,))[-1]
            paths = values[name] if isinstance(values[name], list) else [values[name]]
            for path in paths if getattr(info, "rich_help_panel", None) not in (None, RESULTS) else ():
                if isinstance(path, Path):  # to read
                    check_there(path)
        for value in values.values():
            use_threads(value.threads if isinstance(value, Hardware) else None)  # imports torch
        return self.function(**values)


def command(*examples: str, result: str = "") -> Callable[[Callable[..., Any]], Command]:
    """Turn a function into a command; `result` names the result class as `module:name`."""
    return lambda function: Command(function, examples, result)


def _options_of(kind: type) -> "list[dataclasses.Field[Any]]":
    return [field for field in dataclasses.fields(kind) if field.metadata.get("help")]


def _parameter(field: "dataclasses.Field[Any]") -> inspect.Parameter:
    details = dict(field.metadata["option"])
    default, parse = details.pop("default", field.default), details.pop("parse", None)
    choices = field.metadata["choices"] or (get_args(field.type) if get_origin(field.type) is Literal else ())
    kind: Any = str if parse and default is None else type(field.default if default is None else default)
    kind = get_args(field.type)[0] if kind is type(None) else kind
    kind = details.pop("kind", Literal[tuple(choices)] if choices and not parse else kind)
    name = [details.pop("name")] if "name" in details else []
    option = typer.Option(*name, help=field.metadata["help"], rich_help_panel=field.metadata["panel"], **details)
    annotation: Any = Annotated[kind if default is not None else kind | None, option]
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _value(field: "dataclasses.Field[Any]", typed: Any) -> Any:
    parse = field.metadata["option"].get("parse")
    if parse is None or typed is None:
        return typed
    return numbers_of(field.name, typed, parse)


def numbers_of(name: str, typed: str, parse: Callable[[str], Any] = numbers) -> Any:
    """Parse an option's text."""
    try:
        return parse(typed)
    except TruncateKitError:
        raise
    except ValueError as error:
        hint = "Separate numbers by commas, such as 0,5."
        raise UsageError(f"`{name}` {typed!r} is not a list of numbers.", hint=hint) from error


def _scale(text: str) -> tuple[float, ...]:
    return numbers(text.replace("..", ","))


def option(panel: str, default: Any, text: str, *names: str, choices: Collection[str] = (), **details: Any) -> Any:
    """Define an option of a help panel."""
    made = typer.Option(default, *names, help=text, rich_help_panel=panel, **details)
    made.choices = choices
    return made


data_option = functools.partial(option, DATA)
layers_option = functools.partial(option, LAYERS)
training_option = functools.partial(option, TRAINING)
machine_option = functools.partial(option, MACHINE)
results_option = functools.partial(option, RESULTS)


def argument(default: Any, metavar: str, text: str) -> Any:
    """Define a positional argument."""
    return typer.Argument(default, metavar=metavar, help=text, show_default=False)


Model = Annotated[
    str | None, argument(..., "MODEL", "Folder, hub name or bundled miniature; by default the last command's model.")
]
Finished = Annotated[
    str | None, argument(..., "MODEL", "Folder, hub name or bundled miniature; by default WORKSPACE/lean.")
]
SearchMetric = Annotated[results.SearchMetric | None, data_option(..., "Retrieval metric at 10; by default ndcg.")]
PoolingName = Literal["mean", "cls", "max", "last"]
Pooling = Annotated[PoolingName | None, data_option(..., "By default the model's own, else mean.")]
MaxLength = Annotated[int | None, data_option(..., "Tokens per text; by default the model's limit.")]
Dimensions = Annotated[int | None, data_option(..., "Number of leading dimensions to keep; by default all.")]
Layers = Annotated[str | None, layers_option(..., "auto (the default), all, or layers such as 3, 3,6,9 or 2..5.")]
Blocks = Annotated[str | None, layers_option(..., "Keep only these blocks, such as 1,4,6 or 1..3,6.")]
VocabularyFrom = Annotated[Path | None, layers_option(..., "Keep only word pieces that occur in this file's texts.")]
SampleTexts = Annotated[
    Path | None, data_option(..., "File of texts to check the graph on, instead of pairs.", "--texts")
]
Graph = Annotated[
    GraphPrecision | None, machine_option(..., "Precision of the graph; by default suited to the device.")
]
Tensorboard = Annotated[
    bool, results_option(..., "Log losses and scores to tensorboard/ in the output folder.", "--tensorboard")
]
Threads = Annotated[int | None, machine_option(..., "CPU threads; by default all cores.", min=1)]


class Pairs(Result):
    """Graded pairs, or queries and documents."""

    data: str | None = setting(
        None, "Pairs (path, hub name) or retrieval folder; by default the last used (compress, distill: none).", DATA
    )
    columns: tuple[str, ...] | None = setting(
        None, "Columns, if not recognized by their names.", DATA, parse=names, metavar="FIRST,SECOND,SCORE"
    )
    scale: tuple[float, ...] | None = setting(
        None, "Lowest and highest possible score; by default inferred.", DATA, parse=_scale, metavar="LOW,HIGH"
    )
    skip_bad_rows: bool = setting(False, "Leave out pairs without a text or a score.", DATA)

    def details(self) -> dict[str, Any]:
        """Return how to read graded pairs."""
        return {"columns": self.columns, "scale": self.scale, "skip_bad_rows": self.skip_bad_rows}

    def refuse_details(self, goes_with: str = "graded pairs") -> None:
        """Raise `UsageError` if `details` are set."""
        refuse(goes_with, **self.details())


class Hardware(Result):
    """Device and threads of torch."""

    device: str | None = setting(
        None, "cpu (the default) or cuda; fails if CUDA is not available.", MACHINE,
        autocompletion=lambda: ["cpu", "cuda"],
    )  # fmt: skip
    threads: int | None = setting(None, "CPU threads; by default all cores.", MACHINE, min=1)

    def __post_init__(self) -> None:
        check_device(self.device)
        check_threads(self.threads)


class Machine(Hardware):
    """Engine, workers and devices; on a cluster, `threads` is per worker."""

    engine: Literal["local", "ray"] = setting("local", "Run on this machine or on a Ray cluster.", MACHINE)
    workers: int | None = setting(
        None, "Parallel processes on this machine; with --device cuda each uses one GPU.", MACHINE
    )
    ray_address: str | None = setting(
        None, "HOST:PORT of the cluster's head; by default this machine's cluster.", MACHINE
    )
    gpus_per_worker: float | None = setting(
        None, "GPUs per Ray worker, such as 0.5; default 1 with --device cuda.", MACHINE
    )

    def __post_init__(self) -> None:
        if self.engine == "local":
            refuse("--engine ray", ray_address=self.ray_address, gpus_per_worker=self.gpus_per_worker)
        else:
            refuse("--engine local", workers=self.workers)
        if self.on_cuda and self.gpus_per_worker == 0:
            raise UsageError("`gpus_per_worker=0` and `device=cuda` conflict.", hint="Leave out one of the two.")
        super().__post_init__()

    @property
    def on_cuda(self) -> bool:
        """Tell if the device is a GPU."""
        return self.device is not None and self.device.startswith("cuda")

    def open(self) -> Engine:
        """Return the engine that runs tasks."""
        if self.engine == "ray":
            from truncate_kit.core.parallel import RayCluster

            gpus = float(self.on_cuda) if self.gpus_per_worker is None else self.gpus_per_worker
            return RayCluster(self.ray_address or "auto", gpus=gpus, cpus=self.threads or 1)
        if self.workers is None:
            return Engine()
        from truncate_kit.core.parallel import Processes

        return Processes(self.workers, device=self.device)


class Push(Result):
    """Options to upload the model."""

    push_to: str | None = setting(
        None, "Upload the saved model to a private hub repository.", RESULTS, metavar="OWNER/NAME"
    )
    public: bool = setting(False, "With --push-to: make the repository public.", RESULTS, name="--public")

    def __post_init__(self) -> None:
        if self.push_to is None:
            refuse("--push-to", public=self.public)
            return
        from truncate_kit.export.exporting import check_hub_name

        check_hub_name(self.push_to)

    def upload(self, folder: Path) -> str | None:
        """Upload the folder if `push_to` is set; return a sentence with its address and commit."""
        if self.push_to is None:
            return None
        from truncate_kit.export.exporting import push_folder

        address, commit, private = push_folder(folder, self.push_to, public=self.public)
        return f"Pushed: {address} ({'private' if private else 'public'}), commit {commit}."


def without_none(**values: Any) -> dict[str, Any]:
    """Return the values that are set."""
    return {name: value for name, value in values.items() if value is not None}


def refuse(goes_with: str, **values: object) -> None:
    """Raise `UsageError` if an option needs `goes_with`."""
    for name, value in values.items():
        if value is not None and value is not False:
            raise UsageError(f"`{name}` works only with {goes_with}.", hint=f"Leave out `{name}`.")


def kept(layer: int | None, blocks: str | None) -> int | tuple[int, ...] | None:
    """Return the layer or blocks to keep, if given. Raises `UsageError` for both."""
    if layer is not None and blocks is not None:
        raise UsageError("`layer` and `blocks` are both given.", hint="Leave out `layer` or `blocks`.")
    from truncate_kit.core.results import blocks_named

    return layer if blocks is None else blocks_named(blocks)


def use_threads(threads: int | None) -> None:
    """Set torch's CPU threads, if given."""
    if threads is not None:
        check_threads(threads)
        import torch

        torch.set_num_threads(threads)


@dataclasses.dataclass(kw_only=True)
class Workspace(Places):
    """Workspace that prints the model and data it chose."""

    folder: Path = setting(WORKSPACE, "Folder of models and results that commands share.", RESULTS, name="--workspace")

    def __post_init__(self) -> None:
        super().__init__(self.folder)

    def held(self) -> AbstractContextManager[None]:
        """Lock the workspace against other writers."""
        return run_lock(self.folder)

    def write(self, report: Result, usual: Path) -> Path:
        """Write a report, numbered if `usual` measured more."""
        path = file_for(report, usual)
        report.write(path)
        path.with_suffix(".png").unlink(missing_ok=True)
        note(None if path == usual else f"{usual} is kept, because it holds measurements that this run lacks.")
        return path

    def starting_model(
        self, named: str | None, pooling: str | None, max_length: int | None, *, or_miniature: bool = False
    ) -> Source:
        """Return the named model, else the last one, else with `or_miniature` the default miniature."""
        from truncate_kit.core.workspace import DEFAULT_MINIATURE

        last = self.remembered().model
        if named is not None:
            return Source(named, pooling, max_length)
        if last is not None:
            pooling, max_length = pooling or last.pooling, max_length or last.max_length
            read = [f"pooling {pooling}"] * bool(pooling) + [f"at most {max_length} tokens"] * bool(max_length)
            note(f"Model: {', '.join([last.name, *read])}, as in the last command.")
            return Source(last.name, pooling, max_length)
        if not or_miniature:
            raise UsageError(
                f"No model is named, and no earlier command in {self.folder} used a model.",
                hint=f"Name a folder, a hub name or a bundled miniature, such as {DEFAULT_MINIATURE}.",
            )
        note(f"No model is named, so this uses the bundled miniature {DEFAULT_MINIATURE}.")
        return Source(DEFAULT_MINIATURE, pooling, max_length)

    def depth(self, named: str | None) -> int | None:
        """Return the blocks of the named or last model, if a local folder tells."""
        model = named or getattr(self.remembered().model, "name", None)
        return None if model is None else depth_of(model)

    def finished_model(self, named: str | None, pooling: str | None = None, max_length: int | None = None) -> Source:
        """Return the named model, else the workspace's lean model."""
        if named is not None:
            return Source(named, pooling, max_length)
        if not self.lean.is_dir():
            others = [str(path) for path in (self.combined, self.frozen) if path.is_dir()]
            raise UsageError(
                f"No model is named, and there is no lean model {self.lean}.",
                hint=f"Name {' or '.join(others) or 'a model'}, or make one with finetune, contrast, distill or cut.",
            )
        last, made = self.remembered().model, read_origin(self.lean)
        note(f"Model: {self.lean}{'' if made is None else f': {made.words}'}.")
        if made is not None and last is not None and last.name not in (made.model, str(Path(made.model).resolve())):
            note(f"The lean model was not made from {last.name}, the last command's model.")
        return Source(str(self.lean), pooling, max_length)

    def load_text_encoder(
        self, source: Source, runtime: str | None, graph: str | None, hardware: Hardware, device: str | None = None
    ) -> "Encoder | GraphEncoder":
        """Load the model in torch or as a graph; print the graph's file."""
        from truncate_kit.export.record import graph_sentence
        from truncate_kit.export.runtime import GraphEncoder, load_text_encoder

        load: dict[str, Any] = {"pooling": source.pooling, "max_length": source.max_length, "device": hardware.device}
        encoder = load_text_encoder(source.name, runtime=runtime, precision=graph, threads=hardware.threads, **load)
        if isinstance(encoder, GraphEncoder) and encoder.report:
            note(graph_sentence(encoder.file, encoder.report, device or encoder.device.type))
        return encoder

    def load(self, source: Source, *, device: str | None = None, precision: str = "fp32") -> "Encoder":
        """Load the model in torch; check the precision."""
        from truncate_kit.core.hardware import check_precision
        from truncate_kit.models.loading import load_encoder

        encoder = load_encoder(source.name, pooling=source.pooling, max_length=source.max_length, device=device)
        check_precision(precision, encoder.device)
        return encoder

    def data(self, pairs: Pairs, *, classes: bool = False) -> tuple["PairSplits", Source]:
        """Load the named pairs, else the last command's, else the bundled set."""
        from truncate_kit.data.pairs import BUNDLED, load_pairs
        from truncate_kit.data.tables import is_retrieval_folder
        from truncate_kit.report.view import data_sentences

        last = self.remembered().data if pairs.data is None else Source(pairs.data)
        read = {name: value or getattr(last, name) for name, value in pairs.details().items()}
        source = Source(last.name, **read)
        if source.name and is_retrieval_folder(source.name):
            hint = (
                "Give graded pairs; analyze, evaluate, compare, finetune, distill, export and bench also read queries."
            )
            raise DataError(f"{source.name} holds queries and documents, not graded pairs.", hint=hint)
        splits = load_pairs(source.name or BUNDLED, divide=False, classes=classes, **read)
        note(*data_sentences(splits))
        return splits, source

    def read(
        self, pairs: Pairs, *, split: str | None = None, metric: str | None = None, chooses: bool = False
    ) -> tuple["PairSplits | RetrievalSet", Source | str]:
        """Load the named pairs or retrieval set (`read_retrieval`), else the last command's."""
        from truncate_kit.data.tables import is_retrieval_folder

        named = pairs.data
        folder = self.remembered().queries if named is None else named if is_retrieval_folder(named) else None
        if folder is None:
            refuse("a retrieval folder", search_metric=metric)
            return self.data(pairs)
        pairs.refuse_details()
        if not is_retrieval_folder(folder):
            raise UsageError(f"{folder}, the data of the last command, does not exist.", hint="Name other data.")
        from truncate_kit.data.retrieval import read_retrieval

        note(None if named else f"Data: {folder}, as in the last command.")
        return read_retrieval(folder, split=split, chooses=chooses, **without_none(metric=metric)), folder

    def divided(self, splits: "PairSplits") -> "PairSplits":
        """Split missing dev and test pairs off train."""
        from truncate_kit.data.pairs import complete_splits
        from truncate_kit.report.view import overlap_warning

        divided = complete_splits(splits)
        note(*divided.notes[len(splits.notes) :])
        note(None if divided is splits else overlap_warning(divided.overlap))
        return divided

    def unseen(self, splits: "PairSplits", *models: str) -> "PairSplits":
        """Drop evaluation pairs that a model has seen."""
        from truncate_kit.data.seen import unseen

        fresh = splits
        for model in models:
            fresh = unseen(fresh, model)
        note(*fresh.notes[len(splits.notes) :])
        return fresh


class Output(Workspace):
    """Workspace of a command that always writes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_writable(self.folder)
