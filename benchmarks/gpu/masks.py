"""Which form of the mask runs which attention kernel, and how fast.

The graph of one encoder is made with padding given to its fused attention in every form that ONNX Runtime takes. Which
kernel runs which form on CUDA (contrib_ops/cuda/bert/attention.cc, multihead_attention.cc): flash attention takes no
mask at all; TensorRT's fused kernels, on GPUs of SM 70 to 89, and cuDNN's, from SM 90 on, take lengths or none;
CUTLASS's memory-efficient kernel takes lengths with starts or none; whatever is left runs unfused. `run.py` names the
kernels that ran.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from benchmarks.common import machine
from truncate_kit.bench.backends import BACKENDS, Backend
from truncate_kit.bench.runners import ContestantError, Runner, guarded, make_runner, random_ids
from truncate_kit.bench.timing import interleaved
from truncate_kit.export.check import odd_inputs
from truncate_kit.export.graph import STATES, fuse_embeddings, save_graph, set_mask
from truncate_kit.export.half import narrow, to_half, wide_nodes
from truncate_kit.export.trace import build_graph
from truncate_kit.models import Encoder
from truncate_kit.precisions import GRAPH_FILES

# `multihead_…`: products for queries, keys and values outside the attention node, whose rules differ.
FORMS = (
    "bias",
    "tokens",
    "lengths",
    "lengths_starts",
    "multihead_lengths",
    "multihead_lengths_starts",
    "none",
    "packed",
)
_MICROSOFT = "com.microsoft"
NAME_LENGTH = 80
MASK_SHAPES = ((1, 16), (1, 128), (32, 128), (32, 512), (256, 32))


def time_masks(encoder: Encoder, work: Path, device: torch.device, repeats: int) -> dict[str, object]:
    """Seconds of the encoder's graph with the mask in every form, with and without padding; graphs go to `work`."""
    runners, absent = mask_runners(encoder, work, device)
    found = []
    for size, length, padded in [(*shape, padded) for shape in MASK_SHAPES for padded in (False, True)]:
        if padded and size == 1:
            continue
        longest = min(length, encoder.max_length)
        ids = random_ids([longest - place * (longest // 2) // size * padded for place in range(size)], 8000)
        calls, seconds = time_forms(runners, absent, ids, repeats)
        for form, times in seconds.items():
            row = {"mask": form, "batch_size": size, "length": length, "padded": padded, "seconds": list(times)}
            found.append(row | {"kernels": kernels(calls[form], device)})
            what = f"{size} × {length}{', a quarter padding' if padded else ''}, {form}"
            print(f"{what}: {median(times) * 1e3:.3f} ms; {', '.join(row_names(found[-1]))}", flush=True)
    for form, reason in absent.items():
        print(f"{form}: {reason}")
    return {"machine": machine(device=str(device)), "rows": found, "absent": absent}


def mask_runners(encoder: Encoder, work: Path, device: torch.device) -> tuple[dict[str, Runner], dict[str, str]]:
    """The encoder's graph with the mask in every form, and why the others do not start."""
    backend = mask_backend(device.type)
    runners: dict[str, Runner] = {}
    absent = {}
    for form in FORMS:
        try:
            file = mask_graph(encoder, work, form, device.type)
            made = make_runner(
                backend,
                encoder,
                graph=partial(Path, file),
                folder=partial(Path, file.parent),
                device=device,
                threads=torch.get_num_threads(),
            )
        except Exception as error:  # packed attention has no kernel on the CPU; a fault of one form is not the others'
            absent[form] = f"does not start: {error}".replace(f"{work}/", "")
        else:
            runners[form] = made
    return runners, absent


def mask_backend(device: str) -> Backend:
    """What runs these graphs on `cpu` or `cuda`."""
    return BACKENDS["onnx-fp16" if device.startswith("cuda") else "onnx-fp32"]


def mask_graph(encoder: Encoder, work: Path, form: str, device: str) -> Path:
    """The file of the encoder's graph with the mask in that form, made where it is missing."""
    file = work / f"masks-{form}" / GRAPH_FILES[mask_backend(device).precision]
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        save_graph(masked(encoder, form, device.partition(":")[0]), file)
    return file


def time_forms(
    runners: dict[str, Runner], absent: dict[str, str], ids: Sequence[Sequence[int]], repeats: int
) -> tuple[Mapping[str, Callable[[], object]], dict[str, tuple[float, ...]]]:
    """A call of each form and its seconds; a form that fails goes from `runners` to `absent`."""
    while True:
        try:
            calls = {}
            for form, runner in runners.items():
                guard = partial(guarded, ("lean", form), BACKENDS["onnx-fp16"])
                calls[form] = guard(guard(runner.prepare)(ids))
            return calls, interleaved(calls, rounds=repeats, calls_per_round=5)
        except ContestantError as error:
            form = error.key[1]
            del runners[form]
            absent[form] = f"fails at {len(ids)} × {max(map(len, ids))}: {error}"


def kernels(call: Callable[[], object], device: torch.device) -> dict[str, float]:
    """Microseconds of each kernel on the GPU in one call, by the first letters of its name; empty on the CPU."""
    if device.type != "cuda":
        return {}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        call()
    found: dict[str, float] = {}
    for event in profiler.key_averages():  # names of templates are as long as a page
        name = event.key[:NAME_LENGTH]
        found[name] = round(found.get(name, 0.0) + event.self_device_time_total, 1)
    return found


def row_names(row: dict[str, object]) -> list[str]:
    """The kernels of a row that have to do with attention."""
    names = row["kernels"]
    assert isinstance(names, dict)
    return [name[:60] for name in names if re.search("fmha|flash|attention|sdpa|softmax", name, re.IGNORECASE)]


def masked(encoder: Encoder, form: str, target: str) -> Any:
    """The encoder's graph for the target with its mask in that form; in float16 for CUDA.

    `none` is right only without padding; `packed` takes padding out before the first block and puts it back after the
    last.
    """
    graph = build_graph(encoder, "cuda" if target == "cuda" or form == "packed" else "cpu")
    if form == "none":
        for node in attentions(graph):
            for place in (3, 5):
                if len(node.inputs) > place:
                    node.replace_input_with(place, None)
    elif form != "bias":
        set_mask(graph, "tokens" if form == "tokens" else "lengths")
        if form.endswith("_starts"):
            add_starts(graph)
    fuse_embeddings(graph, encoder.family, "fp32")
    if form == "packed":
        pack(graph)
        if target == "cuda":
            narrow(graph, wide_nodes(graph))  # not through `to_half`, whose checks run on the CPU
        return graph
    if form.startswith("multihead_"):
        to_multihead(graph)
    return to_half(graph, encoder.family, odd_inputs(encoder))[0] if target == "cuda" else graph


def attentions(graph: Any) -> list[Any]:
    """The nodes that compute a whole attention, its first products included."""
    return [node for node in graph.graph if node.op_type == "Attention" and node.domain == _MICROSOFT]


def add_starts(graph: Any) -> None:
    """Put 0, t, 2t, … b·t, where the queries and keys of each text start, twice behind the lengths, in place."""
    (mask,) = (value for value in graph.graph.inputs if value.name == "attention_mask")
    (cast,) = (node for node in graph.graph if node.name == "mask_lengths")
    one, axis, zero = (
        ir.Value(name=f"mask_{name}", const_value=ir.tensor(np.array(value, np.int64)))
        for name, value in (("one", 1), ("first_axis", [0]), ("zero", 0))
    )
    for value in (one, axis, zero):
        graph.graph.register_initializer(value)
    width = ir.node("Shape", [mask], attributes={"start": 1}, name="mask_width")
    step = ir.node("Squeeze", [width.outputs[0], axis], name="mask_step")
    size = ir.node("Size", [mask], name="mask_size")
    end = ir.node("Add", [size.outputs[0], one], name="mask_end")
    starts = ir.node("Range", [zero, end.outputs[0], step.outputs[0]], name="mask_starts")
    parts = [cast.inputs[0], starts.outputs[0], starts.outputs[0]]
    joined = ir.node("Concat", parts, attributes={"axis": 0}, name="mask_parts")
    made = [width, step, size, end, starts, joined]
    for node in made:
        node.outputs[0].dtype = ir.DataType.INT64
    graph.graph.insert_before(cast, made)
    cast.replace_input_with(0, joined.outputs[0])


def to_multihead(graph: Any) -> None:
    """Let every attention begin with one product for queries, keys and values outside of it, in place."""
    for node in attentions(graph):
        states, weights, bias, mask = node.inputs[:4]
        product = ir.node("MatMul", [states, weights], name=f"{node.name}_product")
        widths = np.array(node.attributes["qkv_hidden_sizes"].as_ints(), np.int64)
        sizes = ir.Value(name=f"{node.name}_widths", const_value=ir.tensor(widths))
        graph.graph.register_initializer(sizes)
        split = ir.node(
            "Split", [product.outputs[0], sizes], attributes={"axis": -1}, num_outputs=3, name=f"{node.name}_split"
        )
        kept = [
            node.attributes[name] for name in ("num_heads", "scale", "mask_filter_value") if name in node.attributes
        ]
        made = ir.Node(_MICROSOFT, "MultiHeadAttention", [*split.outputs, bias, mask], kept, name=f"{node.name}_heads")
        for value in (*product.outputs, *split.outputs, *made.outputs):
            value.dtype = ir.DataType.FLOAT
        graph.graph.insert_before(node, [product, split, made])
        node.outputs[0].replace_all_uses_with(made.outputs[0])
        graph.graph.remove(node, safe=True)


def pack(graph: Any) -> None:
    """Let all blocks work on (tokens, width), in place, by ONNX Runtime's packed attention."""
    nodes = attentions(graph)
    (states,) = (value for value in graph.graph.outputs if value.name == STATES)
    entering, lengths = nodes[0].inputs[0], nodes[0].inputs[3]
    remove = ir.Node(_MICROSOFT, "RemovePadding", [entering, lengths], num_outputs=4, name="remove_padding")
    packed, offsets, starts, longest = remove.outputs
    packed.dtype = entering.dtype
    for value in (offsets, starts, longest):
        value.dtype = ir.DataType.INT32
    for reader, place in list(entering.uses()):
        if reader is not remove:
            reader.replace_input_with(place, packed)
    graph.graph.insert_before(nodes[0], remove)
    for node in nodes:
        kept = [node.attributes[name] for name in ("num_heads", "scale", "qkv_hidden_sizes") if name in node.attributes]
        inputs = [*node.inputs[:3], offsets, starts]
        made = ir.Node(_MICROSOFT, "PackedAttention", inputs, kept, name=f"{node.name}_packed")
        made.outputs[0].dtype = node.outputs[0].dtype
        graph.graph.insert_before(node, made)
        node.outputs[0].replace_all_uses_with(made.outputs[0])
        graph.graph.remove(node, safe=True)
    last = states.producer()
    restore = ir.Node(_MICROSOFT, "RestorePadding", [states, offsets], name="restore_padding")
    restored = restore.outputs[0]
    restored.dtype, restored.shape = states.dtype, states.shape
    graph.graph.insert_after(last, restore)
    for reader, place in list(states.uses()):
        if reader is not restore:
            reader.replace_input_with(place, restored)
    for node in graph.graph:  # the trace's shapes have a batch and a length
        for value in node.outputs:
            if value is not restored and not value.is_graph_output():
                value.shape = None
    states.shape = None
    graph.graph.outputs[list(graph.graph.outputs).index(states)] = restored
    restored.name, states.name = STATES, f"{STATES}_packed"
