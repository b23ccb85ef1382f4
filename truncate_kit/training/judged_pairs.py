"""A retrieval folder to learn from: some of its queries teach with their documents, others choose and report."""

from collections.abc import Sequence
from pathlib import Path

from truncate_kit.data import PairSet, PairSplits, RetrievalSet, TextPair, read_retrieval
from truncate_kit.data.retrieval import FEWEST_QUERIES, has_qrels, with_queries
from truncate_kit.errors import DataError
from truncate_kit.training.retrieval_evaluator import check_queries, halved
from truncate_kit.wording import counted

COLUMNS = ("query", "document", "grade")


def read_judged(path: str | Path, *, metric: str = "ndcg") -> tuple[PairSplits, RetrievalSet]:
    """Pairs of a query and a document that answers it, to learn from, and the queries that choose and report.

    Where there is a qrels/train.tsv its queries teach, and those of dev, else test, choose and report by halves. Else
    the queries of the one file that would choose are divided: a half teaches, a quarter chooses, a quarter reports. No
    query that chooses, reports or belongs to another split but train teaches; documents may answer queries of several.

    Args:
        path: A folder in BEIR's layout, see `read_retrieval`.
        metric: What is chosen by: ndcg, mrr or recall.

    Returns:
        Train pairs of the queries that teach, dev and test pairs of those that choose and report, with their grades;
        and the set of the latter two for `finetune(retrieval=…)`, with the objective `search`.

    Raises:
        DataError: As `read_retrieval`, and where too few queries are judged.
        UsageError: There is no such metric.
    """
    asked = read_retrieval(path, metric=metric, chooses=True)
    whole = asked.name
    if has_qrels(Path(path), "train") and not asked.name.endswith("/train"):
        taught = _without_queries(read_retrieval(path, split="train"), asked.asked)
        check_queries(asked)
        named, of = taught.name, f" of {whole}"
    else:
        taught, asked = _divided(asked)
        named, of = whole, ""
    if len(set(taught.queries)) < FEWEST_QUERIES:
        raise DataError(
            f"{taught.name} has {counted(len(set(taught.queries)), 'judged query', 'judged queries')} to learn from: "
            "too few.",
            hint=f"Judge at least {FEWEST_QUERIES} that neither choose nor report, or give graded "
            "pairs as `data` and this folder as `retrieval`.",
        )
    choosing, reporting = (with_queries(asked, places.tolist()) for places in halved(asked))
    sets = {"train": taught, "dev": choosing, "test": reporting}
    train, dev, test = (_pairs(one, split, str(path)) for split, one in sets.items())
    numbers = [len(set(one.queries)) for one in sets.values()]
    note = (
        f"{named}: {numbers[0]:,} queries teach, with {counted(len(train), 'document')} that answer them;{of} "
        f"{numbers[1]:,} choose and {numbers[2]:,} report."
    )
    notes = (note, *filter(None, [asked.note]))
    splits = PairSplits(name=taught.name, train=train, dev=dev, test=test, notes=notes)
    return splits.without_texts(asked.asked), asked  # a query that reports may stand among the documents


def _divided(data: RetrievalSet) -> tuple[RetrievalSet, RetrievalSet]:
    """The half that teaches and the one that chooses and reports. Raises `DataError` where that is too few."""
    number, needed = len(set(data.queries)), 4 * FEWEST_QUERIES
    if number < needed:
        raise DataError(
            f"{data.name} has {number} judged queries: too few to learn from half of them, choose by a quarter and "
            "report the last one.",
            hint=f"Give at least {needed}, or a qrels/train.tsv of others to learn from, or graded pairs as `data` and "
            "this folder as `retrieval`.",
        )
    teaching, others = halved(data)  # the half that would choose by itself, so that the one that would report still may
    held = with_queries(data, others.tolist(), "that taught nothing")
    return with_queries(data, teaching.tolist(), "that teach"), held


def _without_queries(data: RetrievalSet, queries: set[str]) -> RetrievalSet:
    kept = [place for place, query in enumerate(data.queries) if query not in queries]
    return data if len(kept) == len(data.queries) else with_queries(data, kept, "that neither choose nor report")


def _pairs(data: RetrievalSet, split: str, path: str) -> PairSet:
    """Each query with each document that answers it and is not empty."""
    judged: Sequence[TextPair] = [
        TextPair(query, data.documents[place], float(grade))
        for query, grades in zip(data.queries, data.relevance, strict=True)
        for place, grade in grades.items()
        if data.documents[place]
    ]
    highest = max((pair.target for pair in judged), default=1.0)
    return PairSet(
        name=f"{data.name}/{split}", pairs=tuple(judged), scale=(0.0, max(1.0, highest)), path=path, columns=COLUMNS
    )
