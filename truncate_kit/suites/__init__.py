"""The evaluations of the neighbouring papers: semantic similarity, transfer to classification, retrieval."""

from truncate_kit.suites.results import RetrievalReport, StsReport, StsScore, TransferPoint, TransferScore
from truncate_kit.suites.sts import score_sts

__all__ = [
    "RetrievalReport",
    "StsReport",
    "StsScore",
    "TransferPoint",
    "TransferScore",
    "score_sts",
]
