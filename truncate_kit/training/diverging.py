"""Trials whose loss is no number end alone: the others go on, and one error says which they were."""

from collections.abc import Callable
from typing import TypeVar

from truncate_kit.errors import DivergedError
from truncate_kit.wording import counted

Finished = TypeVar("Finished")


class DivergedTrials:
    """Collects the trials of one call that diverged, until all have been run."""

    def __init__(self) -> None:
        self._found: list[tuple[str, DivergedError]] = []
        self._others = 0

    def add(self, name: str, error: DivergedError) -> None:
        """Note a trial that diverged.

        Args:
            name: What the error calls the trial, such as `Layer 3, seed 0`.
            error: That of the trial.
        """
        self._found.append((name, error))

    def finished(self, trial: Finished) -> Finished:
        """The trial, counted among those that did not diverge."""
        self._others += 1
        return trial

    def run(self, name: str, trial: Callable[[], Finished]) -> list[Finished]:
        """What the trial gives, as a list: empty where it diverges."""
        try:
            return [self.finished(trial())]
        except DivergedError as error:
            self.add(name, error)
            return []

    def check(self) -> None:
        """Raises `DivergedError` that names the first one and counts the others, if there is any."""
        if self._found:
            name, error = self._found[0]
            more = f" So did {len(self._found) - 1} more." if len(self._found) > 1 else ""
            kept = f" What {counted(self._others, 'other trial')} gave is kept." if self._others else ""
            raise DivergedError(f"{name}: {error}{more}{kept}", hint=error.hint)
