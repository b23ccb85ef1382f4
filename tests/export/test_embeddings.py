"""Embeddings fused into one kernel: for which families, with the values of transformers."""

import numpy as np
import onnxruntime
import pytest
import torch

from truncate_kit.export.graph import build_graph, fuse_embeddings, save_graph
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.truncation import truncate

# Layers of graphs that other tests build too; distilbert at 0, because int8 saves nothing more above.
FROM_ZERO = {"bert": 2, "electra": 2, "electra-generator": 0, "albert": 2, "distilbert": 0}
KERNELS = {"fp32": "EmbedLayerNormalization", "int8": "LayerNormalization"}  # what ends them


@pytest.mark.parametrize(("name", "layer"), FROM_ZERO.items())
def test_embeddings_are_those_of_transformers(tiny_folder, tmp_path, name, layer):
    """Compare the kernel's output and the vectors, with padding on either side."""
    encoder = load_encoder(tiny_folder(name))
    traced = build_graph(truncate(encoder, layer))
    ids = np.random.default_rng(0).integers(5, 20, (3, 9))
    mask = np.ones_like(ids)
    mask[0, 4:] = mask[1, :3] = 0
    feeds = {"input_ids": ids, "attention_mask": mask}
    model, inputs = encoder.backbone.eval(), {name: torch.from_numpy(values) for name, values in feeds.items()}
    with torch.inference_mode():
        embedded = model.embeddings(inputs["input_ids"]).numpy()
        states = model(**inputs, output_hidden_states=True).hidden_states[layer]
    kept = inputs["attention_mask"][:, :, None]
    expected = ((states * kept).sum(1) / kept.sum(1)).numpy()
    for precision in ("fp32", "int8"):
        graph = traced.clone()
        assert fuse_embeddings(graph, encoder.family, precision)
        assert len(list(graph.graph)) < len(list(traced.graph))
        kernel = next(node for node in graph.graph if node.op_type == KERNELS[precision])
        graph.graph.outputs.append(kernel.outputs[0])
        save_graph(graph, tmp_path / "model.onnx")
        session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
        tokens, found = session.run([kernel.outputs[0].name, "sentence_embedding"], feeds)
        np.testing.assert_allclose(tokens[mask == 1], embedded[mask == 1], atol=1e-5 * np.abs(embedded).max())
        np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())
