"""How long help, `import truncate_kit` and a command that needs torch take in a fresh process, beside an empty Python.

python -m benchmarks.startup.run
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import typer

from benchmarks.common import COMMAND, machine, new_parser
from truncate_kit.bench.runners import interleaved
from truncate_kit.core.files import write_json


def rivals(folder: Path) -> dict[str, list[str]]:
    """Map names to the commands that are timed; one reads a text in this folder."""
    (folder / "text.txt").write_text("a text\n")
    encode = ["encode", str(folder / "text.txt"), "--model", "mini-bert", "--out", str(folder / "vectors.npy")]
    program = shutil.which("truncate-kit", path=str(Path(sys.executable).parent)) or "truncate-kit"
    return {
        "python -c pass": [sys.executable, "-c", "pass"],
        "import truncate_kit": [sys.executable, "-c", "import truncate_kit"],
        "truncate-kit --help": [program, "--help"],
        "truncate-kit finetune --help": [program, "finetune", "--help"],
        "truncate-kit encode": [program, *encode],
        "encode, garbage collector as Python sets it": [*COMMAND, *encode],
    }


PARSER = new_parser(__doc__)
PARSER.add_argument("--rounds", type=int, default=30)


def main(arguments: Sequence[str] | None = None) -> None:
    """Time all of them in turn and write `results.json`."""
    rounds = PARSER.parse_args(arguments).rounds
    with TemporaryDirectory() as folder:
        lines = rivals(Path(folder))
        calls = {name: partial(subprocess.run, line, check=True, capture_output=True) for name, line in lines.items()}
        for call in calls.values():  # fills the disk cache
            call()
        seconds = interleaved(calls, rounds=rounds, warm_up=dict.fromkeys(calls, os.getloadavg))
    found = {
        "machine": machine() | {"load": os.getloadavg()[0], "typer": typer.__version__},
        "milliseconds": {
            name: {"median": 1000 * statistics.median(times), "worst": 1000 * max(times), "best": 1000 * min(times)}
            for name, times in seconds.items()
        },
    }
    write_json(Path(__file__).with_name("results.json"), found)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
