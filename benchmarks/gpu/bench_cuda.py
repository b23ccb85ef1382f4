"""Speed of truncated encoders on a GPU against the strongest that could be run instead; raw figures as JSON.

    python benchmarks/gpu/bench_cuda.py --work FOLDER                       # everything; continues where it was stopped
    python benchmarks/gpu/bench_cuda.py --work FOLDER --parts masks,steps   # some of it
    python benchmarks/gpu/bench_cuda.py --work FOLDER --device cpu --width 64 --lengths 8,16 --batch-sizes 2 …

Parts: `shapes` times every model, full and cut, in every backend at fixed lengths and on sentences as long as those of
the STS Benchmark; `sets` does the latter for captions and paragraphs; `steps` turns one thing after the other from the
full model in torch into the cut one as a graph, and says what each gained; `masks` times the forms in which padding is
told to the fused attention, and names the kernels that ran. Weights are random (speed does not depend on them),
sentences are words of the miniatures' vocabulary, as many as the real sentences have tokens (`lengths.json`). FOLDER
gets models and graphs and lies outside the repository. The last line of `--device cpu` tries the script without a GPU.
"""

import argparse
import json
import random
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import onnx_ir as ir
import torch
from transformers import BertConfig, DebertaV2Config, ElectraConfig, PretrainedConfig

from truncate_kit.bench import BACKENDS, bench
from truncate_kit.bench.backends import ENCODE_BATCH, Runner, make_runner, random_ids
from truncate_kit.bench.machine import describe_machine
from truncate_kit.bench.timing import interleaved
from truncate_kit.encoders import Encoder, load_encoder, random_encoder, save_encoder, truncate
from truncate_kit.errors import TruncateKitError
from truncate_kit.export import GRAPH_FILES, build_graph, export_onnx, save_graph
from truncate_kit.export.casting import narrow
from truncate_kit.export.checks import odd_inputs
from truncate_kit.export.embeddings import fuse_embeddings
from truncate_kit.export.half import to_half, wide_nodes
from truncate_kit.export.masks import set_mask
from truncate_kit.export.tracing import STATES
from truncate_kit.files import write_json
from truncate_kit.report.bench_tables import absences, bench_tables, ceiling_sentences, machine_sentence

HERE = Path(__file__).parent
PARTS = ("shapes", "sets", "steps", "masks")
CUTS = {"bert-base": (3, 6, 9), "bert-large": (6, 12, 18), "electra-base": (3, 6, 9), "deberta-v3-base": (3, 6, 9)}
STEPS_MODEL, STEPS_LAYER = "bert-base", 6
# Compiled rows cost minutes for every model: they are measured for this cut of each, and nothing else is left out.
COMPILED_CUT = 1
MASKS = ("bias", "tokens", "lengths", "none", "packed")
MASK_SHAPES = ((1, 16), (1, 128), (32, 128), (32, 512), (256, 32))


def shapes(width: int, layers: int) -> dict[str, PretrainedConfig]:
    """BERT-base and -large, ELECTRA-base and DeBERTaV3-base; a width other than 768 scales heads and blocks with it."""

    def sizes(scale: float = 1, depth: int = layers) -> dict[str, int]:
        wide = int(width * scale)
        return {
            "vocab_size": 30522,
            "hidden_size": wide,
            "num_attention_heads": max(2, wide // 64),
            "intermediate_size": 4 * wide,
            "num_hidden_layers": depth,
        }

    relative = {
        "relative_attention": True,
        "position_buckets": 256,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
    }
    return {
        "bert-base": BertConfig(**sizes()),
        "bert-large": BertConfig(**sizes(4 / 3, 2 * layers)),
        "electra-base": ElectraConfig(**sizes(), embedding_size=width),
        "deberta-v3-base": DebertaV2Config(
            **sizes(), **relative, pos_att_type=["p2c", "c2p"], position_biased_input=False, type_vocab_size=0
        ),
    }


def sentences(name: str, encoder: Encoder, count: int) -> list[str]:
    """Random words of the vocabulary, each one token, as many to a text as the real texts of that set have tokens."""
    assert encoder.tokenizer is not None
    words = sorted(word for word in encoder.tokenizer.get_vocab() if re.fullmatch("[a-z]{2,}", word))
    lengths = json.loads((HERE / "lengths.json").read_text())[name]
    draw = random.Random(0)
    picked = draw.sample(lengths, min(count, len(lengths)))
    return [" ".join(draw.choices(words, k=max(1, length - 2))) for length in picked]  # [CLS] and [SEP] come on top


class Models:
    """Folders of random models, full and cut, with their graphs, made when they are first asked for."""

    def __init__(self, work: Path, configs: dict[str, PretrainedConfig], device: str) -> None:
        self.work, self.configs, self.device = work, configs, device

    def folder(self, name: str, layer: int | None) -> Path:
        """Where the model cut at `layer`, None for all of it, is saved with graphs for the device."""
        place = self.work / f"{name}-{'full' if layer is None else layer}"
        if not (place / "done").exists():
            full = random_encoder(self.configs[name], name=name)
            full.tokenizer = load_encoder("mini-bert").tokenizer
            full.max_length = min(512, self.configs[name].max_position_embeddings)
            save_encoder(full if layer is None else truncate(full, layer), place)
            encoder = load_encoder(place)
            target = "cuda" if self.device.startswith("cuda") else "cpu"
            export_onnx(encoder, place, target=target)
            if target == "cuda":
                export_onnx(encoder, place, precision="fp16", target=target)
            (place / "done").touch()
        return place


def main() -> None:
    """Run the parts that have no figures yet."""
    options = arguments()
    configs = shapes(options.width, options.layers)
    models = Models(options.work, configs, options.device)
    begin = time.perf_counter()
    for part in options.parts:
        for name, measure in JOBS[part](options, models):
            out = options.out / f"{name}.json"
            if out.exists():
                print(f"{out} is there.")
                continue
            try:
                found = measure()
            except TruncateKitError as error:
                sys.exit(f"Error: {name}: {error}\nHint: {error.hint}")
            write_json(out, found)
            print(f"{out} after {time.perf_counter() - begin:.0f} s", flush=True)


Job = tuple[str, Callable[[], dict[str, object]]]


def shape_jobs(options: argparse.Namespace, models: Models) -> Iterator[Job]:
    """Every model at every cut against itself in full."""
    for name in options.models:
        for place, cut in enumerate(CUTS[name]):
            layer = max(1, cut * options.layers // 12)
            rows = [row.name for row in BACKENDS.values() if place == COMPILED_CUT or not row.compiled]
            yield (
                f"{name}-{layer}",
                partial(whole_bench, options, models, name, layer, "stsb", options.backends or rows),
            )


def set_jobs(options: argparse.Namespace, models: Models) -> Iterator[Job]:
    """Captions and paragraphs, for the model and cut of the steps."""
    layer = max(1, STEPS_LAYER * options.layers // 12)
    rows = options.backends or [row.name for row in BACKENDS.values() if not row.compiled]
    for texts in ("captions", "paragraphs"):
        yield f"{STEPS_MODEL}-{layer}-{texts}", partial(whole_bench, options, models, STEPS_MODEL, layer, texts, rows)


def whole_bench(
    options: argparse.Namespace, models: Models, name: str, layer: int, texts: str, backends: Sequence[str]
) -> dict[str, object]:
    """One run of the package's own bench, its tables printed."""
    lean, full = models.folder(name, layer), models.folder(name, None)
    cuda = options.device.startswith("cuda")
    report = bench(
        lean,
        full,
        texts=sentences(texts, load_encoder(lean), options.texts),
        max_texts=options.texts,
        batch_sizes=options.batch_sizes,
        lengths=options.lengths,
        backends=[row for row in backends if cuda or not BACKENDS[row].on_cuda],
        repeats=options.repeats,
        device=options.device,
    )
    for table in bench_tables(report):
        print(f"\n{table.title}\n" + " | ".join(table.columns))
        print("\n".join(" | ".join(row) for row in table.rows))
    print(
        "\n".join((machine_sentence(report), *ceiling_sentences(report), *absences(report), *report.notes)), flush=True
    )
    return report.to_dict()


def step_jobs(options: argparse.Namespace, models: Models) -> Iterator[Job]:
    """One job: what gained what."""
    yield "steps", partial(steps, options, models)


def steps(options: argparse.Namespace, models: Models) -> dict[str, object]:
    """Sentences a second after each change, all in turns: padding, precision, kernels, depth; and without tokeniser."""
    layer = max(1, STEPS_LAYER * options.layers // 12)
    cuda = options.device.startswith("cuda")
    low = "fp16" if cuda else "bf16"
    graph = "onnx-fp16" if cuda else "onnx-fp32"
    texts = sentences("stsb", load_encoder(models.folder(STEPS_MODEL, layer)), options.texts)

    def runner(backend: str, cut: int | None) -> Runner:
        folder = models.folder(STEPS_MODEL, cut)
        return make_runner(
            BACKENDS[backend],
            load_encoder(folder, device=options.device),
            graph=lambda: folder / GRAPH_FILES[BACKENDS[backend].precision],
            folder=lambda: folder,
            device=torch.device(options.device),
            threads=torch.get_num_threads(),
        )

    plain, half, fused, lean = (
        runner("torch-fp32", None),
        runner(f"torch-{low}", None),
        runner(graph, None),
        runner(graph, layer),
    )
    ids = load_encoder(models.folder(STEPS_MODEL, layer)).token_ids(texts)
    size = ENCODE_BATCH[torch.device(options.device).type]

    def in_order() -> None:
        for start in range(0, len(texts), size):
            plain.encode(texts[start : start + size])

    calls: dict[str, Callable[[], object]] = {
        "full, torch fp32, batches as the texts come": in_order,
        "+ padding: texts sorted by length": lambda: plain.encode(texts),
        f"+ precision: {low}": lambda: half.encode(texts),
        f"+ kernels: {BACKENDS[graph].title}, batches by tokens": lambda: fused.encode(texts),
        f"+ depth: {layer} of {options.layers} layers": lambda: lean.encode(texts),
        "the last without the tokeniser": lambda: lean.encode_ids(ids),
    }
    seconds = interleaved(calls, rounds=options.repeats)
    speeds = {name: len(texts) / median(times) for name, times in seconds.items()}
    before = None
    for name, speed in speeds.items():
        print(f"{name}: {speed:,.0f} sentences/s" + (f", × {speed / before:.2f}" if before else ""), flush=True)
        before = speed
    return {"machine": machine(options), "texts": len(texts), "seconds": {k: list(v) for k, v in seconds.items()}}


def mask_jobs(options: argparse.Namespace, models: Models) -> Iterator[Job]:
    """One job: the forms of the mask."""
    yield "masks", partial(masks, options, models)


def masks(options: argparse.Namespace, models: Models) -> dict[str, object]:
    """Seconds of the cut model's graph with the mask in every form, with and without padding."""
    layer = max(1, STEPS_LAYER * options.layers // 12)
    device = torch.device(options.device)
    encoder = load_encoder(models.folder(STEPS_MODEL, layer))
    backend = BACKENDS["onnx-fp16" if device.type == "cuda" else "onnx-fp32"]
    runners, absent = {}, {}
    for form in MASKS:
        place = options.work / f"masks-{form}"
        place.mkdir(parents=True, exist_ok=True)
        save_graph(masked(encoder, form, device.type), place / GRAPH_FILES[backend.precision])
        try:
            runners[form] = make_runner(
                backend,
                encoder,
                graph=partial(Path, place / GRAPH_FILES[backend.precision]),
                folder=partial(Path, place),
                device=device,
                threads=torch.get_num_threads(),
            )
        except TruncateKitError as error:  # packed attention has no kernel on the CPU
            absent[form] = str(error)
            print(f"{form}: not measured: {error}")
    found = []
    for size, length, padded in [(*shape, padded) for shape in MASK_SHAPES for padded in (False, True)]:
        if padded and size == 1:
            continue
        longest = min(length, encoder.max_length)
        ids = random_ids([longest - place * (longest // 2) // size * padded for place in range(size)], 8000)
        calls = {form: runner.prepare(ids) for form, runner in runners.items()}
        seconds = interleaved(calls, rounds=options.repeats, calls_per_round=5)
        for form, times in seconds.items():
            row = {"mask": form, "batch_size": size, "length": length, "padded": padded, "seconds": list(times)}
            found.append(row | {"kernels": kernels(calls[form], device)})
            what = f"{size} × {length}{', a quarter padding' if padded else ''}, {form}"
            print(f"{what}: {median(times) * 1e3:.3f} ms; {', '.join(row_names(found[-1]))}", flush=True)
    return {"machine": machine(options), "rows": found, "absent": absent}


def masked(encoder: Encoder, form: str, target: str) -> object:
    """The encoder's graph for the target with its mask in that form.

    `none` is right only without padding; `packed` takes padding out before the first block and puts it back after the
    last.
    """
    graph = build_graph(encoder, "cuda" if target == "cuda" or form == "packed" else "cpu")
    if form == "none":
        for node in graph.graph:
            if node.op_type == "Attention":
                for place in (3, 5):
                    if len(node.inputs) > place:
                        node.replace_input_with(place, None)
    else:
        set_mask(graph, "lengths" if form == "packed" else form)
    fuse_embeddings(graph, encoder.family, "fp32")
    if form == "packed":
        pack(graph)
        if target == "cuda":
            narrow(graph, wide_nodes(graph))  # not through `to_half`, whose checks run on the CPU
        return graph
    return to_half(graph, encoder.family, odd_inputs(encoder))[0] if target == "cuda" else graph


def pack(graph: Any) -> None:
    """Let all blocks work on (tokens, width), in place, by ONNX Runtime's packed attention."""
    attentions = [node for node in graph.graph if node.op_type == "Attention"]
    (states,) = (value for value in graph.graph.outputs if value.name == STATES)
    entering, lengths = attentions[0].inputs[0], attentions[0].inputs[3]
    remove = ir.Node("com.microsoft", "RemovePadding", [entering, lengths], num_outputs=4, name="remove_padding")
    packed, offsets, starts, longest = remove.outputs
    packed.dtype = entering.dtype
    for value in (offsets, starts, longest):
        value.dtype = ir.DataType.INT32
    for reader, place in list(entering.uses()):
        if reader is not remove:
            reader.replace_input_with(place, packed)
    graph.graph.insert_before(attentions[0], remove)
    for node in attentions:
        kept = [node.attributes[name] for name in ("num_heads", "scale", "qkv_hidden_sizes") if name in node.attributes]
        inputs = [*node.inputs[:3], offsets, starts]
        made = ir.Node("com.microsoft", "PackedAttention", inputs, kept, name=f"{node.name}_packed")
        made.outputs[0].dtype = node.outputs[0].dtype
        graph.graph.insert_before(node, made)
        node.outputs[0].replace_all_uses_with(made.outputs[0])
        graph.graph.remove(node, safe=True)
    last = states.producer()
    restore = ir.Node("com.microsoft", "RestorePadding", [states, offsets], name="restore_padding")
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


def kernels(call: Callable[[], object], device: torch.device) -> dict[str, float]:
    """Microseconds of each kernel on the GPU in one call; empty on the CPU."""
    if device.type != "cuda":
        return {}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        call()
    return {event.key: event.self_device_time_total for event in profiler.key_averages()}


def row_names(row: dict[str, object]) -> list[str]:
    """The kernels of a row that have to do with attention."""
    names = row["kernels"]
    assert isinstance(names, dict)
    return [name[:60] for name in names if re.search("fmha|flash|attention|softmax", name, re.IGNORECASE)]


def machine(options: argparse.Namespace) -> dict[str, object]:
    """Where it was measured."""
    return describe_machine(torch.device(options.device), torch.get_num_threads(), None).to_dict()


JOBS = {"shapes": shape_jobs, "sets": set_jobs, "steps": step_jobs, "masks": mask_jobs}


def numbers(text: str) -> tuple[int, ...]:
    """Whole numbers separated by commas."""
    return tuple(int(part) for part in text.split(","))


def names(text: str) -> list[str]:
    """Names separated by commas."""
    return text.split(",")


def arguments() -> argparse.Namespace:
    """What to measure and where to write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for models and graphs")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--parts", type=names, default=list(PARTS))
    parser.add_argument("--models", type=names, default=list(CUTS))
    parser.add_argument("--backends", type=names, help="by default all; the compiled ones at one cut of each model")
    parser.add_argument("--lengths", type=numbers, default=(16, 32, 128, 512))
    parser.add_argument("--batch-sizes", type=numbers, default=(1, 32, 512))
    parser.add_argument("--texts", type=int, default=4096, help="sentences of a set")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--width", type=int, default=768, help="less only to try the script out")
    parser.add_argument("--layers", type=int, default=12, help="likewise")
    return parser.parse_args()


if __name__ == "__main__":
    main()
