"""Run independent tasks one after another here, in processes of this machine, or on a Ray cluster.

An engine knows nothing of trials or texts. The process that calls `run` alone writes files; workers only compute.
"""

import atexit
import contextlib
import io
import logging
import logging.handlers
import multiprocessing
import os
import pickle
import queue
import signal
import socket
import tempfile
import threading
import time
import traceback
import uuid
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

import torch

from truncate_kit.core.errors import DeviceError, UsageError, first_line, require
from truncate_kit.core.files import replacing
from truncate_kit.core.hardware import check_threads, select_device
from truncate_kit.core.settings import Bounds, check_number

TERMINATED = 128 + signal.SIGTERM  # exit code of a worker that was asked to end
RUNS = 4  # a task whose worker dies is run again, at most three times
STEPS_INTERVAL = 0.2  # seconds between two messages about the steps of a task
REACHED_WITHIN = 10.0  # seconds to find a Ray cluster; Ray itself would try for minutes
LOOK_AGAIN = 5.0  # seconds without a message until the machines of a cluster are counted again
AHEAD = 2  # tasks handed to Ray for each that it can run at once, so that no machine waits for this one
_GPUS, _CPUS = Bounds(0, 10_000, whole=False), Bounds(1, 10_000)

Task = TypeVar("Task", bound=Hashable)
Found = TypeVar("Found")
TaskIn = TypeVar("TaskIn", contravariant=True)
FoundOut = TypeVar("FoundOut", covariant=True)
Send = Callable[[Any], None]
"""Takes a message of a running task: `Steps`, `Lost`, or another of the work's own."""


class Steps(NamedTuple):
    """A message of a running task: `done` of `total` steps of `name` are done."""

    name: str
    done: int
    total: int


class Lost(NamedTuple):
    """A message of an engine: the worker of `task` died, so the task is run again."""

    task: Any
    reason: str


class Work(Protocol[TaskIn, FoundOut]):
    """What the tasks of a batch share. It is sent to the workers, so it can be pickled; tasks do not change it."""

    def move(self, device: str) -> None:
        """Move to another device; a worker receives it on the CPU."""

    def perform(self, task: TaskIn, send: Send) -> FoundOut:
        """Do one task. The outcome depends on work and task alone, wherever it is done."""


class Engine(Protocol):
    """Runs tasks. As a context manager it frees what it holds (processes, connections) at the end of the block."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *problem: object) -> None: ...

    def run(self, work: Work[Task, Found], tasks: Iterable[Task], send: Send) -> Iterator[tuple[Task, Found]]:
        """Yield each task with its result, as they finish; tasks are drawn as workers become free.

        Raises what a task raised, and `DeviceError` for a task whose workers died `RUNS` times. Running tasks are
        stopped when the caller leaves the iterator.
        """


class Sequential:
    """Runs one task after another in this process."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        pass

    def run(self, work: Work[Task, Found], tasks: Iterable[Task], send: Send) -> Iterator[tuple[Task, Found]]:
        """Yield each task with its result, in order."""
        for task in tasks:
            yield task, work.perform(task, send)


class Processes:
    """Runs tasks in `count` processes of this machine; if one dies, what was running is run again.

    Scripts guard their start with `if __name__ == "__main__":`, as for every pool of `multiprocessing`.

    Args:
        count: Number of processes.
        device: `cuda` gives process n the n-th GPU; None is the CPU.
        threads: CPU threads of each process; None divides those of this one.

    Raises:
        UsageError: A number out of its bounds.
        DeviceError: Fewer GPUs than processes.
    """

    def __init__(self, count: int, *, device: str | None = None, threads: int | None = None) -> None:
        self._count, threads = check_threads(count, "count"), check_threads(threads)
        self._devices = _devices(count, device)
        self._threads = threads or max(1, torch.get_num_threads() // count)
        # Workers fork from a server that has only imported this module: they start at once, and neither CUDA nor
        # OpenMP has been used before the fork.
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([__name__])
        self._pool: ProcessPoolExecutor | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="truncate-kit-")
        self._work: object = None
        self._key = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self._stop()
        self._folder.cleanup()

    def run(self, work: Work[Task, Found], tasks: Iterable[Task], send: Send) -> Iterator[tuple[Task, Found]]:
        """Yield each task with its result, as they finish. Raises what a task raised, `DeviceError`."""
        if work is not self._work:
            self._work, self._key = work, str(Path(self._folder.name, uuid.uuid4().hex))
            _write(Path(self._key), work)
        pending = _Pending(tasks, send)
        running: dict[Future[Any], Task] = {}
        try:
            while True:
                while len(running) < self._count and (drawn := pending.next()):
                    running[self._submit(drawn[0])] = drawn[0]
                if not running:
                    return
                done, _ = wait(running, timeout=STEPS_INTERVAL, return_when=FIRST_COMPLETED)
                self._deliver(send)
                for future in done:
                    task = running.pop(future)
                    try:
                        answer = Path(future.result())
                    except BrokenProcessPool:
                        reason, lost = self._reason(), (task, *running.values())
                        running.clear()
                        self._stop()
                        for other in lost:
                            pending.lost(other, reason)
                        break
                    found = pickle.loads(answer.read_bytes())
                    answer.unlink()
                    yield task, found
        finally:
            if running:
                self._stop()

    def _submit(self, task: Any) -> Future[Any]:
        try:
            return self._started().submit(_perform, self._key, task)
        except BrokenProcessPool:  # a worker died while it was idle
            self._stop()
            return self._started().submit(_perform, self._key, task)

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            self._messages, devices = self._context.SimpleQueue(), self._context.SimpleQueue()
            for device in self._devices:
                devices.put(device)
            self._pool = ProcessPoolExecutor(
                self._count, self._context, _begin, (devices, self._threads, self._messages)
            )
        return self._pool

    def _deliver(self, send: Send) -> None:
        while not self._messages.empty():
            _pass_on(self._messages.get(), send)

    def _workers(self) -> list[Any]:
        return list((getattr(self._pool, "_processes", None) or {}).values())  # public from Python 3.14 on

    def _reason(self) -> str:
        for worker in self._workers():
            worker.join(1)
        codes = [worker.exitcode for worker in self._workers() if worker.exitcode not in (0, None, TERMINATED)]
        code = codes[0] if codes else -signal.SIGTERM  # by which the pool ends the others
        return f"it was ended by {signal.Signals(-code).name}" if code < 0 else f"it ended with {code}"

    def _stop(self) -> None:
        if self._pool is not None:
            workers = self._workers()
            for worker in workers:
                worker.terminate()
            self._pool.shutdown(wait=True, cancel_futures=True)
            for worker in workers:
                worker.join()
            self._pool = None


class RayCluster:
    """Runs tasks on a Ray cluster; a task whose process or machine dies is run again elsewhere.

    Tasks of Ray Core, not Ray Data: one process here writes their results, in order and from where a run was stopped,
    so that a file has the same bytes as without Ray; and trials of training send messages while they run. The package
    must be installed on every machine of the cluster. An open connection (`ray.init`) is used and left open.

    Args:
        address: `auto` is the cluster that this machine belongs to, else HOST:PORT of its head.
        gpus: GPUs of each task; fractions are shared. Above 0 the tasks run on CUDA.
        cpus: CPUs of each task.

    Raises:
        UsageError: A number out of its bounds.
        MissingExtraError: Ray is not installed.
        DeviceError: No cluster answers, or none of its machines has what a task needs.
    """

    def __init__(self, address: str = "auto", *, gpus: float = 0.0, cpus: int = 1) -> None:
        gpus, cpus = check_number("gpus", gpus, _GPUS), check_number("cpus", cpus, _CPUS)
        if gpus > 1 and gpus != int(gpus):
            raise UsageError(f"{gpus:g} GPUs for a task cannot be had.", hint="Use a fraction such as 0.5, or 1, 2, …")
        if address.startswith("ray://"):
            raise UsageError(
                f"{address} is for Ray's client, which gets no messages of running tasks.",
                hint="Start the command on a machine of the cluster, with the address auto.",
            )
        self._address, self._gpus, self._cpus = address, gpus, cpus
        self._ray: ModuleType | None = None
        self._opened = False
        self._work: object = None
        self._parcel: tuple[str, list[Any]] | None = None

    def __enter__(self) -> Self:
        self._connect()
        return self

    def __exit__(self, *problem: object) -> None:
        self._work = self._parcel = None
        if self._ray is not None and self._opened:
            self._ray.shutdown()
        self._ray, self._opened = None, False

    def run(self, work: Work[Task, Found], tasks: Iterable[Task], send: Send) -> Iterator[tuple[Task, Found]]:
        """Yield each task with its result, as they finish. Raises what a task raised, `DeviceError`."""
        ray = self._connect()
        if work is not self._work or self._parcel is None:
            buffer = io.BytesIO()
            torch.save(work, buffer)
            # In a list, because Ray would fetch a bare reference for every task.
            self._work, self._parcel = work, (uuid.uuid4().hex, [ray.put(buffer.getvalue())])
        remote = ray.remote(num_cpus=self._cpus, num_gpus=self._gpus, max_retries=0, num_returns="streaming")(_messages)
        device = "cuda" if self._gpus else "cpu"
        pending = _Pending(tasks, send)
        running: dict[Any, Task] = {}
        limit = AHEAD * self._slots(ray)
        try:
            while True:
                while len(running) < limit and (drawn := pending.next()):
                    running[remote.remote(drawn[0], self._parcel, device, self._cpus)] = drawn[0]
                if not running:
                    return
                ready, _ = ray.wait(list(running), timeout=LOOK_AGAIN, fetch_local=False)
                if not ready:
                    limit = AHEAD * self._slots(ray)  # machines come and go
                for stream in ready:
                    try:
                        message = _next(ray, stream)
                    except _GoneError as gone:
                        pending.lost(running.pop(stream), str(gone))
                        continue
                    if isinstance(message, _Answer):
                        if message.problem is not None:
                            raise message.problem
                        yield running.pop(stream), message.found
                    else:
                        _pass_on(message, send)
        finally:
            for stream in running:
                with contextlib.suppress(Exception):  # the cluster may be what is gone
                    ray.cancel(stream, force=True)

    def _connect(self) -> ModuleType:
        if self._ray is None:
            # Ray reports lost machines on stdout, where only results belong; `Lost` reports them here.
            os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            ray = require("ray", extra="ray")
            if not ray.is_initialized():
                _check_reachable(self._address)
                try:
                    ray.init(address=self._address, log_to_driver=False, configure_logging=False, logging_level="ERROR")
                except (OSError, RuntimeError, ValueError) as error:
                    raise _unreachable(self._address, first_line(error)) from error
                self._opened = True
            self._ray = ray
            try:
                self._slots(ray)
            except DeviceError:
                self.__exit__()
                raise
        return self._ray

    def _slots(self, ray: ModuleType) -> int:
        """Count the tasks that the cluster can run at once. Raises `DeviceError` if it can run none."""
        alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        slots = 0
        for resources in alive:
            has = resources.get("CPU", 0.0) / self._cpus
            slots += int(min(has, resources.get("GPU", 0.0) / self._gpus) if self._gpus else has)
        if not slots:
            gpus, cpus = (sum(resources.get(kind, 0.0) for resources in alive) for kind in ("GPU", "CPU"))
            raise DeviceError(
                f"No machine of the Ray cluster has {self._gpus:g} GPUs and {self._cpus} CPUs for a task: there are "
                f"{gpus:g} GPUs and {cpus:g} CPUs on {len(alive)} machines.",
                hint="Ask for less with `gpus` and `cpus`, or add machines with `ray start --address`.",
            )
        return slots


class _Pending(Generic[Task]):
    """The tasks still to begin; those whose worker died come first."""

    def __init__(self, tasks: Iterable[Task], send: Send) -> None:
        self._fresh, self._send = iter(tasks), send
        self._again: deque[Task] = deque()
        self._losses: Counter[Task] = Counter()

    def next(self) -> tuple[Task] | None:
        if self._again:
            return (self._again.popleft(),)
        return next(((task,) for task in self._fresh), None)

    def lost(self, task: Task, reason: str) -> None:
        """Put the task back. Raises `DeviceError` after `RUNS` losses."""
        self._losses[task] += 1
        if self._losses[task] == RUNS:
            raise DeviceError(
                f"The worker of {task} was lost {RUNS} times; the last time {reason}.",
                hint="Memory may have run out: use fewer workers or a smaller `batch_size`; starting again continues.",
            )
        self._send(Lost(task, reason))
        self._again.append(task)


class _Answer(NamedTuple):
    """The last message of a task on Ray: its result, or the error it ended with."""

    found: Any = None
    problem: Exception | None = None


class _GoneError(Exception):
    """The process or machine of a task on Ray is gone."""


_held: dict[str, Work[Any, Any]] = {}  # in a worker: the last work, by its key
_device = "cpu"
_send: Send = print  # set by `_begin`


def _held_work(key: str, source: Callable[[], Any], device: str) -> Work[Any, Any]:
    """Return the work of this key; bytes of our own process on the other end, never a user's file."""
    if key not in _held:
        _held.clear()
        work = torch.load(source(), map_location="cpu", weights_only=False)
        work.move(device)
        _held[key] = work
    return _held[key]


def _begin(devices: Any, threads: int, messages: Any) -> None:
    """Prepare a worker process: device, threads, messages; it ends with its parent, which alone hears Ctrl-C."""
    global _device, _send
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)  # results of the parent belong there
    os.dup2(nowhere, 2)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    _device, _send = devices.get(), _throttled(messages.put)
    torch.set_num_threads(threads)
    _send_logs(_send)


def _write(path: Path, work: object) -> None:
    """Write the work for the processes of this machine. Raises `FileProblemError`, as on a full disk."""
    buffer = io.BytesIO()  # writing to a file torch has errors of its own
    torch.save(work, buffer)
    with replacing(path) as file:
        file.write_bytes(buffer.getvalue())


def _end(*_: object) -> None:
    atexit._run_exitfuncs()  # temporary folders go
    os._exit(TERMINATED)


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(TERMINATED)


def _perform(key: str, task: Any) -> str:
    """Do a task and return the file of its result: a long answer in a pipe would block if this process is killed."""
    try:
        answer = Path(f"{key}-{uuid.uuid4().hex}")
        found = pickle.dumps(_held_work(key, lambda: key, _device).perform(task, _send))
        with replacing(answer) as file:
            file.write_bytes(found)
        return str(answer)
    except Exception as error:
        raise _portable(error) from None


def _messages(task: object, parcel: tuple[str, list[Any]], device: str, threads: int) -> Iterator[Any]:
    """Yield the messages of a task on Ray, then its `_Answer`; of a generator Ray hands over each one at once."""
    messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
    send = _throttled(messages.put)
    key, (reference,) = parcel

    def perform() -> None:
        import ray

        torch.set_num_threads(threads)
        handler = _send_logs(send)
        try:
            work = _held_work(key, lambda: io.BytesIO(ray.get(reference)), device)
            messages.put(_Answer(found=work.perform(task, send)))
        except BaseException as error:  # also SystemExit and panics of libraries: no process ends with this thread
            messages.put(_Answer(problem=_portable(error)))
        finally:
            logging.getLogger("truncate_kit").removeHandler(handler)

    threading.Thread(target=perform, daemon=True).start()
    while True:
        message = messages.get()
        yield message
        if isinstance(message, _Answer):
            return


def _send_logs(send: Send) -> logging.Handler:
    """Send what the package logs: the standard error of another process is read by nobody."""

    class Sender(logging.handlers.QueueHandler):
        def enqueue(self, record: logging.LogRecord) -> None:
            send(record)

    handler = Sender(None)  # type: ignore[arg-type]  # `enqueue` uses no queue
    logging.getLogger("truncate_kit").addHandler(handler)
    return handler


def _pass_on(message: Any, send: Send) -> None:
    """Log what a task logged elsewhere; pass any other message to `send`."""
    if isinstance(message, logging.LogRecord):
        logging.getLogger(message.name).handle(message)
    else:
        send(message)


def _throttled(send: Send) -> Send:
    """Wrap `send`: messages about steps pass at most once per `STEPS_INTERVAL`, and the last one always."""
    last = 0.0

    def send_some(message: Any) -> None:
        nonlocal last
        if isinstance(message, Steps) and message.done < message.total:
            now = time.monotonic()
            if now - last < STEPS_INTERVAL:
                return
            last = now
        send(message)

    return send_some


def _portable(error: BaseException) -> Exception:
    """Add the worker's traceback; an error that cannot be read back after pickling becomes a RuntimeError."""
    error.add_note("In a worker:\n" + "".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))
        return error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")


def _devices(count: int, device: str | None) -> list[str]:
    if select_device(device).type == "cpu":
        return ["cpu"] * count
    if count > 1 and select_device(device).index is not None:
        raise DeviceError(f"{device} is one GPU, not {count}.", hint='Use `device="cuda"`, or one process.')
    if count > torch.cuda.device_count():
        raise DeviceError(
            f"{count} processes need a GPU each, and this machine has {torch.cuda.device_count()}.",
            hint=f"Use `count={torch.cuda.device_count()}`.",
        )
    return [f"cuda:{place}" for place in range(count)] if count > 1 else [str(device)]


def _next(ray: ModuleType, stream: Any) -> Any:
    """Return the next message of a task. Raises `_GoneError`; `DeviceError` if the cluster cannot run it."""
    lost = ray.exceptions
    try:
        return ray.get(next(stream))
    except (lost.WorkerCrashedError, lost.NodeDiedError, lost.OutOfMemoryError, lost.ObjectLostError) as error:
        raise _GoneError(f"Ray says: {first_line(error)}") from error
    except lost.RayError as error:
        cause = getattr(error, "cause", None) or error
        raise DeviceError(
            f"The Ray cluster cannot run it: {type(cause).__name__}: {first_line(cause)}.",
            hint="Install the same truncate-kit, torch and transformers on all of its machines; see `ray status`.",
        ) from error


def _check_reachable(address: str) -> None:
    """Raise `DeviceError` if nothing listens at HOST:PORT; other forms of addresses are left to Ray."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal():
        try:
            socket.create_connection((host, int(port)), REACHED_WITHIN).close()
        except (OSError, OverflowError) as error:
            raise _unreachable(address, str(error)) from error


def _unreachable(address: str, reason: str) -> DeviceError:
    return DeviceError(
        f"No Ray cluster answers at {address}: {reason.rstrip('.')}.",
        hint="Start one with `ray start --head`, or name the HOST:PORT of one that this machine belongs to.",
    )
