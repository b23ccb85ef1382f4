"""Run independent tasks in worker processes, or on a Ray cluster.

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
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from types import ModuleType, SimpleNamespace
from typing import Any, Self

import torch

from truncate_kit.core.errors import DeviceError, UsageError, first_line, require
from truncate_kit.core.hardware import check_threads, select_device
from truncate_kit.core.progress import Done, Engine, Send, Task, Work
from truncate_kit.core.results import COUNT, Bounds, check_number

TERMINATED = 128 + signal.SIGTERM  # exit code of a terminated worker
STEPS_INTERVAL = 0.2  # seconds between messages about steps
REACHED_WITHIN = 10.0  # seconds to reach a cluster; Ray would try for minutes
AHEAD = 2  # tasks queued per slot, so that machines do not wait
RETRIES = 3  # of a task


class Processes(Engine):
    """Runs tasks in `count` processes of this machine.

    Scripts need the guard `if __name__ == "__main__":`.

    Args:
        device: With `cuda`, process n uses GPU n; by default the CPU.
        threads: CPU threads of each process; by default an equal share.

    Raises:
        UsageError: A number is out of bounds.
        DeviceError: Fewer GPUs than processes.
    """

    def __init__(self, count: int, *, device: str | None = None, threads: int | None = None) -> None:
        self._count, threads = check_threads(count, "count"), check_threads(threads)
        self._devices = [str(select_device(device))] * count
        if count > 1 and self._devices[0] != "cpu":
            select_device(f"cuda:{count - 1}")
            self._devices = [f"cuda:{place}" for place in range(count)]
        self._threads = threads or max(1, torch.get_num_threads() // count)
        # Workers fork fast: the server has imported only this module, and not used CUDA or OpenMP.
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([__name__])
        self._pool: ProcessPoolExecutor | None = None
        self._work: object = None

    def __exit__(self, *problem: object) -> None:
        self._stop()

    def run(self, work: Work[Task, Done], tasks: Iterable[Task], send: Send) -> Iterator[tuple[Task, Done]]:
        """See `Engine.run`."""
        pool, running = self._started(work), dict[Future[Any], Task]()
        messages = self._messages

        def received() -> Iterator[Any]:
            return (messages.get() for _ in iter(messages.empty, True))

        try:
            yield from _finished(
                tasks, running, lambda task: pool.submit(_in_process, task), lambda: self._count, received, send
            )
        except BrokenProcessPool as error:
            self._stop()
            raise DeviceError(
                "A worker process died, perhaps for lack of memory.",
                hint="Use fewer workers or a smaller `batch_size`. Repeat the command to continue.",
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
            begin = (devices, self._messages, _packed(work), self._threads)
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
    """Runs tasks on a Ray cluster; restarts a task if its process or machine dies.

    Every machine needs the package. An open connection (`ray.init`) is reused and left open.

    Args:
        address: `auto` for this machine's cluster, else HOST:PORT of its head.
        gpus: GPUs of each task, fractions allowed; with 0 tasks run on the CPU.

    Raises:
        UsageError: A number is out of bounds.
        MissingExtraError: Ray is not installed.
        DeviceError: No cluster answers, or its machines are too small.
    """

    def __init__(self, address: str = "auto", *, gpus: float = 0.0, cpus: int = 1) -> None:
        gpus = check_number("gpus", gpus, Bounds(0, whole=False))
        if gpus > 1 and gpus != int(gpus):
            raise UsageError(f"A task cannot use {gpus:g} GPUs.", hint="Use a fraction such as 0.5, or 1, 2, …")
        # Ray's client (ray://) gets no messages of running tasks.
        if not re.fullmatch(r"auto|[^/\s]+:\d+", address):
            raise UsageError(f"{address!r} is not a Ray cluster address.", hint="Use auto, or HOST:PORT of its head.")
        self._address, self._gpus, self._cpus = address, gpus, check_number("cpus", cpus, COUNT)
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
        """See `Engine.run`."""
        ray = self._ray or self._connect()
        if work is not self._work:
            # In a list: Ray would fetch a bare reference for every task.
            self._work, self._parcel = work, (uuid.uuid4().hex, [ray.put(_packed(work))])
        remote = ray.remote(num_cpus=self._cpus, num_gpus=self._gpus, max_retries=RETRIES)(_on_cluster)
        messages, running = self._messages, dict[Any, Task]()
        shared = (*self._parcel, "cuda" if self._gpus else "cpu", self._cpus, messages)

        def submit(task: Task) -> Future[Any]:
            future: Future[Any] = remote.remote(task, *shared).future()
            return future

        def received() -> Iterable[Any]:
            return messages.get_nowait_batch(messages.qsize())  # type: ignore[no-any-return]  # a list

        try:
            yield from _finished(tasks, running, submit, lambda: AHEAD * self._slots(ray), received, send)
        except ray.exceptions.RayError as error:
            raise DeviceError(
                f"The Ray cluster cannot run the tasks: {type(error).__name__}: {first_line(error)}.",
                hint="Install the same truncate-kit, torch and transformers on all of its machines; see `ray status`. "
                "Repeat the command to continue.",
            ) from error
        finally:
            for future in running:
                with contextlib.suppress(Exception):  # the cluster may be gone
                    ray.cancel(future.object_ref, force=True)

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
                    hint="Start one with `ray start --head`, or give HOST:PORT of a cluster this machine joined.",
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


def _finished(
    tasks: Iterable[Task],
    running: dict[Future[Any], Task],
    submit: Callable[[Task], Future[Any]],
    slots: Callable[[], int],
    received: Callable[[], Iterable[Any]],
    send: Send,
) -> Iterator[tuple[Task, Any]]:
    tasks = iter(tasks)
    while True:
        for task in islice(tasks, max(0, slots() - len(running))):
            running[submit(task)] = task
        if not running:
            return
        done, _ = wait(running, timeout=STEPS_INTERVAL, return_when=FIRST_COMPLETED)
        for message in received():
            if isinstance(message, logging.LogRecord):
                logging.getLogger(message.name).handle(message)
            else:
                send(message)
        for future in done:
            result, problem = future.result()
            if problem is not None:
                raise problem
            yield running.pop(future), result


def _packed(work: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(work, buffer)
    return buffer.getvalue()


# In a worker process

_worker = SimpleNamespace(key=None)


def _begin(devices: Any, messages: Any, work: bytes, threads: int) -> None:
    """Prepare a worker, which ends with its parent and ignores Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)  # stdout holds the parent's results
    os.dup2(nowhere, 2)
    threading.Thread(target=_end_with, args=(multiprocessing.parent_process(),), daemon=True).start()
    _worker.more = ("its only work", lambda: work, devices.get(), threads, messages)


def _end(*_: object) -> None:
    atexit._run_exitfuncs()  # removes temporary folders
    os._exit(TERMINATED)


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(TERMINATED)


def _in_process(task: Any) -> tuple[Any, Any]:
    return _perform(task, *_worker.more)


def _on_cluster(task: Any, key: str, references: list[Any], *more: Any) -> tuple[Any, Any]:
    import ray

    return _perform(task, key, lambda: ray.get(references[0]), *more)


def _perform(
    task: Any, key: str, packed: Callable[[], bytes], device: str, threads: int, messages: Any
) -> tuple[Any, Any]:
    torch.set_num_threads(threads)
    send, logger = _throttled(messages.put), logging.getLogger("truncate_kit")
    logger.addHandler(handler := logging.handlers.QueueHandler(SimpleNamespace(put_nowait=send)))
    try:
        if _worker.key != key:
            # Unpickling is safe: the bytes come from our own process.
            _worker.work = torch.load(io.BytesIO(packed()), map_location="cpu", weights_only=False)
            _worker.work.move(device)
            _worker.key = key
        return _worker.work.perform(task, send), None
    except Exception as error:
        return None, _portable(error)
    finally:
        logger.removeHandler(handler)


def _throttled(send: Send) -> Send:
    """Send at most one step message per `STEPS_INTERVAL`, and always the last."""
    last = 0.0

    def send_some(message: Any) -> None:
        nonlocal last
        match message:
            case (_, done, total) if done < total:
                if time.monotonic() - last < STEPS_INTERVAL:
                    return
                last = time.monotonic()
        send(message)

    return send_some


def _portable(error: Exception) -> Exception:
    """Add the worker's traceback; replace an error that cannot be pickled."""
    error.add_note("In a worker:\n" + "".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
