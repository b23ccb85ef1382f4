"""What simpler rules than a search keep of a model's blocks: from one run of all of them over some texts."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from truncate_kit.analysis.cka import cka_matrix
from truncate_kit.models.block_runner import BlockRunner

BASELINES = ("first", "even", "block_influence", "angular", "cka")


@dataclass(frozen=True, slots=True)
class BlockChanges:
    """How much the L blocks of a model change what goes through them.

    Attributes:
        influence: 1 − mean cosine between a token before and behind each block, (L,).
        angles: Mean angle / π between the states of a token at any two layers, (L + 1, L + 1).
        dissimilarity: 1 − debiased CKA between the sentence vectors before and behind each block, (L,).
    """

    influence: Tensor
    angles: Tensor
    dissimilarity: Tensor

    @property
    def depth(self) -> int:
        """Number of blocks."""
        return len(self.influence)


def changes(runners: Iterable[BlockRunner], depth: int) -> BlockChanges:
    """Measure them over one batch of `runners` after another. Raises `DataError` below four texts."""
    influence, angles, count = torch.zeros(depth), torch.zeros(depth + 1, depth + 1), 0
    vectors: list[Tensor] = []
    for runner in runners:
        states = list(_states(runner, depth))
        real = runner.mask.bool()
        tokens = torch.nn.functional.normalize(torch.stack([state[real] for state in states]).double(), dim=-1)
        cosines = torch.einsum("itd,jtd->ijt", tokens, tokens).clamp(-1, 1).cpu()
        influence += (1 - cosines.diagonal(offset=1)).sum(0).float()
        angles += (cosines.arccos() / math.pi).sum(2).float()
        count += int(real.sum())
        vectors.append(torch.stack([runner.vectors(state).float().cpu() for state in states]))
    cka = cka_matrix(torch.cat(vectors, dim=1), undefined="nan").diagonal(offset=1).nan_to_num(0.0)
    return BlockChanges(influence / count, angles / count, 1 - cka)


def baseline_blocks(found: BlockChanges) -> dict[str, list[tuple[int, ...]]]:
    """What each rule of `BASELINES` keeps, for each number n of blocks.

    first: blocks 1 … n, the cut from the top. even: n blocks at even distances, the last one among them, as layer
    reduction for distillation usually takes them. block_influence: the n blocks that change their tokens' direction
    most (ShortGPT, arXiv:2403.03853). angular: all but the run of blocks with the smallest angle between the tokens
    before and behind it (PruneMe, arXiv:2403.17887; over all tokens). cka: the n blocks that change the sentence
    vectors most, by CKA.
    """
    depth = found.depth
    kept: dict[str, list[tuple[int, ...]]] = {name: [] for name in BASELINES}
    for size in range(1, depth + 1):
        kept["first"].append(tuple(range(1, size + 1)))
        kept["even"].append(tuple(math.ceil(depth * place / size) for place in range(1, size + 1)))
        kept["block_influence"].append(_largest(found.influence, size))
        start = min(range(size + 1), key=lambda at: float(found.angles[at, at + depth - size]))
        kept["angular"].append((*range(1, start + 1), *range(start + depth - size + 1, depth + 1)))
        kept["cka"].append(_largest(found.dissimilarity, size))
    return kept


def _largest(values: Tensor, number: int) -> tuple[int, ...]:
    order = sorted(range(1, len(values) + 1), key=lambda block: -float(values[block - 1]))
    return tuple(sorted(order[:number]))


def _states(runner: BlockRunner, depth: int) -> Iterator[Tensor]:
    states = runner.embedded
    yield states
    for block in range(1, depth + 1):
        states = runner.run(block, states)
        yield states
