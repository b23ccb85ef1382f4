"""Whether the scores of lean and full may be compared, by what their folders say of how they were made."""

import contextlib
import json
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from truncate_kit.files import is_folder, local_path, model_folder_above, read_text, real_path
from truncate_kit.miniatures import miniature_path
from truncate_kit.results import unsealed
from truncate_kit.training.model_origins import COMBINED, CUT, DISTILLED, SWEEP, Method

if TYPE_CHECKING:
    from truncate_kit.bench.run import Subject

_BROKEN = (OSError, ValueError, LookupError, TypeError, ArithmeticError, RecursionError)
_PART = (
    "Warning: the lean model is a part of another one and was not trained since: once it is, it may score otherwise."
)


class _Step(NamedTuple):
    """How a model was made of another one."""

    how: Method
    place: Path  # of the model that was made
    name: str | None  # of the other one; None where the record is damaged
    folder: Path | None  # of that; None where it is not on this machine, or was made of the first one itself


def was_trained(folder: Path) -> bool | None:
    """Whether a model, or what it was cut or combined from, was fine-tuned.

    False for a plain pretrained transformer, True for a sentence-transformers folder; None where the model that it was
    made from is not on this machine. Nothing is downloaded.
    """
    place: Path | None = folder
    for step in takewhile(_without_training, _steps(folder)):
        place = step.folder
    if place is None or not any((place / name).is_file() for name in ("modules.json", "config.json")):
        return None  # what is called so here need not be a model
    return (place / "modules.json").is_file()


def check_yardstick(lean: "Subject", full: "Subject") -> tuple[bool, list[str]]:
    """Whether the difference in quality may be stated, and the warnings that belong to it."""
    steps = [] if lean.folder is None else _steps(lean.folder)
    last = next((place for place, step in enumerate(steps, start=1) if _is_made_of(step, full)), None)
    made_of_full = last is not None
    untrained = takewhile(_without_training, steps[:last])
    is_part = lean.blocks is not None or any(step.how is CUT for step in untrained)
    # A model that was not fine-tuned is never the yardstick for one that was, unless that learned from it. Both had
    # the same budget for certain only where `finetune` wrote them side by side, with its `sweep.json`.
    if not made_of_full and lean.fine_tuned != full.fine_tuned and None not in (lean.fine_tuned, full.fine_tuned):
        raw, tuned = ("lean", "full") if full.fine_tuned else ("full", "lean")
        return False, [
            f"Warning: the {raw} model was not fine-tuned and the {tuned} one was: their scores cannot be compared, "
            "so no difference is stated."
        ]
    if is_part:
        return True, [_PART]
    if made_of_full:  # by a combination of its layers, or by learning its vectors: there is no budget to differ in
        return True, []
    if lean.fine_tuned is False:
        return True, ["Warning: neither model was fine-tuned: their scores say little about fine-tuned ones."]
    return True, _warnings_of_budget(lean, full)


def _warnings_of_budget(lean: "Subject", full: "Subject") -> list[str]:
    """What is not known of the training that both models had."""
    found = _swept(lean, full)
    if found is None:
        return [
            "Warning: nothing says that both models had the same fine-tuning budget; `finetune()` makes such a pair."
        ]
    if found != (lean.encoder.depth, full.encoder.depth):
        return [
            f"Warning: the yardstick differs: sweep.json is about layers {found[0]} and {found[1]}, these models end "
            f"at {lean.encoder.depth} and {full.encoder.depth}."
        ]
    return []


def _swept(lean: "Subject", full: "Subject") -> tuple[int, int] | None:
    """Layers of the pair that `finetune` recorded beside the two folders, None where there is no record."""
    if lean.folder is None or full.folder is None or lean.folder.resolve().parent != full.folder.resolve().parent:
        return None
    try:
        record = json.loads(read_text(lean.folder.resolve().parent / SWEEP.file))
        return int(record["chosen"]), int(record["full"]["layer"])
    except _BROKEN:
        return None


def _steps(folder: Path) -> list[_Step]:
    """How a model was made, the last step first, as far back as folders on this machine say it."""
    found, place = list[_Step](), real_path(folder)
    seen = {place}
    while (step := _step_to(place)) is not None:
        if step.folder in seen:
            return [*found, step._replace(folder=None)]
        found.append(step)
        if step.folder is None:
            break
        place = step.folder
        seen.add(place)
    return found


def _step_to(place: Path) -> _Step | None:
    """The step that ended in this folder; None where no record says that there was one."""
    records = {place / method.file_name: method for method in (CUT, DISTILLED)}
    if place.name in COMBINED.models:
        records[place.parent / COMBINED.file] = COMBINED
    for record, how in records.items():
        if record.is_file():
            name = _model_in(record)
            return _Step(how, place, name, None if name is None else _local(name, place.parent))
    return None


def blocks_kept(folder: Path) -> tuple[int, ...] | None:
    """The blocks of another model that a cut or a distillation left in a folder; None for its first ones.

    None also where there is no such result, or a damaged one.
    """
    for method, name in ((CUT, "blocks"), (DISTILLED, "chosen")):
        with contextlib.suppress(*_BROKEN):
            blocks = tuple(int(block) for block in _values(folder / method.file_name)[name] or ())
            return blocks if blocks != tuple(range(1, len(blocks) + 1)) else None
    return None


def _model_in(record: Path) -> str | None:
    """The model that a result names; None where it is damaged."""
    try:
        return str(_values(record)["model"])
    except _BROKEN:
        return None


def _values(record: Path) -> Mapping[str, Any]:
    """What a result holds. Raises one of `_BROKEN` where it is damaged, or not there."""
    values: Mapping[str, Any] = unsealed(json.loads(read_text(record)), record)
    return values


def _local(name: str, home: Path) -> Path | None:
    """The folder that a name in a result means, from wherever it is asked; None where that would ask the hub.

    home: Folder in which the result's model lies.
    """
    path = local_path(name)
    found = path if is_folder(path) else miniature_path(name) or model_folder_above(name, home)
    return None if found is None else real_path(found)


def _without_training(step: _Step) -> bool:
    return step.how is not DISTILLED


def _is_made_of(step: _Step, full: "Subject") -> bool:
    """Whether the full model is the one that this step began with."""
    if full.folder is None:
        return False
    if step.how is DISTILLED and real_path(full.folder) == step.place.parent / "full":  # where `distill` copies it
        return True
    return step.name == full.encoder.name if step.folder is None else step.folder == real_path(full.folder)
