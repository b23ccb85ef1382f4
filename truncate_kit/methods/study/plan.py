"""The plan of a study: a TOML file that needs only `model` and `data`; docs/guides/study.md shows every key."""

import os
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from truncate_kit.core.errors import DataError, UsageError, first_line
from truncate_kit.core.files import is_there, local_path
from truncate_kit.core.results import SEEDS, Result, SearchMetric, as_text, blocks_named, setting
from truncate_kit.core.workspace import blocks_in_words
from truncate_kit.data.pairs import BUNDLED, holds_words
from truncate_kit.data.tables import PAIR_FORMATS, TEXT_FORMAT, format_of, is_retrieval_folder, opened_text
from truncate_kit.methods.study.result import figure_name
from truncate_kit.training.settings import SEARCH, WORD_BATCH_SIZE, WORD_EPOCHS, AdaptationSettings, TrainingSettings

_PATHS = ("words", "texts", "retrieval")
_PLACES = ("model", "data", *_PATHS)
Kind = TypeVar("Kind", bound=Result)


class _Part:
    __pydantic_config__: ClassVar[dict[str, Any]] = Result.__pydantic_config__ | {"extra": "forbid"}


class StudyModel(_Part, Result):
    """One model of a study."""

    model: str  # folder, hub name or miniature
    name: str
    weights: Literal["pretrained", "random"] = "pretrained"
    pooling: str | None = None
    max_length: int | None = None  # tokens
    published: str | None = None
    blocks: tuple[int, ...] | None = None


class StudyPrior(_Part, AdaptationSettings):
    """Training before TMFT: masked language modelling on texts with these settings, then TMFT on word pairs."""

    name: str = ""  # added to the model's name
    words: str | None = None
    texts: str | None = None
    layer: int | None = None
    tasks: tuple[str, ...] | None = None

    @property
    def adaptation(self) -> AdaptationSettings:
        """Return the settings for `texts`."""
        return _inherited(AdaptationSettings, self)

    def label(self, model: StudyModel) -> str:
        """Name `model` after this prior."""
        return f"{model.name}, {self.name} first" if self.name else model.name


class StudyTask(_Part, TrainingSettings):
    """One task of a study: its data and training settings."""

    data: str  # file, folder or hub name
    name: str
    columns: tuple[str, ...] | None = None  # first text, second text, target
    scale: tuple[float, float] | None = None
    read_earlier: bool = False
    published: str | None = None
    models: tuple[str, ...] | None = None
    retrieval: str | None = None
    search_metric: SearchMetric = "ndcg"

    def __post_init__(self) -> None:
        super().__post_init__()
        if is_retrieval_folder(Path(self.data)) != (self.row.data == "judged"):
            problem = f"{self.name}: the objective {self.objective} does not suit {self.data}."
            raise UsageError(problem, hint=f'A retrieval folder needs objective = "{SEARCH}", pairs need another one.')
        if self.read_earlier and self.row.trains_head:
            problem = f"{self.name}: a classifier trained at the last layer does not fit earlier layers."
            raise UsageError(problem, hint="Add read_earlier = false to this task.")

    @property
    def training(self) -> TrainingSettings:
        """Return the training settings."""
        return _inherited(TrainingSettings, self)


class Study(_Part, Result):
    """Plan of a study: models × priors × tasks × layers × seeds."""

    models: tuple[StudyModel, ...]
    priors: tuple[StudyPrior, ...] = (StudyPrior(),)
    tasks: tuple[StudyTask, ...]
    layers: str = "all"  # or numbers as text
    seeds: int = setting(3, bounds=SEEDS)
    published: str | None = None
    cka: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        models, tasks = [model.name for model in self.models], [task.name for task in self.tasks]
        if not (models and self.priors and tasks):
            raise UsageError("A study needs models and tasks.", hint="Give at least one [[models]] and one [[tasks]].")
        if self.layers == "auto":
            raise UsageError("A study does not search layers.", hint='Use layers = "all", "3,6,9" or "2..5".')
        labels = [prior.label(model) for model in self.models for prior in self.priors]
        # Figures with equal names would overwrite each other.
        for names in (labels, [figure_name(task, "curves") for task in tasks]):
            if len(set(names)) < len(names):
                twice = max(names, key=names.count)
                raise UsageError(f"Two parts have the name {twice!r}.", hint='Give each its own name = "…".')
        unknown = {self.cka, *(name for task in self.tasks for name in task.models or ())} - {None, *models}
        unknown |= {name for prior in self.priors for name in prior.tasks or ()} - {*tasks}
        if unknown:
            hint = f"Models: {', '.join(models)}. Tasks: {', '.join(tasks)}."
            raise UsageError(f"The study does not define {unknown.pop()!r}.", hint=hint)
        for model in self.models:
            if not any(self.tasks_of(model, prior) for prior in self.priors):
                hint = "Add it to the models of a task, or leave it out."
                raise UsageError(f"No task uses the model {model.name!r}.", hint=hint)

    def tasks_of(self, model: StudyModel, prior: StudyPrior) -> tuple[StudyTask, ...]:
        """Return the tasks for this model and prior."""
        return tuple(
            task
            for task in self.tasks
            if (task.models is None or model.name in task.models) and (prior.tasks is None or task.name in prior.tasks)
        )


def _inherited(kind: type[Kind], part: Kind) -> Kind:
    return kind(**{field.name: getattr(part, field.name) for field in fields(kind)})


def read_study(path: str | Path) -> Study:
    """Read a study from TOML; paths are relative to the file, and may contain environment variables ($DATA).

    Raises `DataError` if the file is missing or not TOML, `UsageError` for an unknown key or an impossible value.
    """
    with opened_text(path := Path(path)) as stream:
        text = stream.read()
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not TOML: {first_line(error)}.", hint="Give a TOML file.") from error
    try:
        return Study.from_dict(_arranged(values, path.resolve().parent))
    except UsageError as error:
        raise UsageError(f"{path}: {error}", hint=error.hint) from error
    except (ValueError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path} is not a valid study: {error}.", hint="docs/guides/study.md shows all keys."
        ) from error


def _arranged(values: dict[str, Any], home: Path) -> dict[str, Any]:
    shared = {"read_earlier": values.pop("read_earlier", False)} | values.pop("training", {})
    if "published" in values:
        values["published"] = _located(values["published"], home, is_path=True)
    for entry in (entry for key in ("models", "priors", "tasks") for entry in values.get(key, ())):
        entry |= {key: _located(entry[key], home, is_path=key in _PATHS) for key in _PLACES if key in entry}
    return (
        values
        | {"layers": as_text(values.get("layers", "all"))}
        | {"models": [_model(entry) for entry in values.get("models", ())]}
        | {"priors": [_prior(entry) for entry in values.get("priors", [{}])]}
        | {"tasks": [_task(entry, shared) for entry in values.get("tasks", ())]}
    )


def _model(entry: dict[str, Any]) -> dict[str, Any]:
    name = Path(entry.get("model", "")).name
    if isinstance(blocks := entry.get("blocks"), str | list):
        blocks = blocks_named(as_text(blocks))
        name += f", {blocks_in_words(blocks)}"
    return {"name": name} | entry | {"blocks": blocks}


def _prior(entry: dict[str, Any]) -> dict[str, Any]:
    name = " and ".join(words for key, words in (("texts", "masked words"), ("words", "words")) if key in entry)
    of_texts = {"layer", "epochs", "batch_size", "seed", *(() if "words" in entry else ("learning_rate", "precision"))}
    if "texts" not in entry and (idle := of_texts.intersection(entry)):
        raise UsageError(f"A prior has {min(idle)}, but no texts.", hint=f"Add texts, or leave out {min(idle)}.")
    if "layer" in entry:
        name += f" at layer {entry['layer']}"
    return {"name": name} | entry


def _task(entry: dict[str, Any], shared: dict[str, Any]) -> dict[str, Any]:
    data, usual = Path(entry.get("data", "")), dict[str, Any]()
    if is_retrieval_folder(data):
        usual = {"objective": SEARCH}
    elif holds_words(data):
        usual = {"epochs": WORD_EPOCHS, "batch_size": WORD_BATCH_SIZE}
    return {"name": "/".join(data.parts[-2:])} | usual | shared | entry


def _located(name: str, home: Path, *, is_path: bool) -> str:
    """Return a path relative to `home`, the folder of the study file; return a name that is no path unchanged.

    is_path: True if `name` is certainly a path.
    """
    full = os.path.expandvars(name)
    if "$" in full:
        raise UsageError(f"{name} names an environment variable that is not set.", hint="Set it before the command.")
    here = local_path(full)
    is_path |= full.startswith((".", "/", "~")) or full.count("/") > 1
    is_path |= is_there(home / here) or format_of(here) in (*PAIR_FORMATS, TEXT_FORMAT)
    is_path |= full != BUNDLED and is_there(here)  # never use a path of the current folder
    return str(home / here) if is_path else full
