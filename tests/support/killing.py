"""Studies that are killed again and again, until they get through."""

import time
from pathlib import Path

from tests.support.processes import Program
from truncate_kit.core.results import read_records
from truncate_kit.training.settings import WORD_EPOCHS

_STUDY = """
import os, sys
from pathlib import Path
from truncate_kit.methods.study import plan
from truncate_kit.methods.study.running import run_study
from truncate_kit.training import settings

# The number given, where it is not 0, kills the process at that moment of its writing: when a temporary file is begun,
# when it is flushed, or when it is renamed, and when a record is about to be written.
def kill_in_writing(event, arguments):
    global left
    place = str(arguments[0]) if event in ("open", "os.rename", "os.truncate") else ""
    if ".tmp/" in place or (place.endswith("trials.jsonl") and arguments[1] == "a+b"):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), 9)

left, epochs = map(int, sys.argv[3:])
plan.WORD_EPOCHS = settings.WORD_EPOCHS = epochs
if left:
    sys.addaudithook(kill_in_writing)
run_study(plan.read_study(Path(sys.argv[1])), Path(sys.argv[2])).write(Path(sys.argv[2]) / "study.json")
"""


MOMENTS = 3  # of a write


def killed(study: Path, out: Path, *, later: float = 0.03, writes: int = 20, word_epochs: int = WORD_EPOCHS) -> int:
    """Run a study in `out`, killed in turn `later` seconds later each time and inside a write; how often it was.

    A file under its final name is always whole.

    Args:
        study: Its file.
        out: Its folder.
        later: Seconds.
        writes: By as many the study gets on before it is killed inside one, in each of their moments in turn.
        word_epochs: Epochs of a prior of words.
    """
    kills, instant = 0, 0.0
    while True:
        in_writing = kills % 2 == 1
        moment = MOMENTS * writes + 1 + kills // 2 % MOMENTS
        running = Program(_STUDY, study, out, moment if in_writing else 0, word_epochs)
        if not in_writing:
            instant += later
            time.sleep(instant)
            running.kill()
        printed = running.communicate()
        if running.returncode == 0:
            break
        assert running.returncode == -9, printed
        kills += 1
        assert read_records(out / "trials" / "trials.jsonl")[1] == 0
    assert not list(out.rglob(".*.tmp"))
    assert not list(out.rglob("*.checkpoint"))
    return kills
