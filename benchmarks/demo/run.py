"""How long `truncate-kit demo` takes, step by step, and what it prints; run it on an idle machine.

    python -m benchmarks.demo.run

Writes `results.json` (seconds of each step, the machine) and `output.txt` (all that stdout got).
"""

import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import COMMAND, machine, new_parser
from truncate_kit.core.files import write_json

HERE = Path(__file__).parent
STEPS = ("1 of 5", "2 of 5", "3 of 5", "4 of 5", "What truncation gained", "5 of 5")


PARSER = new_parser(__doc__)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the demo in an empty folder with a clock beside it."""
    PARSER.parse_args(arguments)
    started: dict[str, float] = {}
    lines: list[str] = []
    start = time.perf_counter()
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen([*COMMAND, "demo"], cwd=folder, stdout=subprocess.PIPE, text=True) as demo,
    ):
        assert demo.stdout is not None
        for line in demo.stdout:
            lines.append(line)
            step = next((step for step in STEPS if line.startswith(step)), None)
            if step is not None:
                started[step] = time.perf_counter() - start
    if demo.returncode:
        raise SystemExit(f"The demo ended with exit code {demo.returncode}.")
    total = time.perf_counter() - start
    ends = [*list(started.values())[1:], total]
    seconds = {step: end - begin for (step, begin), end in zip(started.items(), ends, strict=True)}
    write_json(HERE / "results.json", {"machine": machine(), "seconds": total, "steps": seconds})
    (HERE / "output.txt").write_text("".join(lines), encoding="utf-8")
    print(f"{total:.0f} s: " + ", ".join(f"{step} {spent:.0f} s" for step, spent in seconds.items()))


if __name__ == "__main__":
    main()
