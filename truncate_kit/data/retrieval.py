"""Read queries, documents and answers from BEIR folders or files of pairs."""

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from truncate_kit.core.errors import DataError, UsageError, known_name
from truncate_kit.core.results import SEARCH_METRICS, SearchMetric, digest_of_values
from truncate_kit.data.pairs import short_name, split_tables
from truncate_kit.data.tables import (
    LABEL,
    PAIR,
    SCORE,
    TRUTH,
    Table,
    check_columns,
    find_columns,
    find_negatives,
    format_of,
    is_retrieval_folder,
    jsonl_in,
    opened_text,
    read_table,
    read_texts,
)

_logger = logging.getLogger(__name__)
FEWEST_QUERIES = 10
"""Minimum number of queries for selection, and for reporting."""
_LAYOUT = "A retrieval folder holds corpus.jsonl, queries.jsonl and qrels/test.tsv."
_LABELS = f"Write 1 if the second text answers the first, else 0; or remove the column. {_LAYOUT}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalSet:
    """Queries, documents to search, and the answers to each query.

    Attributes:
        documents: Title and text of each document, joined by a space.
        relevance: Grades > 0 of each query's answers, by index in `documents`; never empty.
        other_queries: Queries of other splits, not train.
    """

    name: str
    document_ids: tuple[str, ...]
    documents: tuple[str, ...]
    query_ids: tuple[str, ...]
    queries: tuple[str, ...]
    relevance: tuple[Mapping[int, float], ...]
    metric: SearchMetric = "ndcg"
    other_queries: tuple[str, ...] = field(default=(), compare=False)

    @property
    def held_out(self) -> set[str]:
        """Return all texts to exclude from training."""
        return {*self.asked, *self.documents}

    @property
    def asked(self) -> set[str]:
        """Return the queries of all splits except train."""
        return {*self.queries, *self.other_queries}

    def fingerprint(self) -> str:
        """Return the SHA-256 of texts, ids, grades and metric."""
        parts = (self.query_ids, self.queries, self.document_ids, self.documents)
        grades = [sorted(grades.items()) for grades in self.relevance]
        return digest_of_values({"parts": parts, "grades": grades, "metric": self.metric})

    @property
    def own_documents(self) -> tuple[int | None, ...]:
        """Return the index of each query's own document, which has its id, ends in it, and is no answer."""
        place = {name: index for index, name in enumerate(self.document_ids)}
        own = (place.get(name) for name in self.query_ids)
        return tuple(
            index if index is not None and self.documents[index].endswith(query) and index not in grades else None
            for index, query, grades in zip(own, self.queries, self.relevance, strict=True)
        )


def with_queries(data: RetrievalSet, places: Sequence[int], words: str = "(held out)") -> RetrievalSet:
    """Keep the queries at these indices, and append `words` to the name."""
    return replace(
        data,
        name=f"{data.name} {words}",
        query_ids=tuple(data.query_ids[place] for place in places),
        queries=tuple(data.queries[place] for place in places),
        relevance=tuple(data.relevance[place] for place in places),
    )


def read_retrieval(
    path: str | Path,
    *,
    corpus: str | Path | None = None,
    split: str | None = None,
    metric: str = "ndcg",
    chooses: bool = False,
) -> RetrievalSet:
    """Read a folder in BEIR's layout, or a file of queries and answers.

    A folder holds corpus.jsonl (`_id`, `title`, `text`), queries.jsonl (`_id`, `text`), both also .gz or .xz,
    and qrels/SPLIT.tsv (query id, document id, grade; header optional). Grades above 0 mark answers; queries without
    answers are dropped. Documents may be empty.

    A row of a file is a query and its answers, one or a list; hard negatives and rows with the label 0 only add
    documents. A column `split` marks the splits (`split_tables`).

    corpus: For a file: more texts to search, read by `read_texts`.
    split: For a folder: name of a file in qrels; by default test, else dev, else the only file.
    metric: Selection metric: ndcg, mrr or recall.
    chooses: Prefer dev to test, for selection, if dev has at least 2 × `FEWEST_QUERIES` queries (rows of a file).

    Raises:
        UsageError: The metric is unknown, a folder gets `corpus`, or a file `split`.
    """
    path, chooses_by = Path(path), known_name("search metric", metric, SEARCH_METRICS)
    if is_retrieval_folder(path):
        if corpus is not None:
            raise UsageError(f"{path} has its own corpus.", hint="Leave out `corpus`.")
        return replace(_read_folder(path, split, chooses=chooses), metric=chooses_by)
    if split is not None:
        raise UsageError(f"{path} has no qrels folder, so no splits.", hint=f"Leave out `split`. {_LAYOUT}")
    if path.is_dir():
        raise DataError(f"{path} is not a retrieval folder.", hint=f"{_LAYOUT} Or give a file of queries and answers.")
    return replace(_read_file(path, corpus, chooses=chooses), metric=chooses_by)


def _read_folder(folder: Path, split: str | None, *, chooses: bool) -> RetrievalSet:
    documents, queries = _texts_by_id(folder, "corpus"), _texts_by_id(folder, "queries")
    files = find_qrels(folder)
    usual = [name for name in (("dev", "test") if chooses else ("test", "dev")) if name in files]
    chosen = split or next(iter(usual or (files if len(files) == 1 else ())), "test.tsv or dev")
    if chosen not in files:
        hint = f"Set `split` to one of: {', '.join(files)}." if files else _LAYOUT
        raise DataError(f"{folder / 'qrels'} holds no {chosen}.tsv.", hint=hint)
    judged = _judged(files[chosen], documents, queries)
    if chooses and "test" in files and len({queries[name] for name in judged}) < 2 * FEWEST_QUERIES:
        chosen, judged = "test", _judged(files["test"], documents, queries)
    if not judged:
        problem = f"{files[chosen]} holds no answers: all grades are 0 or less, or name unknown queries and documents."
        raise DataError(problem, hint="Write grades above 0 for documents that answer a query.")
    others = [file for name, file in files.items() if name not in (chosen, "train")] if chooses else []
    asked = dict.fromkeys(query for file in others for query, _, _ in _judgements(file, queries) if query in queries)
    return RetrievalSet(
        name=f"{short_name(folder)}/{chosen}",
        document_ids=tuple(documents),
        documents=tuple(documents.values()),
        query_ids=tuple(judged),
        queries=tuple(queries[name] for name in judged),
        relevance=tuple(judged.values()),
        other_queries=tuple(queries[name] for name in asked),
    )


def _texts_by_id(folder: Path, name: str) -> dict[str, str]:
    path = jsonl_in(folder, name)
    if path is None:
        raise DataError(f"{folder} holds no {name}.jsonl.", hint=_LAYOUT)
    table, is_corpus = read_table(path), name == "corpus"
    check_columns(table, ("_id", "text"))
    texts = map(" ".join, table.lists("text", may_be_empty=True))
    titles = table.values("title") if is_corpus else [None] * len(table)
    by_id: dict[str, str] = {}
    for row, (value, title, text) in enumerate(zip(table.values("_id"), titles, texts, strict=True)):
        key = "" if value is None else str(value).strip()  # an id may be a number
        whole = f"{str(title or '').strip()} {text}".strip()
        if not key or by_id.get(key, whole) != whole:
            raise table.problem(row, f"the id {key!r} is empty or repeated.", hint="Give each text its own id.")
        if whole or is_corpus:  # an empty query finds nothing
            by_id[key] = whole
    return by_id


def find_qrels(folder: Path) -> dict[str, Path]:
    """Return the files in qrels by split name."""
    files = sorted(path for path in (folder / "qrels").glob("*") if format_of(path) == ".tsv")
    return {path.name.lower().partition(".tsv")[0]: path for path in files}


def _judged(path: Path, documents: Mapping[str, str], queries: Mapping[str, str]) -> dict[str, dict[int, float]]:
    """Return grades > 0 by query id and document index. Warns of unknown ids, which are left out."""
    place = {name: index for index, name in enumerate(documents)}
    judged, unknown = dict[str, dict[int, float]](), 0
    for query, document, grade in _judgements(path, queries):
        if query in queries and document in documents:
            judged.setdefault(query, {})[place[document]] = grade
        else:
            unknown += 1
    if unknown:
        _logger.warning("%s: %d judgements name an unknown query or document and are left out.", path, unknown)
    answers = {query: {spot: grade for spot, grade in grades.items() if grade > 0} for query, grades in judged.items()}
    return {query: grades for query, grades in answers.items() if grades}


def _judgements(path: Path, queries: Mapping[str, str]) -> Iterator[tuple[str, str, float]]:
    with opened_text(path) as lines:
        for number, line in enumerate(lines, start=1):
            fields = [field.strip() for field in line.split("\t")]
            try:
                query, document, grade = fields
                if not math.isfinite(float(grade)):
                    raise ValueError
            except ValueError:
                if fields == [""] or (number == 1 and len(fields) == 3 and fields[0] not in queries):
                    continue  # blank line or header
                hint = "Write query id, document id and grade with tabs between them."
                raise DataError(
                    f"{path}, line {number}: {line.strip()[:80]!r} is not a judgement.", hint=hint
                ) from None
            yield query, document, float(grade)


def _read_file(file: Path, corpus: str | Path | None, *, chooses: bool) -> RetrievalSet:
    tables = split_tables(file)
    enough = len(tables.get("dev", ())) >= 2 * FEWEST_QUERIES
    order = ("dev", "test", "train") if chooses and enough else ("test", "dev", "train")
    table = tables.pop(next(split for split in order if split in tables))
    tables.pop("train", None)
    first, second = find_columns(table, PAIR, "Call the columns query and relevant.")
    asked, answers = table.texts(first), table.lists(second)
    others = (table.lists(column, may_be_empty=True) for column in find_negatives(table))
    texts = dict.fromkeys(chain(*answers, chain.from_iterable(chain(*others)), read_texts(corpus) if corpus else ()))
    place = {text: index for index, text in enumerate(texts)}
    relevant: dict[str, dict[int, float]] = {}
    for query, own, answered in zip(asked, answers, _answered(table), strict=True):
        if found := {place[text]: 1.0 for text in own if answered and text != query}:
            relevant.setdefault(query, {}).update(found)
    if not relevant:
        raise DataError(f"{file} holds no row with an answer.", hint="Give rows of a query and a text that answers it.")
    ids, queries = tuple(place), tuple(relevant)
    return RetrievalSet(
        name=short_name(file),
        document_ids=ids,
        documents=ids,
        query_ids=queries,
        queries=queries,
        relevance=tuple(relevant.values()),
        other_queries=tuple(chain(*(other.texts(first) for other in tables.values()))) if chooses else (),
    )


def _answered(table: Table) -> list[bool]:
    label, score = find_columns(table, LABEL), find_columns(table, SCORE)
    if score and not label:
        problem = f"column {score[0]!r} grades the pairs, so not every row is a positive pair."
        raise table.unfit(problem, _LABELS)
    labels = [one.lower() for one in table.labels(*label, may_be_empty=True)] if label else []
    if not any(labels):
        return [True] * len(table)
    if not {*labels} <= {"0", "1", *TRUTH}:
        raise table.unfit(f"column {label[0]!r} does not mark which rows are positive.", _LABELS)
    return [bool(TRUTH.get(one, one == "1")) for one in labels]
