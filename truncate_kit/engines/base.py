"""What an engine is: it runs tasks that share some work, and gives back what each of them found.

An engine knows nothing of trials or texts. The process that calls `run` alone writes files; workers only compute.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

from truncate_kit.errors import WorkerLostError

RUNS = 4
"""A task is begun at most so often: once, and three times more where its worker is lost."""

Task = TypeVar("Task")
Found = TypeVar("Found")
TaskIn = TypeVar("TaskIn", contravariant=True)
FoundOut = TypeVar("FoundOut", covariant=True)


class Steps(NamedTuple):
    """A message of a running task: `done` of `total` steps of what `name` says are behind it."""

    name: str
    done: int
    total: int


class Lost(NamedTuple):
    """A message of an engine: the worker of `task` was lost, so it is run again. reason: what is known of it."""

    task: Any
    reason: str


Tell = Callable[[Any], None]
"""Takes a message: `Steps`, `Lost`, or what else the work sends; it may come from another process or machine."""


class Work(Protocol[TaskIn, FoundOut]):
    """What the tasks of a batch share. It travels to the workers: it is picklable, and tasks leave it as it was."""

    def move(self, device: str) -> None:
        """Go to another device; it arrives on the CPU."""

    def perform(self, task: TaskIn, tell: Tell) -> FoundOut:
        """Do one task. The outcome depends on work and task alone, wherever it is done."""


class Engine(Protocol):
    """Runs tasks. As a context manager it frees what it holds (processes, connections) at the end of the block."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def run(self, work: Work[Task, Found], tasks: Iterable[Task], tell: Tell) -> Iterator[tuple[Task, Found]]:
        """Each task with what it found, as they finish; tasks are drawn as workers become free.

        Raises what a task raised, `WorkerLostError` for a task whose workers were lost `RUNS` times, `ClusterError`.
        What still runs when the caller leaves the iterator is stopped.
        """


class Sequential:
    """One task after another in this process."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        pass

    def run(self, work: Work[Task, Found], tasks: Iterable[Task], tell: Tell) -> Iterator[tuple[Task, Found]]:
        """Each task with what it found, in order."""
        for task in tasks:
            yield task, work.perform(task, tell)


@dataclass(frozen=True, slots=True)
class Attempt(Generic[Task]):
    """A task that is run for the `number`-th time."""

    task: Task
    number: int = 1


class Pending(Generic[Task]):
    """The tasks that are still to be begun; those whose worker was lost come first."""

    def __init__(self, tasks: Iterable[Task], tell: Tell) -> None:
        self._fresh, self._tell = iter(tasks), tell
        self._again: deque[Attempt[Task]] = deque()

    def next(self) -> Attempt[Task] | None:
        """What to begin now; None where nothing is left."""
        if self._again:
            return self._again.popleft()
        for task in self._fresh:
            return Attempt(task)
        return None

    def lost(self, attempt: Attempt[Task], reason: str) -> None:
        """The worker of this attempt is gone. Raises `WorkerLostError` after `RUNS` attempts."""
        if attempt.number == RUNS:
            raise WorkerLostError(str(attempt.task), RUNS, reason)
        self._tell(Lost(attempt.task, reason))
        self._again.append(Attempt(attempt.task, attempt.number + 1))
