"""What a study runs, read from a TOML file.

seeds = 3
layers = "all"
published = "reference"          # may be left out: file or folder of published figures, to stand beside the scores
cka = "mini-bert"                # may be left out: CKA to this model of the study, before and after fine-tuning

[training]                       # as the options of finetune; each task may have its own
epochs = 10

[[models]]
model = "mini-electra-discriminator"

[[models]]
model = "mini-electra-discriminator"
name = "the same, random weights"
weights = "random"

[[priors]]                       # may be left out: TMFT alone

[[priors]]
words = "wordsim"                # a folder of word similarity sets, learned at the same layer before each trial

[[priors]]
texts = "domain.txt"             # raw text, adapted to by masked words at `layer` (the last one if left out)
epochs = 3

[[tasks]]
data = "bundled"
"""

import os
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from truncate_kit.errors import DataFileError, UsageError
from truncate_kit.results import Result
from truncate_kit.training import TrainingSettings

_KEYS = {"models", "priors", "tasks", "layers", "seeds", "training", "read_earlier", "cka", "published"}
WEIGHTS = ("pretrained", "random")


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyModel(Result):
    """One model. name: what tables call it. weights: `random` draws them anew, shape and tokenizer stay.

    pooling: None is the model's own. published: what the file of published figures calls it.
    """

    model: str
    name: str
    weights: str = "pretrained"
    pooling: str | None = None
    published: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPrior(Result):
    """What models learn before TMFT: words, raw texts (then words, where both are given), or nothing.

    name: what tables add to the model's name. layer: where to cut before adapting to texts, None for the last one.
    epochs: over the texts.
    """

    name: str = ""
    words: str | None = None
    texts: str | None = None
    layer: int | None = None
    epochs: int = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyTask(Result):
    """One task. training: the settings, objective included. columns, scale: as the options of finetune.

    published: what the file of published figures calls the data.
    """

    data: str
    name: str
    training: TrainingSettings
    columns: tuple[str, ...] | None = None
    scale: tuple[float, ...] | None = None
    published: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Study(Result):
    """Models × priors × tasks × layers × seeds.

    read_earlier: also what a model that was trained at its last layer gives at each earlier one. cka: name of the model
    of the study that all others are compared with, before and after fine-tuning; None compares none. published: file
    or folder of published figures (see `published`), or None.
    """

    models: tuple[StudyModel, ...]
    priors: tuple[StudyPrior, ...]
    tasks: tuple[StudyTask, ...]
    layers: str
    seeds: int
    read_earlier: bool
    published: str | None
    cka: str | None = None


def read_study(path: Path) -> Study:
    """Read a study from TOML; paths in it count from its own folder, and may hold environment variables ($DATA).

    Raises `DataFileError` when the file is missing or not TOML, `UsageError` for an unknown key or an impossible value.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataFileError(f"{path} cannot be read: {error.strerror}.", hint="Name a TOML file.") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DataFileError(f"{path} is not TOML: {error}.", hint="Mend the line it names.") from error
    _check_keys(path, values, "the study", _KEYS)
    home, training = path.resolve().parent, values.get("training", {})
    models = tuple(_model(path, entry, home) for entry in _entries(path, values, "models"))
    tasks = tuple(_task(path, entry, training, home) for entry in _entries(path, values, "tasks"))
    priors = (
        tuple(_prior(path, entry, home) for entry in _entries(path, values, "priors")) if "priors" in values else ()
    )
    seeds = values.get("seeds", 3)
    if not isinstance(seeds, int) or seeds < 1:
        raise UsageError(f"{path}: seeds is {seeds!r}.", hint="It is the number of seeds, such as 3.")
    if not isinstance(values.get("read_earlier", False), bool):
        raise UsageError(f"{path}: read_earlier is {values['read_earlier']!r}.", hint="Use true or false.")
    for what, parts in (("models", models), ("priors", priors), ("tasks", tasks)):
        names = [part.name for part in parts]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise UsageError(f"{path} has two {what} called {twice!r}.", hint='Tell them apart with name = "…".')
    published, cka = values.get("published"), values.get("cka")
    if cka is not None and cka not in [model.name for model in models]:
        known = ", ".join(model.name for model in models)
        raise UsageError(f"{path}: cka is {cka!r}, which is no model of the study.", hint=f"Name one of: {known}.")
    return Study(
        models=models,
        priors=priors or (StudyPrior(),),
        tasks=tasks,
        layers=str(values.get("layers", "all")),
        seeds=seeds,
        read_earlier=values.get("read_earlier", False),
        published=_found(published, home) if published else None,
        cka=cka,
    )


def _entries(path: Path, values: dict[str, Any], key: str) -> list[dict[str, Any]]:
    entries = values.get(key)
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise UsageError(f"{path} names no {key}.", hint=f"Give at least one [[{key}]] table.")
    return entries


def _model(path: Path, entry: dict[str, Any], home: Path) -> StudyModel:
    _check_keys(path, entry, "a model", _names(StudyModel), needed="model")
    if entry.get("weights", "pretrained") not in WEIGHTS:
        raise UsageError(f"{path}: weights is {entry['weights']!r}.", hint=f"Use one of: {', '.join(WEIGHTS)}.")
    return StudyModel(**{"name": Path(entry["model"]).name} | entry | {"model": _found(entry["model"], home)})


def _prior(path: Path, entry: dict[str, Any], home: Path) -> StudyPrior:
    _check_keys(path, entry, "a prior", _names(StudyPrior))
    given = {key: _found(entry[key], home) for key in ("words", "texts") if key in entry}
    kinds = {"words": "words", "texts": "masked words"}
    name = " and ".join(kinds[key] for key in sorted(given))
    if given.get("texts") and entry.get("layer") is not None:
        name += f" at layer {entry['layer']}"
    if "texts" not in given and {"layer", "epochs"} & set(entry):
        raise UsageError(f"{path}: a prior has layer or epochs but no texts.", hint="Both say how to adapt to texts.")
    return StudyPrior(**{"name": name} | entry | given)


def _task(path: Path, entry: dict[str, Any], training: dict[str, Any], home: Path) -> StudyTask:
    own = {key: value for key, value in entry.items() if key in _names(TrainingSettings)}
    other = {key: value for key, value in entry.items() if key not in own}
    _check_keys(path, other, "a task", _names(StudyTask) - {"training"}, needed="data")
    _check_keys(path, training, "[training]", _names(TrainingSettings))
    for key in ("columns", "scale"):
        if key in other:
            other[key] = tuple(other[key])
    data = _found(other["data"], home)
    name = "/".join(Path(data).parts[-2:])
    settings = _settings(path, training | own)
    if settings.objective == "distill":
        raise UsageError(f"{path}: {name} has the objective distill.", hint="Use cosine, paraphrase or entailment.")
    return StudyTask(**{"name": name} | other | {"data": data, "training": settings})


def _settings(path: Path, values: dict[str, Any]) -> TrainingSettings:
    try:
        return TrainingSettings(**values)
    except TypeError as error:
        raise UsageError(f"{path}: a training setting has the wrong type ({error}).", hint="Mend its value.") from error


def _found(name: str, home: Path) -> str:
    """A path beside the study file where there is one, otherwise the name as it is (hub, bundled).

    Raises `UsageError` for an environment variable that is not set.
    """
    full = os.path.expandvars(name)
    if "$" in full:
        raise UsageError(f"{name} names an environment variable that is not set.", hint="Set it before the command.")
    return str(home / full) if (home / full).exists() else full


Kind = TypeVar("Kind", StudyModel, StudyPrior, StudyTask, TrainingSettings)


def _names(kind: type[Kind]) -> set[str]:
    return {field.name for field in fields(kind)}


def _check_keys(path: Path, values: dict[str, Any], what: str, known: set[str], needed: str | None = None) -> None:
    unknown = sorted(set(values) - known)
    if unknown:
        raise UsageError(f"{path}: {what} has no {unknown[0]!r}.", hint=f"It knows: {', '.join(sorted(known))}.")
    if needed is not None and not isinstance(values.get(needed), str):
        raise UsageError(f"{path}: {what} lacks {needed!r}.", hint=f'Add {needed} = "…".')
