"""Which documents answer which queries: the files of a retrieval folder's qrels."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from truncate_kit.data.cells import number_in
from truncate_kit.data.files import format_of, opened_text, stem_of
from truncate_kit.errors import DataError, RowError

LAYOUT = "A retrieval folder holds corpus.jsonl, queries.jsonl and qrels/test.tsv."
USUAL_SPLITS = ("test", "dev")
_MOST_GRADE = 1_000_000
_HINT = "Write query id, document id and grade with tabs between them."
_IDS = "Add a {what} with this id to {file}.jsonl, or leave out the line."
ONE_GRADE = "Keep one of these lines, or give both the same grade."


def qrels_of(folder: Path, split: str | None, usual: Sequence[str]) -> Path:
    """The file of judgements of a split, None for the first of the usual ones that is there, else the only one."""
    files = [path for path in sorted((folder / "qrels").glob("*")) if format_of(path) == ".tsv"]
    found = {stem_of(path): path for path in files}
    if not found:
        raise DataError(f"{folder / 'qrels'} holds no .tsv file of judgements.", hint=LAYOUT)
    chosen = split or next((name for name in usual if name in found), None)
    if chosen is None and len(found) == 1:
        chosen = next(iter(found))
    same = [path.name for path in files if stem_of(path) == chosen]
    if len(same) > 1:
        raise DataError(f"{folder / 'qrels'} holds {' and '.join(same)}.", hint="Keep one of them in this folder.")
    if chosen not in found:
        wanted = split or " or ".join(USUAL_SPLITS)
        raise DataError(f"{folder / 'qrels'} holds no {wanted}.tsv.", hint=f"Use a `split` of {', '.join(found)}.")
    return found[chosen]


def has_qrels(folder: Path, split: str) -> bool:
    """Whether a folder has judgements of this split."""
    return any(format_of(path) == ".tsv" and stem_of(path) == split for path in (folder / "qrels").glob("*"))


def judged_in(path: Path, documents: Mapping[str, str], queries: Mapping[str, str]) -> dict[str, dict[int, float]]:
    """For each query with an answer the grades above 0 by the places of their documents."""
    place = {name: index for index, name in enumerate(documents)}
    found: dict[str, dict[int, float]] = {}
    for number, query, document, grade in _judgements(path, queries):
        if query not in queries or document not in place:
            what, name = ("document", document) if query in queries else ("query", query)
            hint = _IDS.format(what=what, file="corpus" if what == "document" else "queries")
            raise _bad_line(path, number, f"there is no {what} with the id {name!r}.", hint)
        if found.setdefault(query, {}).setdefault(place[document], grade) != grade:
            raise _bad_line(path, number, two_grades(query, document), ONE_GRADE)
    answers = {query: {spot: grade for spot, grade in grades.items() if grade > 0} for query, grades in found.items()}
    return {query: grades for query, grades in answers.items() if grades}


def asked_elsewhere(folder: Path, qrels: Path, queries: Mapping[str, str]) -> tuple[str, ...]:
    """Ids of the queries of all splits but this one and train; those of which there are no texts are left out."""
    found: dict[str, None] = {}
    for path in sorted((folder / "qrels").glob("*")):
        if path != qrels and format_of(path) == ".tsv" and stem_of(path) != "train":
            found |= dict.fromkeys(query for _, query, _, _ in _judgements(path, queries) if query in queries)
    return tuple(found)


def _judgements(path: Path, queries: Mapping[str, str]) -> Iterator[tuple[int, str, str, float]]:
    """Number of the line, query id, document id and grade. Raises `RowError`."""
    with opened_text(path, newline="\n") as lines:
        for number, line in enumerate(lines, start=1):
            fields = [field.strip() for field in line.split("\t")]
            if fields == [""]:
                continue
            if len(fields) != 3:
                raise _bad_line(path, number, f"{len(fields)} fields where three are needed.")
            query, document, written = fields
            grade = _grade(written)
            if grade is None and number == 1 and query not in queries:
                continue  # the names of the columns
            if grade is None:
                raise _bad_line(path, number, f"the grade {written[:40]!r} is not a number up to a million.")
            yield number, query, document, grade


def _grade(written: str) -> float | None:
    try:
        grade = number_in(written)
    except ValueError:
        return None
    return grade if abs(grade) <= _MOST_GRADE else None  # False for NaN; larger ones add up to infinity


def two_grades(query: str, document: str) -> str:
    """What is wrong with a line or row that grades what an earlier one grades otherwise; long texts are cut short."""
    return f"query {query[:40]!r} and document {document[:40]!r} have two grades."


def _bad_line(path: Path, number: int, problem: str, hint: str = _HINT) -> RowError:
    return RowError(str(path), f"line {number}", problem, hint=hint)
