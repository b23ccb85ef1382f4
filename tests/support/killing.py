"""Work that is killed again and again, and continues."""

import multiprocessing
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.processes import Program

_KILLER = """
import os, sys, time
from pathlib import Path
from truncate_kit.core.results import read_records

# The number of moments left kills the process in its writing: when a temporary file is begun, when it is flushed, when
# it is renamed, and when a record is about to be written.
def kill_in_writing(event, arguments):
    global left
    place = str(arguments[0]) if event in ("open", "os.rename", "os.truncate") else ""
    if ".tmp/" in place or (place.endswith("trials.jsonl") and arguments[1] == "a+b"):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), 9)

out, later, writes, most, *given = sys.argv[1:]
out, kills, instant, moments = Path(out), 0, 0.0, 3
{work}
while True:
    in_writing = kills % 2 == 1 and kills < int(most)
    if not (child := os.fork()):  # everything is imported, and no thread runs yet
        if in_writing:
            left = moments * int(writes) + 1 + kills // 2 % moments
            sys.addaudithook(kill_in_writing)
        work(out, *given)
        os._exit(0)
    if not in_writing and kills < int(most):
        instant += float(later)
        time.sleep(instant)
        os.kill(child, 9)
    status = os.waitpid(child, 0)[1]
    if status == 0:
        break
    assert status == 9, status
    kills += 1
    assert read_records(out / "trials" / "trials.jsonl")[1] == 0
print(kills)
"""


def killed(work: str, out: Path, *given: object, later: float = 0.3, writes: int = 20, most: int = 8) -> int:
    """Run work in `out`, killed in turn `later` seconds later each time and inside a write; how often it was.

    A file under its final name is always whole.

    Args:
        work: Python that imports what it needs and defines `work(out, *given)`; what is given comes as text.
        out: Its folder.
        given: Arguments.
        later: Seconds.
        writes: By as many the work gets on before it is killed inside one, in each of their moments in turn.
        most: Kills; the work then runs to its end.
    """
    running = Program(_KILLER.format(work=textwrap.dedent(work)), out, later, writes, most, *given)
    printed, errors = running.communicate()
    assert running.returncode == 0, errors
    assert not list(out.rglob(".*.tmp"))
    assert not list(out.rglob("*.checkpoint"))
    return int(printed.split()[-1])


def killed_beyond(least: int, reached: Callable[[], int], wait: float, work: Callable[..., None], *given: Any) -> None:
    """Run work in a fork of this process, and kill it `wait` seconds after it has reached more, unless it ends."""
    process = multiprocessing.get_context("fork").Process(target=work, args=given)
    process.start()
    while process.is_alive() and reached() <= least:
        time.sleep(0.0005)
    time.sleep(wait)
    process.kill()
    process.join()


STUDY = """
from truncate_kit.methods.study import plan
from truncate_kit.methods.study.running import run_study
from truncate_kit.training import settings

def work(out, study, word_epochs):
    plan.WORD_EPOCHS = settings.WORD_EPOCHS = int(word_epochs)
    run_study(plan.read_study(Path(study)), out).write(out / "study.json")
"""
