"""Values inside a graph: the same ones whether its weights fit into one protobuf or lie beside it."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from truncate_kit.export.check import odd_inputs
from truncate_kit.export.graph import watching
from truncate_kit.export.half import largest_value, to_half, wide_nodes
from truncate_kit.export.int8 import calibrate
from truncate_kit.export.trace import build_graph
from truncate_kit.models import load_encoder, truncate

SMALL = 100  # bytes, which stand for the 2 GiB of a protobuf


@pytest.fixture(scope="module")
def bert(tiny_folder):
    return truncate(load_encoder(tiny_folder("bert")), 1)


@pytest.fixture(scope="module")
def graph(bert):
    return build_graph(bert)


@pytest.fixture
def opened(monkeypatch):
    """For each session, what its graph's file and the weights beside it hold, in bytes."""
    sizes = []

    class Session(onnxruntime.InferenceSession):
        def __init__(self, path, *arguments, **options):
            file = Path(path)
            beside = [other.stat().st_size for other in file.parent.iterdir() if other != file]
            sizes.append((file.stat().st_size, sum(beside)))
            super().__init__(path, *arguments, **options)

    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    return sizes


def test_values_are_those_of_the_model(bert, graph):
    (feeds, *_) = odd_inputs(bert)
    with watching(graph, ["sentence_embedding"]) as watch:
        found = watch(feeds)
    expected = bert(**{name: torch.from_numpy(value) for name, value in feeds.items()}).detach().numpy()
    np.testing.assert_allclose(found["sentence_embedding"], expected, atol=1e-5, rtol=1e-4)


def test_what_decides_on_int8_is_found_with_weights_of_any_size(bert, graph, opened):
    inputs = odd_inputs(bert)
    plain, large = calibrate(graph, inputs), calibrate(graph, inputs, embed_limit=SMALL)
    assert {name: rounding.zero for name, rounding in large.items()} == {
        name: rounding.zero for name, rounding in plain.items()
    }
    assert [weights > 0 for _, weights in opened] == [False, True]
    assert opened[1][0] < opened[0][0]


def test_what_decides_on_float16_is_found_with_weights_of_any_size(bert, graph, opened):
    inputs, islands = odd_inputs(bert), wide_nodes(graph)
    assert largest_value(graph, islands, inputs, embed_limit=SMALL) == largest_value(graph, islands, inputs)
    to_half(graph, bert.family, inputs, embed_limit=SMALL)
    assert [weights > 0 for _, weights in opened] == [True, False, True]
