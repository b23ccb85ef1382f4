"""Silence what transformers says while a model is loaded on purpose with weights left out."""

import contextlib
import threading
from collections.abc import Iterator
from logging import ERROR

from transformers.utils import logging

_TURN = threading.Lock()
_INSIDE: list[tuple[int, bool]] = []  # for each block that a thread is in how it was before the first one


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """No progress bars and no warnings from transformers inside the block; both as before after the last of them."""
    with _TURN:
        verbosity, bars = _INSIDE[0] if _INSIDE else (logging.get_verbosity(), logging.is_progress_bar_enabled())
        if not _INSIDE:
            if verbosity < ERROR:  # a change makes every logger of the process forget what it knew
                logging.set_verbosity_error()
            logging.disable_progress_bar()
        _INSIDE.append((verbosity, bars))
    try:
        yield
    finally:
        with _TURN:
            _INSIDE.pop()
            if not _INSIDE:
                if verbosity < ERROR:
                    logging.set_verbosity(verbosity)
                if bars:
                    logging.enable_progress_bar()
