"""Batches that the memory does not hold: they are computed in halves, and it is said."""

import contextlib
import ctypes
import functools
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

_logger = logging.getLogger(__name__)
Item = TypeVar("Item")
Found = TypeVar("Found")

# How the allocators of torch, of ONNX Runtime and of C++ say it where they raise plain errors.
_WORDS = (
    "DefaultCPUAllocator",
    "Failed to allocate memory",
    "CUDA error: out of memory",
    "failure 2: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "bad_alloc",
    "could not create a memory",
)
_ONEDNN = "could not create a primitive"  # all that oneDNN says; of another lack it says more


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out; torch is asked only where it was loaded."""
    # A broken torch, whose error this may be, need not have the class.
    of_torch = getattr(sys.modules.get("torch"), "OutOfMemoryError", MemoryError)
    if isinstance(error, (MemoryError, of_torch)):
        return True
    said = str(error) if isinstance(error, RuntimeError) else ""
    return said == _ONEDNN or any(word in said for word in _WORDS)


def in_halves(compute: Callable[[Sequence[Item]], Found], batch: Sequence[Item]) -> Iterator[Found]:
    """What `compute` makes of a batch: of all of it, or of its halves in turn, as far down as memory asks for.

    Numbers are those of the whole batch but for rounding, if they do not depend on what else is in a batch. What a
    single item does not fit into is raised as it is.
    """
    waiting = [batch]
    while waiting:
        part = waiting.pop()
        found = _unless_full(compute, part)
        if found is not None:
            yield found[0]
            continue
        half = (len(part) + 1) // 2
        give_back()
        say_halved(len(part), half)
        waiting += [part[half:], part[:half]]


def _unless_full(compute: Callable[[Sequence[Item]], Found], part: Sequence[Item]) -> tuple[Found] | None:
    """The result, None where there is no memory for it; what the attempt held is free when this returns."""
    try:
        return (compute(part),)
    except Exception as error:
        if len(part) < 2 or not is_out_of_memory(error):
            raise
    return None


def give_back() -> None:
    """Hand freed memory back to the system: in pieces that the C library keeps, a smaller batch may not fit either."""
    with contextlib.suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


@functools.cache
def say_halved(size: int, half: int) -> None:
    """Say once for each size that batches of it do not fit."""
    _logger.warning("There is not enough memory for a batch of %d: it is computed in parts of %d.", size, half)
