"""Silence what transformers says while a model is loaded on purpose with weights left out."""

import contextlib
from collections.abc import Iterator
from logging import ERROR

from transformers.utils import logging


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """No progress bars and no warnings from transformers inside the block; both as before after it."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    speaks = verbosity < ERROR  # a change makes every logger of the process forget what it knew
    if speaks:
        logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if speaks:
            logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
