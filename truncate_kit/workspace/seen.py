"""Which pairs a model of a workspace has seen, for scores with and without them."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from truncate_kit.data import BUNDLED, SeenPairs, complete_splits, load_pairs, load_triplets
from truncate_kit.data.learned import KnownPairs, pair_keys, read_learned
from truncate_kit.errors import DataError, TruncateKitError
from truncate_kit.training.objectives import OBJECTIVES
from truncate_kit.wording import counted
from truncate_kit.workspace.places import Workspace
from truncate_kit.workspace.records import Record, is_known, is_model, noted_by, records_of, seen_by

if TYPE_CHECKING:
    from truncate_kit.data import PairSet, PairSplits, TripletSet


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


def seen_pairs(
    workspace: Workspace, data: "PairSplits | None" = None, model: str | Path | None = None
) -> SeenPairs | None:
    """The train and dev pairs of the data, and what stands in one row of the triplets of contrastive training.

    The pairs that chose a model are among them. data: what was learned from, where results of an earlier version
    note no pairs; None loads what the last command used. model: as in `records_of`. Returns None where nothing
    was trained or chosen here on pairs, or they are not those that were learned from.
    """
    records, last = records_of(workspace, model), workspace.remembered().data
    if data is None and (noted := _noted(workspace, records, model)) is not None:
        return noted
    learned = {record.fingerprint for record in records if record.learned}
    if not learned:
        return None
    try:
        data = data or load_pairs(last.name or BUNDLED, columns=last.columns, scale=last.scale)
        data = complete_splits(data)
        rows = _contrasted(workspace)
    except TruncateKitError:
        return None
    if data.fingerprint() not in learned:
        return None
    parts = (pairs for name, pairs in data.items() if name != "test")
    found = frozenset(frozenset((pair.first, pair.second)) for part in parts for pair in part)
    return (
        SeenPairs(data.name, found) if rows is None else SeenPairs(f"{data.name} and {rows.name}", found | rows.pairs())
    )


def _contrasted(workspace: Workspace) -> "TripletSet | None":
    """The rows that contrastive training of the models here learned from, None for single texts. Raises `DataError`."""
    result, sweep = workspace.contrast(), workspace.sweep()
    learned = None if result is None else OBJECTIVES[result.settings.objective].data
    if result is None or learned == "texts":  # single texts, each its own positive
        return None
    # Where finetune began with another model, that one has taken the place of the contrastive one.
    if sweep is not None and Path(sweep.model).resolve() != workspace.lean.resolve():
        return None
    source, rows = workspace.remembered().triplets, None
    if source is not None:
        rows = load_triplets(source.name, columns=source.columns, negatives=learned == "negatives")
    if rows is None or rows.fingerprint() != result.rows_fingerprint:
        raise DataError(f"The rows of {workspace.contrast_file} are gone or no longer the same.", hint="Name them.")
    return rows


def _noted(workspace: Workspace, records: list[Record], model: str | Path | None) -> SeenPairs | None:
    """What is noted pair by pair; None where there is nothing, or not for every result nor in the model's folder."""
    own = seen_by(model)
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
