"""Speed against score: full and lean graphs of two models, other tools' 8-bit graphs of the first, and static vectors.

    python -m benchmarks.lean.figure --model all-MiniLM-L6-v2=FOLDER --model all-mpnet-base-v2=FOLDER --data DATA \\
        --work WORK [--peer optimum=model_quantized.onnx] [--peer model2vec=FOLDER]

Writes `front.csv` and draws `docs/images/speed.png` from it; without --model it only draws. All contestants encode the
same texts of STS Benchmark in turn, tokenizer included, in one thread, by processor time, which other work on the
machine changes little. all-MiniLM-L6-v2 is also cut at half and a third of its blocks, untrained, for their speed; the
scores of these sizes are in `served.csv`.
"""

import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnxruntime
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from benchmarks.common import named_model, new_parser, read_rows, write_rows
from benchmarks.encoding.peer import Given
from truncate_kit.core.hardware import GRAPH_RUNTIMES
from truncate_kit.data.pairs import PairSet, load_pairs, spread
from truncate_kit.evaluation.graded import evaluate
from truncate_kit.export.exporting import export_onnx
from truncate_kit.export.record import ExportSettings
from truncate_kit.export.runtime import OnnxEncoder, graph_files
from truncate_kit.methods.distill.labels import own_pairs
from truncate_kit.models.encoder import TextReader, padded
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.truncation import keep
from truncate_kit.report.chart import write_figure
from truncate_kit.report.view import BLUE, GREY, ORANGE, VERMILION

HERE = Path(__file__).parent
ROWS = HERE / "front.csv"
COLORS = {"torch": GREY, "fp32": ORANGE, "int8": BLUE}
LABELS = {"torch": "sentence-transformers, torch fp32", "fp32": "our graph, fp32", "int8": "our graph, int8"}
LABELS["others"] = "int8 by sentence-transformers, optimum, Olive"
ROUNDS, TEXTS, BATCH = 5, 128, 32

PARSER = new_parser(__doc__)
PARSER.add_argument("--model", action="append", default=[], type=named_model, metavar="NAME=FOLDER")
PARSER.add_argument("--peer", action="append", default=[], type=named_model, metavar="NAME=GRAPH")
PARSER.add_argument("--data", type=Path)
PARSER.add_argument("--work", type=Path)


class Peer:
    """Another tool's graph of token states, pooled here by their mean, in batches of texts of like lengths."""

    def __init__(self, file: str, reader: TextReader) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        self._reader = reader

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return vectors, not normalized."""
        ids, names = self._reader.token_ids(texts), [one.name for one in self._session.get_inputs()]
        order, vectors = sorted(range(len(ids)), key=lambda row: len(ids[row])), dict[int, NDArray[np.float32]]()
        for start in range(0, len(ids), BATCH):
            batch = padded([ids[row] for row in order[start : start + BATCH]], self._reader.padding_id)
            states = self._session.run(None, {name: batch.get(name, 0 * batch["input_ids"]) for name in names})[0]
            means = np.einsum("btd,bt->bd", states, batch["attention_mask"]) / batch["attention_mask"].sum(1)[:, None]
            vectors |= dict(zip(order[start : start + BATCH], means, strict=True))
        return np.stack([vectors[row] for row in range(len(ids))])


def graphs(name: str, folder: str, work: Path, texts: Sequence[str]) -> dict[str, tuple[Any, Path, bool]]:
    """Export the model, and cut ones, in fp32 and int8; return encoder, file, and whether its score counts."""
    full, found = load_encoder(folder, max_length=256), dict[str, tuple[Any, Path, bool]]()
    for step in (1, 2, 3) if "MiniLM" in name else (1,):
        kept = range(step, full.depth + 1, step)
        place, model, blocks = work / f"{name}-{len(kept)}", keep(full, tuple(kept)), len(kept)
        for precision in ("fp32", "int8"):
            if not (place / GRAPH_RUNTIMES["onnx"].files[precision]).is_file():
                export_onnx(model, place, ExportSettings(precision=precision), search_pairs=own_pairs(model, texts))
            graph = OnnxEncoder.load(place, precision=precision, threads=1)
            found[f"{blocks} blocks, {precision}"] = graph, graph.file, step == 1
    return found


def measure(models: Sequence[tuple[str, str]], peers: Sequence[tuple[str, str]], data: Path, work: Path) -> None:
    """Time and score all contestants, and write the table."""
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(1)
    pairs = load_pairs(str(data / "stsb" / "en"))
    assert isinstance(pairs.train, PairSet)
    assert isinstance(pairs.test, PairSet)
    contestants = dict[tuple[str, str], tuple[Any, Path, bool]]()
    for name, folder in models:
        today = SentenceTransformer(folder, device="cpu"), Path(folder, "model.safetensors"), True
        contestants[name, "sentence-transformers, torch fp32"] = today
        found = graphs(name, folder, work, spread(pairs.train.texts(), 512))
        contestants |= {(name, graph): row for graph, row in found.items()}
    for peer, place in peers:
        if Path(place).is_dir():
            from model2vec import StaticModel

            contestants[models[0][0], peer] = StaticModel.from_pretrained(place), Path(place, "model.safetensors"), True
        else:
            contestants[models[0][0], peer] = Peer(place, load_encoder(models[0][1]).reader), Path(place), True
    texts, seconds = pairs.test.texts(), {key: list[float]() for key in contestants}
    for _ in range(ROUNDS + 1):
        for key, (encoder, _, _) in contestants.items():
            begin = time.process_time()
            encoder.encode(texts[:TEXTS])
            seconds[key].append(time.process_time() - begin)
    rates = {key: TEXTS / median(times[1:]) for key, times in seconds.items()}  # the first round warms up
    rows = []
    for (name, contestant), (encoder, file, trained) in contestants.items():
        vectors = np.asarray(encoder.encode(texts)) if trained else None
        score = "" if vectors is None else f"{evaluate(Given(texts, vectors), pairs.test.pairs).spearman:.2f}"
        size = sum(part.stat().st_size for part in graph_files(file)) if file.suffix == ".onnx" else file.stat().st_size
        rate, usual = rates[name, contestant], rates[name, "sentence-transformers, torch fp32"]
        row = {"model": name, "contestant": contestant, "stsb": score, "megabytes": f"{size / 1e6:.1f}"}
        rows.append(row | {"texts_per_processor_second": f"{rate:.1f}", "against_torch": f"{rate / usual:.2f}"})
    write_rows(ROWS, rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the table if models are given, and draw the figure."""
    given = PARSER.parse_args(arguments)
    if given.model:
        measure(given.model, given.peer, given.data, given.work)
    served = {row["contestant"]: row["stsb"] for row in read_rows(HERE / "served.csv")}
    lines = defaultdict[tuple[str, str], list[tuple[float, float, str]]](list)
    for row in read_rows(ROWS):
        name, speed = row["contestant"], float(row["texts_per_processor_second"])
        known = row["stsb"] or ("MiniLM" in row["model"] and served[name])
        if known and name != "model2vec":
            kind = next((kind for kind in COLORS if kind in name), "others")
            lines[row["model"], kind].append((speed, float(known), name.split()[0]))
    figure = Figure(figsize=(8, 3.8), layout="constrained", facecolor="white")
    axes, labels = figure.subplots(), LABELS.copy()
    for (model, kind), points in lines.items():
        color, marker = COLORS.get(kind, VERMILION), "x" if kind == "others" else "o-" if "MiniLM" in model else "s-"
        axes.plot(*zip(*(point[:2] for point in points), strict=True), marker, color=color, label=labels.pop(kind, ""))
        for speed, score, blocks in points if kind != "others" else ():
            said = model if kind == "torch" else blocks
            axes.annotate(
                said, (speed, score), (-5, -16 if kind == "torch" else 7), textcoords="offset points", color=color
            )
    axes.set_xscale("log")
    axes.set_xticks([50, 100, 200, 500, 1000, 2000, 3000], ["50", "100", "200", "500", "1,000", "2,000", "3,000"])
    axes.set_xlabel("texts a second of one core; numbers: blocks kept")
    axes.set_ylabel("Spearman × 100, STS Benchmark")
    axes.set_ylim(81, 84.2)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    write_figure(figure, HERE.parents[1] / "docs/images/speed.png", dpi=150)


if __name__ == "__main__":
    main()
