"""Two models on one index, against a plain search by hand."""

import numpy as np
import pytest
import torch
from sklearn.metrics import ndcg_score

from tests.support.retrieval import retrieval_folder
from truncate_kit.data.retrieval import read_retrieval
from truncate_kit.evaluation.retrieval import RetrievalComparison, compare
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.truncation import truncate


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return read_retrieval(retrieval_folder(tmp_path_factory.mktemp("set") / "tiny"))


@pytest.fixture(scope="module")
def full(tiny_folder):
    return load_encoder(tiny_folder("bert"))


@pytest.fixture(scope="module")
def lean(full):
    return truncate(full, 2)


def in_8_bits(vectors):
    return np.rint(vectors / np.abs(vectors).max(axis=1, keepdims=True) * 127)


def cosines(queries, documents):
    unit = [side / np.linalg.norm(side, axis=1, keepdims=True) for side in (queries, documents)]
    return unit[0] @ unit[1].T


def best(scores, top):
    return np.argsort(-scores, axis=1)[:, :top]


@pytest.mark.parametrize("top", [10, 3])
def test_every_row_is_a_plain_search(full, lean, data, top):
    report = compare(full, lean, data, names=("F", "L"), top=top)
    vectors = {
        name: [model.vectors(texts).double().numpy() for texts in (data.queries, data.documents)]
        for name, model in (("full", full), ("lean", lean))
    }
    grades = np.zeros((len(data.queries), len(data.documents)))
    for row, judged in zip(grades, data.relevance, strict=True):
        row[list(judged)] = list(judged.values())
    by_full = best(cosines(*vectors["full"]), top)

    def ndcg(scores):
        return 100 * np.array([ndcg_score(grades[[n]], scores[[n]], k=top) for n in range(len(scores))])

    reference = ndcg(cosines(*vectors["full"]))
    assert [(row.queries, row.index, row.vectors) for row in report.rows] == [
        (queries, index, precision)
        for precision in ("float32", "int8")
        for queries, index in (("full", "full"), ("lean", "lean"), ("lean", "full"))
    ]
    for row in report.rows:
        kept = in_8_bits if row.vectors == "int8" else np.asarray
        scores = cosines(kept(vectors[row.queries][0]), kept(vectors[row.index][1]))
        found, mine = best(scores, top), ndcg(scores)
        assert row.ndcg == pytest.approx(mine.mean(), abs=1e-3)
        shared = [len({*one} & {*other}) / top for one, other in zip(found, by_full, strict=True)]
        assert row.overlap == pytest.approx(100 * np.mean(shared), abs=1e-6)
        hits = np.take_along_axis(grades, found, 1) > 0
        assert row.recall == pytest.approx(100 * (hits.sum(axis=1) / (grades > 0).sum(axis=1)).mean())
        assert row.bytes_per_vector == (64 if row.vectors == "float32" else 16)
        if row.difference is not None:
            assert row.difference.value == pytest.approx((mine - reference).mean(), abs=1e-3)
            assert row.difference.low <= row.difference.value <= row.difference.high
    assert [row.difference is None for row in report.rows] == [True] + [False] * 5
    assert (report.rows[0].overlap, report.notes) == (100, ())
    assert report.row("lean", "full").overlap < 100
    assert RetrievalComparison.from_dict(report.to_dict()) == report


def test_a_model_and_itself(full, data):
    report = compare(full, full, data)
    mixed = report.row("lean", "full")
    assert (mixed.overlap, mixed.difference.low, mixed.difference.high) == (100, 0, 0)


def test_other_widths_cannot_be_mixed(full, tiny_folder, data):
    narrow = load_encoder(tiny_folder("bert"))
    narrow.tail.append(torch.nn.Linear(16, 8, bias=False))
    report = compare(full, narrow, data)
    assert (report.full_width, report.lean_width) == (16, 8)
    assert len(report.rows) == 4
    assert report.row("lean", "full") is None
    (note,) = report.notes
    assert "8 dimensions" in note


def test_lengths_that_8_bits_lose(full, lean, data, monkeypatch):
    for model in (full, lean):
        monkeypatch.setitem(model.settings, "similarity_fn_name", "dot")
    report = compare(full, lean, data)
    assert {row.vectors for row in report.rows} == {"float32"}
    assert "int8 does not keep" in report.notes[0]
