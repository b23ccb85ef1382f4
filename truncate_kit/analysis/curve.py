"""A curve over layers, as results hold it. Importing this imports no torch."""

from dataclasses import dataclass

from truncate_kit.results import Result

Row = tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve(Result):
    """CKA of each layer of the model with one layer of the reference; index 0 = embeddings, None = not defined."""

    values: Row
    reference_layers: tuple[int, ...]  # the reference layer that each value belongs to
    low: Row | None = None  # lower bounds of the interval, None without one
    high: Row | None = None
