"""Queries, the documents to search, and which of them answer each query: folders in BEIR's layout, files of pairs."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from truncate_kit.data.answers import answers_of
from truncate_kit.data.cells import text_of, texts_of
from truncate_kit.data.columns import find_text_columns
from truncate_kit.data.files import COMPRESSIONS, data_files, stem_of
from truncate_kit.data.judgements import (
    LAYOUT,
    ONE_GRADE,
    USUAL_SPLITS,
    asked_elsewhere,
    judged_in,
    qrels_of,
    two_grades,
)
from truncate_kit.data.pairs import short_name
from truncate_kit.data.tables import MISSING, Table, read_table
from truncate_kit.data.texts import read_texts
from truncate_kit.errors import ColumnsError, DataError, UsageError, known_name
from truncate_kit.files import is_folder
from truncate_kit.wording import counted

SearchMetric = Literal["ndcg", "mrr", "recall"]
SEARCH_METRICS: dict[SearchMetric, str] = {"ndcg": "nDCG@10", "mrr": "MRR@10", "recall": "recall@10"}
"""What a choice among models can be made by, and its name for readers."""

_LINES = {"corpus": '{"_id": "…", "title": "…", "text": "…"}', "queries": '{"_id": "…", "text": "…"}'}

FEWEST_QUERIES = 10
"""Judged ones of each half, where one half is to choose and the other to report."""
FEWEST_WORDS = 5
"""Words of a title or a text that says by itself which document it is; shorter ones are ordinary lines of any file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalSet:
    """Queries, the documents to search, and which of them answer each query.

    documents: title and text, joined by a space; those of a file of pairs are distinct. relevance: for each query the
    grades of the documents that answer it, all above 0, by their places in `documents`; none is empty. metric: what
    layers, epochs and blocks are chosen by where the set is given to choose by. other_queries: where it is,
    those of other splits but train, which nothing may learn from either. note: what there is to say of the split that
    was taken; mostly nothing. titles: of the documents, empty ones where there are none.
    """

    name: str
    document_ids: tuple[str, ...]
    documents: tuple[str, ...]
    query_ids: tuple[str, ...]
    queries: tuple[str, ...]
    relevance: tuple[Mapping[int, float], ...]
    metric: SearchMetric = "ndcg"
    other_queries: tuple[str, ...] = field(default=(), compare=False)
    note: str = field(default="", compare=False)
    titles: tuple[str, ...] = field(default=(), compare=False)

    @property
    def held_out(self) -> set[str]:
        """All texts that what is measured with this set may not have learned from, titles without their texts too."""
        named = ((title, document) for title, document in zip(self.titles, self.documents, strict=False) if title)
        parts = (part for title, document in named for part in (title, document.removeprefix(title).strip()))
        long = (part for part in parts if len(part.split()) >= FEWEST_WORDS)
        return {*self.queries, *self.documents, *self.other_queries, *long}

    @property
    def asked(self) -> set[str]:
        """The queries of this split and of all others but train."""
        return {*self.queries, *self.other_queries}

    @property
    def relevant(self) -> tuple[frozenset[int], ...]:
        """The places of the documents that answer each query."""
        return tuple(map(frozenset, self.relevance))

    def fingerprint(self) -> str:
        """SHA-256 of texts, their names and the grades, in order, and of a metric other than nDCG."""
        parts = (self.query_ids, self.queries, self.document_ids, self.documents)
        grades = [sorted(grades.items()) for grades in self.relevance]
        metric = [] if self.metric == "ndcg" else [self.metric]
        return hashlib.sha256(json.dumps([*parts, grades, *metric]).encode()).hexdigest()

    def queries_fingerprint(self) -> str:
        """SHA-256 of the queries in order, by which they are divided into those that choose and those that report."""
        return hashlib.sha256(json.dumps(self.queries).encode()).hexdigest()

    @property
    def own_documents(self) -> tuple[int | None, ...]:
        """The place of the document that each query itself is, None where it is none.

        That is one with the id of the query that ends in its text and does not answer it; no query is to find itself.
        """
        place = {name: index for index, name in enumerate(self.document_ids)}
        own = (place.get(name) for name in self.query_ids)
        return tuple(
            index if index is not None and self.documents[index].endswith(query) and index not in grades else None
            for index, query, grades in zip(own, self.queries, self.relevance, strict=True)
        )


def is_retrieval_folder(path: str | Path) -> bool:
    """Whether this is a folder of documents and queries rather than of pairs."""
    folder = Path(path)
    return is_folder(folder) and ((folder / "qrels").is_dir() or _jsonl(folder, "corpus") is not None)


def read_retrieval(
    path: str | Path,
    *,
    corpus: str | Path | None = None,
    split: str | None = None,
    metric: str = "ndcg",
    chooses: bool = False,
) -> RetrievalSet:
    """Read a folder in BEIR's layout, or a (query, relevant) file.

    A folder holds corpus.jsonl (`_id`, `title`, `text`), queries.jsonl (`_id`, `text`), also as .gz or .xz, and
    qrels/SPLIT.tsv (query id, document id, grade; a first line of names may be there). Grades of 0 or less are no
    answers; queries without an answer are left out. A document may be empty (two of
    Cranfield are), a query may not.

    Rows of a file are captions of one picture, duplicate questions, or questions with their answers. A query in
    several rows has several answers. Where there is a column of labels, 1 or 0, rows with 0 are no answers, but their
    second text is still searched.

    Args:
        path: The folder or file; a folder may also hold one such file alone.
        corpus: With a file: one of more texts to search, as `read_texts` takes it.
        split: Of a folder: the name of a file in qrels; None takes test, else dev, else the only one.
        metric: What is chosen by where the set is given to choose by: ndcg, mrr or recall.
        chooses: The set is given to choose by: None as `split` takes dev before test, so that test stays unseen, but
            where dev has too few queries for that and test enough; `note` says so then.

    Raises:
        DataError: The message names file, row and what is wrong.
        UsageError: A parameter goes with the other kind only, or there is no such metric.
    """
    path, chooses_by = Path(path), known_name("search metric", metric, SEARCH_METRICS)
    if is_retrieval_folder(path):
        if corpus is not None:
            raise UsageError(f"{path} has its own corpus.", hint="Leave out `corpus`.")
        return replace(_read_folder(path, split, chooses=chooses), metric=chooses_by)
    if split is not None:
        raise UsageError(f"{path} has no splits of judgements.", hint=f"Leave out `split`. {LAYOUT}")
    return replace(_read_file(_only_file(path), corpus), metric=chooses_by)


def _read_folder(folder: Path, split: str | None, *, chooses: bool) -> RetrievalSet:
    qrels, note = qrels_of(folder, split, ("dev", "test") if chooses else USUAL_SPLITS), ""
    (documents, titles), (queries, _) = (_texts_by_id(folder, name) for name in ("corpus", "queries"))
    judged = judged_in(qrels, documents, queries)
    if chooses and split is None and len(judged) < 2 * FEWEST_QUERIES:
        other = qrels_of(folder, None, USUAL_SPLITS)
        more = judged_in(other, documents, queries)
        if len(more) >= 2 * FEWEST_QUERIES:
            few = f"{stem_of(qrels)} has {counted(len(judged), 'judged query', 'judged queries')}, too few to choose by"
            note = f"{short_name(folder)}: {few}, so those of {stem_of(other)} choose."
            qrels, judged = other, more
    if not judged:
        raise DataError(f"{qrels} gives no query a document that answers it.", hint="Grades above 0 are answers.")
    return RetrievalSet(
        name=f"{short_name(folder)}/{stem_of(qrels)}",
        document_ids=tuple(documents),
        documents=tuple(documents.values()),
        query_ids=tuple(judged),
        queries=tuple(queries[name] for name in judged),
        relevance=tuple(judged.values()),
        other_queries=tuple(queries[name] for name in asked_elsewhere(folder, qrels, queries)) if chooses else (),
        note=note,
        titles=titles,
    )


def _jsonl(folder: Path, name: str) -> Path | None:
    paths = (folder / f"{name}.jsonl{packed}" for packed in ("", *COMPRESSIONS))
    return next((path for path in paths if path.is_file()), None)


def _texts_by_id(folder: Path, name: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """The texts of corpus or queries by their ids, a title before each where there is one; and the titles."""
    path = _jsonl(folder, name)
    if path is None:
        raise DataError(f"{folder} holds no {name}.jsonl.", hint=LAYOUT)
    table = read_table(path, example=_LINES[name])
    for column in ("_id", "text"):
        if column not in table.columns:
            raise ColumnsError(str(path), f"there is no column {column!r}.", table.columns, hint=LAYOUT)
    titles = table.columns.get("title", [None] * len(table))
    found, own = dict[str, str](), list[str]()
    for row, (given, title, text) in enumerate(zip(table.columns["_id"], titles, table.columns["text"], strict=True)):
        key = text_of(table, row, "_id", str(given) if type(given) is int else given)
        if key in found:
            raise table.problem(row, f"the id {key!r} is there twice.", hint="Each needs an id of its own.")
        if name == "queries":
            found[key] = text_of(table, row, "text", text)
        else:
            parts = (_text_or_empty(table, row, "title", title), _text_or_empty(table, row, "text", text))
            found[key] = " ".join(filter(None, parts))
            own.append(parts[0])
    if not any(found.values()):
        raise DataError(f"{path}: every document is empty.", hint=f"Fill in their texts. {LAYOUT}")
    return found, tuple(own)


def _text_or_empty(table: Table, row: int, column: str, value: object) -> str:
    absent = column == "title" and (value is None or value is MISSING)
    value = str(value) if column == "title" and type(value) is int else value
    return "" if absent or (isinstance(value, str) and not value.strip()) else text_of(table, row, column, value)


def _read_file(file: Path, corpus: str | Path | None) -> RetrievalSet:
    table = read_table(file)
    names = tuple(table.columns)
    hint = "Call the columns query and relevant."
    first, second = (texts_of(table, name) for name in find_text_columns(table.source, names, hint=hint))
    answers = answers_of(table, LAYOUT)
    place = {
        text: index for index, text in enumerate(dict.fromkeys((*second, *(read_texts(corpus) if corpus else ()))))
    }
    relevant: dict[str, dict[int, float]] = {}
    seen: dict[tuple[str, str], bool] = {}
    for row, (query, text, answer) in enumerate(zip(first, second, answers, strict=True)):
        if seen.setdefault((query, text), answer) != answer:
            raise table.problem(row, two_grades(query, text), hint=ONE_GRADE)
        if answer and query != text:  # a text is no answer to itself
            relevant.setdefault(query, {})[place[text]] = 1.0
    if not relevant:
        raise DataError(f"{file} has no row with an answer.", hint="Give rows of a query and a text that answers it.")
    return RetrievalSet(
        name=short_name(file),
        document_ids=tuple(place),
        documents=tuple(place),
        query_ids=tuple(relevant),
        queries=tuple(relevant),
        relevance=tuple(relevant.values()),
    )


def _only_file(path: Path) -> Path:
    if not path.is_dir():
        return path
    files = data_files(path)
    if len(files) != 1:
        raise DataError(
            f"{path} holds {len(files)} data files where one of queries and answers is needed.",
            hint=f"Name the file. {LAYOUT}",
        )
    return files[0]
