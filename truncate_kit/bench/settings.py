"""How a bench measures, validated once."""

from dataclasses import dataclass

from truncate_kit.bounds import SEED, TEXTS, Bounds, check_number, check_numbers
from truncate_kit.hardware import check_threads
from truncate_kit.results import Result

_ROUNDS = Bounds(1, 10_000)
_TOKENS = Bounds(1, 1_000_000)  # of a text, and texts of a batch


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSettings(Result):
    """One bench.

    Attributes:
        batch_sizes: texts per batch of the throughput; latency is timed at batch 1 in any case.
        lengths: tokens per text; None for 16 and 128, or what the models can take.
        backends: names of `BACKENDS`, `("all",)`, or None for those that start at once, and on a GPU what compiles.
        compile: whether what compiles is among them on a GPU: a minute and more for each model and precision.
        repeats: rounds, each of which times every model in turn; latency has ten calls in each.
        threads: of torch and ONNX Runtime, None for torch's own choice.
        device: `cpu` or `cuda[:i]`; None is the CPU.
        memory: whether peak memory is measured too, in one fresh process per contestant.
        max_texts: most texts of the real set, evenly spread over those given.
        seed: of the bootstrap.
        blocks: those that are kept of the lean model, as by `keep`, and compared with all of it; None for all.

    Raises:
        UsageError: a number out of its bounds.
    """

    batch_sizes: tuple[int, ...] = (1, 32)
    lengths: tuple[int, ...] | None = None
    backends: tuple[str, ...] | None = None
    compile: bool = True
    repeats: int = 5
    threads: int | None = None
    device: str | None = None
    memory: bool = True
    max_texts: int = 1000
    seed: int = 0
    blocks: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        check_numbers(self, repeats=_ROUNDS, max_texts=TEXTS, seed=SEED)
        object.__setattr__(self, "threads", check_threads(self.threads))
        for name, values in (("batch_sizes", self.batch_sizes), ("lengths", self.lengths)):
            if values is not None:
                numbers = tuple(check_number(name, value, _TOKENS) for value in tuple(values) or (0,))
                object.__setattr__(self, name, numbers)


QUICK = BenchSettings(repeats=3, memory=False, max_texts=256, compile=False)
"""For a first look: fewer rounds and sentences, no memory, nothing that compiles."""
