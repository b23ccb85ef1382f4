"""`truncate-kit study` where it cannot write: one clear line, and nothing that was there is lost."""

from multiprocessing import forkserver
from pathlib import Path

import pytest

from tests.support.commands import fails, fails_on_a_full_disk, run
from tests.support.files import study_file
from tests.support.trials import read_trials


@pytest.fixture
def study(tiny_folder, tmp_path) -> Path:
    return study_file(tiny_folder("bert"), tmp_path, epochs=2, seeds=1, layers="2,3")


@pytest.fixture
def fresh_server(monkeypatch):
    """Fork workers from a server that starts in this test, so that it has the limits of this process."""
    server = forkserver.ForkServer()
    for name in ("connect_to_new_process", "ensure_running", "set_forkserver_preload"):
        monkeypatch.setattr(forkserver, name, getattr(server, name))
    yield
    server._stop()


@pytest.mark.usefixtures("fresh_server")
@pytest.mark.parametrize("workers", [(), ("--workers", "1")])
def test_a_disk_that_fills_up_keeps_what_is_finished_and_the_study_goes_on(study, tmp_path, workers, capsys):
    out = tmp_path / "out"
    text = study.read_text()
    study.write_text(text.replace('"2,3"', '"2"'))
    run(capsys, "study", study, "--workspace", out)
    study.write_text(text)
    finished = out / "study/trials/trials.jsonl"
    before = finished.read_bytes()
    line = fails_on_a_full_disk(capsys, 4096, "study", study, "--workspace", out, *workers)
    assert "layer03-seed0-epochs2.checkpoint" in line
    assert finished.read_bytes() == before
    (store,) = (path for path in finished.parent.iterdir() if path.is_dir())
    assert {path.name for path in store.iterdir()} == {".lock", ".unfinished"}
    run(capsys, "study", study, "--workspace", out)
    assert finished.read_bytes().startswith(before)
    assert [[trial.layer for trial in trials] for trials in read_trials(finished).values()] == [[2, 3]]


@pytest.mark.parametrize("place", ["/sys/truncate-kit", "pairs.csv/study"])
def test_a_place_that_cannot_be_written_to(study, tmp_path, place, capfd):
    assert fails(capfd, "study", study, "--workspace", tmp_path / place).startswith("Error: Cannot write ")


def test_data_that_is_not_there_leaves_no_workspace(study, tmp_path, capsys):
    (tmp_path / "pairs.csv").unlink()
    assert "pairs.csv" in fails(capsys, "study", study, "--workspace", tmp_path / "out")
    assert not (tmp_path / "out").exists()
