"""The embeddings as one kernel: where they become it, and that they still give what transformers gives."""

import numpy as np
import onnxruntime
import pytest
import torch

from truncate_kit.encoders import load_encoder, truncate
from truncate_kit.export.embeddings import fuse_embeddings
from truncate_kit.export.exporting import export_onnx
from truncate_kit.export.graph_files import save_graph
from truncate_kit.export.tracing import build_graph

FROM_ZERO = ("bert", "electra", "electra-generator", "albert", "distilbert")


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_one_kernel_where_positions_count_from_zero(tiny_folder, tmp_path, name):
    report = export_onnx(truncate(load_encoder(tiny_folder(name)), 2), tmp_path / "out")
    assert report.fused_nodes.get("EmbedLayerNormalization", 0) == (name in FROM_ZERO)


@pytest.mark.parametrize("name", FROM_ZERO)
def test_embeddings_are_those_of_transformers(tiny_folder, tmp_path, name):
    """At layer 0 nothing but the embeddings is in the graph; with padding on either side, as masks may have it."""
    encoder = load_encoder(tiny_folder(name))
    traced = build_graph(truncate(encoder, 0))
    ids = np.random.default_rng(0).integers(5, 20, (3, 9))
    mask = np.ones_like(ids)
    mask[0, 4:] = mask[1, :3] = 0
    with torch.inference_mode():
        states = encoder.backbone.eval()(
            input_ids=torch.from_numpy(ids), attention_mask=torch.from_numpy(mask), output_hidden_states=True
        ).hidden_states[0]
    kept = torch.from_numpy(mask)[:, :, None]
    expected = ((states * kept).sum(1) / kept.sum(1)).numpy()
    for precision in ("fp32", "int8"):
        graph = traced.clone()
        assert fuse_embeddings(graph, encoder.family, precision)
        assert len(list(graph.graph)) < len(list(traced.graph))
        save_graph(graph, tmp_path / "model.onnx")
        session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
        found = session.run(["sentence_embedding"], {"input_ids": ids, "attention_mask": mask})[0]
        np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())
