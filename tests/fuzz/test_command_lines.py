"""Command lines that nobody means: exit code 0, 1 or 2, one line and a hint, no traceback, no escapes."""

import json
import re

import pytest

from tests.support.files import pairs_file
from truncate_kit_cli.app import main

LINES = [
    "analyze m --data p.csv --max-texts 0",
    "analyze m --texts .",
    "finetune m --data p.csv --layer 9999999999999999999999",
    "finetune m --data p.csv --learning-rate nan",
    "finetune m --data p.csv --columns ,,",
    "finetune m --data p.csv --scale nan,nan",
    "finetune m --data p.csv --workspace p.csv/x",
    "distill m --texts p.csv --blocks 0..99999999999",
    "distill m --texts /dev/null --blocks 1",
    "freeze m --data p.csv --steps ,",
    "cut m --blocks 2,1",
    "cut \x1b[31mred --layer 1",
    "cut . --layer 1",
    "cut ~nouser/x --layer 1",
    "bench m --lengths 1e9 --data p.csv",
    "evaluate m --data http://x.invalid/y",
    "compare m m --data m",
    "encode p.csv --model m --out m",
    "report m/config.json",
    "status nowhere",
]


@pytest.fixture(scope="module")
def home(tiny_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    (folder / "m").symlink_to(tiny_folder("bert"))
    pairs_file(folder / "p.csv", "score", range(6))
    return folder


@pytest.mark.parametrize("line", LINES, ids=ascii)
def test_a_hostile_command_line_is_refused_in_one_line(line, home, capfd, monkeypatch):
    monkeypatch.chdir(home)
    before = {path.name for path in home.iterdir()}
    with pytest.raises(SystemExit) as end:
        main(line.split(" "))
    out, err = capfd.readouterr()
    assert end.value.code in (1, 2), out + err
    assert "Traceback" not in err
    assert not re.search("[\x00-\x08\x1b\x7f-\x9f]", out + err)
    if end.value.code == 1:
        *_, problem, hint = err.strip().splitlines()
        assert problem.startswith("Error: ")
        assert hint.startswith("Hint: ")
    assert {path.name for path in home.iterdir()} - before <= {"exported"}
    assert not list(home.glob("exported/**/*.json")), json.dumps(line)
