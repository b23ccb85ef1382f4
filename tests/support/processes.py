"""Python programs in processes of their own, for tests of kills, of locks and of several processes at work.

They are forked from a server that has only imported what they need. A fork of the tests' own process would be as fast,
but threads of OpenMP do not survive it.
"""

import contextlib
import functools
import io
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path

_CONTEXT = multiprocessing.get_context("forkserver")


def _run(program: str, arguments: list[str], folder: str, environment: dict[str, str], *streams: Connection) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, stream in enumerate(streams, 1):
        os.dup2(stream.fileno(), number)
        stream.close()
    sys.argv = ["-c", *arguments]
    sys.stdout, sys.stderr = (io.TextIOWrapper(os.fdopen(number, "wb", 0), write_through=True) for number in (1, 2))
    exec(program, vars(sys.modules["__main__"]))


class Program:
    """A running program: `stdout` to read line by line; `communicate` as that of `subprocess.Popen`."""

    def __init__(self, program: str, *arguments: object, environment: Mapping[str, str] | None = None) -> None:
        _CONTEXT.set_forkserver_preload([])  # see `economical`
        out, err = (_CONTEXT.Pipe(duplex=False) for _ in range(2))
        given = (
            program,
            [*map(str, arguments)],
            str(Path.cwd()),
            {**os.environ, **(environment or {})},
            out[1],
            err[1],
        )
        self._process = _CONTEXT.Process(target=_run, args=given)
        self._process.start()
        out[1].close()
        err[1].close()
        assert self._process.pid is not None
        self.pid = self._process.pid
        self.stdout, self._stderr = (os.fdopen(os.dup(one.fileno()), encoding="utf-8") for one, _ in (out, err))
        self._said: list[str] = []
        self._reading = threading.Thread(target=lambda: self._said.append(self._stderr.read()), daemon=True)
        self._reading.start()

    def kill(self, how: int = signal.SIGKILL) -> None:
        """Send a signal, if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, how)

    @functools.cached_property
    def returncode(self) -> int:
        """Its exit code, once it has ended; that of a signal is negative."""
        self._process.join()
        assert self._process.exitcode is not None
        return self._process.exitcode

    def communicate(self) -> tuple[str, str]:
        """Wait for its end; what it printed on stdout and on stderr."""
        out = self.stdout.read()
        self._reading.join()
        assert self.returncode is not None
        return out, self._said[0]
