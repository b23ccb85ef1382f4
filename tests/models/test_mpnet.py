"""all-mpnet-base-v2 judges what was tuned on smaller models; TRUNCATE_KIT_MPNET names its folder."""

import os

import pytest
import torch

from truncate_kit.data.pairs import load_pairs
from truncate_kit.evaluation.graded import evaluate
from truncate_kit.export.exporting import export_onnx
from truncate_kit.models.encoder import evaluating
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.truncation import keep, truncate

FOLDER = os.environ.get("TRUNCATE_KIT_MPNET")
pytestmark = [
    pytest.mark.mpnet,
    pytest.mark.skipif(FOLDER is None, reason="TRUNCATE_KIT_MPNET is unset: python -m benchmarks.common fetches it"),
]


@pytest.fixture(scope="module")
def mpnet():
    """The encoder of 12 blocks."""
    return load_encoder(FOLDER)


def test_it_scores_as_published(mpnet, shared_data):
    pairs = load_pairs(str(shared_data / "stsb" / "en")).split("test")
    assert evaluate(mpnet, pairs.pairs).spearman == pytest.approx(83.42, abs=0.005)


def test_its_graph_is_exact_and_fused(mpnet, tmp_path):
    report = export_onnx(mpnet, tmp_path / "graph")
    assert max(report.checks.values()) < 1e-4
    assert report.fused_attention == 12


def test_cuts_are_its_states_and_blocks(mpnet):
    batch = mpnet.pad(mpnet.token_ids(["a cat sat", "the longer text of the two in this batch"]))
    with torch.inference_mode(), evaluating(mpnet):
        states = mpnet.hidden_states(batch)
        assert torch.equal(truncate(mpnet, 5).token_states(**batch), states[5])
        assert torch.equal(keep(mpnet, range(1, 13)).token_states(**batch), states[12])
