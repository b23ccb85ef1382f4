"""Python programs in processes of their own that start at once: forked from this one, which has imported everything.

For tests of kills, of locks and of several processes at work. Where the start itself is the point, as for what is
imported or read from the environment, a fresh interpreter is.
"""

import atexit
import contextlib
import functools
import logging
import multiprocessing.forkserver
import multiprocessing.util
import os
import signal
import sys
import threading
from collections.abc import Mapping
from typing import NoReturn


class Program:
    """A running program: `stdout` to read line by line; `communicate` as that of `subprocess.Popen`."""

    def __init__(self, program: str, *arguments: object, environment: Mapping[str, str] | None = None) -> None:
        (out, out_end), (err, err_end) = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.environ.update(environment or {})
            sys.argv[1:] = map(str, arguments)
            _run(program, out_end, err_end)
        for end in (out_end, err_end):
            os.close(end)
        self.stdout, self._stderr = os.fdopen(out), os.fdopen(err)
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
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def communicate(self) -> tuple[str, str]:
        """Wait for its end; what it printed on stdout and on stderr."""
        out = self.stdout.read()
        self._reading.join()
        assert self.returncode is not None
        return out, self._said[0]


def _run(program: str, out: int, err: int) -> NoReturn:
    """Become the process of a program, without what belongs to the tests' own: output, logs, ends, servers."""
    os.dup2(out, 1)
    os.dup2(err, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    logging.root.handlers.clear()
    atexit._clear()
    atexit.register(multiprocessing.util._exit_function)  # type: ignore[attr-defined]
    multiprocessing.forkserver._forkserver.__init__()  # type: ignore[misc]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    code = 0
    try:
        exec(compile(program, "<program>", "exec"), {"__name__": "__main__"})
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    # What the interpreter does at its end, but for taking all modules apart: that takes a third of a second.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
