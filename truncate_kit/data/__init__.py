"""Files and hub sets in, typed pairs and texts out. Importing this imports neither torch nor datasets."""

from truncate_kit.data.overlap import Overlap, SharedPairs, overlap_of
from truncate_kit.data.pairs import BUNDLED, load_pairs, read_pairs
from truncate_kit.data.split import complete_splits, split_pairs
from truncate_kit.data.texts import iter_rows, iter_texts, read_texts
from truncate_kit.data.types import PairSet, PairSplits, TextPair

__all__ = [
    "BUNDLED",
    "Overlap",
    "PairSet",
    "PairSplits",
    "SharedPairs",
    "TextPair",
    "complete_splits",
    "iter_rows",
    "iter_texts",
    "load_pairs",
    "overlap_of",
    "read_pairs",
    "read_texts",
    "split_pairs",
]
