"""How long `truncate-kit --help` and `import truncate_kit` take in a fresh process, beside an empty Python."""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import typer

from truncate_kit.files import write_json


def rivals() -> dict[str, list[str]]:
    """The commands that are timed, by name."""
    program = shutil.which("truncate-kit", path=str(Path(sys.executable).parent)) or "truncate-kit"
    return {
        "python -c pass": [sys.executable, "-c", "pass"],
        "import truncate_kit": [sys.executable, "-c", "import truncate_kit"],
        "truncate-kit --help": [program, "--help"],
        "truncate-kit finetune --help": [program, "finetune", "--help"],
    }


def main() -> None:
    """Time all of them in turn and write `results.json`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    seconds: dict[str, list[float]] = {name: [] for name in rivals()}
    for turn in range(rounds + 1):
        for name, command in rivals().items():
            start = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            if turn:  # the first round fills the disk cache
                seconds[name].append(time.perf_counter() - start)
    found = {
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "load": os.getloadavg()[0],
            "python": platform.python_version(),
            "typer": typer.__version__,
        },
        "milliseconds": {
            name: {"median": 1000 * statistics.median(times), "worst": 1000 * max(times), "best": 1000 * min(times)}
            for name, times in seconds.items()
        },
    }
    write_json(Path(__file__).with_name("results.json"), found)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
