"""Which columns hold the two texts and the score: given by name, or found by the names that known sets use."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from truncate_kit.data.files import format_of
from truncate_kit.errors import ColumnsError
from truncate_kit.wording import counted

# Names are compared in lower case without spaces, hyphens and underscores: sentence_A is sentencea.
_TEXT_PAIRS = (
    ("sentence1", "sentence2"),
    ("sentencea", "sentenceb"),
    ("text1", "text2"),
    ("texta", "textb"),
    ("first", "second"),
    ("anchor", "positive"),
    ("sent0", "sent1"),
    ("premise", "hypothesis"),
    ("word1", "word2"),
    ("question1", "question2"),
    ("query", "relevant"),
    ("query", "positive"),
    ("query", "passage"),
    ("query", "document"),
    ("question", "answer"),
)
_SCORES = ("score", "similarity", "similarityscore", "relatedness", "relatednessscore", "gold", "goldscore", "target")
_TRIPLETS = (
    ("anchor", "positive", "negative"),
    ("query", "positive", "negative"),
    ("sent0", "sent1", "hardneg"),
    ("sentence1", "sentence2", "negative"),
)
_LABEL = "label"  # a class in some sets, a score in others: taken only where no column is called a score
_CLASSES = (
    _LABEL,
    "class",
    "goldlabel",
    "relation",
    "entailment",
    "entailmentlabel",
    "entailmentjudgment",
    "isduplicate",
)
_TEXTS = ("text", "sentence", "texts", "sentences")

_NUMBER = re.compile(r"\s*[-+]?\d+([.,]\d+)?\s*")
_SENTENCE = re.compile(r"\s\S.*[.?!]\s*$")
_MOST_WORDS = 4  # of the name of a column
# A header for files without one, by their number of columns and whether the last one holds numbers.
_HEADERS = {
    (1, False): "text",
    (2, False): "sentence1,sentence2",
    (2, True): "text,label",
    (3, False): "anchor,positive,negative",
    (3, True): "sentence1,sentence2,score",
}

Choice = TypeVar("Choice")

_HINT = 'Name them: `columns=("first", "second", "score")`.'
_ONE_HINT = "Rename or remove all of them but one."


def find_columns(
    source: str, columns: Sequence[str], given: Sequence[str] | None = None, *, classes: bool = False
) -> tuple[str, str, str]:
    """The names of both texts and the score (or class) among `columns`; None finds them. Raises `ColumnsError`."""
    if given is not None:
        if isinstance(given, str) or not isinstance(given, Sequence):
            raise ColumnsError(source, f"{given!r} is no list of columns.", columns, hint=_HINT)
        if len(given) != 3:
            raise ColumnsError(
                source, f"{counted(len(given), 'column')} named where three are needed.", columns, hint=_HINT
            )
        check_columns(source, columns, given)
        if len(set(given)) < 3:
            raise ColumnsError(source, "one column was named twice.", columns, hint=_HINT)
        return (given[0], given[1], given[2])
    first, second = find_text_columns(source, columns)
    names = _by_plain_name(columns)
    if classes:
        return (first, second, _only_one(source, columns, _called(names, _CLASSES), "the class"))
    scores = _called(names, _SCORES) or names.get(_LABEL, [])
    third = next(iter(_called(names, _CLASSES)), None)  # 0 and 1 may be meant as scores
    hint = f'Name them: `columns=("{first}", "{second}", "{third}")`.' if third and len(columns) > 3 else _HINT
    return (first, second, _only_one(source, columns, scores, "the score", hint))


def find_text_columns(source: str, columns: Sequence[str], *, hint: str = _HINT) -> tuple[str, str]:
    """The names of first and second text among `columns`, scores or not. Raises `ColumnsError` with `hint`."""
    names = _by_plain_name(columns)
    found = [(a, b) for left, right in _TEXT_PAIRS for a in names.get(left, ()) for b in names.get(right, ())]
    return _only_one(source, columns, found, "the two texts", hint)


def find_triplet_columns(columns: Sequence[str]) -> tuple[str, str, str] | None:
    """The names of anchor, positive and negative among `columns`; None where no three are called that."""
    names = _by_plain_name(columns)
    for anchor, positive, negative in _TRIPLETS:
        if {anchor, positive, negative} <= names.keys():
            return names[anchor][0], names[positive][0], names[negative][0]
    return None


def find_score_column(columns: Sequence[str]) -> str | None:
    """The name of a column that is called a score, or None."""
    return next(iter(_called(_by_plain_name(columns), _SCORES)), None)


def find_text_column(
    source: str, columns: Sequence[str], given: str | None = None, *, hint: str = _ONE_HINT
) -> str | None:
    """The name of the one column of raw text, or None where no column is called that.

    Raises `ColumnsError`, with `hint` where more than one is.
    """
    if given is not None:
        check_columns(source, columns, [given])
        return given
    found = _called(_by_plain_name(columns), _TEXTS)
    return _only_one(source, columns, found, "the text", hint) if found else None


def find_label_column(source: str, columns: Sequence[str]) -> str | None:
    """The name of the column of class labels, or None where no column is called that. Raises `ColumnsError`."""
    found = _called(_by_plain_name(columns), _CLASSES)
    return _only_one(source, columns, found, "the label", _ONE_HINT) if found else None


def check_columns(source: str, columns: Iterable[str], wanted: Iterable[str]) -> None:
    """Raise `ColumnsError` for the first of the wanted names that is not among `columns`."""
    for name in wanted:
        if name not in columns:
            hint = misread_header(source, tuple(columns)) or "Use the names as written there."
            raise ColumnsError(source, f"there is no column {name!r}.", columns, hint=hint)


def _called(names: Mapping[str, Sequence[str]], plain_names: Iterable[str]) -> list[str]:
    """The columns with one of these plain names, in the order of these."""
    return [name for plain in plain_names for name in names.get(plain, ())]


def _by_plain_name(columns: Iterable[str]) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for column in columns:
        names.setdefault(re.sub(r"[\s_-]", "", column.lower()), []).append(column)
    return names


def _only_one(source: str, columns: Sequence[str], found: Sequence[Choice], what: str, hint: str = _HINT) -> Choice:
    if len(found) == 1:
        return found[0]
    if found:
        raise ColumnsError(source, f"more than one choice for {what}.", columns, hint=hint)
    plain = all(re.fullmatch(r"[\w .-]+", name) for name in columns)  # no sign with a meaning in a list or a shell
    if hint == _HINT and len(columns) == 3 and plain:
        hint = f"If they stand in this order, name them: `columns={tuple(columns)}`.".replace("'", '"')
    hint = misread_header(source, columns) or hint
    raise ColumnsError(source, f"no column name says where {what} can be found.", columns, hint=hint)


def misread_header(source: str, header: Sequence[str]) -> str | None:
    """A hint where the first line of a file names no columns: it is separated otherwise, or has no header; else None.

    A row that is taken for a header would be lost once its cells were named as columns.
    """
    hint, kind = other_separator(source, header), format_of(Path(source))
    if hint is not None or kind not in (".csv", ".tsv") or not _is_row(header):
        return hint
    names = _HEADERS.get((len(header), _NUMBER.fullmatch(header[-1]) is not None))
    between = ", with tabs between them" if kind == ".tsv" and len(header) > 1 else ""
    example = f", such as {names}{between}" if names else ""
    return f"The file seems to have no header: add a first line that names its columns{example}."


def other_separator(source: str, header: Sequence[str]) -> str | None:
    """A hint where names of a header hold what may separate them; None where they do not."""
    if any("\t" in name for name in header):
        return "The file seems to be separated by tabs: let its name end in .tsv."
    if any(re.search(r";\S", name) for name in header):  # what a space follows is a mark in a sentence
        return "The file seems to be separated by semicolons: save it with commas."
    if len(header) == 1 and format_of(Path(source)) == ".tsv" and re.search(r",\S", header[0]):
        return "The file seems to be separated by commas: let its name end in .csv."
    return None


def _is_row(header: Sequence[str]) -> bool:
    """Whether a name is a sentence or a number, as none is called; places of columns (0, 1, 2) are names."""
    if [name.strip() for name in header] == [str(place) for place in range(len(header))]:
        return False
    return any(_NUMBER.fullmatch(name) or len(name.split()) > _MOST_WORDS or _SENTENCE.search(name) for name in header)
