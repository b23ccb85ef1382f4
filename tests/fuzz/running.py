"""Inputs one after another, and what came of each."""

import contextlib
import os
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

from tests.fuzz.models import MODELS
from tests.fuzz.mutating import mutated
from tests.fuzz.own import OWN
from tests.fuzz.readers import DATA, Reader, WrongError
from truncate_kit.errors import TruncateKitError

READERS: tuple[Reader, ...] = (*DATA, *OWN, *MODELS)
SECONDS = 10  # after which a reader hangs
MEGABYTES = 1000  # that one input may add to the memory of the process
GOOD = ("refused", "read", "passed over")
BAD = ("raw exception", "wrong", "hang", "written outside", "memory")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class _HangError(BaseException):
    """The time of an input is over; nothing that handles errors handles it."""


@dataclass(slots=True)
class Outcome:
    """What came of the inputs of one reader. failures: of what broke a promise, its kind, the input's number, where."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[str, int, str]] = field(default_factory=list)


@dataclass(slots=True)
class Watch:
    """Notes what is written outside a folder while `on`."""

    home: Path
    on: bool = False
    outside: list[str] = field(default_factory=list)

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        """An audit hook of the interpreter."""
        if not self.on or event not in ("open", "os.rename", "os.remove", "os.mkdir", "os.symlink", "os.truncate"):
            return
        if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & _WRITES):
            return
        place = arguments[1] if event in ("os.rename", "os.symlink") else arguments[0]
        if isinstance(place, (str, bytes, os.PathLike)):
            path = os.path.abspath(os.fsdecode(place))  # noqa: PTH100  # links are not followed here
            if not path.startswith((str(self.home), os.devnull)) and not path.endswith((".pyc", "__pycache__")):
                self.outside.append(f"{event} {path}")


def shares(inputs: int, readers: Sequence[Reader]) -> dict[str, int]:
    """Inputs of each reader: in inverse proportion to its cost, at least one."""
    whole = sum(1 / reader.cost for reader in readers)
    return {reader.name: max(1, round(inputs / reader.cost / whole)) for reader in readers}


@contextlib.contextmanager
def prepared(seed: int) -> Iterator["Fuzzer"]:
    """A fuzzer in a folder of its own."""
    import torch._inductor.config  # noqa: F401  # makes a folder of its own when it is first imported

    home = Path(tempfile.mkdtemp(prefix="fuzz-"))
    before, watch = Path.cwd(), Watch(home)
    sys.addaudithook(watch)
    known = {key: os.environ.get(key) for key in ("HF_HUB_OFFLINE", "HOME", "TMPDIR")}
    os.environ |= {"HF_HUB_OFFLINE": "1"}
    os.chdir(home)
    previous = signal.signal(signal.SIGALRM, _ring)
    try:
        yield Fuzzer(home, seed, watch)
    finally:
        watch.on = False
        signal.signal(signal.SIGALRM, previous)
        os.chdir(before)
        for key, value in known.items():
            os.environ.pop(key, None) if value is None else os.environ.update({key: value})
        shutil.rmtree(home, ignore_errors=True)


def _ring(number: int, frame: FrameType | None) -> None:
    raise _HangError


@dataclass(slots=True)
class Fuzzer:
    """Runs inputs, each of which follows from reader, number and seed."""

    home: Path
    seed: int
    watch: Watch
    _made: dict[str, Path] = field(default_factory=dict)
    _whole: dict[str, Any] = field(default_factory=dict)

    def run(self, reader: Reader, number: int, outcome: Outcome) -> None:
        """One input."""
        draw = Random(f"{self.seed} {reader.name} {number}")
        place = self._laid_out(reader, draw)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        kind, where = self._outcome(reader, place)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1000
        if self.watch.outside:
            kind, where = "written outside", self.watch.outside[0]
            self.watch.outside.clear()
        elif grown > MEGABYTES:
            kind, where = "memory", f"{grown:,.0f} MB"
        outcome.counts[kind] += 1
        if kind in BAD:
            outcome.failures.append((kind, number, where))
        shutil.rmtree(place, ignore_errors=True)

    def _laid_out(self, reader: Reader, draw: Random) -> Path:
        """The files of an input: valid ones, of which one or two were changed."""
        if reader.name not in self._made:
            self._made[reader.name] = self.home / "valid" / str(len(self._made))
            self._made[reader.name].mkdir(parents=True)
            reader.make(self._made[reader.name])
            if reader.sealed:
                self._whole[reader.name] = reader.read(self._made[reader.name])
        place = self.home / "input"
        shutil.copytree(self._made[reader.name], place)
        for name in draw.sample(reader.files, min(len(reader.files), draw.choice((1, 1, 2)))):
            file = place / name
            file.write_bytes(mutated(file.read_bytes(), draw, as_json=file.suffix in (".json", ".jsonl")))
        return place

    def _outcome(self, reader: Reader, place: Path) -> tuple[str, str]:
        self.watch.on = True
        signal.setitimer(signal.ITIMER_REAL, SECONDS * _patience())
        try:
            found = reader.read(place)
        except TruncateKitError as error:
            named = str(error).strip() and error.hint.strip() and "\n" not in str(error)
            return ("refused", "") if named else ("wrong", f"an error without message, hint or in lines: {error!r}")
        except WrongError as error:
            return "wrong", str(error)
        except _HangError:
            return "hang", f"{SECONDS} s"
        except BaseException as error:
            own = [part for part in traceback.extract_tb(error.__traceback__) if "truncate_kit" in part.filename]
            place_in = f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else "nowhere of ours"
            said = str(error).replace(str(self.home), "FOLDER")[:80]
            return "raw exception", f"{type(error).__name__}: {said!a} at {place_in}"
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            self.watch.on = False
        if reader.sealed and found is None:
            return "passed over", ""
        if reader.sealed and found != self._whole[reader.name]:
            return "wrong", "another value than was written"
        return "read", ""


def _patience() -> float:
    """How much longer than alone a second of work takes on a busy machine; at least 1."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)) * 2
