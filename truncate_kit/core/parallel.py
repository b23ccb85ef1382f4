"""Run independent tasks in this process, in worker processes, or on a Ray cluster.

Only the process that calls `run` writes files.
"""

import atexit
import contextlib
import io
import logging
import logging.handlers
import multiprocessing
import os
import pickle
import re
import signal
import socket
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import torch

from truncate_kit.core.errors import DeviceError, UsageError, first_line, require
from truncate_kit.core.hardware import check_threads, select_device
from truncate_kit.core.settings import Bounds, check_number

TERMINATED = 128 + signal.SIGTERM  # exit code of a terminated worker
STEPS_INTERVAL = 0.2  # seconds between messages about steps
REACHED_WITHIN = 10.0  # seconds to find a cluster; Ray would try for minutes
AHEAD = 2  # tasks queued per slot, so that no machine waits
RETRIES = 3  # of a task if its process or machine dies

Task = TypeVar("Task", bound=Hashable)
Done = TypeVar("Done")
TaskIn = TypeVar("TaskIn", contravariant=True)
DoneOut = TypeVar("DoneOut", covariant=True)
Send = Callable[[Any], None]
"""Takes a message of a running task, such as `Steps`."""


class Steps(NamedTuple):
    """Progress of a running task."""

    name: str
    done: int
    total: int


class Work(Protocol[TaskIn, DoneOut]):
    """What the tasks of a batch share; pickled for workers, read-only."""

    def move(self, device: str) -> None:
        """Move to another device."""

    def perform(self, task: TaskIn, send: Send) -> DoneOut:
        """Do one task; the result depends on work and task alone."""


class Engine:
    """Runs tasks in this process, within its `with` block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        pass

    def run(self, work: Work[Task, Done], tasks: Iterable[Task], send: Send) -> Iterator[tuple[Task, Done]]:
        """Yield each task with its result, as they finish; tasks are drawn as workers become free.

        Raises what a task raised, and `DeviceError` if a worker dies. Leaving the iterator stops running tasks.
        """
        for task in tasks:
            yield task, work.perform(task, send)


class Processes(Engine):
    """Runs tasks in `count` processes of this machine.

    Scripts need the guard `if __name__ == "__main__":`.

    Args:
        count: Number of processes.
        device: `cuda` gives process n the n-th GPU; by default the CPU.
        threads: CPU threads of each process; by default an equal share.

    Raises:
        UsageError: A number is out of bounds.
        DeviceError: Fewer GPUs than processes.
    """

    def __init__(self, count: int, *, device: str | None = None, threads: int | None = None) -> None:
        self._count, threads = check_threads(count, "count"), check_threads(threads)
        self._devices = [str(select_device(device))] * count
        if count > 1 and self._devices[0] != "cpu":
            select_device(f"cuda:{count - 1}")  # each process has one
            self._devices = [f"cuda:{place}" for place in range(count)]
        self._threads = threads or max(1, torch.get_num_threads() // count)
        # The server has only imported this module: forks start fast, before any use of CUDA or OpenMP.
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([__name__])
        self._pool: ProcessPoolExecutor | None = None
        self._work: object = None

    def __exit__(self, *problem: object) -> None:
        self._stop()

    def run(self, work: Work[Task, Done], tasks: Iterable[Task], send: Send) -> Iterator[tuple[Task, Done]]:
        """Yield each task with its result, as they finish."""
        tasks, running = iter(tasks), dict[Future[Any], Task]()
        pool = self._started(work)
        try:
            while True:
                for task in islice(tasks, self._count - len(running)):
                    running[pool.submit(_perform, task)] = task
                if not running:
                    return
                done, _ = wait(running, timeout=STEPS_INTERVAL, return_when=FIRST_COMPLETED)
                while not self._messages.empty():
                    _pass_on(self._messages.get(), send)
                for future in done:
                    result = future.result()
                    yield running.pop(future), result
        except BrokenProcessPool as error:
            self._stop()
            raise DeviceError(
                "A worker process died, perhaps for lack of memory.",
                hint="Use fewer workers or a smaller `batch_size`; starting again continues.",
            ) from error
        finally:
            if running:
                self._stop()

    def _started(self, work: object) -> ProcessPoolExecutor:
        if self._pool is None or work is not self._work:
            self._stop()
            self._messages, devices = self._context.SimpleQueue(), self._context.SimpleQueue()
            for device in self._devices:
                devices.put(device)
            begin = (_packed(work), devices, self._threads, self._messages)
            self._pool, self._work = ProcessPoolExecutor(self._count, self._context, _begin, begin), work
        return self._pool

    def _stop(self) -> None:
        if self._pool is not None:
            workers = list((getattr(self._pool, "_processes", None) or {}).values())  # public from Python 3.14
            for worker in workers:
                worker.terminate()
            self._pool.shutdown(wait=True, cancel_futures=True)
            for worker in workers:
                worker.join()
            self._pool = self._work = None


class RayCluster(Engine):
    """Runs tasks on a Ray cluster; a task whose process or machine dies runs again elsewhere.

    The package must be installed on every machine. An open connection (`ray.init`) is used and left open.

    Args:
        address: `auto` for this machine's cluster, else HOST:PORT of its head.
        gpus: GPUs of each task, fractions allowed; above 0 tasks run on CUDA.
        cpus: CPUs of each task.

    Raises:
        UsageError: A number is out of bounds.
        MissingExtraError: Ray is not installed.
        DeviceError: No cluster answers, or it lacks what a task needs.
    """

    def __init__(self, address: str = "auto", *, gpus: float = 0.0, cpus: int = 1) -> None:
        gpus = check_number("gpus", gpus, Bounds(0, 10_000, whole=False))
        if gpus > 1 and gpus != int(gpus):
            raise UsageError(f"{gpus:g} GPUs for a task cannot be had.", hint="Use a fraction such as 0.5, or 1, 2, …")
        if not re.fullmatch(r"auto|[^/\s]+:\d+", address):  # Ray's client gets no messages of running tasks
            raise UsageError(f"{address!r} is no address of a Ray cluster.", hint="Use auto, or HOST:PORT of its head.")
        self._address, self._gpus, self._cpus = address, gpus, check_number("cpus", cpus, Bounds(1, 10_000))
        self._ray: ModuleType | None = None
        self._opened = False
        self._work: object = None
        self._parcel: Any = None
        self._messages: Any = None

    def __enter__(self) -> Self:
        if self._ray is None:
            self._connect()
        return self

    def __exit__(self, *problem: object) -> None:
        self._work = self._parcel = None
        if self._ray is not None and self._opened:
            self._ray.shutdown()
        self._ray, self._opened = None, False

    def run(self, work: Work[Task, Done], tasks: Iterable[Task], send: Send) -> Iterator[tuple[Task, Done]]:
        """Yield each task with its result, as they finish."""
        ray = self._ray or self._connect()
        if work is not self._work:
            # In a list: Ray would fetch a bare reference for every task.
            self._work, self._parcel = work, (uuid.uuid4().hex, [ray.put(_packed(work))])
        remote = ray.remote(num_cpus=self._cpus, num_gpus=self._gpus, max_retries=RETRIES)(_on_cluster)
        more = (self._parcel, "cuda" if self._gpus else "cpu", self._cpus, self._messages)
        tasks, running = iter(tasks), dict[Any, Task]()
        try:
            while True:
                for task in islice(tasks, max(0, AHEAD * self._slots(ray) - len(running))):  # machines come and go
                    running[remote.remote(task, *more)] = task
                if not running:
                    return
                ready, _ = ray.wait(list(running), timeout=STEPS_INTERVAL)
                for message in self._messages.get_nowait_batch(self._messages.qsize()):
                    _pass_on(message, send)
                for reference in ready:
                    result, problem = ray.get(reference)
                    if problem is not None:
                        raise problem
                    yield running.pop(reference), result
        except ray.exceptions.RayError as error:
            raise DeviceError(
                f"The Ray cluster cannot run it: {type(error).__name__}: {first_line(error)}.",
                hint="Install the same truncate-kit, torch and transformers on all of its machines; see `ray status`. "
                "Starting again continues.",
            ) from error
        finally:
            for reference in running:
                with contextlib.suppress(Exception):  # the cluster may be gone
                    ray.cancel(reference, force=True)

    def _connect(self) -> ModuleType:
        # Ray reports lost machines on stdout.
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        ray = require("ray", extra="ray")
        if not ray.is_initialized():
            try:
                if self._address != "auto":
                    host, _, port = self._address.rpartition(":")
                    socket.create_connection((host, int(port)), REACHED_WITHIN).close()
                ray.init(address=self._address, log_to_driver=False, configure_logging=False, logging_level="ERROR")
            except (OSError, OverflowError, RuntimeError, ValueError) as error:
                raise DeviceError(
                    f"No Ray cluster answers at {self._address}: {first_line(error)}.",
                    hint="Start one with `ray start --head`, or name the HOST:PORT of one this machine has joined.",
                ) from error
            self._opened = True
        self._ray = ray
        try:
            self._slots(ray)
        except DeviceError:
            self.__exit__()
            raise
        from ray.util.queue import Queue
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self._messages = Queue(actor_options={"num_cpus": 0, "scheduling_strategy": here})
        return ray

    def _slots(self, ray: ModuleType) -> int:
        slots = 0
        for node in ray.nodes():
            has = node["Resources"] if node["Alive"] else {}
            by_cpus = has.get("CPU", 0.0) / self._cpus
            slots += int(min(by_cpus, has.get("GPU", 0.0) / self._gpus) if self._gpus else by_cpus)
        if not slots:
            raise DeviceError(
                f"No machine of the Ray cluster has {self._gpus:g} GPUs and {self._cpus} CPUs for a task.",
                hint="Ask for less with `gpus` and `cpus`, or add machines with `ray start --address`.",
            )
        return slots


def _packed(work: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(work, buffer)
    return buffer.getvalue()


def _unpacked(content: bytes, device: str) -> Any:
    """Unpickle the work; its bytes come from our own process."""
    work = torch.load(io.BytesIO(content), map_location="cpu", weights_only=False)
    work.move(device)
    return work


# In a worker process

_worker = SimpleNamespace()


def _begin(work: bytes, devices: Any, threads: int, messages: Any) -> None:
    """Prepare a worker, which ends with its parent and ignores Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)  # stdout holds the parent's results
    os.dup2(nowhere, 2)
    threading.Thread(target=_end_with, args=(multiprocessing.parent_process(),), daemon=True).start()
    torch.set_num_threads(threads)
    _worker.send = _throttled(messages.put)
    logging.getLogger("truncate_kit").addHandler(_sender(_worker.send))
    _worker.work, _worker.parcel = None, (work, devices.get())


def _end(*_: object) -> None:
    atexit._run_exitfuncs()  # removes temporary folders
    os._exit(TERMINATED)


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(TERMINATED)


def _perform(task: Any) -> Any:
    try:
        if _worker.work is None:
            _worker.work = _unpacked(*_worker.parcel)
        return _worker.work.perform(task, _worker.send)
    except Exception as error:
        raise _portable(error) from None


def _on_cluster(task: Any, parcel: tuple[str, list[Any]], device: str, threads: int, messages: Any) -> tuple[Any, Any]:
    """Return the result and the error of a task on Ray."""
    import ray

    torch.set_num_threads(threads)
    key, (reference,) = parcel
    send = _throttled(messages.put)
    handler = _sender(send)
    logging.getLogger("truncate_kit").addHandler(handler)
    try:
        if getattr(_worker, "key", None) != key:
            _worker.work, _worker.key = _unpacked(ray.get(reference), device), key
        return _worker.work.perform(task, send), None
    except Exception as error:
        return None, _portable(error)
    finally:
        logging.getLogger("truncate_kit").removeHandler(handler)


def _sender(send: Send) -> logging.Handler:
    """Return a handler that sends log records."""
    return logging.handlers.QueueHandler(SimpleNamespace(put_nowait=send))


def _pass_on(message: Any, send: Send) -> None:
    if isinstance(message, logging.LogRecord):
        logging.getLogger(message.name).handle(message)
    else:
        send(message)


def _throttled(send: Send) -> Send:
    """Limit messages about steps to one per `STEPS_INTERVAL`, and the last."""
    last = 0.0

    def send_some(message: Any) -> None:
        nonlocal last
        if isinstance(message, Steps) and message.done < message.total:
            if time.monotonic() - last < STEPS_INTERVAL:
                return
            last = time.monotonic()
        send(message)

    return send_some


def _portable(error: Exception) -> Exception:
    """Add the worker's traceback; replace an error that cannot be unpickled."""
    error.add_note("In a worker:\n" + "".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
