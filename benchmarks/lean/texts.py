"""Texts to learn from: sentences, passages of long lines, and sentences joined to the length of passages; and scores.

python -m benchmarks.lean.texts --data DATA --out texts.txt --number 100000 --passages 0.1 --joined 0.1
"""

import csv
import lzma
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.common import new_parser
from truncate_kit.core.vectors import TextEncoder
from truncate_kit.data.pairs import load_pairs
from truncate_kit.data.retrieval import read_retrieval
from truncate_kit.data.suites import find_sts
from truncate_kit.evaluation.graded import score_sts
from truncate_kit.evaluation.retrieval import compare
from truncate_kit.methods.distill.learning import words_of

SHORTEST, LONGEST = 60, 220
"""Words of passages and of joined texts."""
MEAN_OF = ("STS12", "STS14", "STS15", "SICK-R")
SEARCHED = {"trecqa": "trecqa-test", "cranfield": "cranfield"}
TELLING = 6  # words of an evaluation text that is also looked for inside a line


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """In points: Spearman on STS Benchmark test and in the mean over `MEAN_OF`; nDCG@10 alone and in the full index."""

    stsb: float
    sts_mean: float
    trecqa: float
    trecqa_mixed: float
    cranfield: float
    cranfield_mixed: float

    def row(self) -> dict[str, str]:
        """Return the cells of a table."""
        return {name: f"{value:.2f}" for name, value in asdict(self).items()}


def scores_of(lean: TextEncoder, full: TextEncoder, data: Path) -> Scores:
    """Return all scores; `full` gives the index that lean queries search."""
    sets = {row.task: row.values["Spearman"] or 0.0 for row in score_sts(lean, find_sts(data), model="lean").rows}
    found = {}
    for name, folder in SEARCHED.items():
        report = compare(full, lean, read_retrieval(data / "retrieval" / folder), names=("full", "lean"))
        for suffix, row in zip(("", "_mixed"), report.rows[1:3], strict=True):  # in float32
            found[name + suffix] = row.values["nDCG@10"] or 0.0
    return Scores(stsb=sets["STSB"], sts_mean=sum(sets[name] for name in MEAN_OF) / len(MEAN_OF), **found)


def evaluation_texts(data: Path) -> set[str]:
    """Return every text of the evaluation sets, with STS Benchmark's train part."""
    texts = {text for one in find_sts(data) for pair in one.pairs for text in (pair.first, pair.second)}
    texts |= set(load_pairs(str(data / "stsb" / "en")).texts())
    for folder in SEARCHED.values():
        texts |= read_retrieval(data / "retrieval" / folder).held_out
    return texts


def learned_lines(data: Path, seed: int = 0) -> list[str]:
    """Return the corpus lines that hold no evaluation text, before any is joined or divided."""
    return without(corpus_lines(data, seed), evaluation_texts(data))


def without(lines: Iterable[str], texts: Iterable[str]) -> list[str]:
    """Keep lines that neither equal one of `texts` nor contain a long one, by words alone."""
    wanted = {tuple(words_of(text)) for text in texts}
    begun = defaultdict(set)
    for text in wanted:
        begun[text[:TELLING]].add(text)
    found = []
    for line in lines:
        words = tuple(words_of(line))
        parts = (
            words[place : place + len(text)] == text
            for place in range(len(words) - TELLING + 1)
            for text in begun.get(words[place : place + TELLING], ())
        )
        if words not in wanted and not any(parts):
            found.append(line)
    return found


def corpus_lines(data: Path, seed: int = 0) -> list[str]:
    """Return all lines of the corpus in a random order."""
    with lzma.open(data / "corpus" / "english.txt.xz", "rt", encoding="utf-8") as file:
        lines = [line.strip() for line in file if line.strip()]
    random.Random(seed).shuffle(lines)
    return lines


def questions(data: Path) -> list[str]:
    """Return the 5,452 training questions of TREC's question classes."""
    with (data / "transfer" / "trec" / "train.csv").open(encoding="utf-8", newline="") as file:
        return [row["text"] for row in csv.DictReader(file)]


def mixed(lines: list[str], number: int, passages: float, joined: float, seed: int = 0) -> Iterator[str]:
    """Yield that number of texts, fewer if the lines end.

    A share `passages` are stretches of `SHORTEST` to `LONGEST` words of lines that are at least as long, and a share
    `joined` consists of as many shorter lines as fill such a length.
    """
    draw = random.Random(seed)
    split = [(line, line.split()) for line in lines]
    long = _passages((words for _, words in split if len(words) >= SHORTEST), draw)
    short = ((line, words) for line, words in split if len(words) < SHORTEST)
    for _ in range(number):
        kind = draw.random()
        if kind < passages and (passage := next(long, None)) is not None:
            yield passage
            continue
        wanted = draw.randint(SHORTEST, LONGEST) if passages <= kind < passages + joined else 0
        joint: list[str] = []
        for line, words in short:
            if not wanted:
                yield line
                break
            joint += words
            if len(joint) >= wanted:
                yield " ".join(joint[:LONGEST])
                break
        else:
            return


def _passages(lines: Iterator[list[str]], draw: random.Random) -> Iterator[str]:
    for words in lines:
        rest = words
        while len(rest) >= SHORTEST:
            number = draw.randint(SHORTEST, LONGEST)
            yield " ".join(rest[:number])
            rest = rest[number:]


def print_held(lines: list[str], texts: list[str], evaluation: set[str]) -> None:
    """Print the number of lines that contain an evaluation text, and of texts with such a line.

    Of these, texts that are one as a whole, but for case and white space, were left out when rows.csv was made.
    """
    whole = {" ".join(text.lower().split()) for text in evaluation}
    others = [text for text in texts if " ".join(text.lower().split()) not in whole]
    print(f"{len(lines) - len(without(lines, evaluation)):,} of {len(lines):,} lines hold one.")
    print(f"Of {len(texts):,} texts {len(texts) - len(others):,} are one.")
    print(f"Of the other {len(others):,}, {len(others) - len(without(others, evaluation)):,} hold one.")


PARSER = new_parser(__doc__)
PARSER.add_argument("--data", type=Path, required=True, help="the folder of the evaluation data")
PARSER.add_argument(
    "--out", type=Path, help="file; without it, how many texts would hold one of an evaluation set is said"
)
PARSER.add_argument("--number", type=int, default=100_000)
PARSER.add_argument("--passages", type=float, default=0.1, help="share of passages of long lines")
PARSER.add_argument("--joined", type=float, default=0.1, help="share of joined texts")
PARSER.add_argument("--seed", type=int, default=0)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the texts."""
    given = PARSER.parse_args(arguments)
    if given.out is None:
        lines, how = corpus_lines(given.data, given.seed), (given.number, given.passages, given.joined, given.seed)
        print_held(lines, list(dict.fromkeys(mixed(lines, *how))), evaluation_texts(given.data))
        return
    texts = mixed(learned_lines(given.data, given.seed), given.number, given.passages, given.joined, given.seed)
    given.out.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")


if __name__ == "__main__":
    main()
