"""Which layer's vectors are learned, where none is named: the last before a predicted drop."""

from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from truncate_kit.analysis.drop import DropPrediction
from truncate_kit.analysis.predicting import ANALYSED_TEXTS, predicted_drop
from truncate_kit.errors import TruncateKitError
from truncate_kit.methods.distill.budget import check_budget
from truncate_kit.methods.distill.settings import LOWEST_TAUGHT, Budget
from truncate_kit.models import Encoder


class Aim(NamedTuple):
    """What is to be learned.

    Attributes:
        layer: For `DistillSettings`; None is the last one.
        drop: Why, where a drop is predicted. With no layer beside it, the blocks of the budget reach into the drop: the
            vectors of the model's end are no good aim.
    """

    layer: int | None = None
    drop: DropPrediction | None = None


def find_aim(
    encoder: Encoder,
    texts: Iterable[str],
    budget: Budget | None = None,
    *,
    max_length: int | None = None,
) -> Aim:
    """The layer before a predicted drop, or the first one that has the blocks which the budget names.

    Args:
        encoder: The full model.
        texts: Raw texts as for `distill`; the first `ANALYSED_TEXTS` are read.
        budget: As for `distill`.
        max_length: Of the reference's texts, in tokens.

    Raises:
        UsageError, ModelError, LayerOutOfRangeError: As `check_budget`, before anything is looked at. A model or texts
            that cannot be analysed predict nothing: what follows refuses them, or learns all the same.
    """
    budget = budget or Budget()
    check_budget(budget, encoder)  # looking for a drop takes a minute
    drop = None
    with suppress(TruncateKitError):
        drop = predicted_drop(encoder, list(islice(texts, ANALYSED_TEXTS)), max_length=max_length)
    if drop is None or not drop.falls or not drop.from_layer:
        return Aim()
    layer = max(drop.from_layer - 1, LOWEST_TAUGHT, *(budget.named_blocks or [int(budget.blocks or 0)]))
    return Aim(layer if layer < encoder.depth else None, drop)
