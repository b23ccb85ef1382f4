"""Layer-wise autoencoders of frozen states, trained on raw sentences before anything is known of similarity."""

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn

from truncate_kit.files import replacing
from truncate_kit.methods.frozen.examples import StateExamples, WithoutTexts, moments, take_states
from truncate_kit.methods.frozen.settings import FrozenSettings
from truncate_kit.models import Encoder
from truncate_kit.models.layer_heads import BlockLinear, BlockNetworks
from truncate_kit.models.model_folder import WEIGHTS_FILE, write_weights
from truncate_kit.progress import Progress, silent
from truncate_kit.training.loop import TrainingRun

HELD_OUT = 0.1
_EVALUATED = 512  # states at a time


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
            target.mkdir()
            write_weights(target, self)

    @classmethod
    def load(cls, folder: Path, width: int, code_widths: Sequence[int], depth: int) -> "BlockAutoencoders":
        """What `save` wrote."""
        model = cls(BlockNetworks(width, code_widths, depth=depth))
        model.load_state_dict(load_file(folder / WEIGHTS_FILE))
        return model

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.networks.mean.device

    def forward(self, states: Tensor) -> Tensor:
        """States (L, b, d) to what their codes say of them, standardised: (L, b, d)."""
        codes = self.networks(states)
        for layer in self.deeper:
            codes = [code.tanh() for code in layer(codes)]
        found = [
            torch.baddbmm(shift.view(len(back), 1, self.width), code, back)
            for code, back, shift in zip(codes, self.backs, self.shifts, strict=True)
        ]
        return torch.cat(found)

    def losses(self, states: Tensor, *, own_scale: bool = False) -> Tensor:
        """Mean squared error of each block over texts and dimensions, (L,).

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
        self._values, self._places = values, list(places)

    def __len__(self) -> int:
        return len(self._places)

    def loss(self, encoder: Encoder, batch: Sequence[int]) -> Tensor:
        """Summed over the blocks."""
        model = cast(BlockAutoencoders, encoder)
        return model.losses(take_states(self._values, [self._places[place] for place in batch], model.device)).sum()


class ReconstructionEvaluator(WithoutTexts):
    """How well states of held-out sentences come back."""

    def __init__(self, values: NDArray[np.float32], places: Sequence[int]) -> None:
        self._values, self._places = values, list(places)

    def score(self, encoder: Encoder) -> tuple[float, float | None]:
        """Minus the loss, mean over the blocks; no Pearson."""
        losses = self.losses(cast(BlockAutoencoders, encoder))
        return -sum(losses) / len(losses), None

    @torch.inference_mode()
    def losses(self, model: BlockAutoencoders, *, own_scale: bool = False) -> tuple[float, ...]:
        """Mean squared error of each block on the held-out states, see `BlockAutoencoders.losses`."""
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
