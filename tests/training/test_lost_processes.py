"""A process of a group that ends: the others say that, not that the program is wrong."""

from tests.support.distributed import in_two_processes

_PROGRAM = """
from truncate_kit.core.errors import TruncateKitError
from truncate_kit.training.loop import joined

try:
    with joined("cpu") as (group, _):
        group.agree(None)
        if group.leads:
            raise TruncateKitError("There are no texts.", hint="Give some.")
        group.agree(None)
except TruncateKitError as error:
    print(error, error.hint)
"""


def test_those_that_wait_for_it_say_that_it_has_ended():
    (_, first, _), (_, second, errors) = in_two_processes(_PROGRAM)
    assert first.strip() == "There are no texts. Give some."
    assert second.startswith("Another process of this run has ended. Look for its error"), errors
