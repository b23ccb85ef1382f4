"""Queries that taught or chose a model, or what it was made from, so that it is scored on the others."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from truncate_kit.data import RetrievalSet
from truncate_kit.data.learned import query_keys
from truncate_kit.errors import DataError
from truncate_kit.pair_keys import pair_key
from truncate_kit.wording import counted
from truncate_kit.workspace.places import Workspace
from truncate_kit.workspace.records import seen_by


def chosen_by_queries(workspace: Workspace, model: str | Path, data: RetrievalSet) -> str | None:
    """A sentence that says so where a model learned from or was chosen by some of these queries; else None."""
    known, by = _asked(model, data), _by_queries(workspace, data)
    mine = by is not None and by.chose(model)
    if known is None:  # an earlier version noted the set alone
        return by.sentence(data) if by is not None and mine else None
    if not known.any():
        return None
    if by is not None and mine and by.same:
        return by.sentence(data)
    part = f"{int(known.sum()):,} of these {counted(len(known), 'query', 'queries')}"
    how = "learned from or was chosen by" if _taught(model, data) else "was chosen by"
    return f"{model}, or what it was made from, {how} {part}: a score on them says little of others."


def chosen_there_by_queries(model: str | Path, data: RetrievalSet) -> str | None:
    """The same in the workspace in which the model, or a graph beside it, lies."""
    homes = homes_of(model)
    chose = (home for home in homes if (by := _by_queries(home, data)) is not None and by.chose(model))
    return chosen_by_queries(next(chose, homes[0]), model, data)


def held_out_queries(data: RetrievalSet, *models: str | Path) -> tuple[RetrievalSet, str | None]:
    """The queries that neither taught nor chose any of these models, and what there is to say of the others, if any.

    Raises `DataError` where none is left.
    """
    from truncate_kit.training.retrieval_evaluator import choosing_queries, with_queries

    said, kept, name = list[str](), data, data.name
    for model in models:
        known = _asked(model, kept)
        if known is None:
            by = next((by for home in homes_of(model) if (by := _by_queries(home, data)) and by.chose(model)), None)
            if by is not None and not by.same:
                said.append(by.sentence(data))
            chose = choosing_queries(data) if by is not None and by.same else ()
            known = np.isin(query_keys(kept.queries), query_keys(chose))
        if not known.any():
            continue
        did = "taught or chose" if _taught(model, data) else "chose"
        part = f"{int(known.sum()):,} of {counted(len(known), 'query', 'queries')} of {name} {did} {model}"
        if known.all():
            raise DataError(f"{part}, and none is left.", hint="Name another set as `data`.")
        said.append(f"{part}: only the others count.")
        kept = with_queries(data, [place for place, query in enumerate(data.queries) if query in _left(kept, known)])
    return kept, " ".join(said) or None


def _left(data: RetrievalSet, known: NDArray[np.bool_]) -> set[str]:
    return {query for query, was in zip(data.queries, known.tolist(), strict=True) if not was}


def homes_of(model: str | Path) -> list[Workspace]:
    """The workspaces in which a model may lie: the folder above it, and for a graph the one above that."""
    return [Workspace(folder) for folder in Path(model).resolve().parents[:2]]


def _asked(model: str | Path, data: RetrievalSet) -> NDArray[np.bool_] | None:
    """Which of the queries taught or chose a model or what it was made from, (queries,).

    None where its folder notes nothing.
    """
    seen = seen_by(model)
    return None if seen is None else np.isin(query_keys(data.queries), seen)


def _taught(model: str | Path, data: RetrievalSet) -> bool:
    """Whether a model or what it was made from learned a document that answers one of the queries."""
    answers = (
        pair_key(query, data.documents[place])
        for query, grades in zip(data.queries, data.relevance, strict=True)
        for place in grades
    )
    seen = seen_by(model)
    return seen is not None and bool(np.isin(np.fromiter(answers, dtype=np.uint64), seen).any())


@dataclass(frozen=True, slots=True)
class _ByQueries:
    """Which models half of the queries of a set chose, by what, and the lean one's score on the other half.

    same: Whether they are the queries of the set that is asked for, or only had its name.
    """

    models: tuple[Path, ...]
    metric: str
    lean: float
    same: bool

    def chose(self, model: str | Path) -> bool:
        """Whether this model, or a graph beside it, is one of them."""
        return any(Path(model).resolve().is_relative_to(one.resolve()) for one in self.models)

    def sentence(self, data: RetrievalSet) -> str:
        """What there is to say of a score of these models on the set."""
        alone = len(self.models) == 1
        how = f"The {'lean model here was' if alone else 'models here were'} chosen by {self.metric} of half of"
        if not self.same:
            return f"{how} the queries that {data.name} had then: which of these are among them is not known."
        return f"{how} these queries; on the other half {'it' if alone else 'the lean one'} has {self.lean:.2f}."


def _by_queries(workspace: Workspace, data: RetrievalSet) -> _ByQueries | None:
    """What the queries of a retrieval set, or of one that had its name, chose here; None for other sets."""
    method, result = next(workspace.made(workspace.lean), (None, None))
    chose = None if method is None else method.queries(result)
    if chose is None:
        return None
    named = chose.name == data.name
    same = chose.fingerprint == data.queries_fingerprint() if chose.fingerprint else named  # or an earlier version
    models = tuple(workspace.folder / name for name in chose.models)
    return _ByQueries(models, chose.metric, chose.lean, same) if same or named else None
