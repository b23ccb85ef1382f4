"""Scores of an encoder on what no part of a distillation has seen: similarity, and search also in the full index."""

from dataclasses import asdict, dataclass
from pathlib import Path

from truncate_kit.core.vectors import TextEncoder
from truncate_kit.data.pairs import load_pairs
from truncate_kit.data.retrieval import read_retrieval
from truncate_kit.data.suites import find_sts
from truncate_kit.evaluation.graded import score_sts
from truncate_kit.evaluation.retrieval import compare

MEAN_OF = ("STS12", "STS14", "STS15", "SICK-R")
SEARCHED = {"trecqa": "trecqa-test", "cranfield": "cranfield"}


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
