"""Word similarity: the sets that the TMFT paper merges, each brought to scores from 0 to 1."""

from pathlib import Path

from truncate_kit.data.pairs import read_pairs, short_name
from truncate_kit.data.types import SHARES, PairSet, PairSplits, TextPair
from truncate_kit.errors import DataError

PART, WHOLE = "wordsim353_sim", "wordsim353"
SCALES = {"rg65": (0, 4), PART: (0, 10), WHOLE: (0, 10), "simlex999": (0, 10), "simverb3500": (0, 10)}


def load_words(folder: Path) -> PairSplits:
    """Merge the word similarity sets of a folder: `rg65.csv`, `wordsim353_sim.csv`, `simlex999.csv`, `simverb3500.csv`.

    The whole of WordSim-353, `wordsim353.csv`, is read where its part about similarity is not there: the TMFT paper
    names the whole, its released code has the part. Each set is divided by its scale; a pair that several sets hold, in
    either order, gets their mean. The result has one split, `train`, of which every seed draws its own 70 : 15 : 15
    (`shares`), as the paper does. Raises `DataError` for a folder that is missing or holds none of them, and for what
    is wrong in one.
    """
    found = [read_pairs(file, scale=SCALES[name]) for name, file in word_files(folder).items()]
    if not found:
        raise DataError(
            f"{folder} holds no word similarity set." if folder.exists() else f"{folder} does not exist.",
            hint=f"Name a folder with {', '.join(f'{name}.csv' for name in SCALES)}, or some of them.",
        )
    scores: dict[frozenset[str], list[float]] = {}
    words: dict[frozenset[str], tuple[str, str]] = {}
    for words_set in found:
        for pair, score in zip(words_set, words_set.scores01(), strict=True):
            key = frozenset((pair.first, pair.second))
            words.setdefault(key, (pair.first, pair.second))
            scores.setdefault(key, []).append(score)
    pairs = tuple(TextPair(*words[key], sum(values) / len(values)) for key, values in scores.items())
    name = short_name(folder)
    merged = PairSet(name=name, pairs=pairs, scale=(0.0, 1.0), path=str(folder), columns=found[0].columns)
    sizes = ", ".join(f"{Path(words_set.path).stem} {len(words_set):,}" for words_set in found)
    left = any(Path(words_set.path).stem == PART for words_set in found) and (folder / f"{WHOLE}.csv").is_file()
    note = (
        f"Word similarity: {sizes} merged to {len(pairs):,} distinct pairs, each score divided by its scale; "
        "every seed draws its own 70/15/15 % split."
        + (f" {WHOLE}.csv is left out beside its part {PART}.csv." if left else "")
    )
    return PairSplits(name=name, train=merged, notes=(note,), shares=SHARES)


def word_files(folder: Path) -> dict[str, Path]:
    """The files of a folder that hold word similarity sets, by the name of the set; no whole beside its part."""
    files = {name: folder / f"{name}.csv" for name in SCALES}
    found = {name: file for name, file in files.items() if file.is_file()}
    return {name: file for name, file in found.items() if not (name == WHOLE and PART in found)}
