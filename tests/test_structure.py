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


SECTION = re.compile(r"^(Args|Attributes|Returns|Yields|Raises):\n(?:(?:[ \t]+.*)?\n)*", re.MULTILINE)

# The section would make these, or their modules, longer than they may be.
IN_PROSE = {
    "encoders/encoder.py::Encoder.hidden_states",
    "frozen/run.py::finetune_frozen",
    "priors/adapting.py::adapt",
    "serving/encoding.py::encode_file",
    "similarity/drop.py::predict_drop",
}


def public_functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Those whose name, and that of their class, has no leading underscore, by their names; and `__init__`."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from public_functions(child, prefix)
        elif child.name == "__init__" or not child.name.startswith("_"):
            if not isinstance(child, ast.ClassDef):
                yield prefix + child.name, child
            yield from public_functions(child, f"{prefix}{child.name}.")


def described_in_prose(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a sentence outside the sections of the docstring begins with names of parameters and a colon."""
    given = function.args
    named = (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg)
    names = "|".join(re.escape(one.arg) for one in named if one is not None)
    prose = SECTION.sub("", f"{ast.get_docstring(function) or ''}\n")
    one = rf"[`*]*(?:{names})`?"
    begins = re.compile(rf"(?:^|[.;:(]\s?){one}(?:(?:, and|,| and) {one})*:\s")
    return bool(names) and any(begins.search(" ".join(part.split()) + " ") for part in prose.split("\n\n"))


def test_parameters_stand_one_a_line_in_public_docstrings():
    found = {
        f"{path.relative_to(ROOT / 'truncate_kit')}::{name}"
        for path in (ROOT / "truncate_kit").rglob("*.py")
        for name, function in public_functions(ast.parse(path.read_text()))
        if described_in_prose(function)
    }
    assert found == IN_PROSE


@pytest.mark.parametrize(
    ("docstring", "in_prose"),
    [
        ("Sum. first, second: (n,) each.", True),
        ("Sum; second: (n,).", True),
        ("Sum of pairs (first: those of a set).", True),
        ("Sum.\n\n    `first` and `second`: (n,)\n    each.\n    ", True),
        ("Sum.\n\n    Args:\n        first: (n,).\n\n    Of both. second: (n,).\n    ", True),
        ("Sum of the first: all else is left out.", False),
        ("Sum.\n\n    Args:\n        first: (n,).\n\n    Raises:\n        second: No error.\n    ", False),
        ("Sum.\n\n    third: no parameter.\n    ", False),
    ],
)
def test_prose_about_parameters_is_found(docstring, in_prose):
    module = ast.parse(f'class Sums:\n def add(self, first, second):\n    """{docstring}"""\n def _own(self): ...')
    [(name, function)] = public_functions(module)
    assert name == "Sums.add"
    assert described_in_prose(function) is in_prose


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
    assert asking == ["truncate_kit/report/origins.py"]
    taken = [path for path in MODULES if re.search(r"^from (time|datetime) import .*\btime\b", path.read_text(), re.M)]
    assert taken == []
