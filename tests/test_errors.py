"""Errors say the same wherever they were raised, also in worker processes and on other machines; few classes do."""

import inspect
import pickle

import pytest

from truncate_kit.core import errors

MADE = {
    errors.MissingExtraError: ("ray", "ray"),
    errors.LayerOutOfRangeError: (9, 8),
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


def test_a_file_where_a_folder_is_needed_is_called_that(tmp_path):
    (tmp_path / "taken").write_text("")
    for place in (tmp_path / "taken", tmp_path / "taken" / "inside"):
        with pytest.raises(OSError, match="taken") as refused:
            place.mkdir()
        assert errors.cannot_write(place, refused.value).hint == errors.NO_FOLDER
