"""Optional parts: import them where they are used, and name the extra when they are missing."""

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
