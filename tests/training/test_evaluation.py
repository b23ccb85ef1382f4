"""Pairs of identical texts are one tie, in torch and as a graph."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from tests.training.test_training import make_pairs
from truncate_kit.data import TextPair
from truncate_kit.encoders import load_encoder
from truncate_kit.export import OnnxEncoder, export_onnx
from truncate_kit.training import PairJudge, evaluate


@pytest.fixture(scope="module")
def pairs():
    """Every other pair has the same text twice, under scores that differ."""
    found = make_pairs(40, seed=6)
    rows = [TextPair(row.first, row.first if place % 2 else row.second, row.target) for place, row in enumerate(found)]
    return dataclasses.replace(found, pairs=tuple(rows))


def tied(encoder, pairs):
    """Spearman where the cosine of a text with itself is exactly 1."""
    first, second = (encoder.encode([getattr(pair, side) for pair in pairs]).double() for side in ("first", "second"))
    cosines = np.array([float(a @ b / (a.norm() * b.norm())) for a, b in zip(first, second, strict=True)])
    cosines[[pair.first == pair.second for pair in pairs]] = 1.0
    return 100 * stats.spearmanr(cosines, [pair.target for pair in pairs]).statistic


def test_identical_texts_share_a_rank(tiny_folder, pairs):
    encoder = load_encoder(tiny_folder("bert"))
    assert evaluate(encoder, pairs.pairs).spearman == pytest.approx(tied(encoder, pairs), abs=1e-9)
    judge = PairJudge(encoder, pairs)
    assert judge.score(encoder)[0] == pytest.approx(tied(encoder, pairs), abs=1e-9)


def test_a_graph_is_not_refused_for_them(tiny_folder, pairs, tmp_path):
    encoder = load_encoder(tiny_folder("bert"))
    export_onnx(encoder, tmp_path, pairs=pairs)
    found = evaluate(OnnxEncoder.load(tmp_path), pairs.pairs).spearman
    assert found == pytest.approx(tied(encoder, pairs), abs=1e-9)
