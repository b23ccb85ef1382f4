"""Whole-set encoding: this package's fp32 and int8 graphs against sentence-transformers in torch and ONNX Runtime.

    python benchmarks/encoding/bench_encoding.py --model FOLDER --data test.csv --dev dev.csv \\
        --peer-python OTHER/bin/python

All rows encode the same texts, tokeniser included, with the same number of threads. Each round runs every row once, in
turn, so that a drift of the machine's speed meets all of them. The ONNX backend of sentence-transformers needs older
transformers, so it runs in a process of its own under --peer-python; without that option its rows are left out. int8
chooses its layers on the pairs of --dev and is scored on those of --data; without --dev its rows are left out.
"""

import argparse
import json
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
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

from truncate_kit.bench.machine import OtherWork, describe_machine
from truncate_kit.bench.roofline import ceiling_calls, flops
from truncate_kit.data import PairSet, read_pairs
from truncate_kit.encoders import Encoder, load_encoder, truncate
from truncate_kit.export import GRAPH_FILES, ExportReport, OnnxEncoder, export_onnx
from truncate_kit.export.runtime import padded, token_batches
from truncate_kit.files import write_json
from truncate_kit.training.evaluation import evaluate

HERE = Path(__file__).parent
BATCH_SIZE = 32  # sentence-transformers' own default
TORCH, TORCH_BF16 = "sentence-transformers torch fp32", "sentence-transformers torch bf16"
PEER, PEER_FUSED = "sentence-transformers ONNX", "sentence-transformers ONNX, optimum O3"
OURS, EACH, HALF = "ours", "ours, repeated texts computed again", "ours, half depth"
INT8, INT8_EACH, INT8_HALF = (f"{name}, int8" for name in (OURS, EACH, HALF))
SAME_VECTORS = {EACH: OURS, INT8_EACH: INT8}  # timed otherwise, computed alike
TOKENS = "ours, tokeniser alone"


class Peer:
    """The other interpreter with one model loaded."""

    def __init__(self, python: Path, model: Path, texts: Sequence[str], threads: int, level: str | None, folder: Path):
        self.process = subprocess.Popen(
            [python, HERE / "peer_onnx.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.folder = folder
        self.versions = self.ask(
            model=str(model.resolve()),
            texts=list(texts),
            threads=threads,
            batch_size=BATCH_SIZE,
            level=level,
            folder=str(folder / "peer"),
        )

    def ask(self, **order: Any) -> dict[str, Any]:
        """Send one order and wait for its answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def run(self) -> float:
        """Seconds of one pass, as that process measured them."""
        return float(self.ask(run=True)["seconds"])

    def vectors(self) -> np.ndarray:
        """The vectors of the last pass."""
        file = self.folder / "vectors.npy"
        self.ask(vectors=str(file))
        return np.load(file)


class Given:
    """Vectors that are already there, as `evaluate` wants them."""

    def __init__(self, texts: Sequence[str], vectors: np.ndarray) -> None:
        self.rows = dict(zip(texts, torch.from_numpy(np.asarray(vectors, np.float32)), strict=True))

    def encode(self, texts: Sequence[str]) -> torch.Tensor:
        """The vectors of these texts."""
        return torch.stack([self.rows[text] for text in texts])


def timed(call: Callable[[], Any]) -> Callable[[], float]:
    """Seconds of one call."""

    def run() -> float:
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    return run


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
        seconds = min(timed(lambda: list(pool.map(work, range(threads))))() for _ in range(3))
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


def measure(arguments: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """All rows, their vectors compared, and where our time goes."""
    pairs = read_pairs(arguments.data)
    texts = [text for side in ("first", "second") for text in (getattr(pair, side) for pair in pairs)]
    torch.set_num_threads(arguments.threads)
    full = load_encoder(arguments.model)
    folder = arguments.model.resolve()  # results name the model, not where it lies
    full.name = folder.parent.name if folder.name == "model" else folder.name
    half = truncate(full, full.depth // 2)
    dev = read_pairs(arguments.dev) if arguments.dev else None
    reports: dict[str, ExportReport] = {}
    for encoder, name in ((full, "full"), (half, "half")):
        reports[name] = export_onnx(encoder, scratch / name)
        if dev is not None:
            reports[f"{name}, int8"] = export_onnx(
                encoder, scratch / name, precision="int8", pairs=pairs, search_pairs=dev
            )
    graph, cut, *small = (
        OnnxEncoder.load(scratch / name, precision=precision, threads=arguments.threads)
        for precision in ("fp32", "int8")[: 1 if dev is None else 2]
        for name in ("full", "half")
    )
    fp32 = SentenceTransformer(str(arguments.model), device="cpu")
    bf16 = SentenceTransformer(str(arguments.model), device="cpu", model_kwargs={"dtype": torch.bfloat16})
    reader = full.reader
    rows: dict[str, Callable[[], float]] = {
        TORCH: timed(lambda: fp32.encode(texts, batch_size=BATCH_SIZE, show_progress_bar=False)),
        TORCH_BF16: timed(lambda: bf16.encode(texts, batch_size=BATCH_SIZE, show_progress_bar=False)),
        EACH: timed(lambda: graph.encode_ids(reader.token_ids(texts))),
        OURS: timed(lambda: graph.encode(texts)),
        HALF: timed(lambda: cut.encode(texts)),
        TOKENS: timed(lambda: reader.token_ids(texts)),
    }
    if small:
        rows[INT8_EACH] = timed(lambda: small[0].encode_ids(reader.token_ids(texts)))
        rows[INT8] = timed(lambda: small[0].encode(texts))
        rows[INT8_HALF] = timed(lambda: small[1].encode(texts))
    peers = {}
    if arguments.peer_python:
        for name, level in ((PEER, None), (PEER_FUSED, "O3")):
            folder = scratch / (level or "plain")
            folder.mkdir()
            peers[name] = Peer(arguments.peer_python, arguments.model, texts, arguments.threads, level, folder)
            rows[name] = peers[name].run
    seconds: dict[str, list[float]] = {name: [] for name in rows}
    ceilings: list[float] = []
    busy: list[float] = []
    products = ceiling_calls(torch.device("cpu"), ["fp32"])["fp32"]
    for round_number in range(-1, arguments.rounds):  # round -1 warms up
        for name, run in rows.items():
            others = OtherWork()
            spent = run()
            if round_number >= 0:
                seconds[name].append(spent)
                if name not in peers:  # they work in processes of their own
                    busy.append(others.share() or 0.0)
        ceilings.append(2 * 1536**3 / min(timed(products)() for _ in range(5)) / 1e9)
        ceilings.append(product_ceiling(full, arguments.threads, graph.batch_tokens))
        print(f"round {round_number}: " + ", ".join(f"{name} {run[-1]:.2f} s" for name, run in seconds.items() if run))
    vectors = {
        TORCH: fp32.encode(texts, show_progress_bar=False),
        TORCH_BF16: bf16.encode(texts, show_progress_bar=False, convert_to_tensor=True).float().numpy(),
        OURS: graph.encode(texts).numpy(),
        HALF: cut.encode(texts).numpy(),
        **{name: model.encode(texts).numpy() for name, model in zip((INT8, INT8_HALF), small, strict=False)},
        **{name: peer.vectors() for name, peer in peers.items()},
    }
    ids = reader.token_ids(texts)
    work = sum(flops(full, 1, len(row)) or 0 for row in ids)
    graph_seconds = median(seconds[EACH]) - median(seconds[TOKENS])
    machine = describe_machine(torch.device("cpu"), arguments.threads, max(busy)).to_dict()
    return {
        "machine": machine | {"sentence-transformers": version("sentence-transformers"), "onnx": onnx.__version__},
        "peer_versions": next((peer.versions for peer in peers.values()), None),
        "rounds": arguments.rounds,
        "texts": len(texts),
        "distinct_texts": len(set(texts)),
        "tokens": sum(map(len, ids)),
        "batch_tokens": graph.batch_tokens,
        "seconds": seconds,
        "sentences_per_second": {name: len(texts) / median(run) for name, run in seconds.items()},
        "ratio_to_torch_fp32": ratios(seconds, TORCH),
        "ratio_to_torch_bf16": ratios(seconds, TORCH_BF16),
        "ratio_to_onnx": ratios(seconds, PEER) if peers else None,
        "spearman": {name: score(texts, value, pairs) for name, value in vectors.items()},
        "largest_difference": {name: float(np.abs(value - vectors[TORCH]).max()) for name, value in vectors.items()},
        "graph_seconds": graph_seconds,
        "graph_gflops_per_second": work / graph_seconds / 1e9,
        "ceiling_gflops_per_second": max(ceilings),
        "operators": {
            precision: operators(scratch / "full" / GRAPH_FILES[precision], full, ids[:1000], graph.batch_tokens)
            for precision in ("fp32", "int8")[: 1 if dev is None else 2]
        },
        "exports": {name: report.to_dict() for name, report in reports.items()},
    }


def ratios(seconds: dict[str, list[float]], base: str) -> dict[str, float]:
    """Median over rounds of how many times faster each row was than `base` in the same round."""
    return {
        name: median(theirs / ours for theirs, ours in zip(seconds[base], run, strict=True))
        for name, run in seconds.items()
        if name != TOKENS
    }


def score(texts: Sequence[str], vectors: np.ndarray, pairs: PairSet) -> float:
    """Spearman × 100."""
    return evaluate(Given(texts, vectors), pairs.pairs).spearman


def show(found: dict[str, Any]) -> None:
    """The table of README.md."""
    print("| | sentences/s | × torch fp32 | × its bf16 | × its ONNX | Spearman | largest difference |")
    print("|---|---|---|---|---|---|---|")
    for name, ratio in found["ratio_to_torch_fp32"].items():
        other = f"{found['ratio_to_onnx'][name]:.2f}" if found["ratio_to_onnx"] else "–"
        key = SAME_VECTORS.get(name, name)
        print(
            f"| {name} | {found['sentences_per_second'][name]:,.0f} | {ratio:.2f} | "
            f"{found['ratio_to_torch_bf16'][name]:.2f} | {other} | "
            f"{found['spearman'][key]:.2f} | {found['largest_difference'][key]:.1e} |"
        )
    whole = median(found["seconds"][EACH])
    share = found["graph_gflops_per_second"] / found["ceiling_gflops_per_second"]
    print(
        f"Tokeniser {median(found['seconds'][TOKENS]) / whole:.1%} of the time, the rest in the graph at "
        f"{found['graph_gflops_per_second']:.0f} GFLOP/s, {share:.0%} of the {found['ceiling_gflops_per_second']:.0f} "
        "that the fastest matrix product reaches here."
    )
    print(f"Other processes took at most {found['machine']['others_busy']:.0%} of the machine during a row.")
    for precision, parts in found["operators"].items():
        print(f"Inside the {precision} graph: " + ", ".join(f"{name} {part:.1%}" for name, part in parts.items()))
    for name, report in found["exports"].items():
        for sentence in ExportReport.from_dict(report).precision_sentences():
            print(f"{name}: {sentence}")


def main() -> None:
    """Measure, write the JSON, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder of a sentence-transformers model")
    parser.add_argument("--data", type=Path, required=True, help="file of graded pairs")
    parser.add_argument("--dev", type=Path, help="file of graded pairs on which int8 chooses its layers")
    parser.add_argument("--peer-python", type=Path, help="interpreter with sentence-transformers[onnx]<6")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=HERE / "results.json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        found = measure(arguments, Path(scratch))
    write_json(arguments.out, found)
    show(found)


if __name__ == "__main__":
    main()
