"""Small retrieval sets in BEIR's layout."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.support.files import NOUNS
from truncate_kit.data.retrieval import RetrievalSet

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
    (folder / "qrels").mkdir(parents=True)
    write_lines(
        folder / "corpus.jsonl",
        [{"_id": f"d{n}", "title": "big" if n % 3 else "", "text": text} for n, text in enumerate(DOCUMENTS)],
    )
    write_lines(folder / "queries.jsonl", [{"_id": f"q{n}", "text": text} for n, text in enumerate(QUERIES)])
    grades = [
        (n, (n * 11 + 17 * step) % len(DOCUMENTS), 1 + step % 2) for n in range(len(QUERIES)) for step in (0, 1, 2)
    ]
    rows = [f"q{query}\td{document}\t{grade}\n" for query, document, grade in grades[:-2]]
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(rows))
    return folder


def judged_folder(folder: Path, **splits: int) -> Path:
    """The same documents, with this number of queries in each split: `judged_folder(path, train=30, dev=24)`.

    Every query has two answers, which queries of other splits share.
    """
    retrieval_folder(folder)
    (folder / "qrels/test.tsv").unlink()
    texts = [f"{one} and {other}, number {n}" for n in range(4) for one in NOUNS for other in NOUNS]
    rows, first = list[dict[str, object]](), 0
    for split, number in splits.items():
        numbers = range(first, first + number)
        rows += [{"_id": f"q{n}", "text": texts[n]} for n in numbers]
        lines = [f"q{n}\td{(n + step) % len(DOCUMENTS)}\t{1 + step}\n" for n in numbers for step in (0, 1)]
        (folder / "qrels" / f"{split}.tsv").write_text("".join(lines))
        first += number
    write_lines(folder / "queries.jsonl", rows)
    return folder
