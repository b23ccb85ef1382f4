"""TensorBoard logs and the live table of a sweep, against the trials themselves."""

import io
import re
import sys
from contextlib import redirect_stderr

import pytest

from tests.sweep.test_strategies import data
from tests.training.test_training import SETTINGS
from truncate_kit.encoders import load_encoder
from truncate_kit.report.tensorboard import TensorboardLog
from truncate_kit.study import StudyResult
from truncate_kit.sweep import SweepSettings, finetune
from truncate_kit_cli.watching import _LiveTable, watching


@pytest.fixture(scope="module")
def logged(tiny_folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("logged")
    with TensorboardLog(out / "tensorboard") as log:
        settings = SweepSettings(layers="1,2", seeds=(0,), pick="best-dev")
        result = finetune(
            load_encoder(tiny_folder("bert")), data(), out=out, settings=settings, training=SETTINGS, watcher=log
        )
    return out, result


def scalars(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_the_logs_hold_every_trial(logged):
    out, result = logged
    assert {path.name for path in (out / "tensorboard").iterdir()} == {
        f"layer{trial.layer:02d}-seed0-epochs3" for trial in result.trials
    }
    for trial in result.trials:
        found = scalars(out / f"tensorboard/layer{trial.layer:02d}-seed0-epochs3")
        # The chosen layer is trained once more for its weights, with the same scores.
        assert dict(found["dev"]) == pytest.approx(dict(enumerate(trial.dev_scores, start=1)), abs=1e-3)
        assert found["test"][-1][1] == pytest.approx(trial.test, abs=1e-3)
        assert all(0 < value < 1 for _, value in found["loss"])


def test_the_live_table_shows_what_the_trials_reached(logged, monkeypatch):
    from rich.console import Console

    _, result = logged
    table, screen = _LiveTable(), io.StringIO()
    for trial in result.trials:
        table.epoch(trial.layer, trial.seed, 3, 1, 0.1, trial.dev_scores[0])
        table.progress("layer 1, seed 0, 3 epochs", 3, 9)
        Console(file=screen, width=80).print(table._table())
        table.finished(trial.layer, trial.seed, 3, trial.dev, trial.test)
    Console(file=screen, width=80).print(table._table())
    shown = " ".join(screen.getvalue().split())
    assert "1/3" in shown
    assert "step 3 of 9" in shown
    assert all(f"{trial.dev:.2f}" in shown for trial in result.trials)


def test_the_live_table_shows_what_runs_at_once_and_what_was_lost():
    from rich.console import Console

    def shown() -> str:
        screen = io.StringIO()
        Console(file=screen, width=80).print(table._table())
        return " ".join(screen.getvalue().split())

    table = _LiveTable()
    table.epoch(1, 0, 3, 1, 0.1, 61.25)
    table.progress("layer 1, seed 0, 3 epochs", 3, 9)
    table.progress("layer 2, seed 0, 3 epochs", 4, 9)
    assert "layer 1, seed 0, 3 epochs: step 3 of 9" in shown()
    assert "layer 2, seed 0, 3 epochs: step 4 of 9" in shown()
    assert "left" not in shown()  # steps that were done when they were first heard of tell no speed
    table.progress("layer 1, seed 0, 3 epochs", 4, 9)
    assert "s left" in shown()
    table.progress("layer 2, seed 0, 3 epochs", 9, 9)
    table.part("another model, a task")
    assert "another model, a task" in shown()
    assert "61.25" not in shown()
    table.epoch(1, 0, 3, 1, 0.1, 61.25)
    table.again(1, 0, 3, "it was ended by SIGKILL")
    assert "layer 2" not in shown()
    assert "again" in shown()
    assert "61.25" not in shown()


def test_models_of_a_study_are_told_apart(tiny_folder, tmp_path, capfd):
    """Two models whose trials have the same layers, seeds and epochs: logs and lines of both."""
    from tests.engines.studies import run, study_file

    file = study_file(tiny_folder("bert"), tmp_path, epochs=1)
    models = ", ".join(f'{{ model = "{tiny_folder(family)}", name = "a/{family}" }}' for family in ("bert", "electra"))
    text = file.read_text().replace("seeds = 2", 'seeds = 1\nlayers = "1,3"')
    file.write_text(re.sub(r"models = .*", f"models = [{models}]", text))
    _, err = run(capfd, "study", file, "--out", tmp_path / "out", "--tensorboard")
    result = StudyResult.read(tmp_path / "out/study.json")
    lines = err.splitlines()
    for family in ("bert", "electra"):
        rows = [row.scores for row in result.of(f"a/{family}", "pairs")]
        start = lines.index(f"a/{family}, pairs:")
        assert lines[start + 1 : start + 3] == [  # deep ones, which take longest, begin first
            f"Layer {row.layer}, seed 0, 1 epoch: dev {row.dev:.2f}." for row in reversed(rows)
        ]
        for row in rows:
            found = scalars(tmp_path / f"out/tensorboard/a%2F{family}, pairs/layer{row.layer:02d}-seed0-epochs1")
            assert [value for _, value in found["test"]] == pytest.approx([row.test], abs=1e-3)
    assert len(list((tmp_path / "out/tensorboard").iterdir())) == 2


def test_elsewhere_each_trial_is_one_line(tmp_path):
    screen = io.StringIO()
    with redirect_stderr(screen), watching(tmp_path, tensorboard=False, quiet=False) as (_, watcher):
        assert not sys.stderr.isatty()
        for _ in range(2):  # trained, then read again for the result
            watcher.finished(3, 1, 10, 61.234, 50.0)
    assert screen.getvalue() == "Layer 3, seed 1, 10 epochs: dev 61.23.\n"
    with redirect_stderr(screen), watching(tmp_path, tensorboard=False, quiet=True) as (_, watcher):
        watcher.finished(3, 2, 10, 61.234, 50.0)
    assert "seed 2" not in screen.getvalue()
