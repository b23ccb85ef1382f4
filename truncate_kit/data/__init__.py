"""Files and hub sets in, typed pairs and texts out. Importing this imports neither torch nor datasets."""

from truncate_kit.data.given import check_set, check_splits, listed_pairs
from truncate_kit.data.loading import BUNDLED, is_bundled, load_pairs
from truncate_kit.data.overlap import Overlap, SharedPairs, overlap_of
from truncate_kit.data.pairs import read_pairs
from truncate_kit.data.retrieval import SEARCH_METRICS, RetrievalSet, is_retrieval_folder, read_retrieval
from truncate_kit.data.split import complete_splits, split_pairs, splits_for
from truncate_kit.data.suites import (
    LabelledSet,
    SeenPairs,
    StsSet,
    find_sts,
    find_transfer,
    read_seen,
)
from truncate_kit.data.texts import iter_rows, iter_texts, read_texts
from truncate_kit.data.triplets import Triplet, TripletSet, load_triplets, raw_texts
from truncate_kit.data.types import (
    PairSet,
    PairSplits,
    PlacedPairs,
    TextPair,
    distinct_texts,
    pairs_fingerprint,
    pairs_in_rows,
)
from truncate_kit.data.words import load_words

__all__ = [
    "BUNDLED",
    "SEARCH_METRICS",
    "LabelledSet",
    "Overlap",
    "PairSet",
    "PairSplits",
    "PlacedPairs",
    "RetrievalSet",
    "SeenPairs",
    "SharedPairs",
    "StsSet",
    "TextPair",
    "Triplet",
    "TripletSet",
    "check_set",
    "check_splits",
    "complete_splits",
    "distinct_texts",
    "find_sts",
    "find_transfer",
    "is_bundled",
    "is_retrieval_folder",
    "iter_rows",
    "iter_texts",
    "listed_pairs",
    "load_pairs",
    "load_triplets",
    "load_words",
    "overlap_of",
    "pairs_fingerprint",
    "pairs_in_rows",
    "raw_texts",
    "read_pairs",
    "read_retrieval",
    "read_seen",
    "read_texts",
    "split_pairs",
    "splits_for",
]
