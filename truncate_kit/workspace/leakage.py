"""What the models of a workspace were trained on, so that they are scored on what they have not seen."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from truncate_kit.data import RetrievalSet, complete_splits, splits_for
from truncate_kit.data.learned import keys_of, pair_keys, read_learned, without_learned
from truncate_kit.errors import DataError
from truncate_kit.pair_keys import NO_KEYS, Keys, merged
from truncate_kit.wording import counted
from truncate_kit.workspace.places import Workspace
from truncate_kit.workspace.queries import chosen_by_queries, chosen_there_by_queries, homes_of
from truncate_kit.workspace.records import (
    Record,
    is_model,
    lost_sources,
    noted_by,
    records_of,
    seen_by,
    unreadable_results,
)

if TYPE_CHECKING:
    from truncate_kit.data import PairSet, PairSplits

_FEWEST = 3  # pairs of which there is a correlation


def unseen(workspace: Workspace, splits: "PairSplits", model: str | Path | None = None) -> "PairSplits":
    """`splits` without the pairs that a model learned from or was chosen by; its notes say how many these are.

    A set that training divided is divided again as it was. Of any other, pairs that are known are left out one by one:
    it may be the same file with its rows in another order, or with one more. Only pairs to measure on are looked at.

    Args:
        workspace: In which the model is looked for.
        splits: To be scored.
        model: That is scored, as in `records_of`.

    Raises:
        DataError: Next to none is left.
    """
    records, seen = records_of(workspace, model), seen_by(model)
    if seen is None and (unknown := _unknown(workspace, model)):
        splits = replace(splits, notes=(*splits.notes, *unknown))
    settled = NO_KEYS
    if records:
        splits, settled = _by_records(splits, records, all_noted=seen is not None)
    if seen is None:
        return splits
    splits, learned = _as_learned(splits, seen, model)
    rest = np.setdiff1d(seen, merged(settled, learned))
    return _without(splits, rest, f"{model} was trained on them or chosen by them")


def _as_learned(splits: "PairSplits", seen: Keys, model: str | Path | None) -> tuple["PairSplits", Keys]:
    """A set of which a model has seen all of train and dev, divided as it was then, and the keys of these."""
    try:
        divided = complete_splits(splits)
    except DataError:  # no train split, or too few pairs to have been trained on
        return splits, NO_KEYS
    parts = [pairs for name, pairs in divided.items() if name != "test"]
    learned = keys_of(*parts)
    if divided.shares is not None or len(parts) < 2 or not np.isin(learned, seen).all():
        return splits, NO_KEYS
    if splits.test is not None or splits.train is None:
        return splits, learned
    new = divided.notes[len(splits.notes) :]
    said = (f"{note} {model} was trained on the rest: only test counts." for note in new)
    return replace(divided, notes=(*splits.notes, *said)), learned


def _by_records(splits: "PairSplits", records: list[Record], *, all_noted: bool) -> tuple["PairSplits", Keys]:
    """The set without what results of workspaces say of it, and the keys of what is as it was when that set taught."""
    try:
        divided = complete_splits(splits)
    except DataError:  # no train split, or too few pairs to have been trained on
        divided = splits
    fingerprint = divided.fingerprint()
    same = [record for record in records if record.fingerprint == fingerprint]
    others = [record for record in records if record.fingerprint != fingerprint]
    # The test split of the very set that was learned from is as it was given.
    whole = splits.one_file or (splits.test is None and splits.train is not None)
    if same and whole:
        splits = _divided(splits, divided, same)
    return _without_known(splits, others, all_noted=all_noted), noted_by(same)


def _unknown(workspace: Workspace, model: str | Path | None) -> list[str]:
    """Sentences for what would say which pairs a model has seen, and does not."""
    said = [
        f"{file} cannot be read: which pairs it is of is not known, and none of them is left out."
        for file in unreadable_results(workspace, model)
    ]
    return said + [
        f"{source}, from which a model here was made, is not there: what it had learned from is not known."
        for source in lost_sources(workspace, model)
    ]


def _divided(splits: "PairSplits", divided: "PairSplits", same: list[Record]) -> "PairSplits":
    """The set as training divided it."""
    seeds = {record.seed for record in same} if divided.shares is not None else {0}
    divided = _common([splits_for(divided, seed) for seed in sorted(seeds)])
    new = divided.notes[len(splits.notes) if splits.shares is None else 0 :]
    how = "trained on" if any(record.learned for record in same) else "chosen by a part of"
    said = (f"{note} The models here were {how} the rest: only test counts." for note in new)
    return replace(divided, notes=(*splits.notes, *said))


def _without_known(splits: "PairSplits", records: list[Record], *, all_noted: bool) -> "PairSplits":
    """The set without pairs that are noted beside results; a sentence where a result notes none, unless all are known.

    all_noted: whether the model's folder notes them.
    """
    nameless = set[str]()
    for record in records:
        keys = record.keys()
        if keys is None:
            nameless.add(str(record.workspace))
            continue
        how = "trained on them or chosen by them" if record.learned else "chosen by them"
        splits = _without(splits, keys, f"models in {record.workspace} were {how}")
    if all_noted or not nameless:
        return splits
    said = (
        f"What is left in {' and '.join(sorted(nameless))}, by an earlier version or damaged, does not say which "
        "pairs were learned from: whether some of these were is not known."
    )
    return replace(splits, notes=(*splits.notes, said))


def _without(splits: "PairSplits", keys: Keys, why: str) -> "PairSplits":
    """The set without the pairs of these keys; a sentence where that is one or more. Raises `DataError`."""
    number = len(splits.evaluation)
    kept, known = without_learned(splits, keys)
    if not known:
        return splits
    out = f"{known:,} of {counted(number, 'pair')} of {splits.name} {'is' if known == 1 else 'are'} left out"
    said = f"{out}: {why}. That leaves {counted(number - known, 'pair')}."
    if number - known < _FEWEST:
        raise DataError(said, hint="Name another set as `data`.")
    return replace(kept, notes=(*kept.notes, said))


def _common(divisions: Sequence["PairSplits"]) -> "PairSplits":
    """The first of several divisions of a set, with the pairs that are in the test split of all."""
    first = divisions[0]
    if len(divisions) == 1 or first.test is None:
        return first
    tests = ({frozenset((pair.first, pair.second)) for pair in one.test or ()} for one in divisions)
    kept = set.intersection(*tests)
    pairs = tuple(pair for pair in first.test if frozenset((pair.first, pair.second)) in kept)
    left = f"{counted(len(pairs), 'pair')} {'is' if len(pairs) == 1 else 'are'} in test each time."
    notes = " ".join(note for one in divisions for note in one.notes)
    if len(pairs) < _FEWEST:
        raise DataError(f"{notes} Models here learned from the rest: {left}", hint="Name another set as `data`.")
    return replace(first, test=replace(first.test, pairs=pairs), notes=(f"{notes} {left}",))


def chosen_on(workspace: Workspace, model: str | Path, data: "PairSet | RetrievalSet") -> str | None:
    """A sentence that says so where `model` was chosen on some of these pairs or queries; else None."""
    if isinstance(data, RetrievalSet):
        return chosen_by_queries(workspace, model, data)
    return _chose_layers(workspace, data) if is_model(model, workspace.combined) else None


def _chose_layers(workspace: Workspace, pairs: "PairSet") -> str | None:
    """What there is to say where a search of combinations chose layers on some of these pairs."""
    if (found := workspace.combinations()) is None:
        return None
    noted = read_learned(workspace.combination_file, found.identity)
    if noted is None:  # an earlier version noted none
        part, same = "a part of these pairs", found.data == pairs.name
        known = same
    else:
        here = np.isin(pair_keys(pairs), noted)
        known = bool(here.any())
        same = (len(here), int((~here).sum())) == (found.num_pairs, found.num_unseen)
        part = f"{int(here.sum()):,} of these {counted(len(here), 'pair')}"
    if not known:
        return None
    rest = (
        f"; on the {found.num_unseen:,} others it has {found.unseen:.2f}" if same and found.unseen is not None else ""
    )
    return f"Its layers were chosen on {part}{rest}."


def chosen_there(model: str | Path, data: "PairSet | RetrievalSet") -> str | None:
    """As `chosen_on`, in the workspace in which the model, or a graph beside it, lies."""
    if isinstance(data, RetrievalSet):
        return chosen_there_by_queries(model, data)
    return next(filter(None, (chosen_on(home, model, data) for home in homes_of(model))), None)
