"""docs/reliability.md sends its readers to tests and commands that are there."""

import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
QUOTED = re.findall(r"`([^`\n]+)`", TEXT)


@pytest.mark.parametrize("command", [text for text in QUOTED if text.startswith("pytest ")])
def test_tests_named_as_proofs_are_there(command):
    for name in shlex.split(command)[1:]:
        path = ROOT / name
        found = [path] if path.is_file() else list(path.rglob("test_*.py"))
        assert any("def test_" in file.read_text(encoding="utf-8") for file in found), f"no tests in {name}"


@pytest.mark.parametrize("command", [text for text in QUOTED if text.startswith("python -m ")])
def test_commands_named_as_proofs_are_there(command):
    module, *options = shlex.split(command)[2:]
    spec = find_spec(module)
    if spec and spec.submodule_search_locations:
        spec = find_spec(f"{module}.__main__")
    assert spec, f"no module {module}"
    code = Path(spec.origin).read_text(encoding="utf-8")
    for option in (word for word in options if word.startswith("--")):
        assert f'"{option}"' in code, f"{module} has no {option}"


def test_every_promise_names_tests_that_are_there():
    promised = re.findall(r"^(\d+)\. \*\*", TEXT, re.MULTILINE)
    rows = dict(re.findall(r"^\| (\d+) \| (`tests/.*`) \|$", TEXT, re.MULTILINE))
    assert promised == list(rows)
    for name in (quoted for row in rows.values() for quoted in re.findall(r"`([^`]+)`", row)):
        file, test = name.split("::")
        assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), f"no test {name}"


def test_files_named_are_there():
    names = [text for text in QUOTED if re.fullmatch(r"(tests|truncate_kit|\.ci|\.github)/[\w./-]+", text)]
    assert len(names) >= 5
    assert [name for name in names if not (ROOT / name).exists()] == []
