"""python -m tests.fuzz.kills: kill -9 at random instants of every command that writes, and the end result compared.

A command is started, killed at a random instant of the time that it takes alone, started again, and so on up to four
times; then it is left to end. What it leaves must be what a run that nobody disturbed leaves, byte for byte but for
times (`tests.support.writing`), with no temporary file beside it. Every round is a line of the notes: a run that is
stopped goes on where it was.
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.support import processes
from tests.support.processes import Program
from tests.support.writing import COMMANDS, TIMED, left_in, make_inputs, words_of

_OFTEN, _SELDOM = 100, 20  # kills of a command: those with much to lose, and the others
KILLS = {name: _OFTEN if name in ("finetune", "distill", "encode", "study") else _SELDOM for name in COMMANDS}
# Distillation times its candidates for ten seconds, in which nothing is written.
_MAIN = """
import sys, torch
from truncate_kit.methods.distill import frontier as speed
from truncate_kit_cli.app import main
torch.set_num_threads(1)
speed.SECONDS = 0.0
main(sys.argv[1:])
"""
_MOST = 4  # kills before a command may end


def run(words: list[str], kill_after: float | None = None) -> int:
    """The exit code of a command in a process of its own, killed after these seconds if it has not ended."""
    program = Program(_MAIN, *words, environment={"HF_HUB_OFFLINE": "1"})
    if kill_after is not None:
        time.sleep(kill_after)
        program.kill()
    said = program.communicate()[1]
    if kill_after is None and program.returncode:
        raise AssertionError(f"{' '.join(words)} ended with {program.returncode}: {said[-500:]}")
    return program.returncode


def differing(command: str, one: Path, other: Path) -> list[str]:
    """Files that are not the same in two folders, or in one only; of those that draw times only their being there."""
    found, expected = left_in(one), left_in(other)
    names = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
    return [name for name in names if not (name in TIMED and name in found and name in expected)]


def round_of(command: str, home: Path, undisturbed: Path, seconds: float, draw: random.Random) -> dict[str, Any]:
    """Kill a command up to four times, let it end, and say how often it was killed and what differs."""
    out = Path(tempfile.mkdtemp(prefix=f"{command}-", dir=home / "killed"))
    words, kills, instants = words_of(command, home, out, home / "whole"), 0, []
    try:
        for _ in range(draw.randint(1, _MOST)):
            instants.append(round(draw.uniform(0, seconds), 3))
            kills += run(words, instants[-1]) == -9
        run(words)
        return {"command": command, "kills": kills, "after": instants, "differs": differing(command, out, undisturbed)}
    except AssertionError as error:
        return {"command": command, "kills": kills, "after": instants, "differs": [str(error)]}
    finally:
        shutil.rmtree(out, ignore_errors=True)


def rounds(home: Path, known: list[dict[str, Any]], wanted: dict[str, int], seed: int) -> Iterator[dict[str, Any]]:
    """Rounds of each command in turn, until each was killed as often as is wanted."""
    (home / "killed").mkdir()
    make_inputs(home)
    run(["--version"])  # what all programs are forked from has imported everything when this one ends
    killed = dict.fromkeys(wanted, 0)
    for line in known:
        if line["command"] in killed:
            killed[line["command"]] += line["kills"]
    left = [command for command in wanted if killed[command] < wanted[command]]
    seconds = {}
    for command in dict.fromkeys(("finetune", *left)):  # what others read is made first
        begin = time.monotonic()
        out = home / "whole" / command
        out.mkdir(parents=True)
        run(words_of(command, home, out, home / "whole"))
        seconds[command] = time.monotonic() - begin
    draw = random.Random(f"{seed} {len(known)}")
    while left:
        for command in left:
            found = round_of(command, home, home / "whole" / command, seconds[command], draw)
            killed[command] += found["kills"]
            yield found
        left = [command for command in left if killed[command] < wanted[command]]


def table(lines: Iterable[dict[str, Any]]) -> str:
    """Markdown: kills and runs to the end of each command, and what differed."""
    lines = list(lines)
    rows = ["| command | kills | ends compared | another end |", "|---|--:|--:|--:|"]
    for command in [*COMMANDS, "all"]:
        own = [line for line in lines if command in (line["command"], "all")]
        if own:
            kills, wrong = sum(line["kills"] for line in own), sum(bool(line["differs"]) for line in own)
            rows.append(f"| {command} | {kills:,} | {len(own):,} | {wrong:,} |")
    failures = [line for line in lines if line["differs"]]
    rows += [f"\n- {line['command']}, killed after {line['after']} s: {line['differs']}" for line in failures[:50]]
    return "\n".join(rows) + "\n"


def main() -> int:
    """Run; the exit code is 1 where an end was another one."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.kills", description=__doc__)
    parser.add_argument("--command", choices=list(COMMANDS), action="append", help="by default all")
    parser.add_argument("--kills", type=int, default=None, help="of each command; by default 100 or 20")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--notes", type=Path, required=True, help="file of rounds; those in it count")
    arguments = parser.parse_args()
    known = [json.loads(line) for line in arguments.notes.read_text().splitlines()] if arguments.notes.exists() else []
    wanted = {name: arguments.kills or KILLS[name] for name in arguments.command or COMMANDS}
    with tempfile.TemporaryDirectory(prefix="kills-") as home, arguments.notes.absolute().open("a") as notes:
        processes.session_folder = Path(home, "shared")  # else traces stay where one happens to be
        processes.session_folder.mkdir()
        for found in rounds(Path(home), known, wanted, arguments.seed):
            known.append(found)
            notes.write(json.dumps(found) + "\n")
            notes.flush()
    sys.stdout.write(table(known))
    return int(any(line["differs"] for line in known))


if __name__ == "__main__":
    sys.exit(main())
