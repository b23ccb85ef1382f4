"""Python programs in processes of their own that start at once: forked from one that has imported everything.

For tests of kills, of locks and of several processes at work. Where the start itself is the point, as for what is
imported or read from the environment, a fresh interpreter is.
"""

import atexit
import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
session_folder = Path()  # of all processes of this run; the tests set it

# A request is a program with its arguments, and files: for stdout, for stderr, for its number and exit code, and those
# that the program takes by their numbers.
_SERVER = """
import atexit, gc, importlib, json, os, pkgutil, random, resource, signal, socket, sys, tempfile, threading
gc.disable()  # imports make hardly any garbage: a fifth of their time went into looking for it
# It may be a test of a disk that is full that starts this one.
resource.setrlimit(resource.RLIMIT_FSIZE, 2 * (resource.getrlimit(resource.RLIMIT_FSIZE)[1],))
import torch, scipy.stats, transformers.models.bert.modeling_bert, transformers.models.electra.modeling_electra
import typer._adapters  # as the first command that is read does
import truncate_kit
for module in pkgutil.walk_packages(truncate_kit.__path__, "truncate_kit."):
    importlib.import_module(module.name)
import truncate_kit_cli.app
from pathlib import Path
from tests.support.economy import economical
from tests.support.families import make_tiny
from truncate_kit.models import load_encoder

economy = economical(Path(sys.argv[2]))
economy.__enter__()
with tempfile.TemporaryDirectory() as folder, torch.random.fork_rng(devices=[]):
    load_encoder(make_tiny("bert", Path(folder) / "model"))  # transformers compiles its tables of weights' names once
gc.collect()
gc.freeze()
gc.enable()

def next_request():
    # Comes back in a process of its own.
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        begun = set()
        while True:
            message, files, _, _ = socket.recv_fds(requests, 1 << 20, 4)
            begun -= {number for number in begun if os.waitpid(number, os.WNOHANG)[0]}
            if not message:
                os._exit(0)
            begun.add(number := os.fork())
            if number == 0:
                break
            for file in files:
                os.close(file)
    out, err, status, *passed = files
    child = os.fork()
    if child:
        for file in (out, err, *passed):
            os.close(file)
        os.write(status, f"{child}\\n".encode())
        os.write(status, f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\\n".encode())
        os._exit(0)
    os.close(status)
    os.dup2(out, 1)
    os.dup2(err, 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell starts in the background
    random.seed()
    request = json.loads(message)
    for file, number in zip(passed, request["passed"], strict=True):
        if file != number:
            os.dup2(file, number)
            os.close(file)
    return request

def exit_code(program):
    # As Python has it; an interrupt is left to it.
    try:
        exec(compile(program, "<program>", "exec"), {"__name__": "__main__"})
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except Exception:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0

request = next_request()
os.environ.update(request["environment"])
sys.argv[1:] = request["arguments"]
code = exit_code(request["program"])
# What the interpreter does at its end, but for taking all modules apart: that takes a third of a second.
threading._shutdown()
atexit._run_exitfuncs()
sys.stdout.flush()
sys.stderr.flush()
os._exit(code)
"""


@functools.cache
def _requests() -> socket.socket:
    """The way to the process that all programs are forked from; it ends with this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-c", _SERVER, str(theirs.fileno()), str(session_folder)]
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, cwd=ROOT, pass_fds=[theirs.fileno()])
    theirs.close()

    def end() -> None:
        ours.close()
        server.wait()

    atexit.register(end)
    return ours


def _request(
    program: str, arguments: Sequence[object], files: Sequence[int], passed: Sequence[int], **environment: str
) -> None:
    request = {
        "program": program,
        "arguments": [str(argument) for argument in arguments],
        "environment": environment,
        "passed": passed,
    }
    socket.send_fds(_requests(), [json.dumps(request).encode()], [*files, *passed])


class Program:
    """A running program: `stdout` to read line by line; `communicate` as that of `subprocess.Popen`."""

    def __init__(self, program: str, *arguments: object, environment: Mapping[str, str] | None = None) -> None:
        (out, out_end), (err, err_end), (status, status_end) = (os.pipe() for _ in range(3))
        ends = [out_end, err_end, status_end]
        _request(program, arguments, ends, (), **environment or {})
        for end in ends:
            os.close(end)
        self.stdout, self._stderr, self._status = (os.fdopen(pipe) for pipe in (out, err, status))
        self.pid = int(self._status.readline())
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
        return int(self._status.readline())

    def communicate(self) -> tuple[str, str]:
        """Wait for its end; what it printed on stdout and on stderr."""
        out = self.stdout.read()
        self._reading.join()
        assert self.returncode is not None
        return out, self._said[0]
