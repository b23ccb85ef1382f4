"""Figures as papers print them, to stand beside ours: CSV files beside this one, each row with its source."""

from pathlib import Path

from benchmarks.common import read_rows

PUBLISHED = Path(__file__).parent


def published(paper: str) -> list[dict[str, str]]:
    """The rows of `bert_lc`, `layer_attention` or `freeze`."""
    return read_rows(PUBLISHED / f"{paper}.csv")
