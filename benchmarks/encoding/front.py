"""What fewer nodes before the first block gain: embeddings as one kernel, and the mask as one cast.

    python -m benchmarks.encoding.front --model mini-bert --model FOLDER_OF_ALL_MINILM_L6_V2

Each model's float32 graph four times: as traced, with the mask of the tokens in place of an additive one, with fused
embeddings, and with both, which is what `export` writes for the CPU. One thread; every form is timed in turns at each
shape, ids ready in memory; medians.
"""

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median

import torch

from benchmarks.common import new_parser
from truncate_kit.bench.runners import random_ids
from truncate_kit.bench.timing import interleaved
from truncate_kit.export.graph import OUTPUT, fuse_embeddings, save_graph, set_mask
from truncate_kit.export.runtime import open_session
from truncate_kit.export.trace import build_graph
from truncate_kit.models import Encoder, load_encoder
from truncate_kit.models.tokenizer import padded

SHAPES = ((1, 8), (1, 16), (1, 64), (16, 16), (4, 64))
FORMS = {
    "as traced": (False, False),
    "mask of the tokens": (True, False),
    "embeddings as one kernel": (False, True),
    "both": (True, True),
}


def graphs(encoder: Encoder, folder: Path) -> dict[str, Path]:
    """The graph in every form."""
    traced = build_graph(encoder)
    found = {}
    for name, (mask, fused) in FORMS.items():
        graph = traced.clone()
        if mask:
            set_mask(graph, "tokens")
        if fused:
            fuse_embeddings(graph, encoder.family, "fp32")
        found[name] = folder / f"{len(found)}.onnx"
        save_graph(graph, found[name])
        print(f"{name}: {len(list(graph.graph))} nodes")
    return found


PARSER = new_parser(__doc__)
PARSER.add_argument("--model", action="append", required=True)
PARSER.add_argument("--rounds", type=int, default=30)


def main(arguments: Sequence[str] | None = None) -> None:
    """One table for each model."""
    options = PARSER.parse_args(arguments)
    for model in options.model:
        encoder = load_encoder(model)
        with tempfile.TemporaryDirectory() as folder:
            print(f"\n{Path(model).name}")
            files = graphs(encoder, Path(folder))
            sessions = {n: open_session(f, device=torch.device("cpu"), threads=1) for n, f in files.items()}
            for size, length in SHAPES:
                feeds = padded(random_ids([length] * size, encoder.backbone.config.vocab_size), 0)
                calls = {name: partial(session.run, [OUTPUT], feeds) for name, session in sessions.items()}
                seconds = interleaved(calls, rounds=options.rounds, calls_per_round=5)
                times = {name: median(values) for name, values in seconds.items()}
                first = times["as traced"]
                cells = [f"{name} {value * 1e3:.3f} ms (× {first / value:.2f})" for name, value in times.items()]
                print(f"{size} × {length}: " + ", ".join(cells))


if __name__ == "__main__":
    main()
