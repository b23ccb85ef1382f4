"""The limits that CONTRIBUTING.md states: modules and functions that can be read at once; and which clocks are read."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted([*(ROOT / "truncate_kit").rglob("*.py"), *(ROOT / "cli").glob("*.py")])
MOST_LINES, MOST_FUNCTION_LINES, MOST_PARAMETERS = 300, 60, 10


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def num_parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    given = function.args
    names = [argument.arg for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_reads_in_one_sitting(path):
    assert len(path.read_text().splitlines()) <= MOST_LINES
    for function in functions(path):
        # A command's parameters are its options: they stand one a line, and count neither as lines nor as parameters.
        is_command = path.parent.name == "cli" and function.name == path.stem
        first = function.body[0].lineno if is_command else function.lineno
        assert function.end_lineno - first < MOST_FUNCTION_LINES, function.name
        assert is_command or num_parameters(function) <= MOST_PARAMETERS, function.name


def test_files_of_tests_have_names_of_their_own():
    # pytest takes two files of one name for the same module.
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


TIME_OF_DAY = (
    r"\b(time\.(time|time_ns|localtime|gmtime|strftime|ctime)|(datetime|date)\.(now|utcnow|today|fromtimestamp))\("
)


def test_the_time_of_day_is_asked_for_only_by_the_page():
    # A clock that is set back or forward would otherwise make a checkpoint late, or a file newer than it is.
    asking = [str(path.relative_to(ROOT)) for path in MODULES if re.search(TIME_OF_DAY, path.read_text())]
    assert asking == ["truncate_kit/page/origins.py"]
    taken = [path for path in MODULES if re.search(r"^from (time|datetime) import .*\btime\b", path.read_text(), re.M)]
    assert taken == []
