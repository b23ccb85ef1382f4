"""What transformers says of a load is silenced, and only there."""

import logging

import pytest
from transformers.utils import logging as transformers_logging

from truncate_kit.models.transformers_logging import quiet_transformers


@pytest.mark.parametrize("level", [logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL])
def test_silent_inside_and_as_before_after_it(level):
    before = transformers_logging.get_verbosity()
    logger = logging.getLogger("transformers.modeling_utils")
    transformers_logging.set_verbosity(level)
    try:
        with quiet_transformers():
            assert not logger.isEnabledFor(logging.WARNING)
            assert not transformers_logging.is_progress_bar_enabled()
        assert transformers_logging.get_verbosity() == level
        assert transformers_logging.is_progress_bar_enabled()
    finally:
        transformers_logging.set_verbosity(before)


def test_the_first_thread_to_leave_does_not_speak_for_the_others():
    before = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity(logging.WARNING)
    try:
        first, second = quiet_transformers(), quiet_transformers()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert transformers_logging.get_verbosity() == logging.ERROR
        assert not transformers_logging.is_progress_bar_enabled()
        second.__exit__(None, None, None)
        assert transformers_logging.get_verbosity() == logging.WARNING
        assert transformers_logging.is_progress_bar_enabled()
    finally:
        transformers_logging.set_verbosity(before)
