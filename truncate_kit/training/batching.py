"""Which examples make up a batch: a random order, those of like length together."""

from collections.abc import Sequence

BUCKET_BATCHES = 24
"""Batches that are sorted by length together: little padding, still a fresh mix every epoch."""


def bucketed(
    order: Sequence[int], lengths: Sequence[int], batch_size: int, together: int | None = BUCKET_BATCHES
) -> list[list[int]]:
    """Cut a random order into batches, of like length within each stretch of `together` of them; None: as they come."""
    if together is None:
        return [list(order[start : start + batch_size]) for start in range(0, len(order), batch_size)]
    batches = []
    stretch = batch_size * together
    for start in range(0, len(order), stretch):
        part = list(order[start : start + stretch])
        places = sorted(part, key=lambda place: lengths[place])
        cut = [places[at : at + batch_size] for at in range(0, len(places), batch_size)]
        # A random order of the batches, drawn from the random order of the examples: no second generator to store.
        first_seen = {place: seen for seen, place in enumerate(part)}
        batches += sorted(cut, key=lambda batch: first_seen[batch[0]])
    return batches
