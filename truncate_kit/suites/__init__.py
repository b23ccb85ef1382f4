"""The evaluations of the neighbouring papers: semantic similarity, transfer to classification, retrieval."""

from truncate_kit.suites.results import (
    RetrievalReport,
    StsReport,
    StsScore,
    TransferPoint,
    TransferReport,
    TransferScore,
    TransferSettings,
)
from truncate_kit.suites.retrieval import score_retrieval
from truncate_kit.suites.sts import score_sts
from truncate_kit.suites.transfer import score_transfer

__all__ = [
    "RetrievalReport",
    "StsReport",
    "StsScore",
    "TransferPoint",
    "TransferReport",
    "TransferScore",
    "TransferSettings",
    "score_retrieval",
    "score_sts",
    "score_transfer",
]
