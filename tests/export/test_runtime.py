"""The exported encoder gives what the encoder gives, whatever the order, the repeats and the batches."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import datasets

from truncate_kit.core.errors import DeviceError, ModelError, UsageError
from truncate_kit.export.exporting import export_onnx
from truncate_kit.export.graph import OUTPUT
from truncate_kit.export.runtime import OnnxEncoder, load_text_encoder, stepped
from truncate_kit.export.sessions import INPUTS, cuda_providers, open_session
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.truncation import truncate

TEXTS = [
    "a",
    "the cat sat on the mat and the dog ran under a tree",
    "a red dog",
    "a",
    "THE Cat",
    "the big cat sat under the small blue tree",
    "not a " * 40,  # longer than the model takes
]


@pytest.fixture(scope="module")
def prompted(tiny_folder, tmp_path_factory):
    """A lower-casing encoder with a default prompt, and the folder of its export."""
    encoder = truncate(load_encoder(tiny_folder("electra")), 2)
    encoder.lower_case = True
    encoder.settings = {"prompts": {"query": "the red "}, "default_prompt_name": "query"}
    folder = tmp_path_factory.mktemp("prompted") / "model"
    export_onnx(encoder, folder)
    return encoder, folder


@pytest.mark.parametrize(("threads", "batch_tokens"), [(1, None), (2, 1), (2, 20), (3, 64)])
def test_vectors_come_in_order_with_prompt_and_casing(prompted, threads, batch_tokens):
    encoder, folder = prompted
    found = OnnxEncoder.load(folder, threads=threads, batch_tokens=batch_tokens).vectors(TEXTS)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, encoder.vectors(TEXTS), atol=1e-5, rtol=1e-4)
    assert torch.equal(found[0], found[3])
    plain = OnnxEncoder.load(folder / "onnx/model.onnx").vectors(TEXTS, prompt=False)
    torch.testing.assert_close(plain, encoder.vectors(TEXTS, prompt=False), atol=1e-5, rtol=1e-4)
    assert (plain[0] - found[0]).abs().max() > 1e-3  # the prompt matters


def test_a_text_without_tokens_is_zeros(prompted):
    found = OnnxEncoder.load(prompted[1])
    assert torch.equal(found.encode_ids([[]]), torch.zeros(1, found.width))
    assert torch.equal(found.encode_ids([[5, 6, 7], []])[1], torch.zeros(found.width))


MANY = [f"{text} {number}" for number in range(20) for text in TEXTS[:4]]


@pytest.mark.parametrize("away", [False, True])
def test_a_loaded_graph_stays_the_model_that_it_was(prompted, tiny_folder, tmp_path, away, monkeypatch):
    """Many texts run in a second session, which is not opened from a replaced folder."""
    encoder, folder = prompted
    place = shutil.copytree(folder, tmp_path / "served")
    monkeypatch.chdir(tmp_path)
    loaded, elsewhere = (OnnxEncoder.load("served", threads=2, batch_tokens=20) for _ in range(2))
    monkeypatch.chdir(folder)
    torch.testing.assert_close(elsewhere.vectors(MANY), encoder.vectors(MANY), atol=1e-5, rtol=1e-4)
    assert elsewhere._on_one_core() is not None
    few = loaded.vectors(TEXTS[:1])
    shutil.rmtree(place)
    if not away:
        export_onnx(load_encoder(tiny_folder("bert")), place)
    torch.testing.assert_close(loaded.vectors(MANY), encoder.vectors(MANY), atol=1e-5, rtol=1e-4)
    assert torch.equal(loaded.vectors(TEXTS[:1]), few)
    with pytest.raises(ModelError, match="was changed while it was read"):
        loaded.digest()


@pytest.mark.parametrize("batch_tokens", [None, 20])
def test_batches_of_few_shapes_give_the_same_vectors(prompted, batch_tokens):
    """As for CUDA graphs: padded with texts and tokens without effect, in reused buffers."""
    encoder, folder = prompted
    loaded = OnnxEncoder.load(folder, threads=1, batch_tokens=batch_tokens, buckets=True)
    for texts in (TEXTS, TEXTS[::-1], TEXTS[:1], TEXTS):
        torch.testing.assert_close(loaded.vectors(texts), encoder.vectors(texts), atol=1e-5, rtol=1e-4)


def test_threads_that_share_buckets_get_their_own_vectors(prompted):
    """All texts have one shape, so all threads write into the same buffers."""
    loaded = OnnxEncoder.load(prompted[1], threads=1, buckets=True)
    ids = [[2, 5 + number % 20, 6 + number // 20, 3] for number in range(64)]
    expected = [loaded.encode_ids([row]) for row in ids]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda row: loaded.encode_ids([row]), ids * 20))
    assert all(torch.equal(vectors, expected[place % 64]) for place, vectors in enumerate(found))


def test_batches_on_a_gpu_have_few_shapes_and_the_same_vectors(prompted, monkeypatch):
    """Each new shape costs as much as a batch of thousands of texts."""
    encoder, folder = prompted
    loaded = OnnxEncoder.load(folder, threads=1, batch_tokens=64)
    loaded.few_shapes = True  # as on CUDA
    shapes = set()

    def seen(feeds, session=None):
        shapes.add(feeds["input_ids"].shape)
        return OnnxEncoder.run(loaded, feeds, session)

    monkeypatch.setattr(loaded, "run", seen)
    draw = np.random.default_rng(0)
    for number in (1, 2, 3, 5, 8, 13, 40, 200):
        ids = [[2, *draw.integers(5, 20, length - 2), 3] for length in draw.integers(3, encoder.max_length + 1, number)]
        torch.testing.assert_close(loaded.encode_ids(ids), encoder.encode_ids(ids), atol=1e-5, rtol=1e-4)
    lengths = {stepped(length, encoder.max_length) for length in range(1, encoder.max_length + 1)}
    assert {length for _, length in shapes} <= lengths
    for size, length in shapes:
        assert size == 64 // length or size & (size - 1) == 0
        assert size * length <= 64


def test_a_graph_that_fails_on_what_it_is_given_says_so(prompted):
    with pytest.raises(ModelError, match="cannot run the graph"):
        OnnxEncoder.load(prompted[1]).encode_ids([[10**6]])  # no word has that number


def test_a_graph_of_something_else_is_refused():
    graph = datasets.get_example("mul_1.onnx")
    with pytest.raises(ModelError, match="not an exported sentence encoder: it has inputs X and outputs Y"):
        open_session(graph, threads=1)


@pytest.mark.parametrize(
    ("shape", "turned"), [(["b", "w"], 0), ([4, "b"], 1), (["w", "b"], 1), (["b", 4], 1), (["b", 4], 0)], ids=str
)
def test_a_graph_whose_vectors_are_not_rows_of_a_known_width_is_refused(shape, turned, prompted, tmp_path):
    folder = Path(shutil.copytree(prompted[1], tmp_path / "model"))
    table = numpy_helper.from_array(np.random.default_rng(0).random((40, 4), np.float32), "table")
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["states"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMax", ["mask"], ["one"], keepdims=0),
        helper.make_node("Mul", ["states", "one"], ["kept"]),
        helper.make_node("ReduceMean", ["kept"], ["rows"], axes=[1], keepdims=0),
        helper.make_node("Transpose" if turned else "Identity", ["rows"], [OUTPUT]),
    ]
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["b", "t"]) for name in INPUTS]
    output = helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, shape)
    graph = helper.make_graph(nodes, "foreign", inputs, [output], [table])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "foreign.onnx")
    reader = OnnxEncoder.load(folder).reader
    if not turned:  # the runtime infers the width where it can
        assert OnnxEncoder(folder / "foreign.onnx", reader).encode(TEXTS).shape == (len(TEXTS), 4)
        return
    with pytest.raises(ModelError, match=r"known width|gave vectors of shape"):
        OnnxEncoder(folder / "foreign.onnx", reader).encode(TEXTS[:4])


@pytest.mark.skipif("CUDAExecutionProvider" in onnxruntime.get_available_providers(), reason="CUDA is there")
def test_cuda_that_is_not_active_is_an_error(prompted):
    with pytest.raises(DeviceError, match="CUDA was asked for but is not active in ONNX Runtime"):
        open_session(prompted[1] / "onnx/model.onnx", threads=1, on_cuda=cuda_providers(0))


def test_runtime_follows_the_name_or_the_option(prompted):
    encoder, folder = prompted
    assert type(load_text_encoder(folder)) is type(encoder)
    assert isinstance(load_text_encoder(folder / "onnx/model.onnx"), OnnxEncoder)
    assert isinstance(load_text_encoder(folder, runtime="onnx"), OnnxEncoder)
    for place, options, message in (
        (folder, {"runtime": "tensorrt"}, "no runtime 'tensorrt'"),
        (folder / "onnx/model.onnx", {"precision": "fp32"}, "is a single graph"),
        (folder, {"runtime": "onnx", "pooling": "cls"}, "pooling and length of a graph"),
    ):
        with pytest.raises(UsageError, match=message):
            load_text_encoder(place, **options)
