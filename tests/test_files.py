"""Nothing is lost: temporary names, renames, locks."""

import subprocess
import sys

import pytest

from truncate_kit.errors import CannotWriteError, RunInUseError
from truncate_kit.files import replacing, run_lock, write_json, write_text


def test_a_file_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "a" / "b.json"
    write_json(path, {"x": 1})
    write_json(path, {"x": 2})
    assert path.read_text() == '{\n  "x": 2\n}\n'
    assert [item.name for item in path.parent.iterdir()] == ["b.json"]


def test_a_failure_leaves_what_was_there(tmp_path):
    path = tmp_path / "text"
    write_text(path, "old")

    def fail():
        with replacing(path) as target:
            target.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert path.read_text() == "old"
    assert [item.name for item in tmp_path.iterdir()] == ["text"]


def test_a_folder_is_replaced_as_a_whole(tmp_path):
    folder = tmp_path / "model"
    for name in ("one", "two"):
        with replacing(folder) as target:
            target.mkdir()
            (target / name).write_text(name)
    assert [item.name for item in folder.iterdir()] == ["two"]
    assert [item.name for item in tmp_path.iterdir()] == ["model"]


def test_nan_is_no_json_and_leaves_nothing(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a.json", {"x": float("nan")})
    assert not list(tmp_path.iterdir())


def test_a_file_where_a_folder_should_be(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotWriteError, match="Cannot write"):
        write_text(tmp_path / "file" / "a.txt", "x")


def test_a_full_disk_is_said_and_leaves_the_old_file(tmp_path):
    """/dev/full answers every write as a full disk does."""
    path = tmp_path / "text"
    write_text(path, "old")

    def fill():
        with replacing(path) as target:
            target.symlink_to("/dev/full")
            with target.open("w") as handle:
                handle.write("x" * 100_000)

    with pytest.raises(CannotWriteError, match="No space left on device"):
        fill()
    assert path.read_text() == "old"


def test_one_process_per_folder(tmp_path):
    code = (
        "import sys; from pathlib import Path; from truncate_kit.files import run_lock\n"
        "with run_lock(Path(sys.argv[1])):\n    print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(RunInUseError, match="Another process"), run_lock(tmp_path):
            pass
        other.kill()  # however it ends, the lock goes with it
        other.wait()
    with run_lock(tmp_path):
        pass
