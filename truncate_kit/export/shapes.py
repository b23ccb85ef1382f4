"""Batches of few shapes: how many texts run together, and to how many tokens they are filled up."""

from collections.abc import Iterator, Sequence


def token_batches(lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Places of the texts, longest first, in batches of at most `tokens` tokens, padding included, or one text."""
    order = sorted(range(len(lengths)), key=lambda place: -lengths[place])
    start = 0
    while start < len(order):
        size = max(1, tokens // max(1, lengths[order[start]]))
        yield order[start : start + size]
        start += size


def bucket(batch: int, length: int, longest: int | None = None) -> tuple[int, int]:
    """The shape that a batch of this number of texts is brought to: the next power of two of both, at least 8 tokens.

    Args:
        batch: Number of texts.
        length: Of the texts, in tokens.
        longest: Most tokens that the graph takes, None where it is not known; one that takes 512 has seven lengths.
    """
    width = max(8, 1 << (length - 1).bit_length())
    return 1 << (batch - 1).bit_length(), width if longest is None else max(length, min(width, longest))


def stepped(length: int, longest: int | None) -> int:
    """The length, at most an eighth above it, that texts of `length` tokens are filled up to: 56 lengths up to 512.

    Args:
        length: Of the texts, in tokens.
        longest: Most tokens that the graph takes; None where it is not known, and then the length stays as it is.
    """
    if longest is None:
        return length
    step = 1 << max(0, length.bit_length() - 4)
    return max(length, min(-(-length // step) * step, longest))


def filled(batch: int, most: int) -> int:
    """The number of texts that a batch is filled up to: the next power of two, but no more than a whole batch has."""
    return max(batch, min(1 << (batch - 1).bit_length(), most))
