"""Autoencoders and heads on cached states: their examples, their evaluators, and their training."""

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn

from truncate_kit.core.files import replacing
from truncate_kit.core.progress import Progress, silent
from truncate_kit.evaluation.graded import Evaluation, correlate
from truncate_kit.methods.frozen.settings import AUTOENCODER, COSINE, FrozenSettings
from truncate_kit.methods.frozen.states import StatePairs, moments, take_states
from truncate_kit.models.encoder import Encoder
from truncate_kit.models.layer_heads import BlockLinear, BlockNetworks, LayerHeads, PairScore, ScoreKind
from truncate_kit.models.model_folder import WEIGHTS_FILE, write_module
from truncate_kit.training.loop import Progressed, TrainingRun

_EVALUATED = 512  # states at a time
HELD_OUT = 0.1
_SMALLEST = 1e-12  # below it all differences are equal but for rounding, and there is nothing left to learn


class StateExamples:
    """Examples of states, rather than texts: all of one size, without a head beside what is trained."""

    head: nn.Module | None = None
    separable = False  # the variance of a batch is none of its parts

    def __init__(self, values: NDArray[np.float32], count: int) -> None:
        self._values, self._count = values, count

    def __len__(self) -> int:
        return self._count

    def lengths(self) -> list[int]:
        """Return the same length for all."""
        return [1] * self._count

    def texts(self) -> None:
        """Return nothing: there are no token ids."""


def log_variance(predicted: Tensor, target: Tensor) -> Tensor:
    """Return log Var(ŷ − y) over a batch (b,), population variance; 0-d. A shift common to all costs nothing."""
    return (predicted - target).var(correction=0).clamp(min=_SMALLEST).log()


def squared_error(predicted: Tensor, target: Tensor) -> Tensor:
    """Return the mean of (ŷ − y)² over a batch (b,); 0-d."""
    return (predicted - target).square().mean()


LOSS_FUNCTIONS = {"mse": squared_error, "log-variance": log_variance}
"""By the names of `FrozenSettings.loss`."""


class BlockAutoencoders(nn.Module):
    """Block networks and, for each, as many layers back: the mean squared error is taken on standardised states.

    The layers back are tanh layers from code to code but for the last one, which is linear. A loss of 1 is what
    predicting the mean would cost. Every block is an autoencoder of its own: their losses are summed, no weight is
    shared, and each is trained as it would be alone.
    """

    def __init__(self, networks: BlockNetworks, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.networks = networks
        self.width = networks.width
        backs, shifts = [], []
        for code, count in networks.runs:
            bound = code**-0.5
            backs.append((torch.rand(count, code, self.width, generator=generator) * 2 - 1) * bound)
            shifts.append((torch.rand(count * self.width, generator=generator) * 2 - 1) * bound)
        self.deeper = nn.ModuleList(BlockLinear(networks.runs, generator) for _ in networks.deeper)
        self.backs, self.shifts = nn.ParameterList(backs), nn.ParameterList(shifts)

    def save(self, folder: Path) -> None:
        """Write the weights into a new folder. Raises `FileProblemError`."""
        with replacing(folder) as target:
            write_module(target, None, self.state_dict())

    @classmethod
    def load(cls, folder: Path, width: int, code_widths: Sequence[int], depth: int) -> "BlockAutoencoders":
        """Read what `save` wrote."""
        model = cls(BlockNetworks(width, code_widths, depth=depth))
        model.load_state_dict(load_file(folder / WEIGHTS_FILE))
        return model

    @property
    def device(self) -> torch.device:
        """Return where the weights are."""
        return self.networks.mean.device

    def forward(self, states: Tensor) -> Tensor:
        """Turn states (L, b, d) into what their codes say of them, standardised: (L, b, d)."""
        codes = self.networks(states)
        for layer in self.deeper:
            codes = [code.tanh() for code in layer(codes)]
        found = [
            torch.baddbmm(shift.view(len(back), 1, self.width), code, back)
            for code, back, shift in zip(codes, self.backs, self.shifts, strict=True)
        ]
        return torch.cat(found)

    def losses(self, states: Tensor, *, own_scale: bool = False) -> Tensor:
        """Return the mean squared error of each block over texts and dimensions, (L,).

        Args:
            states: Over whose texts and dimensions the mean is taken.
            own_scale: In the states' own units.
        """
        difference: Tensor = self(states) - self.networks.standardized(states)
        if own_scale:
            difference = difference * self.networks.scale
        return difference.square().mean(dim=(1, 2))


class RawStates(StateExamples):
    """Examples for the loop: states (n, L, d) of raw sentences at the given places."""

    def __init__(self, values: NDArray[np.float32], places: Sequence[int]) -> None:
        super().__init__(values, len(places))
        self._places = places

    def loss(self, encoder: Encoder, batch: Sequence[int]) -> Tensor:
        """Return the loss summed over the blocks."""
        model = cast(BlockAutoencoders, encoder)
        return model.losses(take_states(self._values, [self._places[place] for place in batch], model.device)).sum()


class ReconstructionEvaluator(RawStates):
    """How well states of held-out sentences come back."""

    def score(self, encoder: Encoder) -> tuple[float, float | None]:
        """Return minus the loss, mean over the blocks; no Pearson."""
        losses = self.losses(cast(BlockAutoencoders, encoder))
        return -sum(losses) / len(losses), None

    @torch.inference_mode()
    def losses(self, model: BlockAutoencoders, *, own_scale: bool = False) -> tuple[float, ...]:
        """Return the mean squared error of each block on the held-out states, see `BlockAutoencoders.losses`."""
        total = torch.zeros(len(model.networks.code_widths), dtype=torch.float64)
        for start in range(0, len(self._places), _EVALUATED):
            part = self._places[start : start + _EVALUATED]
            found = model.losses(take_states(self._values, part, model.device), own_scale=own_scale)
            total += found.double().cpu() * len(part)
        return tuple((total / len(self._places)).tolist())


def pretrain(
    values: NDArray[np.float32],
    code_widths: Sequence[int],
    settings: FrozenSettings,
    *,
    seed: int,
    device: torch.device,
    checkpoint: Path | None = None,
    progress: Progress = silent,
) -> tuple[BlockAutoencoders, tuple[float, ...], tuple[float, ...]]:
    """Train one autoencoder per block on states (n, L, d) and return them with their losses on a held-out tenth.

    The losses are those of standardised states, then those in the states' own units (the paper's figure 2). The epoch
    with the smallest loss is kept.

    Args:
        values: The states.
        code_widths: Of the codes of each block.
        settings: How they are trained.
        seed: Of weights, the order of the states and what is held out.
        device: Where they are trained.
        checkpoint: A killed run continues there and ends with the same weights.
        progress: Called as the work goes on.
    """
    generator = torch.Generator().manual_seed(seed)
    networks = BlockNetworks(values.shape[2], code_widths, generator, depth=settings.depth)
    model = BlockAutoencoders(networks, generator)
    order = torch.randperm(len(values), generator=generator).tolist()
    held = max(1, round(len(order) * HELD_OUT))
    model.networks.fit(*moments(values))
    model.to(device)
    evaluator = ReconstructionEvaluator(values, sorted(order[:held]))
    TrainingRun(
        cast(Encoder, model),
        RawStates(values, sorted(order[held:])),
        evaluator,
        settings.training(settings.pretraining_epochs),
        seed=seed,
    ).train(checkpoint=checkpoint, progress=progress, task="Training autoencoders on raw sentences")
    return model, evaluator.losses(model), evaluator.losses(model, own_scale=True)


@torch.inference_mode()
def pair_distances(heads: LayerHeads, pairs: StatePairs) -> Tensor:
    """1 − cos of the codes of each pair at each block, (pairs, L) float32 on the CPU; each text is encoded once."""
    rows = sorted({*pairs.first, *pairs.second})
    place = {row: index for index, row in enumerate(rows)}
    parts = [
        heads(take_states(pairs.values, rows[start : start + _EVALUATED], heads.device))
        for start in range(0, len(rows), _EVALUATED)
    ]
    vectors = torch.cat(parts)
    first, second = (torch.tensor([place[row] for row in side]) for side in (pairs.first, pairs.second))
    return heads.distances(vectors[first], vectors[second]).cpu()


class PairExamples(StateExamples):
    """Pairs for the loop. distances: known where no network is trained. loss: a name of `LOSSES`."""

    def __init__(self, pairs: StatePairs, distances: Tensor | None, loss: str) -> None:
        super().__init__(pairs.values, len(pairs.targets))
        self._pairs, self._distances, self._loss = pairs, distances, LOSS_FUNCTIONS[loss]
        self._targets = torch.tensor(pairs.targets, dtype=torch.float32)

    def loss(self, encoder: Encoder, batch: Sequence[int]) -> Tensor:
        """Return the loss of the pairs at the given places."""
        heads, places = cast(LayerHeads, encoder), list(batch)
        if self._distances is not None:
            scores = heads.score(self._distances[places].to(heads.device))
        else:
            rows = [side[place] for side in (self._pairs.first, self._pairs.second) for place in places]
            vectors = heads(take_states(self._values, rows, heads.device))
            scores = heads.similarities(vectors[: len(places)], vectors[len(places) :])
        return self._loss(scores.float(), self._targets[places].to(heads.device))


class PairsEvaluator:
    """Spearman and Pearson correlation of ŷ and y, × 100. distances: known where no network is trained."""

    def __init__(self, pairs: StatePairs, distances: Tensor | None) -> None:
        self._pairs, self._distances = pairs, distances

    def texts(self) -> None:
        """Return nothing: there are no token ids."""

    def score(self, encoder: Encoder) -> tuple[float, float | None]:
        """Return Spearman and Pearson."""
        found = self.evaluation(cast(LayerHeads, encoder))
        return found.spearman, found.pearson

    @torch.inference_mode()
    def evaluation(self, heads: LayerHeads) -> Evaluation:
        """Return both correlations and the scores themselves."""
        distances = pair_distances(heads, self._pairs) if self._distances is None else self._distances
        return correlate(heads.score(distances.to(heads.device)).tolist(), self._pairs.targets)


def new_heads(
    step: str,
    train_pairs: StatePairs,
    code_widths: Sequence[int],
    settings: FrozenSettings,
    *,
    seed: int,
    autoencoders: BlockAutoencoders | None = None,
) -> LayerHeads:
    """Make untrained heads of a step on the states of `train_pairs`; those of `AUTOENCODER` start from its networks."""
    generator = torch.Generator().manual_seed(seed)
    blocks, width = train_pairs.values.shape[1:]
    networks = None if step == COSINE else BlockNetworks(width, code_widths, generator, depth=settings.depth)
    if networks is not None and step == AUTOENCODER:
        assert autoencoders is not None
        found = autoencoders.networks.state_dict()
        for name, own in networks.state_dict().items():
            own.copy_(found[name][: len(own)])  # lowest blocks come first everywhere, in the flat biases too
    elif networks is not None:
        rows = np.unique([*train_pairs.first, *train_pairs.second])
        networks.fit(*moments(train_pairs.values[rows]))
    score = PairScore(blocks, settings.hidden, cast(ScoreKind, settings.score), generator)
    heads = LayerHeads(width, blocks, networks, score)
    typical = pair_distances(heads, train_pairs).mean(dim=0)
    heads.score.scale.copy_(torch.where(typical > 0, typical, 1.0))
    return heads


def save_heads(heads: LayerHeads, folder: Path) -> None:
    """Write heads into a new folder, for `read_layer_heads`. Raises `FileProblemError`."""
    with replacing(folder) as target:
        write_module(target, heads.settings, heads.state_dict())


def train_heads(
    heads: LayerHeads,
    pairs: StatePairs,
    dev: StatePairs,
    settings: FrozenSettings,
    *,
    seed: int,
    nli: StatePairs | None = None,
    checkpoint: Path | None = None,
    progress: Progress = silent,
    task: str = "Training heads",
) -> Progressed:
    """Train heads in place, on NLI pairs first where there are some; the epoch with the best dev Spearman is kept."""
    fixed = heads.networks is None
    stages = [(pairs, settings.epochs, checkpoint, task)]
    if nli is not None:
        before = None if checkpoint is None else checkpoint.with_suffix(".nli.checkpoint")
        stages.insert(0, (nli, settings.nli_epochs, before, f"{task}, NLI"))
    for learned, epochs, file, name in stages:
        done = TrainingRun(
            cast(Encoder, heads),
            PairExamples(learned, pair_distances(heads, learned).clone() if fixed else None, settings.loss),
            PairsEvaluator(dev, pair_distances(heads, dev).clone() if fixed else None),
            settings.training(epochs),
            seed=seed,
        ).train(checkpoint=file, progress=progress, task=name)
    return done
