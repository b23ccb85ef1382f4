"""The trials that a file of records holds, and the rows of a study."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from truncate_kit.core.progress import TrialEvent, TrialWatcher
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


def timeless(values: dict[str, Any]) -> dict[str, Any]:
    """The values of a sweep without times."""
    trials = {name: [trial | {"seconds": 0} for trial in values[name]] for name in ("trials", "search")}
    return values | trials | {"seconds": 0}


def made_trial(layer: int = 2, seed: int = 0, *, dev: Sequence[float] = (40.0, 50.0), **more: Any) -> Trial:
    """A trial with these scores on dev, the last of which is its best unless told otherwise."""
    values: dict[str, Any] = {
        "layer": layer, "seed": seed, "epochs": len(dev), "steps": 4 * len(dev), "dev_scores": tuple(dev),
        "best_epoch": len(dev), "dev": dev[-1], "dev_pearson": 1.5, "test": 48.25, "test_pearson": None, "seconds": 2.0,
    }  # fmt: skip
    return Trial(**values | more)


class Watcher(TrialWatcher):
    """Keeps the trials that are planned and their events, after `strike` has heard of each."""

    def __init__(self, strike: Callable[[TrialEvent], None] = lambda event: None) -> None:
        self.trials, self.events, self._strike = list[str](), list[TrialEvent](), strike

    def planned(self, costs: Mapping[str, int]) -> None:
        self.trials += costs

    def trial(self, event: TrialEvent) -> None:
        self._strike(event)
        self.events.append(event)

    def places(self, kind: str) -> list[tuple[int, int, int]]:
        """Layer, seed and number of epochs of all events of a kind."""
        return [(event.layer, event.seed, event.done) for event in self.events if event.kind == kind]


def rows_of(result: StudyResult, model: str, task: str) -> list[StudyRow]:
    """The rows of one model on one task."""
    return [row for row in result.of(task) if row.model == model]
