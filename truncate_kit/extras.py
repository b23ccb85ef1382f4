"""Optional parts: import them where they are used, name the extra when they are missing, keep their logs short."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

from truncate_kit.errors import MissingExtraError


def require(module: str, *, extra: str) -> ModuleType:
    """Import an optional module, or raise `MissingExtraError` naming the extra that installs it.

    A module that is installed but cannot be imported raises its own error: reinstalling would not help.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise  # installed but broken
        raise MissingExtraError(module, extra) from error


@contextmanager
def errors_only(*packages: str) -> Iterator[None]:
    """Let the loggers of these packages write errors only in the block."""
    levels = {log: log.level for log in map(logging.getLogger, packages)}
    for log in levels:
        log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for log, level in levels.items():
            log.setLevel(level)
