"""What has to fit before anything is measured, and the state of torch while it is."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import cast

import torch

from truncate_kit.errors import UsageError
from truncate_kit.models import Encoder

LENGTHS = (16, 128)


def fitting_lengths(encoders: Sequence[Encoder], wanted: Sequence[int] | None) -> tuple[int, ...]:
    """The wanted lengths, or the usual ones cut to what both models take. Raises `UsageError` where one is too long."""
    limit = min(encoder.max_length for encoder in encoders)
    if not wanted:
        return tuple(sorted({min(length, limit) for length in LENGTHS}))
    if max(wanted) > limit:
        raise UsageError(
            f"A length of {max(wanted)} tokens does not fit: these models take up to {limit}.",
            hint=f"Use `lengths` up to {limit}.",
        )
    return tuple(sorted(set(wanted)))


def roomy_compiler() -> contextlib.AbstractContextManager[None]:
    """Room for the graphs of all contestants: they share one forward, and torch.compile gives up after eight of one."""
    from torch._dynamo import config

    return cast("contextlib.AbstractContextManager[None]", config.patch(recompile_limit=64))


@contextlib.contextmanager
def torch_threads(threads: int | None) -> Iterator[int]:
    """Let torch use a number of threads inside the block, None for its own choice; yields how many it uses."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        yield threads or before
    finally:
        torch.set_num_threads(before)
