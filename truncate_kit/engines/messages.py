"""What is sent between a process and its workers: work, messages of running tasks, answers."""

import io
import logging
import pickle
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from truncate_kit.engines.base import Send, Steps, Work

TERMINATED = 128 + signal.SIGTERM  # what a worker ends with that somebody else ends
STEPS_INTERVAL = 0.2  # seconds between two messages about steps: as often as eyes can follow, and cheap to send


@dataclass(frozen=True, slots=True)
class Answer:
    """The last message of a task: its result, or the error it ended with."""

    found: Any = None
    problem: Exception | None = None

    def result(self) -> Any:
        """The result of the task. Raises the error."""
        if self.problem is not None:
            raise self.problem
        return self.found


@dataclass(frozen=True, slots=True)
class Logged:
    """What a task logged in another process, such as that it goes on in parts."""

    name: str
    level: int
    text: str


class _Sender(logging.Handler):
    def __init__(self, send: Send) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        self._send(Logged(record.name, record.levelno, record.getMessage()))


@contextmanager
def logs_sent(send: Send) -> Iterator[None]:
    """What the package logs meanwhile is sent: nobody reads the standard error of another process."""
    logger, sender = logging.getLogger("truncate_kit"), _Sender(send)
    logger.addHandler(sender)
    try:
        yield
    finally:
        logger.removeHandler(sender)


def pass_on(message: Any, send: Send) -> None:
    """Log what a task logged elsewhere; any other message goes to `send`."""
    if isinstance(message, Logged):
        logging.getLogger(message.name).log(message.level, "%s", message.text)
    else:
        send(message)


def packed(work: Work[Any, Any]) -> bytes:
    """The work as bytes; what its parts share stays shared."""
    buffer = io.BytesIO()
    torch.save(work, buffer)
    return buffer.getvalue()


def unpacked(payload: bytes, device: str) -> Work[Any, Any]:
    """The work from bytes of our own process on the other end, never from a file; moved to `device`."""
    work: Work[Any, Any] = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=False)
    work.move(device)
    return work


def answer(perform: Callable[[], Any]) -> Answer:
    """What `perform` returns, or the error that it raises, in a form that can be pickled."""
    try:
        return Answer(found=perform())
    except (BrokenPipeError, EOFError):  # the other side is gone
        raise
    except Exception as error:
        return Answer(problem=_portable(error))


def last_answer(perform: Callable[[], Any]) -> Answer:
    """As `answer`, of whatever ends the task: where no process ends with it, nobody else would say so."""
    try:
        return answer(perform)
    except BaseException as error:  # also SystemExit, and panics of libraries in Rust
        return Answer(problem=RuntimeError(f"{type(error).__name__}: {error}"))


def throttled(send: Send) -> Send:
    """`send` for messages to another process: of steps, at most one every `STEPS_INTERVAL` and the last one."""
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


def _portable(error: Exception) -> Exception:
    error.add_note("In a worker:\n" + "".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))  # many errors of libraries can be written but not read
        return error
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
