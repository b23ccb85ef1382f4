"""Trials of a benchmark, kept and found again as those of `truncate-kit finetune` and `study` are."""

from pathlib import Path
from typing import Any

from truncate_kit.data import PairSplits
from truncate_kit.encoders import Encoder
from truncate_kit.runs.store import RunStore, run_key
from truncate_kit.sweep.trials import TrialRunner
from truncate_kit.training.configuration import TrainingSettings
from truncate_kit.training.tasks import LabelledTask


def trial_runner(
    encoder: Encoder, pairs: PairSplits, settings: TrainingSettings, folder: Path, *, name: str, **description: Any
) -> TrialRunner:
    """Runs trials that are kept under `folder` and found again by weights, data and settings.

    name: of the model; it and `description` are written beside the trials.
    """
    task = LabelledTask(encoder, pairs, settings.objective)
    key = run_key(encoder, settings.to_json(), pairs.fingerprint(), type(task).__name__)
    store = RunStore(folder, key, {"model": name, **description, "training": settings.to_dict()})
    return TrialRunner(encoder, task, settings, store)
