"""Several processes of this machine, with a GPU each or with a share of the CPU."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, Any, Self

import torch

from truncate_kit.engines.base import Attempt, Found, Pending, Send, Task, Work
from truncate_kit.engines.messages import TERMINATED, Answer, packed, pass_on
from truncate_kit.errors import DeviceError
from truncate_kit.hardware import check_threads, select_device

PATIENCE = 10.0  # seconds that a process gets to end by itself


class Processes:
    """Runs tasks in `count` processes; one that dies is replaced, and its task is run again.

    device: `cuda` gives process n the n-th GPU; None is the CPU. threads: CPU threads of each process; None divides
    those of this one. Raises `UsageError`, and `DeviceError` where there are fewer GPUs than processes.
    """

    def __init__(self, count: int, *, device: str | None = None, threads: int | None = None) -> None:
        count, threads = check_threads(count, "count"), check_threads(threads)
        self._devices = _devices(count, device)
        self._threads = threads or max(1, torch.get_num_threads() // count)
        self._workers: dict[int, _Worker] = {}
        self._work: Work[Any, Any] | None = None
        self._payload = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        for place in list(self._workers):
            self._stop(place)

    def run(self, work: Work[Task, Found], tasks: Iterable[Task], send: Send) -> Iterator[tuple[Task, Found]]:
        """Each task with its result, as they finish. Raises what a task raised, `DeviceError`."""
        if work is not self._work:
            self._work, self._payload = work, packed(work)
            for worker in self._workers.values():
                worker.loaded = False
        pending = Pending(tasks, send)
        busy: dict[int, Attempt[Task]] = {}
        try:
            while True:
                self._begin(pending, busy)
                if not busy:
                    return
                connections = {self._workers[place].connection: place for place in busy}
                for connection in wait(list(connections)):
                    place = connections[connection]  # type: ignore[index]  # only those that were given come back
                    try:
                        message = self._workers[place].connection.recv()
                    except (EOFError, ConnectionError):
                        pending.lost(busy.pop(place), self._stop(place))
                        continue
                    if isinstance(message, Answer):
                        attempt = busy.pop(place)
                        yield attempt.task, message.result()
                    else:
                        pass_on(message, send)
        finally:
            for place in busy:
                self._workers[place].process.terminate()
            for place in busy:
                self._stop(place)

    def _begin(self, pending: Pending[Task], busy: dict[int, Attempt[Task]]) -> None:
        """Give every process that has nothing to do a task, as long as there are some."""
        for place, device in enumerate(self._devices):
            if place in busy:
                continue
            attempt = pending.next()
            if attempt is None:
                return
            if place not in self._workers:
                self._workers[place] = _Worker(device, self._threads)
            busy[place] = attempt
            # A process that died while it was idle, or dies in loading, shows when it is waited for.
            with contextlib.suppress(ConnectionError):
                self._workers[place].give(self._payload, attempt.task)

    def _stop(self, place: int) -> str:
        return self._workers.pop(place).stop()


class _Worker:
    """One process and the connection to it. loaded: whether it holds the work at hand."""

    def __init__(self, device: str, threads: int) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed in `stop`
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = _started(theirs.fileno(), device, threads, self._errors)
        self.connection: Connection[tuple[bytes | None, Any], Any] = Connection(ours.detach())
        self.loaded = False

    def give(self, payload: bytes, task: object) -> None:
        """Send a task, and the work where it is not there yet."""
        self.connection.send((None if self.loaded else payload, task))
        self.loaded = True

    def stop(self) -> str:
        """End the process; returns how it ended."""
        self.connection.close()
        try:
            code = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        self._errors.close()
        if code < 0 or code == TERMINATED:
            return f"it was ended by {signal.Signals(-code if code < 0 else signal.SIGTERM).name}"
        return f"it ended with {code}" + (f" ({lines[-1]})" if lines else "")


def _started(place: int, device: str, threads: int, errors: IO[bytes]) -> subprocess.Popen[bytes]:
    """A fresh interpreter that takes work from the socket of this number."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", f"{__package__}.worker", str(place), device, str(threads)],
        pass_fds=[place],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=errors,
        # An empty entry is the current folder of this process.
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)},
    )


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
