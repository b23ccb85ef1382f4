"""Names, streams and files as a hostile or careless surrounding hands them over: one clear line, nothing waits."""

import gzip
import io
import json
import os
import subprocess
import sys

import pytest

from tests.support.commands import fails
from truncate_kit_cli import console


@pytest.mark.parametrize("command", ["cut", "study"])
def test_names_that_no_file_of_results_could_hold(capfd, command):
    assert "is not UTF-8 text" in fails(capfd, command, "a\udcff")


@pytest.mark.parametrize("suffix", ["", ".csv"])
def test_names_that_are_too_long_for_a_file(capfd, tmp_path, suffix):
    long = "9" * 4000 + suffix
    assert "999" in fails(capfd, "evaluate", "mini-bert", "--data", long)
    assert "999" in fails(capfd, "cut", long, "--layer", 1, "--workspace", tmp_path)
    (tmp_path / "study.toml").write_text(f'[[models]]\nmodel = "mini-bert"\n[[tasks]]\ndata = "{long}"\n')
    assert "999" in fails(capfd, "study", tmp_path / "study.toml", "--workspace", tmp_path)


def test_the_home_of_a_user_who_is_not_there(capfd, tmp_path):
    assert "~no-such-user" in fails(capfd, "cut", "~no-such-user/x", "--layer", "1", "--workspace", tmp_path)


def test_pipes_are_refused_and_not_waited_for(capfd, tmp_path):
    for name in ("data.csv", "texts.txt", "study.toml", "data.parquet"):
        os.mkfifo(tmp_path / name)
    assert "pipe" in fails(capfd, "evaluate", "mini-bert", "--data", tmp_path / "data.csv")
    assert "pipe" in fails(capfd, "evaluate", "mini-bert", "--data", tmp_path / "data.parquet")
    assert "pipe" in fails(capfd, "analyze", "mini-bert", "--texts", tmp_path / "texts.txt", "--workspace", tmp_path)
    assert "pipe" in fails(capfd, "study", tmp_path / "study.toml")


@pytest.mark.parametrize("text", ["a = " + "[" * 50_000, "[" * 50_000, f"seeds = {'9' * 5000}"])
def test_a_study_of_great_depth_or_with_a_number_of_thousands_of_digits(capfd, tmp_path, text):
    (tmp_path / "study.toml").write_text(text)
    assert "study.toml" in fails(capfd, "study", tmp_path / "study.toml")


def test_characters_that_a_terminal_lacks_are_written_another_way(monkeypatch, tmp_path):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    console.prepare_streams()
    print("3 × 4", flush=True)
    from truncate_kit.workspace import DataSource
    from truncate_kit_cli.console import print_json

    print_json(DataSource(name="größer × kleiner"))
    sys.stdout.flush()
    said = raw.getvalue().decode("ascii")
    assert said.startswith("3 \\xd7 4\n")
    assert json.loads(said.partition("\n")[2])["name"] == "größer × kleiner"


def test_what_unpacks_to_more_than_the_memory_is_said(tmp_path):
    """A small file that holds 600 megabytes in one line, read with 400 MB of address space in all."""
    packed = gzip.compress(b"a" * 10_000_000, compresslevel=1, mtime=0)
    (tmp_path / "bomb.jsonl.gz").write_bytes(packed * 60)
    script = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (400 << 20,) * 2)\n"
        "from pathlib import Path\nfrom truncate_kit.data.tables import opened_text\n"
        "from truncate_kit.errors import DataError\n"
        "try:\n    with opened_text(Path(sys.argv[1]), newline='\\n') as lines:\n        next(lines)\n"
        "except DataError as error:\n    print(error, error.hint)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "bomb.jsonl.gz")], capture_output=True, text=True, timeout=100,
        check=True,
    )  # fmt: skip
    assert "bomb.jsonl.gz holds more than there is memory for" in done.stdout
    assert "batch" not in done.stdout


def test_a_backend_for_windows_is_not_asked_for():
    """No command opens a window, so none ends because a display, or a backend, is not there."""
    script = (
        "from truncate_kit_cli.app import main\ntry:\n    main(['-V'])\nexcept SystemExit:\n    import matplotlib\n"
    )
    environment = os.environ | {"MPLBACKEND": "no-such-backend"}
    subprocess.run([sys.executable, "-c", script], timeout=60, check=True, env=environment)
