"""MTEB tasks that are fed from memory: mteb's own scores, nothing from the hub."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from truncate_kit.data.pairs import TextPair
from truncate_kit.data.retrieval import RetrievalSet


def mteb_package() -> Any:
    """The package; without it a test is skipped, except in CI."""
    if os.environ.get("CI") == "true":
        import mteb
    else:
        mteb = pytest.importorskip("mteb", reason="needs the extra mteb")
    return mteb


def sts_task(name: str, pairs: Sequence[TextPair]) -> Any:
    """A similarity task of these pairs."""
    mteb_package()
    from mteb.abstasks import AbsTaskSTS

    rows: dict[str, Sequence[Any]] = {
        "sentence1": [pair.first for pair in pairs],
        "sentence2": [pair.second for pair in pairs],
        "score": [pair.target for pair in pairs],
    }
    return _task(AbsTaskSTS, name, kind="STS", metric="cosine_spearman", data={"test": _dataset(rows)})


def retrieval_task(name: str, data: RetrievalSet) -> Any:
    """A retrieval task of these queries and documents."""
    mteb_package()
    from mteb.abstasks import AbsTaskRetrieval

    split = {
        "corpus": _dataset({"id": data.document_ids, "text": data.documents}),
        "queries": _dataset({"id": data.query_ids, "text": data.queries}),
        "relevant_docs": {
            query: {data.document_ids[place]: int(grade) for place, grade in grades.items()}
            for query, grades in zip(data.query_ids, data.relevance, strict=True)
        },
        "top_ranked": None,
    }
    return _task(AbsTaskRetrieval, name, kind="Retrieval", metric="ndcg_at_10", data={"default": {"test": split}})


def aggregate_task(name: str, tasks: Sequence[Any]) -> Any:
    """The mean of similarity tasks."""
    mteb_package()
    from mteb.abstasks.aggregate_task_metadata import AggregateTaskMetadata
    from mteb.abstasks.aggregated_task import AbsTaskAggregate

    class Local(AbsTaskAggregate):  # type: ignore[misc, unused-ignore]  # Any without mteb
        metadata = AggregateTaskMetadata(
            name=name, description="The mean.", tasks=list(tasks), main_score="cosine_spearman", type="STS",
            eval_splits=["test"],
        )  # fmt: skip

    return Local()


def _dataset(columns: Mapping[str, Sequence[Any]]) -> Any:
    import datasets

    return datasets.Dataset.from_dict({name: list(values) for name, values in columns.items()})


def _task(base: Any, name: str, *, kind: str, metric: str, data: Any) -> Any:
    mteb = mteb_package()

    class Local(base):  # type: ignore[misc]  # base is Any
        metadata = mteb.TaskMetadata(
            name=name, description="Fed from memory.", dataset={"path": "nobody/nothing", "revision": "1"}, type=kind,
            category="t2t", modalities=["text"], eval_splits=["test"], eval_langs=["eng-Latn"], main_score=metric,
        )  # fmt: skip

        def load_data(self, *_: Any, **__: Any) -> None:
            self.dataset, self.data_loaded = data, True

    return Local()
