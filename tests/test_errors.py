"""Errors say the same wherever they were raised, also in worker processes and on other machines; few classes do."""

import ast
import inspect
import pickle
from pathlib import Path

import pytest

from truncate_kit import errors

MADE = {
    errors.MissingExtraError: ("ray", "ray"),
    errors.LayerOutOfRangeError: (9, 8),
    errors.ColumnsError: ("a.csv", "No score.", ["text"]),
    errors.RowError: ("a.csv", "line 7", "is empty."),
}
KINDS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, errors.TruncateKitError) and kind.__module__ == errors.__name__
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_arrives_as_it_was_sent(kind):
    own_hint = kind in (errors.MissingExtraError, errors.LayerOutOfRangeError)
    sent = kind(*MADE.get(kind, ("What was found.",)), **({} if own_hint else {"hint": "Do this."}))
    arrived = pickle.loads(pickle.dumps(sent))
    assert type(arrived) is kind
    assert str(arrived) == str(sent) != ""
    assert arrived.hint == sent.hint != ""


def caught_names(tree: ast.Module) -> set[str]:
    """The names of all classes behind `except` and in `isinstance`."""
    handled = [node.type for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and node.type]
    asked = [
        node.args[1] for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance"
    ]
    return {name.id for part in (*handled, *asked) for name in ast.walk(part) if isinstance(name, ast.Name)}


def test_every_class_is_caught_somewhere_or_has_an_exit_code_of_its_own():
    root = Path(errors.__file__).parents[1]
    files = [file for folder in ("truncate_kit", "cli") for file in (root / folder).rglob("*.py")]
    caught = set().union(*(caught_names(ast.parse(file.read_text())) for file in files))
    # What cannot be written or read is caught as the OSError that it is, beside those of the system.
    by = {errors.FileProblemError: OSError}
    assert {by.get(kind, kind).__name__ for kind in KINDS} <= caught
    assert len(KINDS) <= 12


def test_a_file_where_a_folder_is_needed_is_called_that(tmp_path):
    (tmp_path / "taken").write_text("")
    for place in (tmp_path / "taken", tmp_path / "taken" / "inside"):
        with pytest.raises(OSError, match="taken") as refused:
            place.mkdir()
        assert errors.cannot_write(place, refused.value).hint == errors.NO_FOLDER
