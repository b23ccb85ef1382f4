"""How many tokens a second one pretraining step takes in, by model and precision, on one thread.

    python -m benchmarks.miniatures.steps --text FILE_OF_RAW_TEXT

Whole steps (hiding, forward, backward, clipping, AdamW) on 128 texts of 28 to 34 tokens. Compared: float32, bfloat16 as
the package trains, and bfloat16 by torch's autocast alone, whose attention is bfloat16, too. Every round runs each of
them once, in turn; medians of nine rounds. Writes `steps.json`.
"""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from torch import nn

from benchmarks.common import machine, new_parser
from benchmarks.miniatures.corpus import learn_vocabulary, pieces, read_lines
from benchmarks.miniatures.objectives import ElectraHeads, electra_loss
from benchmarks.miniatures.pretrain import MAX_LENGTH, SHAPES, VOCABULARY, bert_config, electra_config, new_encoder
from truncate_kit.files import write_json
from truncate_kit.hardware import OtherWork
from truncate_kit.methods.priors import MaskedTexts, load_masked_head
from truncate_kit.models import Encoder
from truncate_kit.training.loop import adamw, precision

BATCH, SHORTEST, LONGEST = 128, 28, 34
ROUNDS = 9
CPU = torch.device("cpu")
WAYS: dict[str, Callable[[], contextlib.AbstractContextManager[object]]] = {
    "float32": lambda: precision(CPU, "fp32"),
    "bfloat16": lambda: precision(CPU, "bf16"),
    "bfloat16, attention too": lambda: torch.autocast("cpu", torch.bfloat16),
}


def step(encoder: Encoder, examples: MaskedTexts) -> Callable[[str], float]:
    """Seconds of one training step, done the way that is named."""
    trained = nn.ModuleList([encoder, *([examples.head] if examples.head else [])]).train()
    optimiser = adamw(trained, rate=1e-4, weight_decay=0.01)

    def run(way: str) -> float:
        start = perf_counter()
        with WAYS[way]():
            loss = examples.loss(encoder, range(BATCH))
        loss.backward()
        nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return perf_counter() - start

    return run


PARSER = new_parser(__doc__)
PARSER.add_argument("--text", type=Path, nargs="+", required=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Time the steps, print and write."""
    options = PARSER.parse_args(arguments)
    torch.set_num_threads(1)
    work = OtherWork()
    lines = read_lines(options.text)[:20_000]
    tokenizer = learn_vocabulary(lines, VOCABULARY, MAX_LENGTH)
    found = pieces(tokenizer, lines, MAX_LENGTH, packed=False)
    ids = [piece for piece in found if SHORTEST <= len(piece) <= LONGEST][:BATCH]
    tokens, shape = sum(map(len, ids)), SHAPES["mini"]
    bert = new_encoder(bert_config(shape, len(tokenizer)), tokenizer, "cpu")
    pair = [new_encoder(electra_config(shape, len(tokenizer), generator=which), tokenizer, "cpu") for which in (0, 1)]
    pair[1].backbone.embeddings = pair[0].backbone.embeddings
    heads = ElectraHeads(*pair, load_masked_head(pair[1]))
    steps = {
        "BERT": step(bert, MaskedTexts(bert, ids, load_masked_head(bert))),
        "ELECTRA pair": step(pair[0], MaskedTexts(pair[0], ids, heads, objective=electra_loss)),
    }
    seconds: dict[tuple[str, str], list[float]] = {}
    for _ in range(ROUNDS + 1):
        for model, run in steps.items():
            for way in WAYS:
                seconds.setdefault((model, way), []).append(run(way))
    rows = [
        {"model": model, "precision": way, "tokens_a_second": round(tokens / median(times[1:]))}  # the first warms up
        for (model, way), times in seconds.items()
    ]
    write_json(
        Path(__file__).parent / "steps.json",
        {"rows": rows, "machine": machine(1, work.share())},
    )
    for row in rows:
        print(" | ".join(map(str, row.values())))


if __name__ == "__main__":
    main()
