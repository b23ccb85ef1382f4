"""TensorBoard logs of a sweep, against the trials themselves."""

import re

import pytest

from tests.support.commands import run_both
from tests.support.files import study_file
from tests.support.training import SETTINGS, swept
from truncate_kit.core.progress import TensorboardLog
from truncate_kit.methods.study.result import StudyResult
from truncate_kit.models.loading import load_encoder


@pytest.fixture(scope="module")
def logged(tiny_folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("logged")
    with TensorboardLog(out / "tensorboard") as log:
        encoder = load_encoder(tiny_folder("bert"))
        return out, swept(encoder, out, training=SETTINGS, layers="1,2", pick="best-dev", progress=log)


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


def test_models_of_a_study_are_told_apart(tiny_folder, tmp_path, capfd):
    """Two models whose trials have the same layers, seeds and epochs."""
    file = study_file(tiny_folder("bert"), tmp_path, epochs=1, seeds=1, layers="1,3")
    models = ", ".join(f'{{ model = "{tiny_folder(family)}", name = "a/{family}" }}' for family in ("bert", "electra"))
    file.write_text(re.sub(r"models = .*", f"models = [{models}]", file.read_text()))
    run_both(capfd, "study", file, "--workspace", tmp_path / "out", "--tensorboard")
    result = StudyResult.read(tmp_path / "out/study/study.json")
    for family in ("bert", "electra"):
        rows = [row.scores for row in result.of("pairs") if row.model == f"a/{family}"]
        for row in rows:
            found = scalars(tmp_path / f"out/study/tensorboard/a%2F{family}, pairs/layer{row.layer:02d}-seed0-epochs1")
            assert [value for _, value in found["test"]] == pytest.approx([row.test], abs=1e-3)
    assert len(list((tmp_path / "out/study/tensorboard").iterdir())) == 2
