"""Texts that a caller gives: several of them, each a str."""

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike

from truncate_kit.errors import UsageError


def check_several(texts: object, *, ordered: bool = True) -> None:
    """Raise `UsageError` where several texts are to be read and this is no list of them.

    One text or a path would be read letter by letter, a data frame or a mapping by its names. What is iterated is left
    as it is, so that an iterator can be read once after it.

    Args:
        texts: What has to be a list of texts.
        ordered: A set has no order.
    """
    single = not isinstance(texts, Iterable) or isinstance(texts, str | bytes | PathLike)
    named = isinstance(texts, Mapping) or getattr(texts, "ndim", 1) != 1
    if single or named or (ordered and isinstance(texts, set | frozenset)):
        raise UsageError(
            f"Several texts are needed, not one {type(texts).__name__}.",
            hint="Give a list of texts; read_texts(path) makes one of a file.",
        )


def check_text(text: object, place: str) -> None:
    """Raise `UsageError` where this is no str, or one that holds half a character.

    Args:
        text: What has to be a str.
        place: Such as "Text 3".
    """
    if not isinstance(text, str):
        raise UsageError(
            f"{place} is of the type {type(text).__name__}, not str.",
            hint="Give each text as a str; leave out what is missing.",
        )
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{place} holds half a character (\\u{ord(text[error.start]):x}).",
            hint="Write the character itself, or both halves of its surrogate pair.",
        ) from None


def check_texts(texts: Sequence[object]) -> None:
    """Raise `UsageError` where these are not several texts, and as `check_text` does for each of them."""
    check_several(texts)
    for number, text in enumerate(texts, start=1):
        check_text(text, f"Text {number:,} of {len(texts):,}")


def listed_texts(texts: Iterable[str]) -> list[str]:
    """The texts as a list; raises as `check_texts` does."""
    check_several(texts)
    found = list(texts)
    check_texts(found)
    return found
