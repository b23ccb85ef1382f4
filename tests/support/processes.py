"""Python programs in fresh interpreters, for tests of kills, of locks and of several processes at work.

A fork of the tests' own process would be faster, but threads of OpenMP do not survive it.
"""

import contextlib
import functools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping


class Program:
    """A running program: `stdout` to read line by line; `communicate` as that of `subprocess.Popen`."""

    def __init__(self, program: str, *arguments: object, environment: Mapping[str, str] | None = None) -> None:
        paths = {"PYTHONPATH": os.pathsep.join(path or os.curdir for path in sys.path)}
        self._process = subprocess.Popen(
            [sys.executable, "-u", "-c", program, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **paths, **(environment or {})},
        )
        self.pid = self._process.pid
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self.stdout, self._stderr = self._process.stdout, self._process.stderr
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
        return self._process.wait()

    def communicate(self) -> tuple[str, str]:
        """Wait for its end; what it printed on stdout and on stderr."""
        out = self.stdout.read()
        self._reading.join()
        assert self.returncode is not None
        return out, self._said[0]
