"""Time CKA of all layer pairs against torch_cka and a float64 reference, and show that streaming keeps memory flat.

Each part is written to results.json as soon as it is done; parts that are there are not run again without --again.

    pip install --no-deps torch_cka==0.21
    python -m benchmarks.cka.run
"""

import argparse
import importlib.util
import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.common import machine, measured_once, new_parser
from truncate_kit.analysis.cka import StreamedCKA, cka_matrix

RESULTS = Path(__file__).parent / "results.json"
LAYERS = 13
STREAMS = [(128, 10_000), (128, 100_000), (128, 1_000_000), (768, 10_000), (768, 30_000)]
BATCH = 256


class Replay(nn.Module):
    """A model whose layers put out stored features: torch_cka hooks them like those of any other model."""

    def __init__(self) -> None:
        super().__init__()
        for layer in range(LAYERS):
            self.add_module(f"layer{layer}", nn.Identity())

    def forward(self, features: Tensor) -> Tensor:
        """Show each layer's features (b, 13, d) to whoever hooked it."""
        for layer in range(LAYERS):
            self.get_submodule(f"layer{layer}")(features[:, layer])
        return features


def features(batches: int, batch: int, width: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Draw correlated states of two models, (13, b, d) each, which share more from layer to layer."""
    generator = torch.Generator().manual_seed(seed)
    share = torch.linspace(0.2, 2, LAYERS)[:, None, None]
    for _ in range(batches):
        base = torch.randn(batch, width, generator=generator)
        noise = torch.randn(2, LAYERS, batch, width, generator=generator)
        yield base + share * noise[0] + 0.5, base + share.flip(0) * noise[1] - 0.5


def torch_cka_loop(x: Tensor, y: Tensor) -> Callable[[], Tensor]:
    """Run torch_cka's own `compare` on these features, in one batch of all texts."""
    from torch_cka import CKA

    names = [f"layer{layer}" for layer in range(LAYERS)]

    def loader(states: Tensor) -> torch.utils.data.DataLoader[Any]:
        stored = torch.utils.data.TensorDataset(states.transpose(0, 1).contiguous())
        return torch.utils.data.DataLoader(stored, batch_size=len(stored))

    loaders = loader(x), loader(y)

    def run() -> Tensor:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compared = CKA(Replay(), Replay(), "x", "y", model1_layers=names, model2_layers=names)
            compared.compare(*loaders)
        return compared.hsic_matrix.double()

    return run


def reference(x: Tensor, y: Tensor) -> Tensor:
    """Compute debiased linear CKA from whole float64 Gram matrices, U-centred and flattened."""
    centred = []
    for layer in (*x.double(), *y.double()):
        layer = layer - layer.mean(0)
        gram = (layer @ layer.T).fill_diagonal_(0)
        count = len(gram)
        rows = gram.sum(0) / (count - 2)
        gram += gram.sum() / ((count - 1) * (count - 2)) - rows[:, None] - rows[None, :]
        centred.append(gram.fill_diagonal_(0).flatten())
    flat = torch.stack(centred)
    own = flat.square().sum(1)
    return (flat[:LAYERS] @ flat[LAYERS:].T) / (own[:LAYERS, None] * own[None, LAYERS:]).sqrt()


def streamed(x: Tensor, y: Tensor) -> Tensor:
    """Feed the same features to the accumulator batch by batch."""
    sums = StreamedCKA()
    for start in range(0, x.shape[1], BATCH):
        sums.update(x[:, start : start + BATCH], y[:, start : start + BATCH])
    return sums.result()


def in_memory(rounds: int) -> dict[str, Any]:
    """Time torch_cka, the reference and ours on all states at once."""
    x, y = next(features(1, 2552, 768, seed=0))
    rivals: dict[str, tuple[Callable[[], Tensor], int]] = {
        "float64 Gram form, whole matrices": (lambda: reference(x, y), 1),
        "cka_matrix": (lambda: cka_matrix(x, y), 3),
        "cka_matrix, float64 states": (lambda: cka_matrix(x.double(), y.double()), 1),
    }
    if importlib.util.find_spec("torch_cka"):
        rivals = {"torch_cka 0.21": (torch_cka_loop(x, y), 1), **rivals}
    return in_turn(rivals, reference(x, y), rounds)


def in_batches(rounds: int) -> dict[str, Any]:
    """Time the same features streamed and at once."""
    x, y = next(features(1, 2552, 768, seed=0))
    rivals: dict[str, tuple[Callable[[], Tensor], int]] = {
        "cka_matrix": (lambda: cka_matrix(x, y), 1),
        "StreamedCKA, batches of 256": (lambda: streamed(x, y), 1),
    }
    return in_turn(rivals, reference(x, y), rounds)


def in_turn(rivals: dict[str, tuple[Callable[[], Tensor], int]], expected: Tensor, rounds: int) -> dict[str, Any]:
    """Time all rivals, round after round, so that a busier minute hits them alike."""
    rivals["cka_matrix"][0]()  # warm-up
    seconds: dict[str, list[float]] = {name: [] for name in rivals}
    differences = {}
    for turn in range(rounds):
        for name, (call, times) in rivals.items():
            for _ in range(times):
                start = perf_counter()
                values = call()
                seconds[name].append(perf_counter() - start)
            differences[name] = float((values - expected).abs().max())
            print(f"round {turn + 1}: {name}: {seconds[name][-1]:.2f} s, off by {differences[name]:.1e}", flush=True)
    return {
        "texts": 2552,
        "width": 768,
        "threads": torch.get_num_threads(),
        "rows": [
            {"name": name, "seconds": taken, "median_s": median(taken), "max_difference": differences[name]}
            for name, taken in seconds.items()
        ],
    }


def stream(width: int, texts: int) -> dict[str, Any]:
    """Time `update` and `result` of one stream in this process."""
    batches = texts // BATCH
    sums, busy = StreamedCKA(), 0.0
    peaks = {"start": _peak_mib()}
    for index, (x, y) in enumerate(features(batches, BATCH, width, seed=1)):
        start = perf_counter()
        sums.update(x, y)
        busy += perf_counter() - start
        if index + 1 in (batches // 4, batches // 2, batches):
            peaks[str((index + 1) * BATCH)] = _peak_mib()
            print(f"  width {width}: {(index + 1) * BATCH} texts, {busy:.0f} s, {_peak_mib():.0f} MiB", flush=True)
    start = perf_counter()
    diagonal = sums.result().diagonal()
    busy += perf_counter() - start
    peaks["result"] = _peak_mib()
    return {
        "width": width,
        "texts": sums.count,
        "threads": torch.get_num_threads(),
        "busy_s": busy,
        "peak_rss_mib": peaks,
        "same_layer_cka": diagonal.tolist(),
    }


def _peak_mib() -> float:
    """Return this process's peak resident memory, which getrusage would inherit."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def stream_alone(width: int, texts: int) -> dict[str, Any]:
    """Run `stream` in a process of its own, for its own peak memory."""
    command = [sys.executable, "-m", "benchmarks.cka.run", "--stream", str(width), str(texts)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            print(line, end="", flush=True)
    found: dict[str, Any] = json.loads(line)
    return found


PARSER = new_parser(__doc__)
PARSER.add_argument("--rounds", type=int, default=3)
PARSER.add_argument("--again", action="store_true", help="run parts anew that are in results.json")
PARSER.add_argument("--stream", nargs=2, type=int, metavar=("WIDTH", "TEXTS"), help=argparse.SUPPRESS)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is not there yet."""
    options = PARSER.parse_args(arguments)
    if options.stream:
        print(json.dumps(stream(*options.stream)))
        return
    parts: dict[str, Callable[[], Any]] = {
        "machine": machine,
        "in_memory": partial(in_memory, options.rounds),
        "in_batches": partial(in_batches, options.rounds),
        **{f"stream_{width}_{texts}": partial(stream_alone, width, texts) for width, texts in STREAMS},
    }
    for name, measure in parts.items():
        measured_once(RESULTS, name, measure, again=options.again)


if __name__ == "__main__":
    main()
