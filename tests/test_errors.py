"""Errors say the same wherever they were raised, also in worker processes and on other machines."""

import inspect
import pickle

import pytest

from truncate_kit.core import errors

KINDS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, errors.TruncateKitError) and kind.__module__ == errors.__name__
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_arrives_as_it_was_sent(kind):
    sent = kind(9, 8) if kind is errors.LayerOutOfRangeError else kind("What was found.", hint="Do this.")
    arrived = pickle.loads(pickle.dumps(sent))
    assert type(arrived) is kind
    assert str(arrived) == str(sent) != ""
    assert arrived.hint == sent.hint != ""
