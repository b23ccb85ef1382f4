"""python -m tests.fuzz.clock: every command that writes while the wall clock jumps, and the end result compared.

Needs libfaketime (Debian: faketime). What programs read as the time, and as times of files, jumps between 1991 and 2049
five times a second; the clock that counts seconds goes on, as it does where an administrator sets the time.
"""

import argparse
import contextlib
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.fuzz.kills import differing
from tests.support.processes import ROOT
from tests.support.writing import COMMANDS, make_inputs, words_of

_LIBRARIES = "/usr/lib/*/faketime/libfaketime.so.1"
_MAIN = "import sys, torch; torch.set_num_threads(1); from truncate_kit_cli.app import main; main(sys.argv[1:])"
_REFUSED = {"bench"}  # libfaketime ends its waits (time.sleep) with "Invalid argument"
_EVERY = 0.2  # seconds between two jumps


def library() -> Path | None:
    """Where libfaketime is; None where it is not installed."""
    return next(Path("/").glob(_LIBRARIES[1:]), None)


@contextlib.contextmanager
def jumping(file: Path, process: "subprocess.Popen[str]", seed: int) -> Iterator[list[str]]:
    """Write another time into `file` again and again until the process has ended; yields those that were written."""
    draw, written = random.Random(seed), []
    while process.poll() is None:
        written.append(f"@{draw.randint(1991, 2049)}-0{draw.randint(1, 9)}-15 12:00:00")
        (beside := file.with_suffix(".new")).write_text(written[-1] + "\n")
        beside.replace(file)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_EVERY)
    yield written


def run(words: list[str], time_file: Path, preload: Path, seed: int) -> tuple[int, int]:
    """Exit code, and the number of jumps."""
    time_file.write_text("@2026-01-01 00:00:00\n")
    faked = {"LD_PRELOAD": str(preload), "FAKETIME_TIMESTAMP_FILE": str(time_file), "FAKETIME_NO_CACHE": "1"}
    still = {"FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", _MAIN, *words]
    environment = os.environ | faked | still
    with (
        subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.DEVNULL) as process,
        jumping(time_file, process, seed) as written,
    ):
        return process.returncode, len(written)


def main() -> int:
    """Run; the exit code is 1 where an end was another one."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.clock", description=__doc__)
    parser.add_argument("--command", choices=list(COMMANDS), action="append", help="by default all but bench")
    wanted, preload = parser.parse_args().command or sorted(set(COMMANDS) - _REFUSED), library()
    if preload is None:
        sys.exit("libfaketime is not installed (Debian: faketime).")
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="clock-") as folder:
        home = Path(folder)
        make_inputs(home)
        for number, command in enumerate(dict.fromkeys(["finetune", *wanted])):
            still, jumped = home / "still" / command, home / "jumped" / command
            for out in (still, jumped):
                out.mkdir(parents=True)
            words = [sys.executable, "-c", _MAIN, *words_of(command, home, still, home / "still")]
            subprocess.run(words, env=os.environ | {"HF_HUB_OFFLINE": "1"}, cwd=ROOT, check=True, capture_output=True)
            again = words_of(command, home, jumped, home / "still")
            code, jumps = run(again, home / "time", preload, number)
            differs = differing(command, jumped, still)
            wrong += bool(code or differs)
            sys.stdout.write(f"{command}: {jumps} jumps, exit code {code}, {differs or 'the same end'}\n")
            sys.stdout.flush()
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
