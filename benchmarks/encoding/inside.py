"""Where the time of a graph goes: the fastest matrix product of the machine, and the operators' shares."""

import json
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper

from benchmarks.common import timed
from truncate_kit.export.runtime import token_batches
from truncate_kit.models import Encoder
from truncate_kit.models.tokenizer import padded
from truncate_kit.training.kernels import linear, onednn_pays


def flops(encoder: Encoder, length: int) -> int:
    """Count the floating-point operations of the matrix products for one text: 2·t·W + 4·t²·d per layer."""
    weights = (part.weight.numel() for part in encoder.backbone.modules() if isinstance(part, torch.nn.Linear))
    return 2 * length * sum(weights) + 4 * length**2 * encoder.width * encoder.depth


def torch_ceiling(size: int = 1536) -> float:
    """Measure the GFLOP/s of torch's fastest product of square matrices of float32."""
    left, right = (torch.randn(size, size) for _ in range(2))
    multiply = linear if onednn_pays() else torch.mm  # torch.mm does not reach what every processor can do
    return 2 * size**3 / min(timed(lambda: multiply(left, right))[1] for _ in range(5)) / 1e9


def product_ceiling(encoder: Encoder, threads: int, tokens: int) -> float:
    """GFLOP/s of ONNX Runtime's product of a batch's states with the widest weight, one product per core at once."""
    wide = int(encoder.backbone.config.intermediate_size)
    weight = numpy_helper.from_array(np.random.default_rng(0).normal(size=(encoder.width, wide)).astype("f"), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, encoder.width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, wide])],
        [weight],
    )
    model = helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 17)])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    states = np.random.default_rng(1).normal(size=(tokens, encoder.width)).astype("f")
    calls = 200

    def work(_: int) -> None:
        for _ in range(calls):
            session.run(None, {"x": states})

    with ThreadPoolExecutor(threads) as pool:
        seconds = min(timed(lambda: list(pool.map(work, range(threads))))[1] for _ in range(3))
    return threads * calls * 2 * tokens * encoder.width * wide / seconds / 1e9


def operators(file: Path, encoder: Encoder, ids: Sequence[Sequence[int]], tokens: int) -> dict[str, float]:
    """Share of each operator in the graph's time, single-threaded, by ONNX Runtime's own profiler."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.enable_profiling = True
    options.profile_file_prefix = str(file.parent / "profile")
    session = onnxruntime.InferenceSession(
        file, options, providers=["CPUExecutionProvider"], disabled_optimizers=["SkipLayerNormFusion"]
    )
    for batch in token_batches([len(row) for row in ids], tokens):
        session.run(["sentence_embedding"], padded([ids[place] for place in batch], encoder.reader.padding_id))
    spent: Counter[str] = Counter()
    for event in json.loads(Path(session.end_profiling()).read_text(encoding="utf-8")):
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            spent[event["args"]["op_name"]] += event["dur"]
    return {name: spent[name] / spent.total() for name, _ in spent.most_common(6)}
