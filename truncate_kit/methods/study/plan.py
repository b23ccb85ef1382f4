"""The plan of a study; its TOML file needs only `model` and `data`.

seeds = 3                        # their number, from 0
layers = "all"                   # or [3, 6, 9] or "2..5"
read_earlier = false             # also score earlier layers of the last one's model
cka = "bert, random weights"     # reference of CKA
published = "reference"          # file or folder of published figures

[training]                       # of all tasks
epochs = 10                      # all of `TrainingSettings`

[[models]]
model = "mini-electra-discriminator"

[[models]]
model = "mini-bert"
name = "bert, random weights"    # name in tables
weights = "random"               # drawn once; else pretrained
pooling = "cls"                  # else the model's own
max_length = 64                  # tokens
blocks = [1, 4, 6]               # kept, or "1..3,6"; layers count among them
published = "BERT-base"          # name in the figures

[[priors]]                       # learned before TMFT; an empty one is TMFT alone

[[priors]]
words = "wordsim"                # folder of word similarity sets, learned before each trial
tasks = ["bundled"]              # that follow; else all

[[priors]]
texts = "domain.txt"             # raw text for masked words
name = "in-domain"
layer = 6                        # cut there before
epochs = 3
batch_size = 256                 # texts per step
learning_rate = 2e-5             # peak, of words as well; else by width
precision = "fp32"

[[tasks]]
data = "bundled"                 # file, folder (also for retrieval) or hub name
name = "bundled"
columns = ["sentence1", "sentence2", "score"]
scale = [0, 5]                   # possible scores; else found, as columns are
objective = "cosine"             # any key of [training]
read_earlier = true
models = ["bert, random weights", "mini-electra-discriminator"]     # else all
published = "stsb/en"

[[tasks]]
data = "bundled"
name = "by queries"
retrieval = "search"             # folder with queries, half to choose the epoch, half to report
search_metric = "ndcg"           # or mrr, recall
"""

import os
import tomllib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from truncate_kit.core.errors import DataError, ModelError, UsageError, first_line
from truncate_kit.core.files import is_there, local_path
from truncate_kit.core.results import Result
from truncate_kit.core.settings import SEEDS, as_text, blocks_named, check_number
from truncate_kit.core.workspace import blocks_in_words
from truncate_kit.data.pairs import BUNDLED, holds_words
from truncate_kit.data.retrieval import SearchMetric
from truncate_kit.data.tables import PAIR_FORMATS, TEXT_FORMAT, format_of, is_retrieval_folder, opened_text
from truncate_kit.methods.study.result import figure_name
from truncate_kit.training.settings import (
    SEARCH,
    WORD_BATCH_SIZE,
    WORD_EPOCHS,
    AdaptationSettings,
    TrainingSettings,
    objective_names,
    word_training,
)

_KEYS = ("models", "priors", "tasks", "layers", "seeds", "training", "read_earlier", "cka", "published")
_KINDS = {"words": "words", "texts": "masked words"}
_OF_TEXTS, _OF_BOTH = ("layer", "epochs", "batch_size"), ("learning_rate", "precision")


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyModel(Result):
    """One model."""

    model: str  # folder, hub name or miniature
    name: str
    weights: Literal["pretrained", "random"] = "pretrained"
    pooling: str | None = None
    max_length: int | None = None  # tokens
    published: str | None = None
    blocks: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPrior(Result):
    """Training before TMFT: raw texts, then words."""

    name: str = ""  # added to the model's name
    words: str | None = None
    texts: str | None = None
    layer: int | None = None
    epochs: int = 10
    batch_size: int = 256
    learning_rate: float | None = None
    precision: str = "fp32"
    tasks: tuple[str, ...] | None = None

    def adaptation(self) -> AdaptationSettings:
        """Return how models adapt to the texts. Raises `UsageError`."""
        return AdaptationSettings(
            epochs=self.epochs, batch_size=self.batch_size, learning_rate=self.learning_rate, precision=self.precision
        )

    def word_training(self) -> TrainingSettings:
        """Return how models learn the words."""
        return word_training(self.precision, self.learning_rate)

    def label(self, model: StudyModel) -> str:
        """Name a model after this prior."""
        return f"{model.name}, {self.name} first" if self.name else model.name


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyTask(Result):
    """One task."""

    data: str  # file, folder or hub name
    name: str
    training: TrainingSettings
    columns: tuple[str, ...] | None = None  # first text, second text, target
    scale: tuple[float, float] | None = None
    read_earlier: bool = False
    published: str | None = None
    models: tuple[str, ...] | None = None
    retrieval: str | None = None
    search_metric: SearchMetric | None = None  # by default ndcg

    @property
    def by_queries(self) -> bool:
        """Tell whether queries choose and report, not pairs."""
        return self.retrieval is not None or self.training.row.data == "judged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Study(Result):
    """Models × priors × tasks × layers × seeds."""

    models: tuple[StudyModel, ...]
    priors: tuple[StudyPrior, ...]
    tasks: tuple[StudyTask, ...]
    layers: str  # `all`, or numbers as text
    seeds: int
    published: str | None
    cka: str | None = None

    def tasks_of(self, model: StudyModel, prior: StudyPrior) -> tuple[StudyTask, ...]:
        """Return the tasks of this model after this prior."""
        return tuple(
            task
            for task in self.tasks
            if (task.models is None or model.name in task.models) and (prior.tasks is None or task.name in prior.tasks)
        )


def read_study(path: str | Path) -> Study:
    """Read a study from TOML; paths in it count from its own folder, and may hold environment variables ($DATA).

    Raises `DataError` if the file is missing or not TOML, `UsageError` for an unknown key or an impossible value.
    """
    with opened_text(path := Path(path)) as stream:
        text = stream.read()
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not TOML: {first_line(error)}.", hint="Name a TOML file.") from error
    home = path.resolve().parent
    with _naming(str(path)):
        _check_keys(values, "the study", _KEYS)
        published, training = values.get("published"), values.get("training", {})
        shared = {"read_earlier": values.get("read_earlier", False)}
        study = Study(
            models=tuple(_model(entry, home) for entry in _tables(values, "models")),
            priors=tuple(_prior(entry, home) for entry in _tables({"priors": [{}]} | values, "priors")),
            tasks=tuple(_task(shared | entry, training, home) for entry in _tables(values, "tasks")),
            layers=as_text(values.get("layers", "all")),
            seeds=check_number("seeds", values.get("seeds", 3), SEEDS),
            published=_located(str(published), home, path=True) if published else None,
            cka=values.get("cka"),
        )
        _check_names(study)
    return study


def _tables(values: dict[str, Any], key: str) -> list[dict[str, Any]]:
    entries = values.get(key)
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise UsageError(f"it names no {key}.", hint=f"Give at least one [[{key}]] table.")
    return entries


def _model(entry: dict[str, Any], home: Path) -> StudyModel:
    blocks = entry.get("blocks")
    if isinstance(blocks, str):
        entry = entry | {"blocks": blocks_named(blocks)}
    model = _read(StudyModel, {"name": Path(str(entry.get("model"))).name} | entry, "a model")
    place = _located(model.model, home)
    if model.blocks is None:
        return replace(model, model=place)
    if not model.blocks:
        raise UsageError(f"{place} has blocks = [].", hint="Name one or more, or leave out blocks.")
    from truncate_kit.models.loading import load_config
    from truncate_kit.models.truncation import kept_config

    with _naming(place):
        config = load_config(place)
        kept_config(config, model.blocks)
    name = f"{model.name}, {blocks_in_words(model.blocks, config.num_hidden_layers)}"
    return replace(model, model=place, name=entry.get("name", name))


def _prior(entry: dict[str, Any], home: Path) -> StudyPrior:
    paths = {key: _located(str(entry[key]), home, path=True) for key in _KINDS if key in entry}
    idle = {*entry} & ({*_OF_TEXTS} if "words" in paths else {*_OF_TEXTS, *_OF_BOTH})
    if idle and "texts" not in paths:
        name = min(idle)
        raise UsageError(f"a prior has {name} but no texts or words for it.", hint=f"Add texts, or leave out {name}.")
    name = " and ".join(_KINDS[key] for key in sorted(paths))
    if "texts" in paths and "layer" in entry:
        name += f" at layer {entry['layer']}"
    prior = _read(StudyPrior, {"name": name} | entry | paths, "a prior")
    with _naming(name or "a prior"):
        prior.adaptation()
    return prior


def _task(entry: dict[str, Any], training: dict[str, Any], home: Path) -> StudyTask:
    if "data" not in entry:
        raise UsageError("a task lacks 'data'.", hint='Add data = "…".')
    data, known = _located(str(entry["data"]), home), [field.name for field in fields(TrainingSettings)]
    searched = is_retrieval_folder(data)
    usual: dict[str, Any] = {"objective": SEARCH} if searched else {}
    if holds_words(Path(data)):
        usual = {"epochs": WORD_EPOCHS, "batch_size": WORD_BATCH_SIZE}
    name = "/".join(Path(data).parts[-2:])
    _check_keys(training, "[training]", known)
    with _naming(name):
        own = {key: entry[key] for key in known if key in entry}
        settings = _read(TrainingSettings, usual | training | own, "[training]")
        if settings.row.method != "tmft" or searched != (settings.row.data == "judged"):
            hint = f'A retrieval folder has "{SEARCH}", pairs have another of: {", ".join(objective_names("tmft"))}.'
            raise UsageError(f"the objective {settings.objective} does not fit.", hint=hint)
    other = {key: value for key, value in entry.items() if key not in known} | {"data": data}
    if "retrieval" in other:
        other["retrieval"] = _located(str(other["retrieval"]), home, path=True)
    return _read(StudyTask, {"name": name} | other | {"training": settings.to_dict()}, "a task")


def _located(name: str, home: Path, *, path: bool = False) -> str:
    """Return a path from the folder of the study file; other names stay as they are.

    path: it cannot be a hub name. Raises `UsageError` if it exists in the current folder only.
    """
    full = os.path.expandvars(name)
    if "$" in full:
        raise UsageError(f"{name} names an environment variable that is not set.", hint="Set it before the command.")
    here = local_path(full)
    path = path or full.startswith((".", "/", "~")) or full.count("/") > 1
    if path or is_there(home / here) or format_of(here) in (*PAIR_FORMATS, TEXT_FORMAT):
        return str(home / here)
    if full != BUNDLED and is_there(here):
        raise UsageError(
            f"{name} is not in {home}, the folder of the study, but in the current one.",
            hint=f"Paths in a study count from its own folder: write {os.path.relpath(here, home)}.",
        )
    return full


def _check_names(study: Study) -> None:
    """Raise `UsageError` for repeated or unknown names, and for parts that do not run."""
    models, tasks = tuple(model.name for model in study.models), tuple(task.name for task in study.tasks)
    labels = [prior.label(model) for model in study.models for prior in study.priors]
    # Figures of one name would replace each other.
    for kind, names in (("models", labels), ("tasks", [figure_name(task, "curves") for task in tasks])):
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise UsageError(f"tables would call two of its {kind} {twice!r}.", hint='Give each its own name = "…".')
    named = [("cka", tuple(filter(None, [study.cka])), models)]
    named += [("models", task.models or (), models) for task in study.tasks]
    named += [("tasks", prior.tasks or (), tasks) for prior in study.priors]
    for key, wanted, known in named:
        if unknown := next((name for name in wanted if name not in known), None):
            hint = f"Name one of: {', '.join(known)}."
            raise UsageError(f"{key} names {unknown!r}, which the study does not have.", hint=hint)
    runs = [(model, task) for model in study.models for prior in study.priors for task in study.tasks_of(model, prior)]
    running = {part.name for pair in runs for part in pair}
    if idle := next((name for name in (*models, *tasks) if name not in running), None):
        hint = "No task has it under models, or no prior has it under tasks: add it there."
        raise UsageError(f"{idle!r} does not run at all.", hint=hint)


Kind = TypeVar("Kind", bound=Result)


def _read(kind: type[Kind], values: dict[str, Any], part: str) -> Kind:
    _check_keys(values, part, [field.name for field in fields(kind)])
    try:
        return kind.from_dict(values)
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError(f"{part}: {error}.", hint="Correct its value; docs/guides/study.md shows all keys.") from error


def _check_keys(values: Any, part: str, known: Collection[str]) -> None:
    if not isinstance(values, dict):
        raise UsageError(f"{part} is {values!r}.", hint="Make it a table.")
    unknown = sorted({*values} - {*known})
    if unknown:
        raise UsageError(f"{part} has no {unknown[0]!r}.", hint=f"Use some of: {', '.join(sorted(known))}.")


@contextmanager
def _naming(where: str) -> Iterator[None]:
    try:
        yield
    except (UsageError, ModelError) as error:
        raise UsageError(f"{where}: {error}", hint=error.hint) from error
