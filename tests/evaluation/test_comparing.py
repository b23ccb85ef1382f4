"""Two models on one index, against a plain search by hand."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import ndcg_score

from tests.support.retrieval import judged_set
from truncate_kit.core.errors import UsageError
from truncate_kit.evaluation import SuiteReport
from truncate_kit.evaluation.retrieval import WAYS, compare
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.truncation import truncate


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


@pytest.mark.parametrize("name", ["mini-bert", Path("mini-bert")])
def test_a_name_is_no_model(full, data, name):
    with pytest.raises(UsageError, match="'mini-bert' is a name, not a model"):
        compare(full, name, data)


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
    assert ways(report) == [(way, precision) for precision in ("float32", "int8") for way in WAYS]
    for row in report.rows:
        kept = in_8_bits if row.labels["vectors"] == "int8" else np.asarray
        queries, index = WAYS[row.labels["search"]]
        scores = cosines(kept(vectors[queries][0]), kept(vectors[index][1]))
        found, mine = best(scores, top), ndcg(scores)
        assert row.values[f"nDCG@{top}"] == pytest.approx(mine.mean(), abs=1e-3)
        shared = [len({*one} & {*other}) / top for one, other in zip(found, by_full, strict=True)]
        assert row.values[f"overlap@{top}"] == pytest.approx(100 * np.mean(shared), abs=1e-6)
        hits = np.take_along_axis(grades, found, 1) > 0
        assert row.values[f"recall@{top}"] == pytest.approx(100 * (hits.sum(axis=1) / (grades > 0).sum(axis=1)).mean())
        assert row.values["bytes per vector"] == (16 if row.labels["vectors"] == "int8" else 64)
        difference = row.values["nDCG less full"]
        assert difference is None or difference == pytest.approx((mine - reference).mean(), abs=1e-3)
    assert [row.values["nDCG less full"] is None for row in report.rows] == [True] + [False] * 5
    assert report.rows[0].values[f"overlap@{top}"] == 100 > report.rows[2].values[f"overlap@{top}"]
    assert {row.size for row in report.rows} == {(len(data.queries), len(data.documents))}
    assert SuiteReport.from_dict(report.to_dict()) == report


def ways(report):
    return [(row.labels["search"], row.labels["vectors"]) for row in report.rows]


def test_a_model_and_itself(full, data):
    many = judged_set(data.documents, data.queries * 3, data.relevance * 3)
    report = compare(full, full, many)
    mixed = report.rows[2]
    assert (mixed.values["overlap@10"], mixed.values["nDCG less full"], mixed.intervals) == (100, 0, {})
    assert f"0 of {len(many.queries)} queries differ, 0 of them higher: no difference shown" in report.notes[-2]
    assert "fewer than 20 queries differ" in report.notes[-1]


def test_other_widths_cannot_be_mixed(full, tiny_folder, data):
    narrow = load_encoder(tiny_folder("bert"))
    narrow.tail.append(torch.nn.Linear(16, 8, bias=False))
    report = compare(full, narrow, data)
    assert {way for way, _ in ways(report)} == {"full", "lean"}
    assert "Lean queries have 8 dimensions, the full model's index 16" in report.notes[1]


def test_lengths_that_8_bits_lose(full, lean, data, monkeypatch):
    for model in (full, lean):
        monkeypatch.setitem(model.settings, "similarity_fn_name", "dot")
    report = compare(full, lean, data)
    assert {precision for _, precision in ways(report)} == {"float32"}
    assert any("int8 is skipped" in note for note in report.notes)
