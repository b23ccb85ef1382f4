"""A Ray cluster: tasks run wherever the CPUs and GPUs that each of them needs are free."""

import contextlib
import os
import queue
import socket
import threading
import uuid
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any, Self

import torch

from truncate_kit.engines.base import Attempt, Found, Pending, Send, Task, Work
from truncate_kit.engines.messages import Answer, last_answer, logs_sent, packed, pass_on, throttled, unpacked
from truncate_kit.errors import DeviceError, UsageError, first_line
from truncate_kit.extras import require
from truncate_kit.settings import Bounds, check_number

REACHED_WITHIN = 10.0  # seconds; Ray itself would try for minutes
LOOK_AGAIN = 5.0  # seconds without any message until the cluster is looked at
AHEAD = 2  # tasks handed over for each that the cluster can run at once: none of it waits for us


_GPUS, _CPUS = Bounds(0, 10_000, whole=False), Bounds(1, 10_000)


class RayCluster:
    """Runs tasks on a Ray cluster; one whose process or machine is lost is run again elsewhere.

    Tasks of Ray Core, not Ray Data: one process here writes their results, in order and from where a run was stopped,
    so that a file has the same bytes as without Ray; and trials of training send messages while they run.

    address: `auto` is the cluster that this machine belongs to, else HOST:PORT of its head. gpus, cpus: what each task
    needs; fractions of a GPU are shared, and with any the tasks run on CUDA. The package must be installed on every
    machine of the cluster. An open connection (`ray.init`) is used and left open. Raises `UsageError` for impossible
    numbers, `MissingExtraError` without Ray, `DeviceError` where no cluster answers or none of its machines has what
    a task needs.
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
        self._work: Work[Any, Any] | None = None
        self._parcel: _Parcel | None = None

    def __enter__(self) -> Self:
        self._connect()
        return self

    def __exit__(self, *problem: object) -> None:
        self._work = self._parcel = None
        if self._ray is not None and self._opened:
            self._ray.shutdown()
        self._ray, self._opened = None, False

    def run(self, work: Work[Task, Found], tasks: Iterable[Task], send: Send) -> Iterator[tuple[Task, Found]]:
        """Each task with its result, as they finish. Raises what a task raised, `DeviceError`."""
        ray = self._connect()
        if work is not self._work:
            self._work, self._parcel = work, _Parcel(ray.put(packed(work)))
        remote = ray.remote(num_cpus=self._cpus, num_gpus=self._gpus, max_retries=0, num_returns="streaming")(_messages)
        arguments = self._parcel, "cuda" if self._gpus else "cpu", self._cpus
        pending = Pending(tasks, send)
        running: dict[Any, Attempt[Task]] = {}
        limit = AHEAD * self._slots(ray)
        try:
            while True:
                while len(running) < limit and (attempt := pending.next()) is not None:
                    running[remote.remote(attempt.task, *arguments)] = attempt
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
                    if isinstance(message, Answer):
                        attempt = running.pop(stream)
                        yield attempt.task, message.result()
                    else:
                        pass_on(message, send)
        finally:
            for stream in running:
                with contextlib.suppress(Exception):  # the cluster may be what is gone
                    ray.cancel(stream, force=True)

    def _connect(self) -> ModuleType:
        if self._ray is None:
            # Ray reports lost machines on stdout, where only results belong; `Lost` reports them here.
            os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # what runs here is reported to nobody
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
        """Tasks that the cluster can run at once. Raises `DeviceError` where it can run none."""
        alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        slots = 0
        for resources in alive:
            has = resources.get("CPU", 0.0) / self._cpus
            slots += int(min(has, resources.get("GPU", 0.0) / self._gpus) if self._gpus else has)
        if not slots:
            gpus = sum(resources.get("GPU", 0.0) for resources in alive)
            cpus = sum(resources.get("CPU", 0.0) for resources in alive)
            raise DeviceError(
                f"No machine of the Ray cluster has {self._gpus:g} GPUs and {self._cpus} CPUs for a task: there are "
                f"{gpus:g} GPUs and {cpus:g} CPUs on {len(alive)} machines.",
                hint="Ask for less with `gpus` and `cpus`, or add machines with `ray start --address`.",
            )
        return slots


class _GoneError(Exception):
    """A task's process or machine is lost."""


class _Parcel:
    """Packed work in Ray's object store; fetched only by workers that do not hold it yet."""

    def __init__(self, reference: Any) -> None:
        self.key, self.reference = uuid.uuid4().hex, reference


_held: dict[str, Work[Any, Any]] = {}  # in a worker of the cluster: the last work, by the key of its parcel


def _messages(task: object, parcel: _Parcel, device: str, threads: int) -> Iterator[Any]:
    """In a worker: the messages of a task, then its `Answer`. A generator, because Ray hands over each one at once."""
    messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
    send = throttled(messages.put)

    def perform() -> object:
        import ray

        torch.set_num_threads(threads)
        if parcel.key not in _held:
            _held.clear()
            _held[parcel.key] = unpacked(ray.get(parcel.reference), device)
        with logs_sent(send):
            return _held[parcel.key].perform(task, send)

    threading.Thread(target=lambda: messages.put(last_answer(perform)), daemon=True).start()
    while True:
        message = messages.get()
        yield message
        if isinstance(message, Answer):
            return


def _next(ray: ModuleType, stream: Any) -> Any:
    """The next message of a task. Raises `_GoneError`; `DeviceError` where its machine cannot run it at all."""
    lost = ray.exceptions
    try:
        return ray.get(next(stream))
    except (lost.WorkerCrashedError, lost.NodeDiedError, lost.OutOfMemoryError, lost.ObjectLostError) as error:
        raise _GoneError(f"Ray says: {first_line(error)}") from error
    except (lost.RayTaskError, lost.RaySystemError) as error:  # what the task itself raises comes in its answer
        cause = getattr(error, "cause", None) or error
        raise DeviceError(
            f"The Ray cluster cannot run it: {type(cause).__name__}: {first_line(cause)}.",
            hint="Install the same truncate-kit, torch and transformers on all of its machines.",
        ) from error
    except lost.RayError as error:
        raise DeviceError(
            f"The Ray cluster failed: {first_line(error)}.", hint="See `ray status`; starting again continues."
        ) from error


def _check_reachable(address: str) -> None:
    """Raises `DeviceError` where nothing listens at HOST:PORT; other forms of addresses are left to Ray."""
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
