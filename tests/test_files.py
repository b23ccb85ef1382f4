"""Nothing is lost: temporary names, renames, locks."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.support.files import small_disk
from truncate_kit.core.errors import FileProblemError
from truncate_kit.core.files import (
    is_there,
    local_path,
    name_without_folders,
    remove_leftovers,
    replacing,
    run_lock,
    write_json,
    write_text,
)


def test_files_and_folders_are_replaced_as_a_whole(tmp_path):
    path, folder = tmp_path / "a/b.json", tmp_path / "a/model"
    for number in (1, 2):
        write_json(path, {"x": number})
        with replacing(folder) as target:
            target.mkdir()
            (target / str(number)).touch()
    assert path.read_text() == '{\n  "x": 2\n}\n'
    assert sorted(item.name for item in path.parent.rglob("*")) == ["2", "b.json", "model"]


def test_a_failure_leaves_what_was_there(tmp_path):
    for path in (tmp_path / "text", tmp_path / "new/below/text"):
        before = sorted(tmp_path.rglob("*"))
        with suppress(KeyboardInterrupt), replacing(path) as target:
            target.write_text("half")
            raise KeyboardInterrupt
        assert sorted(tmp_path.rglob("*")) == before
        write_text(tmp_path / "text", "old")
    assert (tmp_path / "text").read_text() == "old"


@pytest.mark.parametrize(("umask", "rights"), [(0o022, 0o644), (0o077, 0o600)])
def test_others_may_read_what_the_umask_lets_them(tmp_path, umask, rights):
    """Weights as well, which safetensors writes under a temporary name of its own for this user alone."""
    before = os.umask(umask)
    try:
        with replacing(tmp_path / "model") as target:
            (target / "inside").mkdir(parents=True)
            save_file({"a": torch.zeros(2)}, target / "inside/model.safetensors")
            (target / "config.json").write_text("{}")
            (target / "elsewhere").symlink_to(Path(sys.executable).resolve())
        with replacing(tmp_path / "states.safetensors") as target:
            save_file({"a": torch.zeros(2)}, target)
    finally:
        os.umask(before)
    written = ("model/config.json", "model/inside/model.safetensors", "states.safetensors")
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in written] == [rights] * 3


def test_one_process_per_folder(tmp_path):
    code = (
        "import sys; from pathlib import Path; from truncate_kit.core.files import run_lock\n"
        "with run_lock(Path(sys.argv[1])):\n    print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(FileProblemError, match="Another process"), run_lock(tmp_path):
            pass
        other.kill()  # however it ends, the lock goes with it
        other.wait()
    with run_lock(tmp_path):
        pass


def test_a_folder_made_for_a_lock_goes_where_nothing_was_written(tmp_path):
    for name, result in (("new", ()), ("used", ("result",))):
        with suppress(KeyError), run_lock(tmp_path / name):
            for file in result:
                write_text(tmp_path / name / file, "kept")
            raise KeyError
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")} == {"used", "used/.lock", "used/result"}


@pytest.mark.parametrize("write", [torch.save, save_file])
def test_a_disk_that_is_too_small_for_tensors_is_said(tmp_path, write):
    """Both writers have errors of their own kind for it; no file may grow beyond 4 kB here."""
    path = tmp_path / "tensors"
    write_text(path, "old")

    def fail():
        with replacing(path) as target, target.open("wb") as handle:
            write({"x": torch.zeros(10_000)}, handle if write is torch.save else target)

    with small_disk(4096), pytest.raises(FileProblemError, match="File too large"):
        fail()
    assert path.read_text() == "old"
    assert [item.name for item in tmp_path.iterdir()] == ["tensors"]


def test_what_a_killed_writer_left_goes_with_the_next_write_and_what_lives_stays(tmp_path):
    for name in (".lean.dead0000.tmp", ".other.dead0000.tmp", ".notes.tmp"):
        (tmp_path / name / "lean").mkdir(parents=True)
    with replacing(tmp_path / "lean") as living:
        living.mkdir()
        write_text(tmp_path / "lean.txt", "x")
        with replacing(tmp_path / "lean") as second:  # another writer of the same name: the first one lives
            second.mkdir()
        assert living.is_dir()
        left = {item.name for item in tmp_path.iterdir()}
    assert ".lean.dead0000.tmp" not in left
    assert ".other.dead0000.tmp" in left
    remove_leftovers(tmp_path)
    assert {item.name for item in tmp_path.iterdir()} == {"lean", "lean.txt", ".notes.tmp"}


def test_a_folder_that_was_moved_aside_when_its_writer_was_killed_is_brought_back(tmp_path):
    old = tmp_path / ".lean.dead0000.tmp" / "replaced"
    old.mkdir(parents=True)
    (old / "weights").write_text("old")
    remove_leftovers(tmp_path)
    assert (tmp_path / "lean/weights").read_text() == "old"
    assert [item.name for item in tmp_path.iterdir()] == ["lean"]


def test_names_as_paths(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert local_path("~/x") == tmp_path / "x"
    assert local_path("~no-such-user/x") == Path("~no-such-user/x")
    assert name_without_folders(str(tmp_path)) == tmp_path.name
    assert name_without_folders("owner/name") == "owner/name"
    assert not is_there("x" * 5000)
