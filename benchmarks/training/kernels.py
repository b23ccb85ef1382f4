"""The kernels that training on a CPU takes in place of torch's, each against torch's own, on one thread.

    python -m benchmarks.training.kernels

Linear layers in float32 at the shapes of all-MiniLM-L6-v2 and of the miniatures, 512 and 1,024 tokens: forward, and
forward with both gradients, in GFLOP/s; dropout of half a million elements, forward and backward, in milliseconds.
In turns, medians of 30 calls.
"""

from collections.abc import Callable, Sequence
from functools import partial
from statistics import median

import torch
from torch import Tensor, nn

from benchmarks.common import new_parser
from truncate_kit.bench.timing import interleaved
from truncate_kit.hardware import processor_name
from truncate_kit.training.kernels import dropout, linear, onednn_pays

SHAPES = ((512, 384, 1536), (512, 1536, 384), (512, 384, 384), (1024, 128, 512), (1024, 128, 128))
ELEMENTS = 540_672


def trained(call: Callable[..., Tensor], *leaves: Tensor) -> None:
    """Forward, and the gradients of all leaves."""
    result = call(*leaves)
    torch.autograd.grad(result, [leaf for leaf in leaves if leaf.requires_grad], result.detach())


PARSER = new_parser(__doc__)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print both tables."""
    PARSER.parse_args(arguments)
    torch.set_num_threads(1)
    print(f"{processor_name()}, torch {torch.__version__}; linear layers by oneDNN when training: {onednn_pays()}")
    ways: dict[str, Callable[..., Tensor]] = {"torch": nn.functional.linear, "oneDNN": linear}
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


if __name__ == "__main__":
    main()
