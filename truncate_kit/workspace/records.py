"""What the results of a workspace say of the pairs that its models learned from or were chosen by."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from truncate_kit.data.learned import read_learned
from truncate_kit.files import is_there, local_path, real_path
from truncate_kit.pair_keys import SEEN_FILE, Keys, merged, read_seen
from truncate_kit.workspace.places import Workspace

_MODELS = ("lean", "full", "combined", "frozen")  # folders of a workspace


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
    return next((home for home in homes if any(file.is_file() for file in _files(home))), None)


def seen_by(model: str | Path | None) -> Keys | None:
    """Keys of what a model learned from or was chosen by, also of what it was made from, as its own folder notes it.

    model: Its folder, or a graph in it. Returns None where nothing is noted: of a model by an earlier version, of one
    from elsewhere, and of one that has seen nothing.
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
        found += [*_learned(home, one), *_chosen(home, one)]
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
    if keys is None or not any((record.workspace / name / SEEN_FILE).is_file() for name in _MODELS):
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
    is_path = path.is_absolute() or len(path.parts) > 2 or name[:1] in (".", "~") or path.name in _MODELS
    return is_path and not is_there(local_path(name))


def unreadable_results(workspace: Workspace, model: str | Path | None = None) -> list[Path]:
    """Damaged results in the workspace in which a model lies: what they said of its pairs is not known."""
    home = _home(workspace, model)
    readers = (home.sweep, home.contrast, home.heads, home.distilled, home.cut, home.combinations)
    return [file for file, read in zip(_files(home), readers, strict=True) if file.is_file() and read() is None]


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


def _files(workspace: Workspace) -> tuple[Path, ...]:
    of_lean = (workspace.lean / "distill.json", workspace.lean / "cut.json")
    return workspace.sweep_file, workspace.contrast_file, workspace.heads_file, *of_lean, workspace.combination_file


def _learned(workspace: Workspace, model: str | Path | None) -> Iterator[Record]:
    """What was learned from; of those that were made here, a model has seen what belongs to it alone."""
    heads = workspace.heads()
    combined = workspace.combinations() if is_model(model, workspace.combined) else None
    replaceable = is_model(model, workspace.lean) or is_model(model, workspace.full)
    without_heads = replaceable or (combined is not None and not is_model(combined.model, workspace.frozen))
    if heads is not None and not without_heads:
        seed, name = heads.settings.seeds[0], f"{heads.data_fingerprint} {heads.settings.seeds[0]}"
        yield Record(heads.data_fingerprint, seed, workspace.folder, workspace.heads_file, name)
    # A distillation takes the places of these two alone: what was made of earlier ones has seen what they had.
    if is_frozen_alone(workspace, model) or (replaceable and workspace.distilled() is not None):
        return
    sweep = workspace.sweep()
    # Where finetune began with another model, that one has taken the place of the contrastive one.
    replaced = replaceable and sweep is not None and not is_model(workspace.located(sweep.model), workspace.lean)
    if (contrast := workspace.contrast()) is not None and not replaced:
        name = f"{contrast.data_fingerprint} {contrast.rows_fingerprint}"
        yield Record(contrast.data_fingerprint, 0, workspace.folder, workspace.contrast_file, name)
    if sweep is not None:
        name = f"{sweep.data_fingerprint} {sweep.chosen_seed}"
        yield Record(sweep.data_fingerprint, sweep.chosen_seed, workspace.folder, workspace.sweep_file, name)


def _chosen(workspace: Workspace, model: str | Path | None) -> Iterator[Record]:
    """What only chose: a distillation learns from no pairs."""
    distilled = workspace.distilled()
    if distilled is not None and distilled.data_fingerprint and not is_frozen_alone(workspace, model):
        name, file = distilled.data_fingerprint, workspace.folder / "distill.json"
        yield Record(name, distilled.settings.seed, workspace.folder, file, name, learned=False)


def _made_from(workspace: Workspace, model: str | Path | None) -> list[str]:
    """Names of the models that a model here was made from; all of them where it is none of those known."""
    cut, distilled = workspace.cut(), workspace.distilled()
    trained = [result.model for result in (workspace.sweep(), workspace.contrast()) if result is not None]
    lean = [cut.model] if cut is not None else [distilled.model] if distilled is not None else trained
    combined, heads = ([] if one is None else [one.model] for one in (workspace.combinations(), workspace.heads()))
    for folder, names in ((workspace.lean, lean), (workspace.combined, combined), (workspace.frozen, heads)):
        if is_model(model, folder):
            return names
    if is_model(model, workspace.full):
        return [distilled.model] if distilled is not None else trained
    return [*lean, *trained, *combined, *heads]
