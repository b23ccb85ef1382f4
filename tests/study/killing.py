"""Studies that are killed again and again, until they get through."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from truncate_kit.sweep.results import Trial

_SERVER = """
import os, sys
from pathlib import Path
from truncate_kit.study import read_study, run_study

# Everything is loaded once; each line on stdin starts a child that runs the study, so that kills fall inside its work.
# The number on the line, where it is not 0, kills the child at that moment of its writing: when a temporary file is
# begun, when it is flushed, or when it is renamed.
left = 0

def kill_in_writing(event, arguments):
    global left
    if event in ("open", "os.rename") and ".tmp/" in str(arguments[0]):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), 9)

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        left = int(line)
        if left:
            sys.addaudithook(kill_in_writing)
        run_study(read_study(Path(sys.argv[1])), Path(sys.argv[2])).write(Path(sys.argv[2]) / "study.json")
        os._exit(0)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


# Each write has three moments; as many as let the study get on between two kills.
MOMENTS = (16, 17, 18)


def killed(study: Path, out: Path, later: float = 0.01) -> int:
    """Run a study in `out`, killed in turn `later` seconds later each time and inside a write; how often it was.

    A file under its final name is always whole.
    """
    root = Path(__file__).resolve().parents[2]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", _SERVER, str(study), str(out)]
    kills, instant = 0, 0.0
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=root
    ) as server:
        while True:
            in_writing = kills % 2 == 1
            server.stdin.write(f"{MOMENTS[kills // 2 % 3] if in_writing else 0}\n")
            server.stdin.flush()
            child = int(server.stdout.readline())
            if not in_writing:
                instant += later
                time.sleep(instant)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            if int(server.stdout.readline()) == 0:
                break
            kills += 1
            assert not in_writing or list(out.rglob(".*.tmp"))
            for path in out.glob("trials/*/layer*.json"):
                Trial.read(path)
        server.stdin.close()
    assert not list(out.rglob(".*.tmp"))
    assert not list(out.rglob("*.checkpoint"))
    return kills
