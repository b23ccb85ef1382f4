"""One attack: a command, what is changed before it, and what may come of it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Change = Callable[[Path], object]
EITHER = (0, 1, 2)  # done, refused, or not understood


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """A command in a folder of its own, which holds copies of valid inputs.

    Attributes:
        name: What is attacked, and how.
        words: The command line; it is called in that folder.
        change: Changes the folder first.
        before: Python that is run in the command's process first.
        codes: Exit codes that keep the promises; those of signals are negative.
        heard: Whether what it says on standard error is read at all.
    """

    name: str
    words: tuple[str, ...]
    change: Change | None = None
    before: str = ""
    codes: tuple[int, ...] = EITHER
    heard: bool = True
