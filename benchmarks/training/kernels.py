"""The kernels that training on a CPU takes in place of torch's, each against torch's own, on one thread.

    python -m benchmarks.training.kernels [--data FOLDER_OF_SETS --model mini-bert]

Linear layers in float32 at the shapes of all-MiniLM-L6-v2 and of the miniatures, 512 and 1,024 tokens, and torch's own
under autocast to bfloat16: forward, and with both gradients, in GFLOP/s; dropout of half a million elements, forward
and backward, in milliseconds. In turns, medians of 30 calls. With `--data` also a step of contrast with hard negatives
on 64 rows of SICK and STS Benchmark, by how many texts of like length are encoded at a time: medians of nine.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn

from benchmarks.common import new_parser
from benchmarks.layer_attention.rows import training_rows
from truncate_kit.bench.timing import interleaved
from truncate_kit.hardware import processor_name
from truncate_kit.models import load_encoder
from truncate_kit.training import examples as contrastive
from truncate_kit.training.kernels import FasterOnCPU, dropout, linear, onednn_pays

SHAPES = ((512, 384, 1536), (512, 1536, 384), (512, 384, 384), (1024, 128, 512), (1024, 128, 128))
ELEMENTS = 540_672
ROWS, ALIKE = 64, (3 * 64, 64, 32, 16)


def trained(call: Callable[..., Tensor], *leaves: Tensor) -> None:
    """Forward, and the gradients of all leaves."""
    result = call(*leaves)
    torch.autograd.grad(result, [leaf for leaf in leaves if leaf.requires_grad], result.detach())


def in_bfloat16(*leaves: Tensor) -> Tensor:
    """As a training in bf16 multiplies."""
    with torch.autocast("cpu", torch.bfloat16):
        return nn.functional.linear(*leaves)


def time_steps(data: Path, model: str) -> None:
    """Print how long a step takes, by how many texts go together."""
    encoder, rows = load_encoder(model).train(), training_rows(data).rows
    columns = [[row.anchor for row in rows], [row.positive for row in rows], [row.negative or "" for row in rows]]
    ids = [encoder.token_ids(column) for column in columns]
    texts = contrastive.ContrastiveTexts(ids)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0)).tolist()
    places = (order[start : start + ROWS] for start in range(0, len(order), ROWS))

    def step(alike: int, batch: list[int]) -> None:
        contrastive.ALIKE = alike
        with FasterOnCPU():
            texts.loss(encoder, batch).backward()  # type: ignore[no-untyped-call]  # untyped in torch
        encoder.zero_grad()

    lengths = torch.tensor([[len(column[place]) for column in ids] for place in order[: ROWS * (len(order) // ROWS)]])
    for size in ALIKE:
        groups = [
            part for batch in lengths.view(-1, 3 * ROWS).sort(descending=True).values for part in batch.split(size)
        ]
        padded = sum(len(part) * int(part[0]) for part in groups) / lengths.numel()
        print(f"{size} at a time: {padded:.1f} tokens a text, {float(lengths.float().mean()):.1f} of them real")
    seconds: dict[int, list[float]] = {}
    for _, batch in zip(range(9), places, strict=False):
        found = interleaved({str(size): partial(step, size, batch) for size in ALIKE}, rounds=1, calls_per_round=1)
        for size in ALIKE:
            seconds.setdefault(size, []).append(found[str(size)][0])
    print(f"{encoder.name}, {ROWS} rows: " + ", ".join(f"{size}: {median(seconds[size]):.2f} s" for size in ALIKE))


PARSER = new_parser(__doc__)
PARSER.add_argument("--data", type=Path, help="holds stsb/en and sick")
PARSER.add_argument("--model", default="mini-bert")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print all tables."""
    options = PARSER.parse_args(arguments)
    torch.set_num_threads(1)
    print(f"{processor_name()}, torch {torch.__version__}; linear layers by oneDNN when training: {onednn_pays()}")
    ways: dict[str, Callable[..., Tensor]] = {
        "torch": nn.functional.linear,
        "oneDNN": linear,
        "torch in bf16": in_bfloat16,
    }
    for tokens, width, out in SHAPES:
        leaves = [torch.randn(size, requires_grad=True) for size in ((tokens, width), (out, width), (out,))]
        still = [leaf.detach() for leaf in leaves]
        calls = {f"{name} forward": partial(way, *still) for name, way in ways.items()}
        calls |= {f"{name} with gradients": partial(trained, way, *leaves) for name, way in ways.items()}
        seconds = interleaved(calls, rounds=10, calls_per_round=3)
        work = 2 * tokens * width * out / 1e9
        speeds = {name: work * (3 if "gradients" in name else 1) / median(times) for name, times in seconds.items()}
        print(f"{tokens} × {width} → {out}: " + ", ".join(f"{name} {speed:.0f}" for name, speed in speeds.items()))
    states = torch.randn(ELEMENTS, requires_grad=True)
    drops: dict[str, Callable[..., Tensor]] = {
        "torch": partial(nn.functional.dropout, p=0.1),
        "ours": partial(dropout, p=0.1),
    }
    times = interleaved({n: partial(trained, drop, states) for n, drop in drops.items()}, rounds=10, calls_per_round=3)
    print("dropout: " + ", ".join(f"{name} {median(values) * 1e3:.2f} ms" for name, values in times.items()))
    if options.data is not None:
        time_steps(options.data, options.model)


if __name__ == "__main__":
    main()
