"""Regret of searches for blocks: points of agreement lost against the best of all subsets of each size, untrained.

python -m benchmarks.lean.search --model MODEL --texts-from texts.txt
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks.common import new_parser
from truncate_kit.methods.distill import subsets
from truncate_kit.methods.distill.learning import AgreementEvaluator
from truncate_kit.methods.distill.settings import BEAM, Blocks
from truncate_kit.models.loading import load_encoder

PARSER = new_parser(__doc__)
PARSER.add_argument("--model", action="append", required=True)
PARSER.add_argument("--texts-from", type=Path, required=True)
PARSER.add_argument("--texts", type=int, default=subsets.SEARCHED_TEXTS)


def plain_beam(scores: Mapping[Blocks, float], depth: int, width: int) -> set[Blocks]:
    """Return the subsets that a beam scores if it scores every subset with one block fewer."""
    best = [tuple(range(1, depth + 1))]
    tried = set(best)
    for _ in range(depth - 1):
        fewer = {(*one[:place], *one[place + 1 :]) for one in best for place in range(len(one))}
        best, tried = sorted(fewer, key=lambda one: -scores[one])[:width], tried | fewer
    return tried


def regret(scores: Mapping[Blocks, float], tried: Iterable[Blocks], depth: int) -> str:
    """Return the mean and the largest regret over sizes."""
    lost, tried = [], list(tried)
    for size in range(1, depth):
        best, found = (max(scores[one] for one in some if len(one) == size) for some in (scores, tried))
        lost.append(best - found)
    return f"{np.mean(lost):.2f}, {max(lost):.2f}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each model."""
    given = PARSER.parse_args(arguments)
    torch.set_num_threads(1)
    subsets.LEADING, subsets.SEARCHED_TEXTS = 2**20, given.texts  # type: ignore[attr-defined]  # imported there; keeps all scores
    lines = given.texts_from.read_text(encoding="utf-8").splitlines()[: given.texts]
    for model in given.model:
        encoder = load_encoder(model)
        depth, ids = encoder.depth, encoder.token_ids(lines)
        evaluator = AgreementEvaluator(ids, encoder.encode_ids(ids))
        found = subsets.search_subsets(encoder, evaluator, beam=2**depth)
        scores = dict(found.leading)
        sieved, _ = subsets.descend(
            lambda some, scores=scores: [(one, scores[one]) for one in some], depth, 1, BEAM, lambda _: True
        )
        tried = {"today's": set(sieved), "8": plain_beam(scores, depth, 8), "1": plain_beam(scores, depth, 1)}
        row = [f"{name}: {len(some)} subsets, {regret(scores, some, depth)}" for name, some in tried.items()]
        row += [f"{name}: {regret(scores, dict(kept), depth)}" for name, kept in found.baselines.items()]
        print(f"{encoder.name}, {len(scores)} subsets; " + "; ".join(row), flush=True)


if __name__ == "__main__":
    main()
