"""What a study runs. Its TOML file may leave out all keys but `model` of a model and `data` of a task.

seeds = 3                        # their number, from 0
layers = "all"                   # or some, such as [3, 6, 9] or "2..5"
read_earlier = false             # true: also what a model trained at its last layer gives at earlier ones
cka = "bert, random weights"     # name of the model that the others are compared with by CKA
published = "reference"          # file or folder of published figures, to stand beside the scores

[training]                       # for all tasks, each of which may have its own
epochs = 10                      # and all of `TrainingSettings`; else 50 epochs of batch 128 for word similarity

[[models]]
model = "mini-electra-discriminator"

[[models]]
model = "mini-bert"
name = "bert, random weights"    # what tables call it
weights = "random"               # drawn once: all layers and seeds start from the same
pooling = "cls"                  # mean, cls, max or last; else the model's own
max_length = 64                  # tokens per text; else the model's limit
blocks = [1, 4, 6]               # these alone, or "1..3,6": layers are then those of the kept model; else all blocks
published = "BERT-base"          # what the figures call it; else its name

[[priors]]                       # what is learned before TMFT; an empty one is TMFT alone, as are none at all

[[priors]]
words = "wordsim"                # a folder of word similarity sets, learned at the same layer before each trial
tasks = ["bundled"]              # names of the tasks it goes before; else all

[[priors]]
texts = "domain.txt"             # raw text, adapted to by masked words
name = "in-domain"               # what tables call it; else what it is
layer = 6                        # the model is cut there before; else the last one
epochs = 3                       # over the texts
batch_size = 256                 # texts per step
learning_rate = 2e-5             # peak, of words as well; else by the model's width
precision = "fp32"               # or "bf16", of words as well

[[tasks]]
data = "bundled"                 # a file, a folder, for retrieval as well, or a name of the hub
name = "bundled"                 # what tables call it
columns = ["sentence1", "sentence2", "score"]   # else found
scale = [0, 5]                   # lowest and highest possible score; else found
objective = "cosine"             # and any other key of [training], for this task alone
read_earlier = true              # for this task alone
models = ["bert, random weights", "mini-electra-discriminator"]     # names of those that are trained on it; else all
published = "stsb/en"            # what the figures call the data; else its name

[[tasks]]
data = "bundled"
name = "by queries"
retrieval = "search"             # a retrieval folder: half its queries choose the epoch, the other half reports
search_metric = "ndcg"           # by which they do; or mrr, recall
"""

import hashlib
import os
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from truncate_kit.core.errors import DataError, ModelError, UsageError, first_line, known_name
from truncate_kit.core.files import is_there, local_path
from truncate_kit.core.naming import blocks_in_words, blocks_named
from truncate_kit.core.results import Result
from truncate_kit.core.settings import SEEDS, check_number
from truncate_kit.data.pairs import BUNDLED, holds_words
from truncate_kit.data.retrieval import SEARCH_METRICS, is_retrieval_folder
from truncate_kit.data.tables import PAIR_FORMATS, TEXT_FORMAT, format_of
from truncate_kit.training.objectives import OBJECTIVES, SEARCH, objective_names
from truncate_kit.training.settings import (
    WORD_BATCH_SIZE,
    WORD_EPOCHS,
    AdaptationSettings,
    TrainingSettings,
    word_training,
)

_LONGEST = 50  # characters of a task in a name of a file, of up to four bytes each


def figure_name(task: str, kind: str) -> str:
    """File name of the figure of a task: curves, layers, pareto or cka."""
    name = "".join(char if char.isalnum() else "-" for char in task).strip("-")
    if len(name) > _LONGEST:  # file systems end at 255 bytes
        name = f"{name[:_LONGEST]}-{hashlib.sha256(task.encode()).hexdigest()[:8]}"
    return f"{kind}-{name}.png"


def part_label(model: "StudyModel", prior: "StudyPrior") -> str:
    """What tables call a model after a prior."""
    return f"{model.name}, {prior.name} first" if prior.name else model.name


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyModel(Result):
    """One model."""

    model: str  # folder, hub name or bundled miniature
    name: str  # what tables call it
    weights: str = "pretrained"  # `pretrained`, or `random`: drawn anew, shape and tokenizer stay
    pooling: str | None = None  # None is the model's own
    max_length: int | None = None  # tokens per text, None is the model's own limit
    published: str | None = None  # what the published figures call it, None where that is its name
    blocks: tuple[int, ...] | None = None  # those that are kept, whose layers are trained; None for all


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPrior(Result):
    """What models learn before TMFT: words, raw texts (then words, where both are given), or nothing."""

    name: str = ""  # what tables add to the model's name
    words: str | None = None  # folder of word similarity sets
    texts: str | None = None  # file of raw text
    layer: int | None = None  # where to cut before adapting to texts, None for the last one
    epochs: int = 10  # over the texts
    batch_size: int = 256  # texts of a step
    learning_rate: float | None = None  # peak rate of both, None follows the width
    precision: str = "fp32"  # of both
    tasks: tuple[str, ...] | None = None  # names of those it goes before, None for all

    def adaptation(self) -> AdaptationSettings:
        """How models adapt to the texts."""
        return AdaptationSettings(
            epochs=self.epochs, batch_size=self.batch_size, learning_rate=self.learning_rate, precision=self.precision
        )

    def word_training(self) -> TrainingSettings:
        """How models learn the words."""
        return word_training(self.precision, self.learning_rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyTask(Result):
    """One task."""

    data: str  # file, folder or hub name; of a retrieval folder some queries teach, others choose and report
    name: str  # what tables call it
    training: TrainingSettings  # settings of its trials, objective included
    columns: tuple[str, ...] | None = None  # names of first text, second text and target, None finds them
    scale: tuple[float, ...] | None = None  # lowest and highest possible score, None finds it
    # whether to read as well what a model that was trained at its last layer gives at each earlier one
    read_earlier: bool = False
    published: str | None = None  # what the published figures call the data, None where that is its name
    models: tuple[str, ...] | None = None  # names of those that are trained on it, None for all
    # a retrieval folder whose queries choose and report in the place of pairs; None where pairs do, or those of `data`
    retrieval: str | None = None
    search_metric: str | None = None  # by which they do, None for ndcg

    @property
    def by_queries(self) -> bool:
        """Whether queries choose and report, in the place of pairs."""
        return self.retrieval is not None or self.training.row.data == "judged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Study(Result):
    """Models × priors × tasks × layers × seeds."""

    models: tuple[StudyModel, ...]
    priors: tuple[StudyPrior, ...]
    tasks: tuple[StudyTask, ...]
    layers: str  # `all`, or numbers as text
    seeds: int  # their number, from 0
    published: str | None  # file or folder of published figures (see `published`), or None
    # name of the model that the others are compared with by CKA, before and after fine-tuning, on the tasks of both;
    # None compares none
    cka: str | None = None

    def tasks_of(self, model: StudyModel, prior: StudyPrior) -> tuple[StudyTask, ...]:
        """The tasks that this model is trained on after this prior."""
        return tuple(
            task
            for task in self.tasks
            if (task.models is None or model.name in task.models) and (prior.tasks is None or task.name in prior.tasks)
        )


_KEYS = {"models", "priors", "tasks", "layers", "seeds", "training", "read_earlier", "cka", "published"}
_OTHER_NAME = 'Give each its own name = "…".'
_SINGLE = {"seeds", "cka", "published"}
_KINDS = {"words": "words", "texts": "masked words"}
WEIGHTS = ("pretrained", "random")
_MOST_LETTERS, _MOST_POINTS = 250_000, 1000  # of a file, and in a line of it


def read_study(path: str | Path) -> Study:
    """Read a study from TOML; paths in it count from its own folder, and may hold environment variables ($DATA).

    Raises `DataError` when the file is missing or not TOML, `UsageError` for an unknown key or an impossible value.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
        long = len(text) > _MOST_LETTERS or any(line.count(".") > _MOST_POINTS for line in text.splitlines())
        values = {} if long else tomllib.loads(text)  # a.a.a… takes the square of its length, in time and memory
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.", hint="Name a TOML file.") from error
    except RecursionError as error:
        raise DataError(f"{path} is nested too deeply.", hint="Write it as docs/guides/study.md shows.") from error
    except ValueError as error:  # not UTF-8, no TOML, or a number of too many digits
        raise DataError(f"{path} is not TOML: {first_line(error)}.", hint="Correct the line it names.") from error
    if long:
        raise DataError(
            f"{path} is too long for a study: {_MOST_LETTERS:,} letters are read, with {_MOST_POINTS:,} points a line.",
            hint="Write it as docs/guides/study.md shows.",
        )
    with _naming(str(path)):
        return _study(values, path.resolve().parent)


def _study(values: dict[str, Any], home: Path) -> Study:
    _check_keys(values, "the study", _KEYS)
    _check_types({key: values[key] for key in _SINGLE & set(values)}, Study)
    training, shared = values.get("training", {}), {"read_earlier": values.get("read_earlier", False)}
    models = tuple(_model(entry, home) for entry in _entries(values, "models"))
    tasks = tuple(_task(shared | entry, training, home) for entry in _entries(values, "tasks"))
    priors = tuple(_prior(entry, home) for entry in _entries(values, "priors")) if "priors" in values else ()
    seeds = values.get("seeds", 3)
    if seeds < 1:
        raise UsageError(f"seeds is {seeds!r}.", hint="It is the number of seeds, such as 3.")
    check_number("seeds", seeds, SEEDS)
    for what, parts in (("models", models), ("priors", priors), ("tasks", tasks)):
        names = [part.name for part in parts]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise UsageError(f"it has two {what} called {twice!r}.", hint=_OTHER_NAME)
    published, layers = values.get("published"), values.get("layers", "all")
    figures: dict[str, list[str]] = {}
    for task in tasks:
        figures.setdefault(figure_name(task.name, "curves"), []).append(task.name)
    alike = next((names for names in figures.values() if len(names) > 1), None)
    if alike is not None:  # the figures of one would take the place of the other's
        raise UsageError(f"the figures of {alike[0]!r} and {alike[1]!r} would have the same name.", hint=_OTHER_NAME)
    study = Study(
        models=models,
        priors=priors or (StudyPrior(),),
        tasks=tasks,
        layers=",".join(map(str, layers)) if isinstance(layers, list) else str(layers),
        seeds=seeds,
        published=_found(published, home, path=True) if published else None,
        cka=values.get("cka"),
    )
    _check_names(study)
    return study


def _entries(values: dict[str, Any], key: str) -> list[dict[str, Any]]:
    entries = values.get(key)
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise UsageError(f"it names no {key}.", hint=f"Give at least one [[{key}]] table.")
    return entries


def _model(entry: dict[str, Any], home: Path) -> StudyModel:
    _check_keys(entry, "a model", _names(StudyModel), needed="model")
    if isinstance(entry.get("blocks"), str):
        entry = entry | {"blocks": list(blocks_named(entry["blocks"]))}
    _check_types(entry, StudyModel)
    if entry.get("weights", "pretrained") not in WEIGHTS:
        raise UsageError(f"weights is {entry['weights']!r}.", hint=f"Use one of: {', '.join(WEIGHTS)}.")
    found, name = {"model": _found(entry["model"], home)}, Path(entry["model"]).name
    if (blocks := entry.get("blocks")) is not None:
        name += f", {blocks_in_words(blocks, _checked_depth(found['model'], blocks))}"
    return StudyModel(**{"name": name} | _tuples(entry) | found)


def _checked_depth(model: str, blocks: list[int]) -> int:
    """The depth of the model. Raises `UsageError` where it has no such blocks, or no model like it could hold them."""
    from truncate_kit.models.loading import load_config
    from truncate_kit.models.truncation import kept_config

    if not blocks:
        raise UsageError(f"{model} has blocks = [].", hint="Name one or more, or leave out blocks.")
    try:
        config = load_config(model)
        kept_config(config, blocks)
    except ModelError as error:
        raise UsageError(f"{model}: {error}", hint=error.hint) from error
    return int(config.num_hidden_layers)


def _prior(entry: dict[str, Any], home: Path) -> StudyPrior:
    _check_keys(entry, "a prior", _names(StudyPrior))
    _check_types(entry, StudyPrior)
    given = {key: _found(entry[key], home, path=True) for key in ("words", "texts") if key in entry}
    for keys, needed in ((("layer", "epochs", "batch_size"), {"texts"}), (("learning_rate", "precision"), set(_KINDS))):
        idle = next((key for key in keys if key in entry), None)
        if idle is not None and not needed & set(given):
            hint = f"Add {' or '.join(sorted(needed))}, or leave out {idle}."
            raise UsageError(f"a prior has {idle} but no {' or '.join(sorted(needed))}.", hint=hint)
    name = " and ".join(_KINDS[key] for key in sorted(given))
    if given.get("texts") and entry.get("layer") is not None:
        name += f" at layer {entry['layer']}"
    prior = StudyPrior(**{"name": name} | _tuples(entry) | given)
    with _naming(name or "a prior"):
        prior.adaptation()  # raises what is impossible
    return prior


def _task(entry: dict[str, Any], training: dict[str, Any], home: Path) -> StudyTask:
    own = {key: value for key, value in entry.items() if key in _names(TrainingSettings)}
    other = {key: value for key, value in entry.items() if key not in own}
    _check_keys(other, "a task", _names(StudyTask) - {"training"}, needed="data")
    _check_keys(training, "[training]", _names(TrainingSettings))
    _check_types(other, StudyTask)
    _check_types(training | own, TrainingSettings)
    data = _found(other["data"], home)
    usual: dict[str, Any] = {}
    if holds_words(Path(data)):
        usual = {"epochs": WORD_EPOCHS, "batch_size": WORD_BATCH_SIZE}
    if judged := is_retrieval_folder(data):
        usual = {"objective": SEARCH}
    name = "/".join(Path(data).parts[-2:])
    with _naming(name):
        settings = TrainingSettings(**usual | training | own)
    if OBJECTIVES[settings.objective].method != "tmft":
        known = ", ".join(objective_names("tmft"))
        raise UsageError(f"{name} has the objective {settings.objective}.", hint=f"Use one of: {known}.")
    if "retrieval" in other:
        other = other | {"retrieval": _found(other["retrieval"], home, path=True)}
    task = StudyTask(**{"name": name} | _tuples(other) | {"data": data, "training": settings})
    _check_queries(task, judged=judged)
    return task


def _check_queries(task: StudyTask, *, judged: bool) -> None:
    """Raise `UsageError` for what does not go with queries, or with pairs. judged: Whether `data` is for retrieval."""
    if judged != (task.training.row.data == "judged"):
        found = "a retrieval folder" if judged else "pairs"
        hint = f'Give it objective = "{SEARCH}".' if judged else "Give it a retrieval folder as data, or another one."
        raise UsageError(f"{task.name} has {found} and the objective {task.training.objective}.", hint=hint)
    searched = judged or task.retrieval is not None
    idle: dict[str, object] = {"search_metric": task.search_metric} if not searched else {"published": task.published}
    if judged:
        idle |= {"columns": task.columns, "scale": task.scale, "retrieval": task.retrieval}
    key = next((key for key, value in idle.items() if value is not None), None)
    if key is not None:
        what = "has queries that choose and report" if searched else "has no retrieval folder"
        raise UsageError(f"{task.name} {what}, where {key} means nothing.", hint=f"Leave out {key}.")
    known_name("search metric", task.search_metric or "ndcg", SEARCH_METRICS)


@contextmanager
def _naming(where: str) -> Iterator[None]:
    """What makes no sense is reported with the file, or the part of it, that holds it."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{where}: {error}", hint=error.hint) from error


def _found(name: str, home: Path, *, path: bool = False) -> str:
    """A path from the folder of the study file, wherever the command runs; names of the hub and of the package stay.

    path: whether it can be nothing else. Raises `UsageError` where a path counts from the current folder only.
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
    """Raise `UsageError` where a model or task is named that is not there, and for one that does not run at all."""
    models, tasks = tuple(model.name for model in study.models), tuple(task.name for task in study.tasks)
    named = [("cka", tuple(filter(None, (study.cka,))), models)]
    named += [("models", task.models or (), models) for task in study.tasks]
    named += [("tasks", prior.tasks or (), tasks) for prior in study.priors]
    for key, names, known in named:
        for name in names:
            if name not in known:
                raise UsageError(
                    f"{key} names {name!r}, which the study does not have.", hint=f"Name one of: {', '.join(known)}."
                )
    labels = [part_label(model, prior) for model in study.models for prior in study.priors]
    for label in labels:
        if labels.count(label) > 1:
            raise UsageError(f"tables would call two of its models {label!r}.", hint=_OTHER_NAME)
    runs = [(model, task) for model in study.models for prior in study.priors for task in study.tasks_of(model, prior)]
    running = {part.name for pair in runs for part in pair}
    for name in (*models, *tasks):
        if name not in running:
            hint = "No task has it under models, or no prior has it under tasks: add it there."
            raise UsageError(f"{name!r} does not run at all.", hint=hint)


Kind = TypeVar("Kind", Study, StudyModel, StudyPrior, StudyTask, TrainingSettings)


def _names(kind: type[Kind]) -> set[str]:
    return {field.name for field in fields(kind)}


def _check_keys(values: dict[str, Any], what: str, known: set[str], needed: str | None = None) -> None:
    if not isinstance(values, dict):
        raise UsageError(f"{what} is {values!r}.", hint="Make it a table.")
    unknown = sorted(set(values) - known)
    if unknown:
        raise UsageError(f"{what} has no {unknown[0]!r}.", hint=f"Use some of: {', '.join(sorted(known))}.")
    if needed is not None and needed not in values:
        raise UsageError(f"{what} lacks {needed!r}.", hint=f'Add {needed} = "…".')


def _check_types(values: dict[str, Any], kind: type[Kind]) -> None:
    hints = get_type_hints(kind)
    for key, value in values.items():
        wanted = get_args(hints[key]) if isinstance(hints[key], UnionType) else (hints[key],)
        if not any(_is(value, one) for one in wanted):
            raise UsageError(f"{key} is {value!r}, which is of the wrong type.", hint="Correct its value.")


def _is(value: Any, kind: Any) -> bool:
    """Whether a value of TOML fits an annotation; which words a `Literal` takes is left to who takes it."""
    if get_origin(kind) is tuple:
        return isinstance(value, list) and all(_is(item, get_args(kind)[0]) for item in value)
    if get_origin(kind) is Literal:
        return isinstance(value, str)
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)


def _tuples(values: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
