"""Speed of truncated encoders on a GPU against the strongest that could be run instead; raw figures as JSON.

    python benchmarks/gpu/bench_cuda.py --work FOLDER                       # everything; continues where it was stopped
    python benchmarks/gpu/bench_cuda.py --work FOLDER --quick               # what fits into 25 minutes on an H200
    python benchmarks/gpu/bench_cuda.py --work FOLDER --parts masks,steps   # some of it
    python benchmarks/gpu/bench_cuda.py --work FOLDER --device cpu --width 64 --lengths 8,16 --batch-sizes 2 …

Parts: `shapes` times every model, full and cut, in every backend at fixed lengths and on sentences as long as those of
the STS Benchmark; `sets` does the latter for captions and paragraphs; `steps` turns one thing after the other from the
full model in torch into the cut one as a graph, and says what each gained; `masks` times the forms in which padding is
told to the fused attention, and names the kernels that ran. Each part is one JSON file. What fails is there as an error
with its reason, the rest goes on, and the next run tries it again. Weights are random (speed does not depend on them),
sentences are words of the miniatures' vocabulary, as many as the real sentences have tokens (`lengths.json`). FOLDER
gets models and graphs and lies outside the repository. The last line of `--device cpu` tries the script without a GPU.
"""

import argparse
import json
import random
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median

import torch
from mask_forms import FORMS, masked
from transformers import BertConfig, DebertaV2Config, ElectraConfig, PretrainedConfig

from truncate_kit.bench import BACKENDS, bench
from truncate_kit.bench.backends import ENCODE_BATCH, Runner, encode_in_chunks, make_runner, random_ids
from truncate_kit.bench.guarding import ContestantError, Guarded
from truncate_kit.bench.machine import describe_machine
from truncate_kit.bench.onnx_runner import OnnxRunner
from truncate_kit.bench.timing import interleaved
from truncate_kit.encoders import Encoder, load_encoder, random_encoder, save_encoder, truncate
from truncate_kit.errors import TruncateKitError
from truncate_kit.export import GRAPH_FILES, export_onnx, save_graph
from truncate_kit.files import write_json
from truncate_kit.report.bench_tables import absences, bench_tables, ceiling_sentences, machine_sentence

HERE = Path(__file__).parent
PARTS = ("shapes", "sets", "steps", "masks")
MODELS = ("bert-base", "bert-large", "electra-base", "deberta-v3-base")
CUTS = (3, 6, 9)  # twelfths of a model's depth
HALF = 6
# One model, and of another family whose attention has no fused kernels; the strongest of each kind of rival.
QUICK = {
    "parts": ["masks", "steps", "shapes"],
    "models": ["bert-base", "deberta-v3-base"],
    "cuts": (HALF,),
    "backends": [
        "torch-fp32", "torch-fp16", "flash-fp16", "compile-fp16", "compile-graphs-fp16", "st-fp16", "st-flash-fp16",
        "onnx-fp16", "onnx-graphs-fp16", "tensorrt-fp16",
    ],
    "lengths": (16, 128),
    "batch_sizes": (1, 32, 512),
    "texts": 2048,
    "repeats": 5,
    "memory": False,
}  # fmt: skip
STEPS_MODEL = "bert-base"
MASK_SHAPES = ((1, 16), (1, 128), (32, 128), (32, 512), (256, 32))
ALL_AT_ONCE = 1 << 40  # tokens; more than any batch has


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
        self._made: set[Path] = set()

    def layer(self, name: str, cut: int) -> int:
        """The layer after so many twelfths of the model's depth, at least the first."""
        return max(1, cut * int(self.configs[name].num_hidden_layers) // 12)

    def folder(self, name: str, layer: int | None) -> Path:
        """Where the model cut at `layer`, None for all of it, is saved with graphs for the device.

        A graph that cannot be made is missing there: the rivals are measured all the same.
        """
        place = self.work / f"{name}-{'full' if layer is None else layer}"
        if place in self._made:
            return place
        if not place.exists():
            full = random_encoder(self.configs[name], name=name)
            full.tokenizer = load_encoder("mini-bert").tokenizer
            full.max_length = min(512, self.configs[name].max_position_embeddings)
            save_encoder(full if layer is None else truncate(full, layer), place)
        on_cuda = self.device.startswith("cuda")
        for precision in ("fp32", "fp16") if on_cuda else ("fp32",):
            if (place / GRAPH_FILES[precision]).exists():
                continue
            try:
                export_onnx(load_encoder(place), place, precision=precision, target="cuda" if on_cuda else "cpu")
            except TruncateKitError as error:
                print(f"{place.name} has no {precision} graph: {error} {error.hint}", flush=True)
        self._made.add(place)
        return place


def main() -> None:
    """Run what has no figures yet; exit code 1 where something failed."""
    options = arguments()
    models = Models(options.work, shapes(options.width, options.layers), options.device)
    begin, failed = time.perf_counter(), []
    for part in options.parts:
        path = options.out / f"{part}.json"
        results = json.loads(path.read_text()) if path.exists() else {}
        for name, measure in JOBS[part](options, models):
            if "error" not in results.get(name, {"error": "not measured yet"}):
                print(f"{part}, {name}: is there.")
                continue
            if options.stop_after is not None and time.perf_counter() - begin > options.stop_after:
                print(f"{part}, {name}: left to the next run.")
                continue
            try:
                results[name] = measure()
            except Exception as error:  # the time on a GPU is short: whatever it is, the others are measured
                traceback.print_exc()
                results[name] = {"error": f"{type(error).__name__}: {error}"}
                failed.append(f"{part}, {name}: {error}")
            write_json(path, results)
            print(f"{part}, {name}: after {time.perf_counter() - begin:.0f} s", flush=True)
    if failed:
        sys.exit("Failed:\n" + "\n".join(failed))


Job = tuple[str, Callable[[], dict[str, object]]]


def shape_jobs(options: argparse.Namespace, models: Models) -> Iterator[Job]:
    """Every model at every cut against itself in full; what compiles takes minutes, and is measured at half depth."""
    for name in options.models:
        for cut in options.cuts:
            layer = models.layer(name, cut)
            rows = [row.name for row in BACKENDS.values() if cut == HALF or not row.compiled]
            measure = partial(whole_bench, options, models, name, layer, "stsb", options.backends or rows)
            yield f"{name}-{layer}", measure


def set_jobs(options: argparse.Namespace, models: Models) -> Iterator[Job]:
    """Captions and paragraphs, for the model and cut of the steps."""
    layer = models.layer(STEPS_MODEL, HALF)
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
        memory=options.memory,
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
    """Sentences a second after each change, all in turns: padding, precision, kernels, batches, depth; no tokeniser."""
    layer = models.layer(STEPS_MODEL, HALF)
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

    plain, half = runner("torch-fp32", None), runner(f"torch-{low}", None)
    fused, lean = runner(graph, None), runner(graph, layer)
    same_batches = runner(graph, None)
    assert isinstance(same_batches, OnnxRunner)
    same_batches.model.batch_tokens = ALL_AT_ONCE
    reader = load_encoder(models.folder(STEPS_MODEL, layer))
    ids = reader.token_ids(texts)
    size = ENCODE_BATCH[torch.device(options.device).type]

    def in_order() -> None:
        for start in range(0, len(texts), size):
            plain.encode(texts[start : start + size])

    calls: dict[str, Callable[[], object]] = {
        "full, torch fp32, batches as the texts come": in_order,
        "+ padding: texts sorted by length": lambda: plain.encode(texts),
        f"+ precision: {low}": lambda: half.encode(texts),
        f"+ kernels: {BACKENDS[graph].title}, the same batches": lambda: encode_in_chunks(
            reader.token_ids(texts), size, same_batches.encode_ids
        ),
        "+ batches by tokens": lambda: fused.encode(texts),
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
    device = torch.device(options.device)
    encoder = load_encoder(models.folder(STEPS_MODEL, models.layer(STEPS_MODEL, HALF)))
    runners, absent = mask_runners(encoder, options.work, device)
    found = []
    for size, length, padded in [(*shape, padded) for shape in MASK_SHAPES for padded in (False, True)]:
        if padded and size == 1:
            continue
        longest = min(length, encoder.max_length)
        ids = random_ids([longest - place * (longest // 2) // size * padded for place in range(size)], 8000)
        calls, seconds = time_forms(runners, absent, ids, options.repeats)
        for form, times in seconds.items():
            row = {"mask": form, "batch_size": size, "length": length, "padded": padded, "seconds": list(times)}
            found.append(row | {"kernels": kernels(calls[form], device)})
            what = f"{size} × {length}{', a quarter padding' if padded else ''}, {form}"
            print(f"{what}: {median(times) * 1e3:.3f} ms; {', '.join(row_names(found[-1]))}", flush=True)
    for form, reason in absent.items():
        print(f"{form}: {reason}")
    return {"machine": machine(options), "rows": found, "absent": absent}


def mask_runners(encoder: Encoder, work: Path, device: torch.device) -> tuple[dict[str, Runner], dict[str, str]]:
    """The encoder's graph with the mask in every form, and why the others do not start."""
    backend = BACKENDS["onnx-fp16" if device.type == "cuda" else "onnx-fp32"]
    runners: dict[str, Runner] = {}
    absent = {}
    for form in FORMS:
        file = work / f"masks-{form}" / GRAPH_FILES[backend.precision]
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            save_graph(masked(encoder, form, device.type), file)
            made = make_runner(
                backend,
                encoder,
                graph=partial(Path, file),
                folder=partial(Path, file.parent),
                device=device,
                threads=torch.get_num_threads(),
            )
        except Exception as error:  # packed attention has no kernel on the CPU; a fault of one form is not the others'
            absent[form] = f"does not start: {error}"
        else:
            runners[form] = Guarded(("lean", form), backend, made)
    return runners, absent


def time_forms(
    runners: dict[str, Runner], absent: dict[str, str], ids: Sequence[Sequence[int]], repeats: int
) -> tuple[Mapping[str, Callable[[], object]], dict[str, tuple[float, ...]]]:
    """A call of each form and its seconds; a form that fails goes from `runners` to `absent`."""
    while True:
        try:
            calls = {form: runner.prepare(ids) for form, runner in runners.items()}
            return calls, interleaved(calls, rounds=repeats, calls_per_round=5)
        except ContestantError as error:
            form = error.key[1]
            del runners[form]
            absent[form] = f"fails at {len(ids)} × {max(map(len, ids))}: {error}"


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
    return [name[:60] for name in names if re.search("fmha|flash|attention|sdpa|softmax", name, re.IGNORECASE)]


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
    parser.add_argument("--quick", action="store_true", help="fewer of everything; what is named beside it stays named")
    parser.add_argument("--stop-after", type=float, metavar="SECONDS", help="begin nothing after so many seconds")
    parser.add_argument("--parts", type=names, default=list(PARTS))
    parser.add_argument("--models", type=names, default=list(MODELS))
    parser.add_argument("--cuts", type=numbers, default=CUTS, help="twelfths of the depth; compiled ones at 6 only")
    parser.add_argument("--backends", type=names, help="by default all; the compiled ones at one cut of each model")
    parser.add_argument("--lengths", type=numbers, default=(16, 32, 128, 512))
    parser.add_argument("--batch-sizes", type=numbers, default=(1, 32, 128, 512))
    parser.add_argument("--texts", type=int, default=4096, help="sentences of a set")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--memory", action=argparse.BooleanOptionalAction, default=True, help="a process for each")
    parser.add_argument("--width", type=int, default=768, help="less only to try the script out")
    parser.add_argument("--layers", type=int, default=12, help="likewise")
    options = parser.parse_args()
    if options.quick:
        parser.set_defaults(**QUICK)
        options = parser.parse_args()
    return options


if __name__ == "__main__":
    main()
