"""Speed of truncated encoders on a GPU against the strongest that could be run instead; raw figures as JSON.

    python -m benchmarks.gpu.run --work FOLDER                       # everything; continues where it was stopped
    python -m benchmarks.gpu.run --work FOLDER --quick               # what fits into 25 minutes on an H200
    python -m benchmarks.gpu.run --work FOLDER --parts shapes,steps   # some of it
    python -m benchmarks.gpu.run --work FOLDER --prepare             # models and graphs alone, a process for each
    python -m benchmarks.gpu.run --work FOLDER --device cpu --width 64 --lengths 8,16 --batch-sizes 2 …

Parts: `shapes` times every model, full and cut, in every backend at fixed lengths and on sentences as long as those of
the STS Benchmark; `sets` does the latter for captions and paragraphs; `steps` turns one thing after the other from the
full model in torch into the cut one as a graph, and says what each gained; `first` times what a new session encodes
first. All go into one JSON file. What fails is there as an error with its reason, the rest goes on, and the next run
tries it again. Weights are random (speed does not depend on them), sentences are words of the miniatures' vocabulary,
as many as the real ones have tokens (`lengths.json`). FOLDER gets models and graphs and lies outside the repository.
The last line of `--device cpu` tries the script without a GPU.
"""

import argparse
import dataclasses
import json
import multiprocessing
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median

import torch

from benchmarks.common import machine, names, new_parser, numbers
from benchmarks.gpu.models import Models, sentences, shapes
from truncate_kit.bench.result import BACKENDS, BenchSettings
from truncate_kit.bench.run import bench
from truncate_kit.bench.runners import ENCODE_BATCH, Runner, encode_in_chunks, interleaved, make_runner
from truncate_kit.core.files import write_json
from truncate_kit.core.hardware import GRAPH_RUNTIMES, Precision, bf16_instructions, usable_cores
from truncate_kit.export.runtime import OnnxEncoder
from truncate_kit.models.loading import load_encoder
from truncate_kit.report.view import view_of

HERE = Path(__file__).parent
PARTS = ("shapes", "sets", "steps", "first")
MODELS = ("bert-base", "bert-large", "electra-base", "deberta-v3-base")
CUTS = (3, 6, 9)  # twelfths of a model's depth
HALF = 6
# One model, and of another family whose attention has no fused kernels; the strongest of each kind of rival.
QUICK = {
    "parts": ["steps", "first", "shapes"],
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
ALL_AT_ONCE = 1 << 40  # tokens; more than any batch has


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what has no figures yet; exit code 1 where something failed."""
    options = parsed(arguments)
    models = Models(options.work, shapes(options.width, options.layers), options.device, precisions_of(options))
    if options.prepare:
        prepare(options, models)
        return
    begin, failed = time.perf_counter(), []
    parts = json.loads(options.out.read_text()) if options.out.exists() else {}
    for part in options.parts:
        results = parts.setdefault(part, {})
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
            write_json(options.out, parts)
            print(f"{part}, {name}: after {time.perf_counter() - begin:.0f} s", flush=True)
    if failed:
        sys.exit("Failed:\n" + "\n".join(failed))


def precisions_of(options: argparse.Namespace) -> tuple[Precision, ...]:
    """Return the precisions of the graphs that the rows run."""
    if not options.device.startswith("cuda"):
        return ("fp32",)
    return ("fp16", "fp32") if options.backends is None or "onnx-fp32" in options.backends else ("fp16",)


def prepare(options: argparse.Namespace, models: Models) -> None:
    """Make every folder and graph that is missing, which takes most of the time and no GPU."""
    torch.set_num_threads(1)
    layers = {name: [None, *(models.layer(name, cut) for cut in options.cuts)] for name in options.models}
    jobs: list[Callable[[], object]] = [
        partial(models.folder, name, layer) for name, depths in layers.items() for layer in depths
    ]
    with ProcessPoolExecutor(usable_cores(), multiprocessing.get_context("fork")) as pool:
        for done in [pool.submit(job) for job in jobs]:
            print(done.result(), flush=True)


Job = tuple[str, Callable[[], dict[str, object]]]


def shape_jobs(options: argparse.Namespace, models: Models) -> Iterator[Job]:
    """List every model at every cut against itself in full."""
    for name in options.models:
        for cut in options.cuts:
            layer = models.layer(name, cut)
            rows = [row.name for row in BACKENDS.values() if cut == HALF or not row.compiled]
            measure = partial(whole_bench, options, models, name, layer, "stsb", options.backends or rows)
            yield f"{name}-{layer}", measure


def set_jobs(options: argparse.Namespace, models: Models) -> Iterator[Job]:
    """List captions and paragraphs, for the model and cut of the steps."""
    layer = models.layer(STEPS_MODEL, HALF)
    rows = options.backends or [row.name for row in BACKENDS.values() if not row.compiled]
    for texts in ("captions", "paragraphs"):
        yield f"{STEPS_MODEL}-{layer}-{texts}", partial(whole_bench, options, models, STEPS_MODEL, layer, texts, rows)


def whole_bench(
    options: argparse.Namespace, models: Models, name: str, layer: int, texts: str, backends: Sequence[str]
) -> dict[str, object]:
    """Run the package's own bench and print its tables."""
    lean, full = models.folder(name, layer), models.folder(name, None)
    cuda = options.device.startswith("cuda")
    settings = BenchSettings(
        max_texts=options.texts,
        batch_sizes=tuple(options.batch_sizes),
        lengths=tuple(options.lengths),
        backends=tuple(row for row in backends if cuda or not BACKENDS[row].on_cuda),
        repeats=options.repeats,
        device=options.device,
        memory=options.memory,
    )
    report = bench(lean, full, settings, texts=sentences(texts, load_encoder(lean), options.texts))
    view = view_of(report)
    for table in view.tables:
        print(f"\n{table.title}\n" + " | ".join(table.columns))
        print("\n".join(" | ".join(row) for row in table.rows))
    print("\n".join(view.sentences), flush=True)
    named = [dataclasses.replace(model, name=Path(model.name).name) for model in report.models]
    return dataclasses.replace(report, models=named).to_dict()


def steps(options: argparse.Namespace, models: Models) -> dict[str, object]:
    """Time sentences a second after each change, all in turns."""
    layer = models.layer(STEPS_MODEL, HALF)
    cuda = options.device.startswith("cuda")
    low = "fp16" if cuda else "bf16" if bf16_instructions(torch.device("cpu")) else None
    graph = "onnx-fp16" if cuda else "onnx-fp32"
    texts = sentences("stsb", load_encoder(models.folder(STEPS_MODEL, layer)), options.texts)

    def runner(backend: str, cut: int | None) -> Runner:
        folder, row = models.folder(STEPS_MODEL, cut), BACKENDS[backend]
        return make_runner(
            row,
            load_encoder(folder, device=options.device),
            graph=folder / GRAPH_RUNTIMES["onnx"].files[row.precision] if row.runtime == "onnx" else None,
            folder=lambda: folder,
            device=torch.device(options.device),
        )

    plain, half = runner("torch-fp32", None), runner(f"torch-{low}", None) if low else None
    fused, lean = runner(graph, None), runner(graph, layer)
    same_batches = runner(graph, None)
    assert isinstance(same_batches, OnnxEncoder)
    same_batches.batch_tokens = ALL_AT_ONCE
    reader = load_encoder(models.folder(STEPS_MODEL, layer))
    ids = reader.token_ids(texts)
    size = ENCODE_BATCH[torch.device(options.device).type]

    def in_order() -> None:
        for start in range(0, len(texts), size):
            plain.encode(texts[start : start + size])

    calls: dict[str, Callable[[], object]] = {
        "full, torch fp32, batches as the texts come": in_order,
        "+ padding: texts sorted by length": lambda: plain.encode(texts),
        **({f"+ precision: {low}": lambda: half.encode(texts)} if half else {}),
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
    return {
        "machine": machine(device=options.device),
        "texts": len(texts),
        "seconds": {k: list(v) for k, v in seconds.items()},
    }


def first(options: argparse.Namespace, models: Models) -> dict[str, object]:
    """Time the first texts of new sessions, at once and one by one, in two ways of shaping."""
    folder = models.folder(STEPS_MODEL, models.layer(STEPS_MODEL, HALF))
    reader = load_encoder(folder)
    texts = [text for name in ("stsb", "captions", "paragraphs") for text in sentences(name, reader, options.texts)]
    ids = random.Random(0).sample(reader.token_ids(texts), len(texts))
    batches, rows = {"all": [ids], "one by one": [[one] for one in ids[:256]]}, []
    for few, (what, calls) in list(product((False, True), batches.items())) * options.repeats:
        model = OnnxEncoder.load(folder, precision=precisions_of(options)[0], device=options.device)
        model.few_shapes, seconds = few, []
        for _ in range(2):
            begin = time.perf_counter()
            for call in calls:
                model.encode_ids(call)
            seconds.append(time.perf_counter() - begin)
        rows.append({"texts": what, "few_shapes": few, "seconds": seconds})
        print(*rows[-1].values(), flush=True)
    return {"machine": machine(device=options.device), "texts": len(texts), "rows": rows}


def single_job(measure: Callable[..., dict[str, object]]) -> Callable[..., Iterator[Job]]:
    """Return the one job of a part that is named as its function."""
    return lambda options, models: iter([(measure.__name__, partial(measure, options, models))])


JOBS = {"shapes": shape_jobs, "sets": set_jobs} | {part.__name__: single_job(part) for part in (steps, first)}


PARSER = new_parser(__doc__)
PARSER.add_argument("--work", type=Path, required=True, help="folder for models and graphs")
PARSER.add_argument("--out", type=Path, default=HERE / "results.json")
PARSER.add_argument("--device", default="cuda")
PARSER.add_argument("--quick", action="store_true", help="fewer of everything but what is named beside it")
PARSER.add_argument("--prepare", action="store_true", help="make models and graphs, measure nothing")
PARSER.add_argument("--stop-after", type=float, metavar="SECONDS", help="begin nothing after this time")
PARSER.add_argument("--parts", type=names, default=list(PARTS))
PARSER.add_argument("--models", type=names, default=list(MODELS))
PARSER.add_argument("--cuts", type=numbers, default=CUTS, help="twelfths of the depth; compiled ones at 6 only")
PARSER.add_argument("--backends", type=names, help="by default all; the compiled ones at one cut of each model")
PARSER.add_argument("--lengths", type=numbers, default=(16, 32, 128, 512))
PARSER.add_argument("--batch-sizes", type=numbers, default=(1, 32, 128, 512))
PARSER.add_argument("--texts", type=int, default=4096, help="sentences of a set")
PARSER.add_argument("--repeats", type=int, default=10)
PARSER.add_argument("--memory", action=argparse.BooleanOptionalAction, default=True, help="a process for each")
PARSER.add_argument("--width", type=int, default=768, help="less only to try the script out")
PARSER.add_argument("--layers", type=int, default=12, help="likewise")


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; `--quick` changes the defaults alone."""
    options = PARSER.parse_args(arguments)
    return PARSER.parse_args(arguments, argparse.Namespace(**QUICK)) if options.quick else options


if __name__ == "__main__":
    main()
