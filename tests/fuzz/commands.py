"""python -m tests.fuzz.commands: commands on hostile inputs, each in a process of its own, and a table of what came.

A promise is broken by an exit code that is not expected, by a traceback or a defect, by a problem that is not one line
with a hint, by escapes in what is printed, by more seconds or memory than there are for it, and by files outside the
command's folder, or temporary ones in it.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from random import Random

from tests.fuzz.attacks import TABLES
from tests.fuzz.attacks.attack import Attack
from tests.fuzz.attacks.inputs import make_inputs
from tests.support import processes
from tests.support.processes import Program

SECONDS, MEGABYTES = 20, 1500  # for one command; loading and imports take seconds on a busy machine
_MAIN = """
import atexit, contextlib, json, os, resource, sys, tempfile
from pathlib import Path
import torch
from tests.fuzz.running import Watch
from truncate_kit.methods.distill import frontier as speed
from truncate_kit_cli.app import main
torch.set_num_threads(1)
speed.SECONDS = 0.0
tempfile.tempdir = None  # as where nobody has asked for it yet
place, before, *words = sys.argv[1:]
os.chdir(place)
begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
watch = Watch(Path(place), on=True)
sys.addaudithook(watch)
seen = os.open(place + "/.seen", os.O_WRONLY | os.O_CREAT)
def note():
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - begin) // 1000
    with contextlib.suppress(OSError):  # where files may not grow
        os.write(seen, json.dumps([grown, watch.outside]).encode())
atexit.register(note)
exec(before)
main(words)
"""


def run(attack: Attack, place: Path, *, show: bool = False) -> list[str]:
    """Which promises an attack broke."""
    if attack.change is not None:
        attack.change(place)
    (place / "tmp").mkdir(exist_ok=True)
    environment = {"HF_HUB_OFFLINE": "1", "TMPDIR": str(place / "tmp"), "HOME": str(place)}
    program = Program(_MAIN, place, attack.before, *attack.words, environment=environment)
    late = threading.Event()

    def end() -> None:
        late.set()
        program.kill()

    timer = threading.Timer(SECONDS * max(1.0, os.getloadavg()[0] / 2), end)
    timer.start()
    out, err = program.communicate()
    timer.cancel()
    if show:
        sys.stdout.write(f"== {attack.name}: {program.returncode}\n{out[-500:]}{err[-500:]}\n")
    return list(broken(attack, place, program.returncode, out, err, hung=late.is_set()))


def broken(attack: Attack, place: Path, code: int, out: str, err: str, *, hung: bool) -> Iterable[str]:
    """What is wrong with how a command ended, what it said, and what it left."""
    said = (out + err).replace(str(place), "PLACE")
    if hung:
        yield "hang"
        return
    if code not in attack.codes:
        yield f"exit code {code}: {said[-300:]!a}"
    if "Traceback" in said or "defect of truncate-kit" in said:
        yield f"defect: {said[-600:]!a}"
    if code == 1 and attack.heard and not ("Error: " in err and "Hint: " in err):
        yield f"no error with a hint: {said[-300:]!a}"
    if any(sign in said for sign in "\x1b\x07\x9b\u202e"):
        yield f"escapes: {said[-300:]!a}"
    seen = (place / ".seen").read_text() if (place / ".seen").exists() else ""
    grown, outside = json.loads(seen) if seen else (0, [])
    if grown > MEGABYTES:
        yield f"memory: {grown:,} MB"
    # Traces that tests share, a folder that torch names when it is imported, and where the command was sent.
    spared = [str(processes.session_folder), "torchinductor", "/dev/full"]
    spared += [os.path.abspath(place / word) for word in attack.words if "/" in word or word == ".."]  # noqa: PTH100
    outside = [file for file in outside if not any(part in file for part in spared)]
    if outside:
        yield f"written outside: {outside[:3]}"
    left = [*(place / "tmp").rglob("*"), *place.rglob(".*.tmp")]
    if left and code >= 0 and "NOFILE" not in attack.before:  # without a number left for a file none can be removed
        yield f"left behind: {[str(file.relative_to(place)) for file in left[:3]]}"


def main() -> int:
    """Run; the exit code is 1 where a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.commands", description=__doc__)
    parser.add_argument("--table", choices=list(TABLES), action="append", help="by default all")
    parser.add_argument("--only", default="", help="attacks whose names hold this")
    parser.add_argument("--attacks", type=int, default=None, help="number that is drawn of each table; by default all")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--show", action="store_true", help="what each command said")
    arguments = parser.parse_args()
    counts, wrong = Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory(prefix="attacks-") as folder:
        home = Path(folder).resolve()
        processes.session_folder = home / "shared"
        processes.session_folder.mkdir()
        make_inputs(home / "valid")
        begin = time.monotonic()
        for table in arguments.table or TABLES:
            listed = [attack for attack in TABLES[table](home / "valid") if arguments.only in attack.name]
            drawn = Random(arguments.seed).sample(listed, min(len(listed), arguments.attacks or len(listed)))
            for attack in drawn:
                place = Path(tempfile.mkdtemp(prefix="place-", dir=home))
                shutil.copytree(home / "valid", place, dirs_exist_ok=True, symlinks=True)
                found = run(attack, place, show=arguments.show)
                counts[table] += 1
                wrong[table] += bool(found)
                for broken in found:
                    sys.stdout.write(f"- {table}, {attack.name}: {broken}\n")
                    sys.stdout.flush()
                shutil.rmtree(place, ignore_errors=True)
    sys.stdout.write(f"{time.monotonic() - begin:.0f} s\n")
    sys.stdout.write("| attacked | attacks | broke a promise |\n|---|--:|--:|\n")
    sys.stdout.writelines(f"| {name} | {counts[name]:,} | {wrong[name]:,} |\n" for name in counts)
    return int(any(wrong.values()))


if __name__ == "__main__":
    sys.exit(main())
