"""python -m tests.fuzz.pairs: two commands that write into one workspace at once, and what it holds afterwards.

The second one starts at a random instant of the first. Each ends well, or is refused with a hint; then what the
workspace holds can be listed, shown as a page and cleaned, and both commands, called again one after the other, end
well or are refused with a hint.
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from itertools import product
from pathlib import Path

from tests.support import processes
from tests.support.processes import Program
from tests.support.writing import COMMANDS, make_inputs, words_of

_LEFT_OUT = {"bench"}  # takes longest, and writes what it times; its lock is that of export
_MAIN = """
import sys, torch
from truncate_kit.methods.distill import frontier as speed
from truncate_kit_cli.app import main
torch.set_num_threads(1)
speed.SECONDS = 0.0
main(sys.argv[1:])
"""


def _start(words: list[str]) -> Program:
    return Program(_MAIN, *words, "--quiet", environment={"HF_HUB_OFFLINE": "1"})


def _end(program: Program, codes: tuple[int, ...]) -> list[str]:
    """What is wrong with how a command ended."""
    _, said = program.communicate()
    wrong = program.returncode not in codes or "Traceback" in said or "defect" in said
    wrong |= program.returncode == 1 and not ("Error: " in said and "Hint: " in said)
    return [f"exit code {program.returncode}: {said[-400:]!a}"] if wrong else []


def round_of(first: str, second: str, home: Path, draw: random.Random) -> list[str]:
    """Run two commands at once, then each alone; returns what went wrong."""
    out = Path(tempfile.mkdtemp(prefix="pair-", dir=home))
    one, other = (words_of(command, home, out, home / "whole") for command in (first, second))
    running = _start(one)
    time.sleep(draw.uniform(0.05, 2.5))
    wrong = _end(_start(other), (0, 1)) + _end(running, (0, 1))
    for words in (["status", str(out)], ["report", str(out), "--out", str(out / "page.html")]):
        wrong += _end(_start(words), (0, 1) if words[0] == "report" else (0,))
    for words in (one, other):
        wrong += _end(_start(words), (0, 1))
    wrong += _end(_start(["status", str(out), "--clean"]), (0,))
    wrong += [f"left behind: {file.name}" for file in out.rglob(".*.tmp")]
    shutil.rmtree(out, ignore_errors=True)
    return wrong


def main() -> int:
    """Run; the exit code is 1 where a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.pairs", description=__doc__)
    parser.add_argument("--pairs", type=int, default=None, help="number that is drawn; by default all")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    draw, wrong = random.Random(arguments.seed), 0
    pairs = list(product(sorted(set(COMMANDS) - _LEFT_OUT), repeat=2))
    pairs = draw.sample(pairs, arguments.pairs or len(pairs))
    with tempfile.TemporaryDirectory(prefix="pairs-") as folder:
        home = Path(folder)
        processes.session_folder = home / "shared"
        processes.session_folder.mkdir()
        make_inputs(home, texts=3000)
        (home / "whole/finetune").mkdir(parents=True)
        _end(_start(words_of("finetune", home, home / "whole/finetune", home / "whole")), (0,))
        for first, second in pairs:
            found = round_of(first, second, home, draw)
            wrong += bool(found)
            sys.stdout.write(json.dumps({"first": first, "second": second, "wrong": found}) + "\n")
            sys.stdout.flush()
    sys.stdout.write(f"{len(pairs):,} pairs, {wrong:,} of them broke a promise\n")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
