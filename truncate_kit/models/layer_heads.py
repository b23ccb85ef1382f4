"""Score pairs of texts from the frozen states of all blocks."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from truncate_kit.core.errors import ModelError, known_name
from truncate_kit.models.model_folder import read_module

ScoreKind = Literal["exp", "sigmoid"]
SCORE_KINDS: tuple[ScoreKind, ...] = get_args(ScoreKind)


class BlockLinear(nn.Module):
    """Apply a linear layer per block; runs: code width and number of blocks."""

    def __init__(self, runs: Sequence[tuple[int, int]], generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.weights = nn.ParameterList(_uniform((count, code, code), code**-0.5, generator) for code, count in runs)
        self.biases = nn.ParameterList(_uniform((count * code,), code**-0.5, generator) for code, count in runs)

    def forward(self, codes: Sequence[Tensor]) -> list[Tensor]:
        """Map the codes (blocks, b, code) of each run."""
        rows = zip(codes, self.weights, self.biases, strict=True)
        return [torch.baddbmm(bias.view(len(code), 1, -1), code, weight) for code, weight, bias in rows]


class BlockNetworks(nn.Module):
    """Compute tanh(W_l (h_l − mean_l) / scale_l + b_l) per block, then `depth` − 1 such layers on codes."""

    # (L, 1, d); huge dimensions must not drown the others
    mean: Tensor
    scale: Tensor

    def __init__(
        self, width: int, code_widths: Sequence[int], generator: torch.Generator | None = None, *, depth: int = 1
    ) -> None:
        super().__init__()
        self.width, self.code_widths = width, tuple(code_widths)
        # Equal widths share one batched product.
        self.runs = [(code, len(list(run))) for code, run in itertools.groupby(self.code_widths)]
        bound = width**-0.5
        shapes = [((count, width, code), count * code) for code, count in self.runs]
        # Flat: the optimiser takes tensors of one dimension for biases.
        self.weights = nn.ParameterList(_uniform(shape, bound, generator) for shape, _ in shapes)
        self.biases = nn.ParameterList(_uniform((size,), bound, generator) for _, size in shapes)
        self.deeper = nn.ModuleList(BlockLinear(self.runs, generator) for _ in range(depth - 1))
        self.register_buffer("mean", torch.zeros(len(self.code_widths), 1, width))
        self.register_buffer("scale", torch.ones(len(self.code_widths), 1, width))

    def fit(self, mean: Tensor, deviation: Tensor) -> None:
        """Take mean and deviation of the states, (L, d) each; constant dimensions stay unscaled."""
        self.mean.copy_(mean[:, None])
        self.scale.copy_(torch.where(deviation > 1e-6, deviation, 1.0)[:, None])

    def standardized(self, states: Tensor) -> Tensor:
        """Standardize states (L, b, d)."""
        return (states - self.mean) / self.scale

    def forward(self, states: Tensor) -> list[Tensor]:
        """Map states (L, b, d) to codes (blocks, b, code), one tensor per run."""
        codes, start, states = [], 0, self.standardized(states)
        for (code, count), weight, bias in zip(self.runs, self.weights, self.biases, strict=True):
            shift = bias.view(count, 1, code)
            codes.append(torch.tanh(torch.baddbmm(shift, states[start : start + count], weight)))
            start += count
        for layer in self.deeper:
            codes = [code.tanh() for code in layer(codes)]
        return codes


class PairScore(nn.Module):
    """Score two texts from 0 to 1 from their distances 1 − cos at each block: (b, L) to (b,).

    `exp`: exp(−f(x)), f(x) = Σ_k softplus(v_k) |tanh(w_k·x + c_k) − tanh(c_k)|: equal texts always score 1. `sigmoid`:
    σ(v·tanh(W x + c) + a), as in the paper. x is in units of `scale` (L,), the mean over training pairs.
    """

    scale: Tensor

    def __init__(self, blocks: int, hidden: int, kind: ScoreKind, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.kind: ScoreKind = kind
        self.hidden = hidden
        # Not negative: the first score falls with every distance.
        self.weight = nn.Parameter(torch.rand(hidden, blocks, generator=generator) * 2 / blocks)
        self.shift = nn.Parameter(torch.rand(hidden, generator=generator) * 2 - 1)
        start = torch.full((hidden,), 1 / hidden)
        self.out = nn.Parameter(start.expm1().log() if kind == "exp" else -start)
        self.offset = nn.Parameter(torch.zeros(1)) if kind == "sigmoid" else None
        self.register_buffer("scale", torch.ones(blocks))

    def forward(self, distances: Tensor) -> Tensor:
        """Score distances (b, L): (b,)."""
        moved = torch.tanh(nn.functional.linear(distances / self.scale, self.weight, self.shift))
        if self.offset is None:
            moved = (moved - torch.tanh(self.shift)).abs()
            return torch.exp(-(moved @ nn.functional.softplus(self.out)))
        return torch.sigmoid(moved @ self.out + self.offset)


class LayerHeads(nn.Module):
    """Codes of all blocks (the states without `networks`), and the score of two texts.

    A vector holds the codes, each of length 1/√L: cosines of vectors are means of L cosines. raw: Leave out the final
    norm.
    """

    raw = False  # set only if True: other digests stay

    def __init__(
        self, width: int, blocks: int, networks: BlockNetworks | None, score: PairScore, *, raw: bool = False
    ) -> None:
        super().__init__()
        if raw:
            self.raw = True
        self.width, self.blocks = width, blocks
        self.networks = networks
        self.score = score
        self.runs = networks.runs if networks is not None else [(width, blocks)]

    @property
    def device(self) -> torch.device:
        """Return the device of the weights."""
        return self.score.weight.device

    @property
    def settings(self) -> dict[str, Any]:
        """Return the arguments for `read_layer_heads`."""
        return {
            "width": self.width,
            "blocks": self.blocks,
            "code_widths": None if self.networks is None else self.networks.code_widths,
            "depth": 1 if self.networks is None else 1 + len(self.networks.deeper),
            "score": self.score.kind,
            "hidden": self.score.hidden,
            "raw": self.raw,
        }

    @property
    def out_features(self) -> int:
        """Return the size of a vector."""
        return sum(code * count for code, count in self.runs)

    def forward(self, states: Tensor) -> Tensor:
        """Map pooled states of blocks 1 … L, (L, b, d), to vectors (b, out)."""
        codes: list[Tensor] = [states] if self.networks is None else self.networks(states)
        rows = [_unit(code).transpose(0, 1).flatten(1) for code in codes]
        vectors: Tensor = torch.cat(rows, dim=1) / float(self.blocks**0.5)
        return vectors

    def distances(self, first: Tensor, second: Tensor) -> Tensor:
        """Return 1 − cos per block, (b, L), as ½‖û − v̂‖², exactly 0 for equal vectors.

        Raises `ModelError` for vectors of another size.
        """
        if first.shape[-1] != self.out_features:
            raise ModelError(
                f"The layer codes have {self.out_features:,} numbers, these vectors {first.shape[-1]:,}.",
                hint="Score whole vectors: leave out `dimensions`.",
            )
        distances, start = [], 0
        for code, count in self.runs:
            left, right = (
                _unit(side[:, start : start + count * code].reshape(side.shape[0], count, code))
                for side in (first, second)
            )
            distances.append((left - right).square().sum(dim=-1) / 2)
            start += count * code
        return torch.cat(distances, dim=1)

    def similarities(self, first: Tensor, second: Tensor) -> Tensor:
        """Score pairs of vectors (b, out) from 0 to 1: (b,)."""
        scores: Tensor = self.score(self.distances(first, second).to(self.score.weight.dtype))
        return scores


def read_layer_heads(place: Path) -> LayerHeads:
    """Read heads from settings and weights. Raises `ModelError` if damaged."""

    def build(values: dict[str, Any]) -> LayerHeads:
        width, blocks, codes = values["width"], values["blocks"], values["code_widths"]
        networks = None if codes is None else BlockNetworks(width, codes, depth=values["depth"])
        score = PairScore(blocks, values["hidden"], known_name("score", values["score"], SCORE_KINDS))
        return LayerHeads(width, blocks, networks, score, raw=values["raw"])

    return read_module(place, build).eval()


def _unit(codes: Tensor) -> Tensor:
    return nn.functional.normalize(codes, dim=-1)


def _uniform(shape: tuple[int, ...], bound: float, generator: torch.Generator | None) -> nn.Parameter:
    return nn.Parameter((torch.rand(shape, generator=generator) * 2 - 1) * bound)
