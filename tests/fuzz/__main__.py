"""python -m tests.fuzz --inputs 100000: changed files for every reader, and a table of what came of them."""

import argparse
import logging
import sys
import time
from pathlib import Path
from random import SystemRandom

from tests.fuzz.running import BAD, GOOD, READERS, Outcome, prepared, shares

_EVERY = 60.0  # seconds between two tables on disk: a run that is stopped leaves the last one


def table(outcomes: dict[str, Outcome], seed: int, seconds: float) -> str:
    """Markdown: what came of the inputs of each reader, and everything that broke a promise."""
    kinds = (*GOOD, *BAD)
    total: Outcome = Outcome()
    for outcome in outcomes.values():
        total.counts.update(outcome.counts)
    lines = [
        f"Seed {seed}: {total.counts.total():,} inputs in {seconds:,.0f} s.",
        "",
        f"| reader | inputs | {' | '.join(kinds)} |",
        f"|---|{'--:|' * (len(kinds) + 1)}",
    ]
    for name, outcome in (outcomes | {"**all**": total}).items():
        counts = " | ".join(f"{outcome.counts[kind]:,}" for kind in kinds)
        lines.append(f"| {name} | {outcome.counts.total():,} | {counts} |")
    failures = [(name, *failure) for name, outcome in outcomes.items() for failure in outcome.failures]
    for name, kind, number, where in failures[:100]:
        lines.append(f"\n- {name}, input {number}: {kind}: {where}")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run; the exit code is 1 where a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000, help="of all readers together")
    parser.add_argument("--seed", type=int, default=None, help="a fresh one by default; it stands in the table")
    parser.add_argument("--reader", default="", help="only those whose names hold this")
    parser.add_argument("--only", type=int, default=None, help="only the input of this number: to see a failure again")
    parser.add_argument("--table", type=Path, default=None, help="file to write the table to")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    seed = SystemRandom().randrange(10**9) if arguments.seed is None else arguments.seed
    readers = [reader for reader in READERS if arguments.reader in reader.name]
    planned, outcomes = shares(arguments.inputs, readers), {reader.name: Outcome() for reader in readers}
    begin = written = time.monotonic()
    file = None if arguments.table is None else arguments.table.absolute()
    with prepared(seed) as fuzzer:
        # In turns, so that a run that is stopped has tried every reader in proportion.
        rounds = 200 if arguments.only is None else 1
        for turn in range(rounds):
            for reader in readers:
                count = planned[reader.name]
                numbers = range(count * turn // rounds, count * (turn + 1) // rounds)
                for number in numbers if arguments.only is None else [arguments.only]:
                    fuzzer.run(reader, number, outcomes[reader.name])
            if file is not None and (time.monotonic() - written > _EVERY or turn == rounds - 1):
                file.write_text(table(outcomes, seed, time.monotonic() - begin), encoding="utf-8")
                written = time.monotonic()
    sys.stdout.write(table(outcomes, seed, time.monotonic() - begin))
    return int(any(outcome.failures for outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
