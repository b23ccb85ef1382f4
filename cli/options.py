"""Settings become options; options that several commands share; parameters of the library in the words of options."""

import dataclasses
import functools
import inspect
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

import truncate_kit
from truncate_kit.core.errors import TruncateKitError, UsageError, known_name
from truncate_kit.core.files import local_path
from truncate_kit.core.settings import DATA, LAYERS, MACHINE, RESULTS, TRAINING, names, numbers, setting

if TYPE_CHECKING:
    from truncate_kit.core.parallel import Engine

WORKSPACE = Path("exported")
OTHER_NAMES = {
    "address": "ray_address",
    "count": "workers",
    "cpus": "threads",
    "extras": "extra",
    "gpus": "gpus_per_worker",
    "layers": "layer",
    "out": "folder",
    "pairs": "data",
    "precision": "vectors",
    "raw": "texts",
    "rows": "triplets",
    "search_pairs": "data",
}
"""Parameters of the library that the command line has under another name."""
FUNCTIONS = {
    "combine": "truncate-kit combine MODEL",
    "diagnose": "truncate-kit doctor",
    "export_onnx": "truncate-kit export MODEL --onnx",
    "finetune": "truncate-kit finetune MODEL",
    "finetune_contrastive": "truncate-kit contrast MODEL",
    "finetune_frozen": "truncate-kit freeze MODEL",
    "keep_words": "truncate-kit cut MODEL --vocabulary-from FILE",
    "truncate": "truncate-kit cut MODEL --layer N",
}
"""The command that does what a function of the library does."""
_NAMED = re.compile(r"`(\w+)(?:=([^`]+)|\(([^`]*)\))?`")


class Command:
    """A function as a command: parameters that are settings become an option for each of their fields.

    A parameter of the type `Annotated[dict[str, Any], SomeSettings]` gets those values alone that were given. Settings
    of the package that are named in quotes are imported only when the command is used.
    """

    def __init__(self, function: Callable[..., Any], examples: tuple[str, ...]) -> None:
        functools.update_wrapper(self, function)
        self.__annotations__ = {}
        self.function = function
        self.examples = examples

    @functools.cached_property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """The parameters of the function."""
        return dict(inspect.signature(self.function, eval_str=True, locals=_PublicNames()).parameters)

    @functools.cached_property
    def settings(self) -> dict[str, type]:
        """The settings among the parameters."""
        return {name: kind for name, one in self.parameters.items() if (kind := _settings_of(one.annotation))}

    @functools.cached_property
    def __signature__(self) -> inspect.Signature:
        """What can be typed."""
        typed: list[inspect.Parameter] = []
        for name, one in self.parameters.items():
            if name in self.settings:
                typed += [_parameter(field) for field in _options_of(self.settings[name])]
            else:
                typed.append(one.replace(kind=inspect.Parameter.KEYWORD_ONLY))
        return inspect.Signature(typed)

    def __call__(self, **values: Any) -> Any:
        """Run the function; what is not given has its default."""
        typed = self.__signature__.parameters
        defaults = {name: getattr(one.default, "default", one.default) for name, one in typed.items()}
        values = {
            name: value for name, value in defaults.items() if value not in (..., inspect.Parameter.empty)
        } | values
        for name, kind in self.settings.items():
            given = {field.name: _value(field, values.pop(field.name)) for field in _options_of(kind)}
            given = {key: value for key, value in given.items() if value is not None}
            values[name] = kind(**given) if self.parameters[name].annotation is kind else given
        return self.function(**values)


class _PublicNames(dict[str, Any]):
    """The public names of the package, each imported when an annotation asks for it."""

    def __missing__(self, name: str) -> Any:
        if name not in truncate_kit.__all__:
            raise KeyError(name)
        return getattr(truncate_kit, name)


def command(*examples: str) -> Callable[[Callable[..., Any]], Command]:
    """Make a function a command. examples: lines at the end of its help."""
    return lambda function: Command(function, examples)


def _settings_of(annotation: Any) -> type | None:
    found = [one for one in (annotation, *get_args(annotation)[1:]) if dataclasses.is_dataclass(one)]
    return found[0] if found and isinstance(found[0], type) else None


def _options_of(kind: type) -> "list[dataclasses.Field[Any]]":
    return [field for field in dataclasses.fields(kind) if field.metadata.get("help")]


def _parameter(field: "dataclasses.Field[Any]") -> inspect.Parameter:
    """Return the option of a settings field as typer reads it."""
    details = dict(field.metadata["option"])
    default, parse = details.pop("default", field.default), details.pop("parse", None)
    usual = str if parse and default is None else type(field.default if default is None else default)
    kind = details.pop("kind", usual)
    name = [details.pop("name")] if "name" in details else []
    option = typer.Option(*name, help=field.metadata["help"], rich_help_panel=field.metadata["panel"], **details)
    annotation: Any = Annotated[kind if default is not None else kind | None, option]
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _value(field: "dataclasses.Field[Any]", typed: Any) -> Any:
    """Return the value of a field from what was typed, or given as the value itself. Raises `UsageError`."""
    parse = field.metadata["option"].get("parse")
    if parse is None or typed is None:
        return typed
    try:
        return parse(typed)
    except TruncateKitError:
        raise
    except ValueError as error:
        raise UsageError(
            f"`{field.name}` {typed!r} is no list of numbers.", hint="Write numbers between commas, such as 1,32."
        ) from error


def option(panel: str, default: Any, text: str, *names: str, **details: Any) -> Any:
    """Make an option of a help panel, called like its parameter where no other name is given."""
    return typer.Option(default, *names, help=text, rich_help_panel=panel, **details)


data_option = functools.partial(option, DATA)
layers_option = functools.partial(option, LAYERS)
training_option = functools.partial(option, TRAINING)
machine_option = functools.partial(option, MACHINE)
results_option = functools.partial(option, RESULTS)


def argument(default: Any, metavar: str, text: str) -> Any:
    """Make an argument."""
    return typer.Argument(default, metavar=metavar, help=text, show_default=False)


def _shared(panel: str, text: str, *names: str, **details: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, **details)


Model = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        show_default=False,
        help="Model folder, hub name or bundled miniature; by default the one that was last analyzed, trained or cut.",
    ),
]
Finished = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        show_default=False,
        help="Model folder, hub name or bundled miniature; by default WORKSPACE/lean.",
    ),
]
Data = Annotated[
    str | None,
    _shared(
        DATA,
        "Pairs: a CSV, TSV, JSONL or Parquet file, a folder of splits, or a hub name such as stsb; by default those "
        "of the last command that analyzed, trained or exported, else the bundled set.",
    ),
]
PairsOrRetrieval = Annotated[
    str | None,
    _shared(
        DATA,
        "Pairs as for finetune, or queries and documents: a folder of corpus.jsonl, queries.jsonl and qrels/test.tsv "
        "(BEIR's layout); by default the pairs of the last command that analyzed, trained or exported, else the "
        "bundled set.",
    ),
]
SearchMetric = Annotated[
    str | None, _shared(DATA, "What queries choose by: ndcg (the default), mrr or recall, each at 10.")
]
Columns = Annotated[str | None, _shared(DATA, "Columns, if their names do not say it.", metavar="FIRST,SECOND,SCORE")]
Scale = Annotated[str | None, _shared(DATA, "Lowest and highest possible score; else inferred.", metavar="LOW,HIGH")]
Pooling = Annotated[str | None, _shared(DATA, "mean, cls, max or last; by default the model's own, else mean.")]
MaxLength = Annotated[int | None, _shared(DATA, "Tokens per text; by default the model's limit.")]
Dimensions = Annotated[int | None, _shared(DATA, "Keep only this number of dimensions of a vector, the first ones.")]
Layers = Annotated[
    str | None,
    _shared(
        LAYERS, "auto (the default), all, or layers such as 3, 3,6,9 or 2..5; with --blocks those of what is kept."
    ),
]
Blocks = Annotated[str | None, _shared(LAYERS, "Keep these blocks alone, such as 1,4,6 or 1..3,6.")]
VocabularyFrom = Annotated[
    Path | None,
    _shared(
        LAYERS, "Drop word pieces that these texts never use, lines of a file; texts without them keep their vectors."
    ),
]
Device = Annotated[str | None, _shared(MACHINE, "cpu or cuda; an error if it is not there.")]
Threads = Annotated[int | None, _shared(MACHINE, "CPU threads; by default all cores.", min=1)]
Graph = Annotated[
    str | None,
    _shared(
        MACHINE,
        "Which graph of the folder: fp32, fp16 or int8. Where none is named and one is used, what suits the device: on "
        "the CPU fp32, else int8; on CUDA fp16, else fp32.",
    ),
]
Tensorboard = Annotated[
    bool, _shared(RESULTS, "Log losses and scores of every trial to tensorboard/ beside the trials.", "--tensorboard")
]
WorkspaceFolder = Annotated[
    Path,
    _shared(
        RESULTS,
        "Folder in which each command finds what the one before it left.",
        "--workspace",
        callback=lambda folder: local_path(folder),  # shells leave the "~" of --workspace=~/w
    ),
]
Json = Annotated[bool, _shared(RESULTS, "Print the result as JSON, and nothing else on stdout.", "--json")]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The options that say where work runs. Raises `UsageError` for some that do not go together.

    threads: CPU threads of each worker on a cluster, of all together on this machine.
    """

    engine: str = setting(
        "local",
        "Where the work is done: local (this machine) or ray (a Ray cluster).",
        MACHINE,
    )
    workers: int | None = setting(
        None,
        "Processes on this machine that share the work; with --device cuda each has a GPU.",
        MACHINE,
        kind=int,
    )
    ray_address: str | None = setting(
        None, "HOST:PORT of the cluster's head; by default the cluster of this machine.", MACHINE, kind=str
    )
    gpus_per_worker: float | None = setting(
        None, "Ray: such as 1 or 0.5; by default 1 with --device cuda, else none.", MACHINE, kind=float
    )
    device: str | None = setting(None, "cpu or cuda; an error if it is not there.", MACHINE, kind=str)
    threads: int | None = setting(
        None,
        "CPU threads; by default all cores, shared by --workers, and on Ray one for each task.",
        MACHINE,
        kind=int,
        min=1,
    )

    def __post_init__(self) -> None:
        """Refuse what would be ignored."""
        known_name("engine", self.engine, ("local", "ray"))
        if self.engine == "local":
            refuse("--engine ray", ray_address=self.ray_address, gpus_per_worker=self.gpus_per_worker)
        elif self.workers is not None:
            raise UsageError(
                "`workers` counts processes of this machine; a cluster itself decides how many run at once.",
                hint="Leave out `workers`, or say what each of them needs: `threads`, `gpus_per_worker`.",
            )
        if self.on_cuda and self.gpus_per_worker == 0:
            raise UsageError(
                f"`gpus_per_worker=0` leaves nothing of `device={self.device}`.", hint="Leave out one of them."
            )

    @property
    def on_cuda(self) -> bool:
        """Whether GPUs do the work."""
        return self.device is not None and self.device.startswith("cuda")

    def open(self) -> "Engine":
        """Return the engine, to be used in a `with` block; what is not there is said on entering it."""
        from truncate_kit.core.parallel import Engine, Processes, RayCluster

        if self.engine == "ray":
            gpus = float(self.on_cuda) if self.gpus_per_worker is None else self.gpus_per_worker
            return RayCluster(self.ray_address or "auto", gpus=gpus, cpus=self.threads or 1)
        return Engine() if self.workers is None else Processes(self.workers, device=self.device)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """`--push-to` and `--public`. Raises `UsageError` before any work for a name that can be none."""

    push_to: str | None = setting(
        None, "Upload the lean model to the hub, as a private one.", RESULTS, kind=str, metavar="OWNER/NAME"
    )
    public: bool = setting(False, "With --push-to: let everyone see it.", RESULTS, name="--public")

    def __post_init__(self) -> None:
        if self.push_to is None:
            refuse("--push-to", public=self.public)
            return
        from truncate_kit.export.pushing import check_hub_name

        check_hub_name(self.push_to)

    def upload(self, folder: Path) -> str | None:
        """Upload the folder where that was asked for; return a sentence of where it went."""
        if self.push_to is None:
            return None
        from truncate_kit.export.pushing import push_folder

        address, commit, private = push_folder(folder, self.push_to, public=self.public)
        return f"Pushed: {address} ({'private' if private else 'public'}), commit {commit}."


def given(**values: Any) -> dict[str, Any]:
    """Return the values that are not None: what is left out keeps the default of the settings it goes into."""
    return {name: value for name, value in values.items() if value is not None}


def names_in(text: str | None) -> tuple[str, ...] | None:
    """Return what stands between commas; None where nothing was given."""
    return None if text is None else names(text)


def scale_in(text: str | None) -> tuple[float, ...] | None:
    """Return the ends of `--scale`, None where it was not given. Raises `UsageError`."""
    try:
        return None if text is None else numbers(text.replace("..", ","))
    except ValueError as error:
        raise UsageError(f"`scale` {text!r} is not two numbers.", hint="Write it as `scale=0,5`.") from error


def refuse(goes_with: str, **values: object) -> None:
    """Raise `UsageError` for an option that was given and would be ignored. goes_with: what it needs, in words."""
    for name, value in values.items():
        if value is not None and value is not False:
            raise UsageError(f"`{name}` goes with {goes_with} only.", hint=f"Leave out `{name}`.")


def kept(layer: int | None, blocks: str | None) -> int | tuple[int, ...] | None:
    """Return where to cut: the layer, or the blocks that were named; None for neither. Raises `UsageError`."""
    if layer is not None and blocks is not None:
        raise UsageError("`layer` and `blocks` both say what to keep.", hint="Leave out `layer`, or `blocks`.")
    from truncate_kit.core.settings import blocks_named

    return layer if blocks is None else blocks_named(blocks)


def use_threads(threads: int | None) -> None:
    """Let torch use this number of threads; None leaves its choice. Raises `UsageError`."""
    if threads is not None:
        from truncate_kit.core.hardware import check_threads

        check_threads(threads)
        import torch

        torch.set_num_threads(threads)


_current: Any = None  # the command of typer that runs


def speak_for(command: Any) -> None:
    """Name parameters in messages as the options of this command."""
    global _current
    _current = command


def in_options(text: str) -> str:
    """Return a text of the library with its parameters, which stand in backticks, as options of the command.

    `batch_size` becomes --batch-size, `device="cpu"` becomes --device cpu, `truncate()` the command that does it.
    """
    options = {parameter.name: parameter for parameter in _current.params} if _current is not None else {}

    def replaced(match: re.Match[str]) -> str:
        name, value, arguments = match.groups()
        if arguments is not None:
            values = "".join(f" --{key} {text}" for key, text in re.findall(r'(\w+)="?(\w+)"?(?=[,)]|$)', arguments))
            return f"{FUNCTIONS[name]}{values}" if name in FUNCTIONS else match[0]
        found = options.get(name) or options.get(OTHER_NAMES.get(name, ""))
        plain = re.sub(r"[\"'()\[\]]", "", value or "").replace(", ", ",")
        plain = shlex.quote(plain) if plain else ""
        if found is None:
            return f"{name.replace('_', ' ')} {plain}".strip()
        if found.param_type_name == "argument":
            return str(found.metavar or name.upper())
        if plain in ("True", "False"):
            return str((found.opts if plain == "True" else found.secondary_opts or found.opts)[0])
        return f"{found.opts[-1]} {plain}".strip()

    return _NAMED.sub(replaced, text)
