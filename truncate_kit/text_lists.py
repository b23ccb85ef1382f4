"""Texts that a caller gives: several of them, each a str."""

from collections.abc import Iterable, Mapping
from os import PathLike

from truncate_kit.errors import UsageError


def check_several(texts: object) -> None:
    """Raise `UsageError` if this is no list of texts: one text would be read letter by letter, a mapping by its names.

    An iterator is not read.
    """
    single = not isinstance(texts, Iterable) or isinstance(texts, str | bytes | PathLike | Mapping)
    if single or getattr(texts, "ndim", 1) != 1:
        raise UsageError(
            f"Several texts are needed, not one {type(texts).__name__}.",
            hint="Give a list of texts; read_texts(path) makes one of a file.",
        )


def check_text(text: object, place: str) -> None:
    """Raise `UsageError` naming the place, such as "Text 3", if this is no str."""
    if not isinstance(text, str):
        raise UsageError(
            f"{place} is of the type {type(text).__name__}, not str.",
            hint="Give each text as a str; leave out what is missing.",
        )


def listed_texts(texts: Iterable[str]) -> list[str]:
    """Return the texts as a list. Raises `UsageError` if this is no list of them, or one is no str."""
    check_several(texts)
    found = list(texts)
    for number, text in enumerate(found, start=1):
        check_text(text, f"Text {number:,} of {len(found):,}")
    return found
