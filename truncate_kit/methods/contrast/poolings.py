"""The poolings that contrastive training compares, by the names of Table 2 of the layer-wise attention pooling paper.

Importing this imports no torch: settings, model cards and the command line's help read the rows.
"""

from dataclasses import dataclass
from typing import Literal, get_args

ContrastivePooling = Literal["layer-attention", "cls", "mean", "first-last", "concat", "mean-first-last"]
Over = Literal["both", "cls", "mean"]
POOLINGS: tuple[str, ...] = get_args(ContrastivePooling)
MEANS = ("mean", "first-last", "mean-first-last")
"""Those that read means of tokens alone, and no CLS state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedPooling:
    """A row of Table 2: a pooling, and for attention over layers whose states attend and what stands before them."""

    name: str
    paper: str  # as the paper writes it
    pooling: ContrastivePooling
    over: Over = "both"
    last_cls: bool = True
    words: str = ""  # of a fixed pooling in a model card


TABLE_2: dict[str, NamedPooling] = {
    row.name: row
    for row in (
        NamedPooling(name="cls", paper="CLS_last", pooling="cls", words="CLS"),
        NamedPooling(name="mean", paper="AVG_last", pooling="mean", words="mean"),
        NamedPooling(
            name="first-last",
            paper="AVG_first-last",
            pooling="first-last",
            words="mean over embeddings and last layer",
        ),
        NamedPooling(
            name="mean-first-last",
            paper="AVG_last + AVG_first-last",
            pooling="mean-first-last",
            words="mean of the last layer and mean over embeddings and last layer",
        ),
        NamedPooling(
            name="concat", paper="CLS_last + AVG_last", pooling="concat", words="CLS and mean of the last layer"
        ),
        NamedPooling(
            name="cls-attention",
            paper="CLS_all attention",
            pooling="layer-attention",
            over="cls",
            last_cls=False,
        ),
        NamedPooling(
            name="mean-attention",
            paper="AVG_all attention",
            pooling="layer-attention",
            over="mean",
            last_cls=False,
        ),
        NamedPooling(
            name="attention",
            paper="CLS_all + AVG_all attention",
            pooling="layer-attention",
            last_cls=False,
        ),
        NamedPooling(
            name="layer-attention",
            paper="CLS_all + AVG_all attention, CLS_last",
            pooling="layer-attention",
        ),
    )
}
"""By name. `over` and `last_cls` of the settings can also be combined in ways that the paper does not have."""
