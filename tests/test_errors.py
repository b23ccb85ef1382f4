"""Errors say the same wherever they were raised: they travel from worker processes and machines."""

import inspect
import pickle
from pathlib import Path

import pytest

from truncate_kit import errors

MADE = {
    errors.MissingExtraError: ("ray", "ray"),
    errors.CannotWriteError: (Path("out"), OSError(28, "No space left on device")),
    errors.RunInUseError: (Path("out"),),
    errors.WorkerLostError: ("layer 3", 4, "it was killed"),
    errors.LayerOutOfRangeError: (9, 8),
    errors.ColumnsError: ("a.csv", "No score.", ["text"]),
    errors.RowError: ("a.csv", "line 7", "is empty."),
    errors.BatchTooSmallError: (3,),
    errors.NonFiniteStatesError: ([1, 2],),
    errors.UndefinedCKAError: ([0], "the first model", "all states are equal"),
    errors.TrainingDivergedError: (0, 2, 1e-4),
    errors.ExportCheckError: ("cosine 0.5",),
}
KINDS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, errors.TruncateKitError) and kind.__module__ == errors.__name__
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_arrives_as_it_was_sent(kind):
    told = {} if kind in MADE and kind not in (errors.ColumnsError, errors.RowError) else {"hint": "Do this."}
    sent = kind(*MADE.get(kind, ("What was found.",)), **told)
    arrived = pickle.loads(pickle.dumps(sent))
    assert type(arrived) is kind
    assert str(arrived) == str(sent) != ""
    assert arrived.hint == sent.hint != ""
