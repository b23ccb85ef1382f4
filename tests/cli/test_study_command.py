"""`truncate-kit study` where it cannot write: one clear line, and nothing that was there is lost."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.study.test_study import pairs_file
from truncate_kit_cli.app import main

SMALL_FILES = (  # a file may not grow beyond 4 kB here, in this process and its workers
    "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
    "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096));"
    "from truncate_kit_cli.app import main; main(sys.argv[1:])"
)


@pytest.fixture
def study(tiny_folder, tmp_path) -> Path:
    pairs_file(tmp_path / "graded.csv", "score", (0, 1, 2, 3, 4, 5))
    (tmp_path / "study.toml").write_text(
        f"""
        seeds = 1
        layers = "2,3"
        training = {{ epochs = 2, learning_rate = 1e-3 }}
        models = [{{ model = "{tiny_folder("bert")}", name = "model" }}]
        tasks = [{{ data = "graded.csv", name = "graded" }}]
        """
    )
    return tmp_path / "study.toml"


def run(*command: object) -> int:
    """Exit code."""
    with pytest.raises(SystemExit) as end:
        main(["study", *map(str, command)])
    return int(end.value.code or 0)


def run_on_a_full_disk(*command: object) -> tuple[int, str]:
    """Exit code and stderr."""
    program = [sys.executable, "-c", SMALL_FILES, "study", *map(str, command)]
    done = subprocess.run(program, capture_output=True, text=True)
    return done.returncode, done.stderr


def check_refused(code: int, err: str) -> str:
    """One line for what was found and one for what to do; gives the first."""
    line, hint = err.strip().splitlines()[-2:]
    assert code == 1, err
    assert "Traceback" not in err
    assert line.startswith("Error: Cannot write ")
    assert hint.startswith("Hint: Free some space")
    return line


@pytest.mark.parametrize("workers", [(), ("--workers", "2")])
def test_a_disk_that_fills_up_keeps_what_is_finished_and_the_study_goes_on(study, tmp_path, workers):
    out = tmp_path / "out"
    text = study.read_text()
    study.write_text(text.replace('"2,3"', '"2"'))
    assert run(study, "--out", out) == 0
    study.write_text(text)
    (finished,) = out.glob("trials/*/layer02-seed0-epochs2.json")
    before = finished.read_bytes()
    line = check_refused(*run_on_a_full_disk(study, "--out", out, *workers))
    assert "layer03-seed0-epochs2.checkpoint" in line
    assert finished.read_bytes() == before
    assert {path.name for path in finished.parent.iterdir()} <= {".lock", "settings.json", finished.name}
    assert run(study, "--out", out, *workers) == 0
    assert finished.read_bytes() == before
    assert (finished.parent / "layer03-seed0-epochs2.json").exists()


@pytest.mark.parametrize("place", ["/sys/truncate-kit", "graded.csv/study"])
def test_a_place_that_cannot_be_written_to(study, tmp_path, place, capfd):
    code = run(study, "--out", tmp_path / place)
    check_refused(code, capfd.readouterr().err)
