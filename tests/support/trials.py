"""The trials that a file of records holds, and the rows of a study."""

from pathlib import Path

from truncate_kit.core.results import read_records
from truncate_kit.methods.study.result import StudyResult, StudyRow
from truncate_kit.training.settings import Trial


def read_trials(file: Path) -> dict[str, tuple[Trial, ...]]:
    """All trials in a file of records by their stores, sorted by layer, seed and epochs; other records are left out."""
    stores: dict[str, dict[str, Trial]] = {}
    for record in read_records(file)[0]:
        if record.get("kind") == Trial.__name__:
            trial = Trial.from_dict(record)
            if record["name"] == trial.name:  # else it is what a model that was trained at another layer gave
                stores.setdefault(record["store"], {})[trial.name] = trial
    return {
        store: tuple(sorted(found.values(), key=lambda one: (one.layer, one.seed, one.epochs, one.epochs_run)))
        for store, found in stores.items()
    }


def rows_of(result: StudyResult, model: str, task: str) -> list[StudyRow]:
    """The rows of one model on one task."""
    return [row for row in result.of(task) if row.model == model]
