"""The graph of a model with heads: codes of each text, and scores of pairs, as in torch."""

import copy

import numpy as np
import onnxruntime
import pytest
import torch
from scipy import stats

from tests.support.heads import with_heads
from truncate_kit.core.errors import ModelError
from truncate_kit.data.pairs import PairSet, TextPair
from truncate_kit.evaluation.graded import evaluate
from truncate_kit.export.exporting import check_graph, export_onnx
from truncate_kit.export.graph import build_graph
from truncate_kit.export.int8 import open_trial
from truncate_kit.export.record import ExportSettings
from truncate_kit.export.runtime import OnnxEncoder
from truncate_kit.models.encoder import padded
from truncate_kit.models.pipeline import save_encoder

FIRST = ["the cat sat", "a dog", "the big red dog ran", "not a mat", "the small blue cat and the dog"]
SECOND = ["the cat sat on the mat", "a dog", "a tree", "the big tree", "under the tree"]
SCORES = (4.0, 5.0, 0.0, 1.0, 2.0)
PAIRS = [TextPair(*row) for row in zip(FIRST, SECOND, SCORES, strict=True)]
GRADED = PairSet(name="dev", pairs=tuple(PAIRS), scale=(0.0, 5.0))


@pytest.fixture(scope="module", params=[("bert", 2, "exp"), ("gpt2", 1, "sigmoid")])
def exported(request, tiny_folder, tmp_path_factory):
    """An encoder with heads, the folder of its graph, and the report."""
    name, layer, kind = request.param
    encoder = with_heads(tiny_folder(name), layer, kind=kind)
    folder = save_encoder(encoder, tmp_path_factory.mktemp("heads") / "m")
    before = encoder.vectors(FIRST)
    report = export_onnx(encoder, folder)
    torch.testing.assert_close(encoder.vectors(FIRST), before, atol=0, rtol=0)
    return encoder, folder, report


def session_of(folder):
    return onnxruntime.InferenceSession(folder / "onnx/model.onnx", providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("count", [1, 2, 5])
def test_pair_to_score(exported, count):
    encoder, folder, report = exported
    assert max(report.checks[f"score of {pairs}"] for pairs in ("1 pair", "8 pairs")) <= 1e-4
    found = OnnxEncoder.load(folder, threads=1).vectors(FIRST)
    torch.testing.assert_close(found, encoder.vectors(FIRST), atol=1e-4, rtol=0)
    expected = encoder.similarities(encoder.vectors(FIRST), encoder.vectors(SECOND)).numpy()[:count]
    feeds = padded(encoder.token_ids([*FIRST[:count], *SECOND[:count]]), 0)
    np.testing.assert_allclose(session_of(folder).run(["score"], feeds)[0], expected, atol=1e-4)
    if encoder.heads.kind == "exp" and count > 1:
        assert expected[1] == 1.0  # the same text twice


def test_int8_is_searched_by_the_score_of_the_heads(exported, tmp_path):
    encoder, _, _ = exported
    graph = build_graph(encoder, "cpu")
    without = copy.deepcopy(encoder)
    without.heads = None
    by_heads, by_cosine = (evaluate(open_trial(graph, one, tmp_path), PAIRS).spearman for one in (encoder, without))
    assert by_heads == pytest.approx(evaluate(encoder, PAIRS).spearman)
    first, second = encoder.vectors(FIRST), encoder.vectors(SECOND)
    cosines = torch.nn.functional.cosine_similarity(first, second)
    assert by_cosine == pytest.approx(100 * stats.spearmanr(cosines, SCORES).statistic)
    if encoder.heads.kind == "exp":  # with so few pairs the other one ranks them alike
        assert by_cosine != pytest.approx(by_heads)


@pytest.mark.parametrize(("precision", "target", "limit"), [("fp16", "cuda", 2e-2), ("int8", "cpu", 1)])
def test_scores_in_fewer_bits_are_checked_and_their_difference_is_kept(precision, target, limit, tiny_folder, tmp_path):
    settings = ExportSettings(precision=precision, target=target, budget=200)
    report = export_onnx(with_heads(tiny_folder("bert"), 2), tmp_path / "out", settings, search_pairs=GRADED)
    found = {name: value for name, value in report.checks.items() if name.startswith("score of")}
    assert set(found) == {"score of 1 pair", "score of 8 pairs"}
    assert 1e-5 < max(found.values()) < limit  # fp32 has less


def test_a_limit_is_kept_and_without_one_only_numbers_pass(exported):
    encoder, folder, _ = exported
    for shift, limit, passes in ((1.0, 2e-2, False), (1.0, None, True), (float("inf"), None, False)):
        other = copy.deepcopy(encoder)
        other.heads.out.data.add_(shift)
        if passes:
            assert max(check_graph(folder / "onnx/model.onnx", other, precision="int8").values()) > 2e-2
        else:
            with pytest.raises(ModelError, match=r"score of .*(a difference of|NaN or infinity)"):
                check_graph(folder / "onnx/model.onnx", other, precision="int8" if limit is None else "fp16")
