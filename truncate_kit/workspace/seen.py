"""Which pairs a model of a workspace has seen, for scores with and without them."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from truncate_kit.data import SeenPairs
from truncate_kit.data.learned import KnownPairs, pair_keys, read_learned
from truncate_kit.wording import counted
from truncate_kit.workspace.places import Workspace
from truncate_kit.workspace.records import is_known, is_model, noted_by, records_of, seen_by

if TYPE_CHECKING:
    from truncate_kit.data import PairSet


def seen_among(workspace: Workspace, pairs: "PairSet", model: str | Path) -> str | None:
    """A sentence that says how many of some pairs a model learned from or was chosen by; None where none are known.

    Of a model that lies neither in `workspace` nor in another one nothing is known.
    """
    if not is_known(model) and not workspace.holds(model):
        return None
    here, records, own = pair_keys(pairs), records_of(workspace, model), seen_by(model)
    by_results = np.isin(here, noted_by(records))
    known = by_results if own is None else by_results | np.isin(here, own)
    if not known.any():
        return None
    chosen = bool((known == by_results).all()) and not any(record.learned for record in records)
    how = "chosen by" if chosen else "trained on or chosen by"
    part = f"{int(known.sum()):,} of these {counted(len(here), 'pair')}"
    return f"{model} was {how} {part}: a score on them says little of others."


def seen_pairs(workspace: Workspace, model: str | Path | None = None) -> SeenPairs | None:
    """The pairs that models learned from or were chosen by, and what stands in one row of a contrastive training.

    Args:
        workspace: As in `records_of`.
        model: As in `records_of`.

    Returns:
        None where nothing is noted, or not for every result nor in the model's folder.
    """
    own, records = seen_by(model), records_of(workspace, model)
    noted = [own, *(record.keys() for record in records)]
    combination = workspace.combinations() if is_model(model, workspace.combined) else None
    if combination is not None:
        noted.append(read_learned(workspace.combination_file, combination.identity))
    known = [keys for keys in noted if keys is not None]
    if not known or (own is None and len(known) < len(noted) - 1):
        return None
    folder = workspace.folder if own is None else model
    places = dict.fromkeys(str(record.workspace) for record in records) or {str(folder): None}
    name = f"pairs noted in {' and '.join(places)}"
    return SeenPairs(name, KnownPairs(np.unique(np.concatenate(known))))
