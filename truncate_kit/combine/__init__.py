"""BERT-LC: sentence vectors from a combination of layers, found by exact search over all of them."""

from truncate_kit.combine.bert_lc import combine
from truncate_kit.combine.model import combined_encoder
from truncate_kit.combine.results import Baseline, Combination, CombinationReport, SplitReport
from truncate_kit.combine.settings import CombineSettings

__all__ = [
    "Baseline",
    "Combination",
    "CombinationReport",
    "CombineSettings",
    "SplitReport",
    "combine",
    "combined_encoder",
]
