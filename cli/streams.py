"""Standard streams as a command needs them: open, and able to take every character."""

import contextlib
import os
import sys
from pathlib import Path


def prepare_streams() -> None:
    """Open what was closed on the null device, and let no character that a terminal lacks end a command.

    A closed stream would be the number of the next file that is opened, into which messages would then be written.
    """
    for number in range(3):
        with contextlib.suppress(OSError):
            try:
                os.fstat(number)
            except OSError:
                os.open(os.devnull, os.O_RDWR)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115  # for good
        with contextlib.suppress(AttributeError):  # a stream of a test, or of a program that calls this one
            if not writes_everything(name):
                getattr(sys, name).reconfigure(errors="backslashreplace")


def writes_everything(name: str = "stdout") -> bool:
    """Whether a standard stream has an encoding with all characters."""
    return (getattr(sys, name).encoding or "utf-8").lower().replace("-", "").startswith("utf")
