"""Cached states of frozen blocks, and autoencoders and heads trained on these states."""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from truncate_kit.core.files import replacing, run_lock
from truncate_kit.core.progress import Progress, silent
from truncate_kit.evaluation.graded import Evaluation, correlate
from truncate_kit.methods.frozen.settings import FrozenSettings, Reconstruction
from truncate_kit.models.encoder import BlockLinear, BlockNetworks, Encoder, LayerHeads, ScoreKind
from truncate_kit.models.pipeline import write_module
from truncate_kit.models.store import StoredRows, encoder_digest, sha256_of
from truncate_kit.models.truncation import layer_states
from truncate_kit.training.loop import Evaluator, Examples, TrainingRun

CHUNK = 512  # texts, a few seconds of work: all that is lost after a kill
HELD_OUT = 0.1  # share of raw sentences
_READ = 1024  # texts read at a time, for moments
_ENCODED = 512  # texts encoded at a time
_SMALLEST = 1e-12  # smaller variances are rounding errors

Rows = NDArray[np.float32]


def cached_states(
    encoder: Encoder,
    texts: Sequence[str],
    folder: Path,
    *,
    final_norm: bool = True,
    chunk: int = CHUNK,
    progress: Progress = silent,
) -> Rows:
    """Return pooled states (n, L, d) of blocks 1 … L, float32, read-only and memory-mapped.

    A repeated call resumes after a kill, with the same result. Raises `FileProblemError` if `folder` is not writable or
    in use, `UsageError` if the disk is too small.
    """
    raw: Literal[False, "all"] = False if final_norm or encoder.family.final_norm is None else "all"
    key = sha256_of(("states", encoder_digest(encoder), str(chunk), str(raw), *texts))
    entry, shape = folder / key[:16], (len(texts), encoder.depth, encoder.width)
    with run_lock(entry):
        row_bytes = 4 * shape[1] * shape[2]
        stored = StoredRows(entry / "states.f32", {"states": key}, num_rows=shape[0], row_bytes=row_bytes, chunk=chunk)
        for start in stored.missing:
            part = texts[start : start + chunk]
            states = layer_states(encoder, part, raw=raw)[1:].transpose(0, 1)
            stored.write(start, states.contiguous().numpy().tobytes())
            progress(f"States of {encoder.name}", start + len(part), shape[0])
        return np.memmap(stored.file, np.float32, mode="r", shape=shape)


def moments(values: Rows) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of states (n, L, d), each (L, d) float32."""
    parts = np.array_split(values, -(-len(values) // _READ))
    mean = np.sum([part.sum(axis=0, dtype=np.float64) for part in parts], axis=0) / len(values)
    variance = np.sum([np.square(part - mean).sum(axis=0) for part in parts], axis=0) / len(values)
    return torch.from_numpy(mean).float(), torch.from_numpy(np.sqrt(variance)).float()


def take_states(values: Rows, places: Sequence[int] | NDArray[np.int64], device: torch.device) -> Tensor:
    """Return rows of states (n, L, d) as (L, b, d) on `device`."""
    return torch.from_numpy(np.ascontiguousarray(values[np.asarray(places)])).transpose(0, 1).to(device)


class BlockAutoencoders(nn.Module):
    """Autoencoders, one per block: block networks encode, decoders of the same depth end in a linear layer.

    Losses are summed and no weights are shared, so each block trains independently.
    """

    def __init__(self, networks: BlockNetworks, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.networks, self.width = networks, networks.width
        self.backs, self.shifts = nn.ParameterList(), nn.ParameterList()
        for code, count in networks.runs:
            bound = code**-0.5
            self.backs.append((torch.rand(count, code, self.width, generator=generator) * 2 - 1) * bound)
            self.shifts.append((torch.rand(count * self.width, generator=generator) * 2 - 1) * bound)
        self.deeper = nn.ModuleList(
            BlockLinear([(code, code, count) for code, count in networks.runs], generator) for _ in networks.layers[1:]
        )

    @property
    def device(self) -> torch.device:
        """Return the weights' device."""
        return self.networks.mean.device

    def forward(self, states: Tensor) -> Tensor:
        """Return reconstructed standardised states (L, b, d)."""
        codes = self.networks(states)
        for layer in self.deeper:
            codes = [code.tanh() for code in layer(codes)]
        rows = zip(codes, self.backs, self.shifts, strict=True)
        return torch.cat([torch.baddbmm(shift.view(len(back), 1, -1), code, back) for code, back, shift in rows])

    def errors(self, states: Tensor) -> Tensor:
        """Return reconstruction errors (L, b, d) of standardised states; predicting the mean has error variance 1."""
        errors: Tensor = self(states) - self.networks.standardized(states)
        return errors


class RawStates(Examples, Evaluator):
    """States (n, L, d) of raw sentences: training examples and evaluator for autoencoders."""

    def __init__(self, values: Rows, places: Sequence[int]) -> None:
        self._values, self._places = values, places

    def __len__(self) -> int:
        return len(self._places)

    def loss(self, encoder: Encoder, batch: Sequence[int]) -> Tensor:
        """Return mean squared errors, summed over blocks."""
        model, places = cast(BlockAutoencoders, encoder), [self._places[place] for place in batch]
        return model.errors(take_states(self._values, places, model.device)).square().mean(dim=(1, 2)).sum()

    def score(self, encoder: Encoder) -> tuple[float, float | None]:
        """Return the negative loss, averaged over blocks."""
        return -fmean(self.losses(cast(BlockAutoencoders, encoder))[0]), None

    @torch.inference_mode()
    def losses(self, model: BlockAutoencoders) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return the mean squared errors by block: for standardised states, and without standardisation."""
        total = torch.zeros(2, len(model.networks.code_widths), dtype=torch.float64)
        for start in range(0, len(self), _ENCODED):
            part = self._places[start : start + _ENCODED]
            errors = model.errors(take_states(self._values, part, model.device))
            for row, scaled in zip(total, (errors, errors * model.networks.scale), strict=True):
                row += scaled.square().mean(dim=(1, 2)).double().cpu() * len(part)
        standardised, own = map(tuple, (total / len(self)).tolist())
        return standardised, own


def pretrain(
    values: Rows,
    code_widths: Sequence[int],
    settings: FrozenSettings,
    *,
    seed: int,
    device: torch.device,
    left_out: int = 0,
    checkpoint: Path | None = None,
    progress: Progress = silent,
) -> tuple[BlockAutoencoders, Reconstruction]:
    """Train one autoencoder per block on states (n, L, d); keep the epoch with the smallest held-out loss."""
    generator = torch.Generator().manual_seed(seed)
    model = BlockAutoencoders(BlockNetworks(values.shape[2], code_widths, generator, depth=settings.depth), generator)
    order = torch.randperm(len(values), generator=generator).tolist()
    held = max(1, round(len(order) * HELD_OUT))
    model.networks.fit(*moments(values))
    model.to(device)
    train, held_out = RawStates(values, sorted(order[held:])), RawStates(values, sorted(order[:held]))
    training = settings.training(settings.pretraining_epochs)
    run = TrainingRun(cast(Encoder, model), train, held_out, training, seed=seed)
    run.train(checkpoint=checkpoint, progress=progress, task="Training autoencoders on raw sentences")
    losses, own_losses = held_out.losses(model)
    return model, Reconstruction(
        code_widths=tuple(code_widths),
        losses=losses,
        own_losses=own_losses,
        num_sentences=len(values),
        left_out=left_out,
    )


def log_variance(predicted: Tensor, target: Tensor) -> Tensor:
    """Return log Var(ŷ − y) over a batch (b,), population variance; 0-d. Ignores a constant shift."""
    return (predicted - target).var(correction=0).clamp(min=_SMALLEST).log()


LOSS_FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mse": nn.functional.mse_loss,
    "log-variance": log_variance,
}  # by `FrozenSettings.loss`


class StatePairs(Examples, Evaluator):
    """Pairs of rows of states (n, L, d): training examples and evaluator for heads; targets from 0 to 1."""

    def __init__(
        self,
        values: Rows,
        first: Sequence[int],
        second: Sequence[int],
        targets: Sequence[float],
        loss: str = "log-variance",
    ) -> None:
        self.values, self.first, self.second, self.targets, self._loss = values, first, second, targets, loss
        self._fixed: Tensor | None = None  # distances, cached for heads without networks

    def __len__(self) -> int:
        return len(self.targets)

    def lowest(self, blocks: int) -> "StatePairs":
        """Return the pairs with only the lowest `blocks`."""
        return StatePairs(self.values[:, :blocks], self.first, self.second, self.targets, self._loss)

    @torch.no_grad()
    def distances(self, heads: LayerHeads) -> Tensor:
        """Return 1 − cosine between the codes of each pair at each block, (pairs, L) float32 on the CPU."""
        if heads.networks is None and self._fixed is not None:
            return self._fixed
        rows, places = np.unique([self.first, self.second], return_inverse=True)
        parts = [
            heads(take_states(self.values, rows[start : start + _ENCODED], heads.device))
            for start in range(0, len(rows), _ENCODED)
        ]
        first, second = torch.cat(parts)[torch.from_numpy(places.reshape(2, -1))]
        distances = heads.distances(first, second).cpu()
        if heads.networks is None:
            self._fixed = distances
        return distances

    def loss(self, encoder: Encoder, batch: Sequence[int]) -> Tensor:
        """Return the loss, 0-d."""
        heads, places = cast(LayerHeads, encoder), list(batch)
        if heads.networks is None:
            scores = heads.score(self.distances(heads)[places].to(heads.device))
        else:
            rows = [side[place] for side in (self.first, self.second) for place in places]
            scores = heads.similarities(*heads(take_states(self.values, rows, heads.device)).chunk(2))
        targets = torch.tensor([self.targets[place] for place in places], dtype=torch.float32)
        return LOSS_FUNCTIONS[self._loss](scores.float(), targets.to(heads.device))

    def score(self, encoder: Encoder | LayerHeads) -> tuple[float, float | None]:
        """Return Spearman and Pearson correlation × 100."""
        correlations = self.evaluation(cast(LayerHeads, encoder))
        return correlations.spearman, correlations.pearson

    @torch.no_grad()
    def evaluation(self, heads: LayerHeads) -> Evaluation:
        """Return scores, Spearman and Pearson."""
        return correlate(heads.score(self.distances(heads).to(heads.device)).tolist(), self.targets)


def new_heads(
    pairs: StatePairs,
    code_widths: Sequence[int],
    settings: FrozenSettings,
    *,
    seed: int,
    autoencoders: BlockAutoencoders | None = None,
) -> LayerHeads:
    """Return untrained heads scaled to the training `pairs`; their networks start from `autoencoders`, if given.

    Without `code_widths`, the heads have no networks: the codes are the states.
    """
    generator = torch.Generator().manual_seed(seed)
    blocks, width = pairs.values.shape[1:]
    kind, hidden, depth = cast(ScoreKind, settings.score), settings.hidden, settings.depth
    heads = LayerHeads(width, blocks, code_widths, kind=kind, hidden=hidden, depth=depth, generator=generator)
    if heads.networks is not None and autoencoders is not None:
        pretrained = autoencoders.networks.state_dict()
        for name, own in heads.networks.state_dict().items():
            own.copy_(pretrained[name][: len(own)])  # lowest blocks come first, in flat biases too
    elif heads.networks is not None:
        heads.networks.fit(*moments(pairs.values[np.unique([pairs.first, pairs.second])]))
    typical = pairs.distances(heads).mean(dim=0)
    heads.scale.copy_(torch.where(typical > 0, typical, 1.0))
    return heads


def save(module: BlockAutoencoders | LayerHeads, folder: Path) -> None:
    """Write the weights, and the settings of heads, to `folder`. Raises `FileProblemError`."""
    with replacing(folder) as target:
        write_module(target, module.settings if isinstance(module, LayerHeads) else None, module.state_dict())
