"""Whole-set encoding: this package's graphs, also in OpenVINO, against sentence-transformers in torch and ONNX Runtime.

    python -m benchmarks.encoding.run --model FOLDER --data test.csv --dev dev.csv \\
        --peer-python OTHER/bin/python

All rows encode the same texts, tokeniser included, with the same number of threads. Each round runs every row once, in
turn, so that a drift of the machine's speed meets all of them. The ONNX backend of sentence-transformers needs older
transformers, so it runs in a process of its own under --peer-python; without that option its rows are left out. int8
chooses its layers on the pairs of --dev and is scored on those of --data; without --dev its rows are left out.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper
from sentence_transformers import SentenceTransformer

from benchmarks.common import machine, named_model, new_parser, print_table, timed
from benchmarks.encoding.peer import BATCH_SIZE, Given, Peer
from truncate_kit.core.files import write_json
from truncate_kit.core.hardware import GRAPH_RUNTIMES, bf16_instructions, watch_processor
from truncate_kit.data.pairs import PairSet, read_pairs
from truncate_kit.evaluation.graded import evaluate
from truncate_kit.export.exporting import export_onnx
from truncate_kit.export.record import ExportReport, ExportSettings
from truncate_kit.export.runtime import GraphEncoder, load_text_encoder
from truncate_kit.models.encoder import Encoder
from truncate_kit.models.loading import load_encoder
from truncate_kit.training.loop import linear, onednn_pays

HERE = Path(__file__).parent
TORCH, TORCH_BF16 = "sentence-transformers torch fp32", "sentence-transformers torch bf16"
PEER, PEER_FUSED = "sentence-transformers ONNX", "sentence-transformers ONNX, optimum O3"
OURS, EACH = "ours", "ours, repeated texts computed again"
INT8, INT8_EACH = (f"{name}, int8" for name in (OURS, EACH))
SAME_VECTORS = {EACH: OURS, INT8_EACH: INT8}  # timed otherwise, computed alike
TOKENS = "ours, tokeniser alone"
HAS_BF16 = bf16_instructions(torch.device("cpu")) is not None
GRAPHS = {
    (runtime, precision): f"{name}{precision}".removesuffix(", fp32")
    for runtime, name in (("onnx", "ours, "), ("openvino", "OpenVINO "))
    for precision in GRAPH_RUNTIMES[runtime].files
    if precision != "fp16" and (precision != "bf16" or HAS_BF16)
}


@dataclass(frozen=True, slots=True)
class Contestants:
    """What is timed. graphs: ours by name, full and cut; rows: seconds of one pass of each contestant."""

    full: Encoder
    graphs: dict[str, Any]
    reports: dict[str, ExportReport]
    peers: dict[str, Peer]
    torch: dict[str, SentenceTransformer]
    rows: dict[str, Callable[[], float]]

    def vectors(self, texts: Sequence[str]) -> dict[str, np.ndarray]:
        """Of all texts by name; rows that are timed otherwise and computed alike have none of their own."""
        return {
            **{
                name: model.encode(texts, show_progress_bar=False, convert_to_tensor=True).float().cpu().numpy()
                for name, model in self.torch.items()
            },
            **{name: graph.encode(texts) for name, graph in self.graphs.items()},
            **{name: peer.vectors() for name, peer in self.peers.items()},
        }


def exported(options: argparse.Namespace, scratch: Path) -> tuple[Encoder, dict[str, ExportReport]]:
    """Export the graphs to `scratch`; int8 with `--dev`."""
    full, pairs = load_encoder(options.model), {"pairs": read_pairs(options.data)}
    full.name = named_model(str(options.model.resolve()))[0]  # results name the model, not where it lies
    pairs |= {"search_pairs": read_pairs(options.dev)} if options.dev else {}
    return full, {
        name: export_onnx(full, scratch / "full", ExportSettings(runtime=runtime, precision=precision), **pairs)
        for (runtime, precision), name in GRAPHS.items()
        if precision != "int8" or options.dev
    }


def contestants(options: argparse.Namespace, texts: Sequence[str], scratch: Path) -> Contestants:
    """Load everything that is timed."""
    full, reports = exported(options, scratch)
    graphs = {
        name: load_text_encoder(scratch / "full", runtime=runtime, precision=precision, threads=options.threads)
        for (runtime, precision), name in GRAPHS.items()
        if name in reports
    }
    types = {TORCH: torch.float32} | ({TORCH_BF16: torch.bfloat16} if HAS_BF16 else {})  # else minutes of emulation
    models = {
        name: SentenceTransformer(str(options.model), device="cpu", model_kwargs={"dtype": dtype})
        for name, dtype in types.items()
    }
    peers = {}
    if options.peer_python:
        for name, level in ((PEER, None), (PEER_FUSED, "O3")):
            folder = scratch / (level or "plain")
            folder.mkdir()
            peers[name] = Peer(options.peer_python, options.model, texts, options.threads, level, folder)
    calls: dict[str, Callable[[], Any]] = {
        name: partial(model.encode, texts, batch_size=BATCH_SIZE, show_progress_bar=False)
        for name, model in models.items()
    }
    calls[TOKENS] = partial(full.reader.token_ids, texts)
    for name, graph in graphs.items():
        calls[name] = partial(graph.encode, texts)
    for name, same in SAME_VECTORS.items():
        if same in graphs:
            calls[name] = partial(encode_each, graphs[same], full, texts)
    rows = {name: partial(lambda run: timed(run)[1], call) for name, call in calls.items()}
    return Contestants(full, graphs, reports, peers, models, rows | {name: peer.run for name, peer in peers.items()})


def encode_each(graph: Any, encoder: Encoder, texts: Sequence[str]) -> None:
    """Encode repeated texts again and again."""
    graph.encode_ids(encoder.reader.token_ids(texts))


def time_rounds(
    found: Contestants, rounds: int, threads: int
) -> tuple[dict[str, list[float]], list[float], list[float]]:
    """Time every row by round, with GFLOP/s of products and the share of other processes."""
    seconds: dict[str, list[float]] = {name: [] for name in found.rows}
    ceilings: list[float] = []
    busy: list[float] = []
    for round_number in range(-1, rounds):  # round -1 warms up
        for name, run in found.rows.items():
            others = watch_processor()
            spent = run()
            if round_number >= 0:
                seconds[name].append(spent)
                if name not in found.peers:  # they work in processes of their own
                    busy.append(others() or 0.0)
        ceilings.append(torch_ceiling())
        ceilings.append(product_ceiling(found.full, threads, found.graphs[OURS].batch_tokens))
        print(f"round {round_number}: " + ", ".join(f"{name} {run[-1]:.2f} s" for name, run in seconds.items() if run))
    return seconds, ceilings, busy


def measure(options: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Time all rows, and compare their vectors."""
    pairs = read_pairs(options.data)
    texts = [text for side in ("first", "second") for text in (getattr(pair, side) for pair in pairs)]
    torch.set_num_threads(options.threads)
    found = contestants(options, texts, scratch)
    seconds, ceilings, busy = time_rounds(found, options.rounds, options.threads)
    vectors = found.vectors(texts)
    ids, batch_tokens = found.full.reader.token_ids(texts), found.graphs[OURS].batch_tokens
    work = sum(flops(found.full, len(row)) for row in ids)
    graph_seconds = median(seconds[EACH]) - median(seconds[TOKENS])
    versions = {"sentence-transformers": version("sentence-transformers"), "onnx": onnx.__version__}
    return {
        "machine": machine(options.threads, max(busy)) | versions,
        "peer_versions": next((peer.versions for peer in found.peers.values()), None),
        "rounds": options.rounds,
        "texts": len(texts),
        "distinct_texts": len(set(texts)),
        "batch_tokens": batch_tokens,
        "seconds": seconds,
        "sentences_per_second": {name: len(texts) / median(run) for name, run in seconds.items()},
        "ratio_to_torch_fp32": ratios(seconds, TORCH),
        "ratio_to_onnx": ratios(seconds, PEER) if found.peers else None,
        "spearman": {name: score(texts, value, pairs) for name, value in vectors.items()},
        "largest_difference": {name: float(np.abs(value - vectors[TORCH]).max()) for name, value in vectors.items()},
        "graph_share": {name: graph_share(found.graphs[name], texts) for name in (OURS, INT8) if name in found.graphs},
        "work": work / 1e9,
        "graph_seconds": graph_seconds,
        "graph_gflops_per_second": work / graph_seconds / 1e9,
        "ceiling_gflops_per_second": max(ceilings),
        "exports": {name: report.to_dict() for name, report in found.reports.items()},
    }


def graph_share(graph: GraphEncoder, texts: Sequence[str]) -> list[float]:
    """Measure the shares of the wall time of `encode` during which the graph runs, and runs on all threads."""
    spans, plain, covered, last = list[tuple[float, float]](), graph.run, 0.0, 0.0

    def run(*given: Any) -> Any:
        begin = time.perf_counter()
        vectors = plain(*given)
        spans.append((begin, time.perf_counter()))
        return vectors

    graph.run = run  # type: ignore[method-assign]  # timed
    _, wall = timed(partial(graph.encode, texts))
    graph.run = plain  # type: ignore[method-assign]  # as before
    for begin, end in sorted(spans):
        covered += max(0.0, end - max(begin, last))
        last = max(last, end)
    return [covered / wall, sum(end - begin for begin, end in spans) / wall / graph.threads]


def ratios(seconds: dict[str, list[float]], base: str) -> dict[str, float]:
    """Return the median over rounds of each row's speed over `base`."""
    return {
        name: median(theirs / ours for theirs, ours in zip(seconds[base], run, strict=True))
        for name, run in seconds.items()
        if name != TOKENS
    }


def score(texts: Sequence[str], vectors: np.ndarray, pairs: PairSet) -> float:
    """Return Spearman × 100."""
    return evaluate(Given(texts, vectors), pairs.pairs).spearman


def show(found: dict[str, Any]) -> None:
    """Print the table of README.md."""
    columns = (
        "",
        "sentences/s",
        "× torch fp32",
        "× ONNX",
        "of the ceiling",
        "Spearman",
        "max. difference",
    )
    rows = []
    for name, ratio in found["ratio_to_torch_fp32"].items():
        other = f"{found['ratio_to_onnx'][name]:.2f}" if found["ratio_to_onnx"] else "–"
        key = SAME_VECTORS.get(name, name)
        speeds = [f"{found['sentences_per_second'][name]:,.0f}", f"{ratio:.2f}"]
        share = found["work"] / median(found["seconds"][name]) / found["ceiling_gflops_per_second"]
        speeds += [other, f"{share:.0%}"]
        rows.append([name, *speeds, f"{found['spearman'][key]:.2f}", f"{found['largest_difference'][key]:.1e}"])
    print_table(columns, rows)
    whole = median(found["seconds"][EACH])
    share = found["graph_gflops_per_second"] / found["ceiling_gflops_per_second"]
    print(
        f"Tokeniser {median(found['seconds'][TOKENS]) / whole:.1%} of the time, the rest in the graph at "
        f"{found['graph_gflops_per_second']:.0f} GFLOP/s, {share:.0%} of the {found['ceiling_gflops_per_second']:.0f} "
        "that the fastest matrix product reaches here."
    )
    for name, (any_thread, all_threads) in found["graph_share"].items():
        print(f"{name}: the graph runs during {any_thread:.1%} of the time, on all threads during {all_threads:.1%}.")
    print(f"Other processes took at most {found['machine']['others_busy']:.0%} of the machine during a row.")


PARSER = new_parser(__doc__)
PARSER.add_argument("--model", type=Path, required=True, help="folder of a sentence-transformers model")
PARSER.add_argument("--data", type=Path, required=True, help="file of graded pairs")
PARSER.add_argument("--dev", type=Path, help="file of graded pairs on which int8 chooses its layers")
PARSER.add_argument("--peer-python", type=Path, help="interpreter with sentence-transformers[onnx]<6")
PARSER.add_argument("--threads", type=int, default=2)
PARSER.add_argument("--rounds", type=int, default=5)
PARSER.add_argument("--out", type=Path, default=HERE / "results.json")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, write the JSON, print the table."""
    options = PARSER.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        found = measure(options, Path(scratch))
    write_json(options.out, found)
    show(found)


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
    """Measure GFLOP/s of ONNX Runtime's widest product, one per core at once."""
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


if __name__ == "__main__":
    main()
