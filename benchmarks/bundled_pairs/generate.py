"""Write the bundled set of graded sentence pairs: train.csv, dev.csv and test.csv.

    python -m benchmarks.bundled_pairs.generate            # into truncate_kit/data/bundled
    python -m benchmarks.bundled_pairs.generate --out DIR

The same files come out on every machine and Python version; a test compares them byte for byte.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

from benchmarks.bundled_pairs import scenes
from benchmarks.bundled_pairs.edits import EDITS
from benchmarks.bundled_pairs.scenes import Scene, Source
from benchmarks.bundled_pairs.wording import choose_words, draw_style, sentence
from benchmarks.common import new_parser, write_rows

SIZES = {"train": 2500, "dev": 500, "test": 500}
SEED = 20261121
BANDS = 10  # of half a point; each gets as many pairs as the others
OUT = Path(__file__).resolve().parents[2] / "truncate_kit" / "data" / "bundled"
COLUMNS = ("sentence1", "sentence2", "score", "edits")
Row = tuple[str, str, float, str]


def pairs(split: str, used: set[str]) -> list[Row]:
    """The pairs of one split: first text, second text, score, edits. Adds every text to `used` and repeats none."""
    source = Source(split, Random(f"{SEED} {split}"))
    open_bands = dict.fromkeys(range(BANDS), SIZES[split] // BANDS)
    rows: list[Row] = []
    while open_bands:
        row = _draw(source)
        if row is None or row[0] == row[1] or row[0] in used or row[1] in used:
            continue
        band = min(int(row[2] * BANDS / 5), BANDS - 1)
        if band in open_bands:
            used.update(row[:2])
            rows.append(row)
            open_bands[band] -= 1
            open_bands = {band: left for band, left in open_bands.items() if left}
    return list(_shuffled(source, rows))


def _draw(source: Source) -> Row | None:
    """One pair of some score, or None when the scene drawn does not suit the split or the edits undo themselves."""
    scene = scenes.draw_scene(source)
    if source.chance(0.08):
        scene = replace(scene, negated=True)
    if source.split != "train" and not any(concept.split == source.split for concept in scene.concepts()):
        return None
    other, names = scene, []
    for name in _draw_edits(source):
        edited = EDITS[name](source, other)
        if edited is None or edited == other or edited.repeats_itself():
            return None
        other, names = edited, [*names, name]
    if names and other == scene:
        return None
    style, words = draw_style(source, scene), choose_words(source, scene)
    put_otherwise = not names or source.chance(0.55)
    if put_otherwise:
        names = ["paraphrase", *names]
        other_style, other_words = draw_style(source, other), choose_words(source, other, words)
    else:
        other_style, other_words = style, {**choose_words(source, other), **words}
        if not _suits(style.voice, other):
            return None
    left, right = sentence(source, scene, style, words), sentence(source, other, other_style, other_words)
    if source.chance(0.5):
        left, right = right, left
    return left, right, scenes.score(scene, other), "+".join(dict.fromkeys(names))


def _draw_edits(source: Source) -> list[str]:
    draw = source.random.random()
    if draw < 0.12:
        return []
    if draw < 0.4:
        return ["topic"]
    chosen = ["modifier"] * int(source.random.random() * 3)
    for name, share in (("party", 0.5), ("verb", 0.35), ("swap", 0.35), ("negation", 0.3)):
        if source.chance(share):
            chosen.append(name)
    return chosen


def _suits(voice: str, scene: Scene) -> bool:
    if voice == "there":
        return scene.verb.kind in ("doing", "handling", "dealing") and not (scene.negated and scene.agent.number > 1)
    if voice in ("it is", "the one"):
        return scene.verb.kind in ("doing", "handling", "dealing") and scene.agent.number == 1 and not scene.negated
    if voice == "passive":
        return scene.verb.kind in ("handling", "dealing", "transfer")
    return voice == "active" or bool(scene.verb.others)


def _shuffled(source: Source, rows: list[Row]) -> Iterator[Row]:
    """Without `Random.shuffle`, whose algorithm may change."""
    return (rows[index] for _, index in sorted((source.random.random(), index) for index in range(len(rows))))


PARSER = new_parser(__doc__)
PARSER.add_argument("--out", type=Path, default=OUT)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the three files."""
    out = PARSER.parse_args(arguments).out
    used: set[str] = set()
    for split in SIZES:
        write_rows(out / f"{split}.csv", [dict(zip(COLUMNS, row, strict=True)) for row in pairs(split, used)])


if __name__ == "__main__":
    main()
