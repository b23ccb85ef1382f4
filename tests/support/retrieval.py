"""Small retrieval sets in BEIR's layout."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.support.files import NOUNS, write_table
from truncate_kit.data.retrieval import RetrievalSet

JUDGED = ("query-id", "corpus-id", "score")
DOCUMENTS = [f"the {one} sat on the {other}" for one in NOUNS for other in NOUNS if one != other]
QUERIES = [f"a {one} and the {other}" for one in NOUNS[:5] for other in NOUNS[4:] if one != other]


def judged_set(documents: Sequence[str], queries: Sequence[str], relevance: Iterable[dict[int, float]]) -> RetrievalSet:
    """A set of these texts; relevance: by places of documents, for each query."""
    ids = [tuple(f"{kind}{n}" for n in range(len(texts))) for kind, texts in (("d", documents), ("q", queries))]
    return RetrievalSet(
        name="set", document_ids=ids[0], documents=tuple(documents), query_ids=ids[1], queries=tuple(queries),
        relevance=tuple(relevance),
    )  # fmt: skip


def write_lines(path: Path, rows: list[dict[str, object]]) -> None:
    """A JSONL file."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def retrieval_folder(folder: Path) -> Path:
    """56 documents and 19 queries, each with up to four documents that answer it, by grades 1 and 2."""
    documents = [(f"d{n}", "big" if n % 3 else "", text) for n, text in enumerate(DOCUMENTS)]
    write_table(folder / "corpus.jsonl", ("_id", "title", "text"), documents)
    write_table(folder / "queries.jsonl", ("_id", "text"), [(f"q{n}", text) for n, text in enumerate(QUERIES)])
    steps = [(n, step) for n in range(len(QUERIES)) for step in (0, 1, 2)]
    grades = [(f"q{n}", f"d{(n * 11 + 17 * step) % len(DOCUMENTS)}", 1 + step % 2) for n, step in steps]
    write_table(folder / "qrels/test.tsv", JUDGED, grades[:-2])
    return folder


def judged_folder(folder: Path, **splits: int) -> Path:
    """The same documents, with this number of queries in each split: `judged_folder(path, train=30, dev=24)`.

    Every query has two answers, which queries of other splits share.
    """
    retrieval_folder(folder)
    (folder / "qrels/test.tsv").unlink()
    texts = [f"{one} and {other}, number {n}" for n in range(4) for one in NOUNS for other in NOUNS]
    first = 0
    for split, number in splits.items():
        asked = [(n, step) for n in range(first, first + number) for step in (0, 1)]
        rows = [(f"q{n}", f"d{(n + step) % len(DOCUMENTS)}", 1 + step) for n, step in asked]
        write_table(folder / f"qrels/{split}.tsv", JUDGED, rows)
        first += number
    write_table(folder / "queries.jsonl", ("_id", "text"), [(f"q{n}", text) for n, text in enumerate(texts[:first])])
    return folder
