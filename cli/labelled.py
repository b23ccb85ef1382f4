"""What `finetune` learns from: pairs, or judged queries of a retrieval folder, by the objective that goes with them."""

from pathlib import Path
from typing import TYPE_CHECKING

from truncate_kit.errors import UsageError
from truncate_kit.training.objectives import DATA_WORDS, SEARCH, find_objective
from truncate_kit.training.settings import TrainingSettings
from truncate_kit.workspace import DataSource

from .options import given, refuse
from .workspace import Workspace

if TYPE_CHECKING:
    from truncate_kit.data import PairSplits, RetrievalSet
    from truncate_kit.training.objectives import Objective


def objective_for(name: str | None, data: str | None, retrieval: Path | None) -> "Objective":
    """The objective named, else the usual one of the data. Raises `UsageError` where it does not go with them."""
    from truncate_kit.data.retrieval import is_retrieval_folder

    judged = data is not None and is_retrieval_folder(data)
    row = find_objective(name or (SEARCH if judged else TrainingSettings().objective), "tmft")
    if judged and row.data != "judged":
        raise UsageError(
            f"The objective {row.name} learns from {DATA_WORDS[row.data]}, and {data} holds queries and documents.",
            hint="Leave out `objective`, or give pairs as `data` and the folder as `retrieval`.",
        )
    if judged and retrieval is not None:
        raise UsageError(
            f"{data} has queries of its own to choose by, and `retrieval` names others.",
            hint="Leave out `retrieval`, or give pairs as `data`.",
        )
    if not judged and row.data == "judged":
        raise UsageError(
            f"The objective {row.name} learns from {DATA_WORDS[row.data]}.",
            hint="Name one as `data`, with corpus.jsonl, queries.jsonl and qrels/, or leave out `objective`.",
        )
    return row


def labelled_data(
    workspace: Workspace,
    row: "Objective",
    data: str | None,
    columns: str | None,
    scale: str | None,
    retrieval: Path | None,
    metric: str | None,
) -> "tuple[PairSplits, RetrievalSet | None, DataSource]":
    """What is learned from, the queries that choose where there are some, and where the former comes from."""
    if row.data == "judged":
        from truncate_kit.training.tasks import read_judged

        refuse("graded pairs", columns=columns, scale=scale)
        assert data is not None
        pairs, searched = read_judged(data, **given(metric=metric))
        workspace.note(*pairs.notes)
        return pairs, searched, DataSource(data)
    pairs, found = workspace.data(data, columns, scale, classes=row.data == "classes")
    pairs = workspace.divided(pairs)
    row.check_targets(pairs, scored=retrieval is None)
    return pairs, _searched(retrieval, metric, workspace), found


def _searched(retrieval: Path | None, metric: str | None, workspace: Workspace) -> "RetrievalSet | None":
    from truncate_kit.data import read_retrieval
    from truncate_kit.training.evaluators import check_queries

    if retrieval is None:
        return None
    found = read_retrieval(retrieval, chooses=True, **given(metric=metric))
    check_queries(found)
    workspace.note(found.note)
    return found
