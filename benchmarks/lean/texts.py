"""Texts to learn from: lines of the corpus as they are, and a share of them joined to the length of abstracts.

python -m benchmarks.lean.texts --data DATA --out texts.txt --number 100000 --joined 0.15
"""

import lzma
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.common import new_parser

SHORTEST, LONGEST = 60, 220
"""Words of joined texts."""


def corpus_lines(data: Path, seed: int = 0) -> list[str]:
    """All lines of the corpus in a random order."""
    with lzma.open(data / "corpus" / "english.txt.xz", "rt", encoding="utf-8") as file:
        lines = [line.strip() for line in file if line.strip()]
    random.Random(seed).shuffle(lines)
    return lines


def mixed(lines: list[str], number: int, joined: float, seed: int = 0) -> Iterator[str]:
    """That number of texts; a share `joined` of them is made of as many lines as fill a random number of words."""
    draw, rest = random.Random(seed), iter(lines)
    for _ in range(number):
        wanted = draw.randint(SHORTEST, LONGEST) if draw.random() < joined else 0
        words: list[str] = []
        for line in rest:
            words += line.split()
            if len(words) >= wanted:
                break
        if not words:
            return
        yield " ".join(words[:LONGEST] if wanted else words)


PARSER = new_parser(__doc__)
PARSER.add_argument("--data", type=Path, required=True, help="the folder of the evaluation data")
PARSER.add_argument("--out", type=Path, required=True)
PARSER.add_argument("--number", type=int, default=100_000)
PARSER.add_argument("--joined", type=float, default=0.15, help="share of joined texts")
PARSER.add_argument("--seed", type=int, default=0)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the texts."""
    given = PARSER.parse_args(arguments)
    texts = mixed(corpus_lines(given.data, given.seed), given.number, given.joined, given.seed)
    given.out.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")


if __name__ == "__main__":
    main()
