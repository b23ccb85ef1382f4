"""Graphs that nobody exported here: weights elsewhere, operators of their own, sizes that no machine has."""

import shutil

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from truncate_kit.errors import ModelError
from truncate_kit.export.runtime import OnnxEncoder

IDS, MASK, OUT = "input_ids", "attention_mask", "sentence_embedding"


@pytest.fixture
def folder(tiny_folder, tmp_path):
    """A model's folder, and numbers beside it that are none of its business."""
    shutil.copytree(tiny_folder("bert"), tmp_path / "m")
    (tmp_path / "outside").mkdir()
    for name in ("w.bin", "w.data"):
        (tmp_path / "outside" / name).write_bytes(np.full((32, 4), 7.0, np.float32).tobytes())
    return tmp_path / "m"


def write(folder, nodes, *weights, domain=""):
    ids, mask = (helper.make_tensor_value_info(name, TensorProto.INT64, ["b", "t"]) for name in (IDS, MASK))
    out = helper.make_tensor_value_info(OUT, TensorProto.FLOAT, ["b", 4])
    kept = helper.make_node("Identity", [MASK], ["kept"])  # else the input would be left out
    graph = helper.make_graph([*nodes, kept], "g", [ids, mask], [out], list(weights))
    opsets = [helper.make_opsetid("", 13), *([helper.make_opsetid(domain, 1)] if domain else [])]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), str(folder / "model.onnx"))


def words(location=None, kind=("Gather", "")):
    """Nodes and weights of word embeddings that are averaged; location: of the file that holds them."""
    table = helper.make_tensor("w", TensorProto.FLOAT, [32, 4], np.ones((32, 4), np.float32).tobytes(), raw=True)
    if location is not None:
        table.ClearField("raw_data")
        table.data_location = TensorProto.EXTERNAL
        for key, value in (("location", location), ("offset", "0"), ("length", "512")):
            entry = table.external_data.add()
            entry.key, entry.value = key, value
    found = helper.make_node(kind[0], ["w", IDS], ["found"], domain=kind[1])
    return [found, helper.make_node("ReduceMean", ["found"], [OUT], axes=[1], keepdims=0)], table


def encode(folder):
    return OnnxEncoder.load(folder / "model.onnx", threads=1).encode(["a cat"])


@pytest.mark.parametrize("place", ["../outside/w.bin", "ABSOLUTE", "nothing.bin"])
def test_weights_elsewhere_are_refused(folder, place):
    nodes, table = words(str(folder.parent / "outside" / "w.bin") if place == "ABSOLUTE" else place)
    write(folder, nodes, table)
    with pytest.raises(ModelError):
        encode(folder)


def test_a_graph_that_fails_on_what_it_is_given_says_so(folder):
    nodes, table = words()
    table.ClearField("raw_data")
    table.dims[0], table.raw_data = 1, np.ones((1, 4), np.float32).tobytes()  # a single word
    write(folder, nodes, table)
    with pytest.raises(ModelError, match="cannot run the graph"):
        encode(folder)
