"""What is served: graphs of lean models beside the full model's; one table.

Texts a second are those of STS Benchmark's test part, medians of rounds in which every contestant runs once.

    python -m benchmarks.lean.served --model MODEL --lean LEAN [--lean LEAN …] --data DATA --work WORK
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from benchmarks.common import new_parser, write_rows
from truncate_kit.core.errors import counted
from truncate_kit.data.pairs import PairSet, load_pairs
from truncate_kit.evaluation.graded import evaluate
from truncate_kit.export.exporting import export_onnx
from truncate_kit.export.record import ExportSettings
from truncate_kit.export.runtime import OnnxEncoder, graph_files
from truncate_kit.methods.distill.distilling import PRECISIONS, side_by_side
from truncate_kit.methods.distill.labels import own_pairs
from truncate_kit.models.loading import load_encoder

ROWS = Path(__file__).parent / "served.csv"
TEXTS = 256


PARSER = new_parser(__doc__)
PARSER.add_argument("--model", required=True)
PARSER.add_argument("--lean", action="append", default=[], help="folder of a lean model; repeatable")
PARSER.add_argument("--data", type=Path, required=True)
PARSER.add_argument("--work", type=Path, required=True)
PARSER.add_argument("--threads", type=int, default=2)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the table."""
    given = PARSER.parse_args(arguments)
    torch.set_num_threads(given.threads)
    data = load_pairs(str(given.data / "stsb" / "en"))
    assert data.train is not None
    assert data.test is not None
    test: PairSet = data.test
    contestants: list[tuple[str, OnnxEncoder, float]] = []
    for place, folder in enumerate((given.model, *given.lean)):
        encoder = load_encoder(folder, max_length=256)
        # The layers that stay in float are chosen by the model's own cosines between texts of train: no labels.
        pairs = own_pairs(encoder, data.train.texts()[:2000])
        for precision in PRECISIONS:
            out = given.work / f"{place}-{precision}"
            export_onnx(encoder, out, ExportSettings(precision=precision), search_pairs=pairs)
            graph = OnnxEncoder.load(out, precision=precision, threads=given.threads)
            size = sum(file.stat().st_size for file in graph_files(graph.file)) / 1e6
            contestants.append((f"{counted(encoder.depth, 'block')}, {precision}", graph, size))
    texts = test.texts()[:TEXTS]
    runs = [partial(encoder.encode, texts) for _, encoder, _ in contestants]
    rates = [rate for rate, _ in side_by_side(runs, len(texts), reference=0)]
    rows = [
        {
            "contestant": name,
            "stsb": f"{evaluate(encoder, test.pairs).spearman:.2f}",
            "texts_per_second": f"{rate:.0f}",
            "against_full_fp32": f"{rate / rates[0]:.2f}",
            "against_full_int8": f"{rate / rates[1]:.2f}",
            "megabytes": f"{size:.1f}",
        }
        for (name, encoder, size), rate in zip(contestants, rates, strict=True)
    ]
    for row in rows:
        print(row, flush=True)
    write_rows(ROWS, rows)


if __name__ == "__main__":
    main()
