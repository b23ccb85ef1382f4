"""How long work reports where it is, without knowing who listens."""

from typing import Protocol


class Progress(Protocol):
    """Called as work goes on; the command line draws a bar, everyone else hears nothing by default."""

    def __call__(self, task: str, done: int, total: int) -> None:
        """`done` of `total` steps of `task` are behind us; `done == total` ends the task."""


def silent(task: str, done: int, total: int) -> None:
    """Ignore progress."""
