"""Engines run tasks that share some work, and give back the result of each.

An engine knows nothing of trials or texts. The process that calls `run` alone writes files; workers only compute.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

from truncate_kit.errors import DeviceError

RUNS = 4  # most runs of a task: one, and three more where its worker is lost

Task = TypeVar("Task")
Found = TypeVar("Found")
TaskIn = TypeVar("TaskIn", contravariant=True)
FoundOut = TypeVar("FoundOut", covariant=True)


class Steps(NamedTuple):
    """A message of a running task: `done` of `total` steps of `name` are done."""

    name: str
    done: int
    total: int


class Lost(NamedTuple):
    """A message of an engine: the worker of `task` was lost, so it is run again. reason: what is known of it."""

    task: Any
    reason: str


# Takes a message: `Steps`, `Lost`, or another of the work's own; it may come from another process or machine.
Send = Callable[[Any], None]


class Work(Protocol[TaskIn, FoundOut]):
    """What the tasks of a batch share. It is sent to the workers, so it is picklable; tasks do not change it."""

    def move(self, device: str) -> None:
        """Move to another device; it reaches a worker on the CPU."""

    def perform(self, task: TaskIn, send: Send) -> FoundOut:
        """Do one task. The outcome depends on work and task alone, wherever it is done."""


class Engine(Protocol):
    """Runs tasks. As a context manager it frees what it holds (processes, connections) at the end of the block."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *problem: object) -> None: ...

    def run(self, work: Work[Task, Found], tasks: Iterable[Task], send: Send) -> Iterator[tuple[Task, Found]]:
        """Each task with its result, as they finish; tasks are drawn as workers become free.

        Raises what a task raised, `DeviceError` also for a task whose workers were lost `RUNS` times.
        What still runs when the caller leaves the iterator is stopped.
        """


class Sequential:
    """One task after another in this process."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        pass

    def run(self, work: Work[Task, Found], tasks: Iterable[Task], send: Send) -> Iterator[tuple[Task, Found]]:
        """Each task with its result, in order."""
        for task in tasks:
            yield task, work.perform(task, send)


@dataclass(frozen=True, slots=True)
class Attempt(Generic[Task]):
    """A task that is run for the `number`-th time."""

    task: Task
    number: int = 1


class Pending(Generic[Task]):
    """The tasks that are still to be begun; those whose worker was lost come first."""

    def __init__(self, tasks: Iterable[Task], send: Send) -> None:
        self._fresh, self._send = iter(tasks), send
        self._again: deque[Attempt[Task]] = deque()

    def next(self) -> Attempt[Task] | None:
        """What to begin now; None where nothing is left."""
        if self._again:
            return self._again.popleft()
        for task in self._fresh:
            return Attempt(task)
        return None

    def lost(self, attempt: Attempt[Task], reason: str) -> None:
        """The worker of this attempt is gone. Raises `DeviceError` after `RUNS` attempts."""
        if attempt.number == RUNS:
            raise DeviceError(
                f"The worker of {attempt.task} was lost {RUNS} times; the last time {reason}.",
                hint="Memory may have run out: use fewer workers or a smaller `batch_size`; starting again continues.",
            )
        self._send(Lost(attempt.task, reason))
        self._again.append(Attempt(attempt.task, attempt.number + 1))
