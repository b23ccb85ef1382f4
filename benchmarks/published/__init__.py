"""Figures as papers print them, to stand beside ours: CSV files beside this one, each row with its source."""

from pathlib import Path

from benchmarks.common import read_rows

PUBLISHED = Path(__file__).parent
TRANSFER = ("1", "4")
"""The tables of `bert_lc` that have accuracies of transfer; its others have correlations on similarity."""


def published(paper: str, *, transfer: bool = False) -> list[dict[str, str]]:
    """The rows of `bert_lc`, `layer_attention` or `freeze`; of `bert_lc` those on similarity, or those on transfer."""
    rows = read_rows(PUBLISHED / f"{paper}.csv")
    return [row for row in rows if (row["table"] in TRANSFER) == transfer] if paper == "bert_lc" else rows
