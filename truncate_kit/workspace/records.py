"""What the results of a workspace say of the pairs that its models learned from or were chosen by."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from truncate_kit.data.learned import read_learned
from truncate_kit.files import is_there, local_path, real_path
from truncate_kit.pair_keys import SEEN_FILE, Keys, merged, read_seen
from truncate_kit.results import Result
from truncate_kit.training.model_origins import CONTRAST, DISTILLED, HEADS, METHODS, MODELS, SWEEP, Method
from truncate_kit.workspace.places import Workspace


class Record(NamedTuple):
    """What one result says.

    Attributes:
        fingerprint: Of the pairs, train, dev and test.
        seed: That divided them.
        result: Its file, beside which the pairs are noted one by one; that of a distillation in the workspace itself.
        workspace: In which it is.
        name: By which they are known to be its.
        learned: Whether a model learned from them; else it was only chosen by a part.
    """

    fingerprint: str
    seed: int
    workspace: Path
    result: Path
    name: str
    learned: bool = True

    def keys(self) -> Keys | None:
        """Of its pairs, as they are noted beside the result; None where they are not, as by an earlier version."""
        return read_learned(self.result, self.name)


def noted_by(records: Iterable[Record]) -> Keys:
    """Keys of all pairs that are noted beside some results."""
    return merged(*(keys for record in records if (keys := record.keys()) is not None))


def is_model(model: str | Path | None, folder: Path) -> bool:
    """Whether a model, or a graph in its folder, is the one in `folder`."""
    if model is None:
        return False
    return _real(folder) in (_real(model), _real(model).parent)


def home_of(model: str | Path) -> Workspace | None:
    """The workspace in which a model, or a graph beside it, lies; None where no results say anything of it."""
    place = _real(model)
    homes = (Workspace(folder) for folder in place.parents[:2]) if place.exists() else ()
    return next((home for home in homes if any((home.folder / method.file).is_file() for method in METHODS)), None)


def seen_by(model: str | Path | None) -> Keys | None:
    """Keys of what a model learned from or was chosen by, also of what it was made from, as its own folder notes it.

    Args:
        model: Its folder, or a graph in it.

    Returns:
        None where nothing is noted: of a model by an earlier version, of one from elsewhere, and of one that has seen
        nothing.
    """
    if model is None:
        return None
    place = _real(model)
    if place.is_dir():
        return read_seen(place)
    return read_seen(place.parent) if place.is_file() else None  # no file has the name of a model on a hub


def known_of(model: str | Path) -> Keys:
    """What results where it lies say of a model without a note of its own; empty where none do."""
    home = home_of(model) if seen_by(model) is None else None
    return noted_by(records_of(home, model) if home else ())


def is_known(model: str | Path) -> bool:
    """Whether its folder, or the workspace in which it lies, says what a model has seen."""
    return seen_by(model) is not None or home_of(model) is not None


def records_of(workspace: Workspace, model: str | Path | None = None) -> list[Record]:
    """What models have seen, also what those had that they were made from, in whichever workspace these lie.

    Args:
        workspace: In which models are looked for.
        model: One of them, for what it alone has seen, by the workspace in which it lies; None, or a model of which no
            workspace knows anything, for all models of `workspace`.
    """
    found, done = list[Record](), set[tuple[Path, Path | None]]()
    waiting = [(_home(workspace, model), model)]
    while waiting:
        home, one = waiting.pop()
        key = _real(home.folder), None if one is None else _real(one)
        if key in done:
            continue
        done.add(key)
        found += _records(home, one)
        for name in map(home.located, _made_from(home, one)):
            other = home_of(name)
            if other is not None and _real(other.folder) != key[0]:
                waiting.append((other, name))
    seen = seen_by(model)
    return [record for record in dict.fromkeys(found) if seen is None or _is_still_of(record, seen)]


def _is_still_of(record: Record, seen: Keys) -> bool:
    """Whether a model has seen what a record says: a result may since have been replaced by another training's.

    Of a result whose pairs, or whose models, an earlier version noted nowhere, nobody knows better.
    """
    keys = record.keys()
    if keys is None or not any((record.workspace / name / SEEN_FILE).is_file() for name in MODELS):
        return True
    return bool(np.isin(keys, seen).all())


def lost_sources(workspace: Workspace, model: str | Path | None = None) -> list[str]:
    """Folders that models here were made from and that are gone, so that nobody knows what these had learned from."""
    home = _home(workspace, model)
    names = dict.fromkeys(map(home.located, _made_from(home, model)))
    return [name for name in names if _is_gone(name)]


def _is_gone(name: str) -> bool:
    """Whether this is the name of a folder that is not there; one or two parts may name a model on a hub."""
    path = Path(name)
    is_path = path.is_absolute() or len(path.parts) > 2 or name[:1] in (".", "~") or path.name in MODELS
    return is_path and not is_there(local_path(name))


def unreadable_results(workspace: Workspace, model: str | Path | None = None) -> list[Path]:
    """Damaged results in the workspace in which a model lies: what they said of its pairs is not known."""
    home = _home(workspace, model)
    found = ((home.folder / method.file, method) for method in METHODS)
    return [file for file, method in found if file.is_file() and method.read(home.folder) is None]


def is_frozen_alone(workspace: Workspace, model: str | Path | None) -> bool:
    """Whether this is the frozen model, of one that comes from elsewhere: its heads are all that learned."""
    heads = workspace.heads()
    if heads is None or not is_model(model, workspace.frozen):
        return False
    return not _real(heads.model).is_relative_to(_real(workspace.folder))


def _real(path: str | Path) -> Path:
    try:
        return real_path(path)
    except ValueError:  # what stands in a result may be no path
        return Path(os.devnull)


def _home(workspace: Workspace, model: str | Path | None) -> Workspace:
    if model is None or _real(model).parent == _real(workspace.folder):
        return workspace
    return home_of(model) or workspace


def _records(workspace: Workspace, model: str | Path | None) -> Iterator[Record]:
    """Of results here; of those that were made here, a model has seen what belongs to it alone."""
    heads, distilled, sweep = workspace.heads(), workspace.distilled(), workspace.sweep()
    combined = workspace.combinations() if is_model(model, workspace.combined) else None
    replaceable = is_model(model, workspace.lean) or is_model(model, workspace.full)
    without_heads = replaceable or (combined is not None and not is_model(combined.model, workspace.frozen))
    if not without_heads:
        yield from _record(workspace, HEADS, heads)
    if is_frozen_alone(workspace, model):
        return
    # A distillation takes the places of these two alone: what was made of earlier ones has seen what they had.
    if not (replaceable and distilled is not None):
        # Where finetune began with another model, that one has taken the place of the contrastive one.
        if not replaceable or sweep is None or is_model(workspace.located(sweep.model), workspace.lean):
            yield from _record(workspace, CONTRAST, workspace.contrast())
        yield from _record(workspace, SWEEP, sweep)
    yield from _record(workspace, DISTILLED, distilled)


def _record(workspace: Workspace, method: Method, result: Result | None) -> Iterator[Record]:
    """What a result says of pairs; nothing where there is none, or none were given."""
    if result is not None and (pairs := method.pairs(result)).fingerprint:
        file = workspace.folder / method.file.removeprefix("lean/")  # a model's folder is replaced as a whole
        yield Record(pairs.fingerprint, pairs.seed, workspace.folder, file, pairs.name, method.learns)


def _made_from(workspace: Workspace, model: str | Path | None) -> list[str]:
    """Names of the models that a model here was made from; all of them where it is none of those known."""
    for folder in map(workspace.folder.joinpath, MODELS):
        if is_model(model, folder):
            return [result.model for _, result in workspace.made(folder)]
    return [result.model for method in METHODS if (result := method.read(workspace.folder)) is not None]
