"""Heads on cached states: their examples, their evaluator, and their training."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from truncate_kit.data import PairSet, PlacedPairs
from truncate_kit.evaluation.graded import Evaluation, correlate
from truncate_kit.files import replacing
from truncate_kit.methods.frozen.autoencoders import BlockAutoencoders
from truncate_kit.methods.frozen.examples import LOSS_FUNCTIONS, StateExamples, WithoutTexts, moments, take_states
from truncate_kit.methods.frozen.settings import AUTOENCODER, COSINE, FrozenSettings
from truncate_kit.models import Encoder, LayerHeads
from truncate_kit.models.layer_heads import BlockNetworks, PairScore, ScoreKind, write_layer_heads
from truncate_kit.progress import Progress, silent
from truncate_kit.training.loop import Progressed, TrainingRun

_EVALUATED = 512  # texts at a time


@dataclass(frozen=True, slots=True)
class StatePairs:
    """Pairs of texts by their rows in cached states."""

    values: NDArray[np.float32]  # (n, L, d)
    first: tuple[int, ...]  # rows, as `second`
    second: tuple[int, ...]
    targets: tuple[float, ...]  # from 0 to 1

    @classmethod
    def of(
        cls, pairs: PairSet, texts: Sequence[str], values: NDArray[np.float32], targets: Sequence[float] | None = None
    ) -> "StatePairs":
        """The pairs of a set whose texts are among `texts`, the rows of `values`.

        Args:
            pairs: The set.
            texts: Those of the rows of `values`.
            values: A row for each of `texts`.
            targets: None is their scores.
        """
        _, first, second = PlacedPairs.of(pairs.pairs, texts)
        return cls(values, tuple(first), tuple(second), tuple(targets if targets is not None else pairs.scores01()))

    def lowest(self, blocks: int) -> "StatePairs":
        """The same pairs with the states of this number of lowest blocks."""
        return StatePairs(self.values[:, :blocks], self.first, self.second, self.targets)


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


@torch.inference_mode()
def pair_scores(heads: LayerHeads, pairs: StatePairs) -> list[float]:
    """ŷ of each pair."""
    found: list[float] = heads.score(pair_distances(heads, pairs).to(heads.device)).tolist()
    return found


class PairExamples(StateExamples):
    """Pairs for the loop. distances: known where no network is trained. loss: a name of `LOSSES`."""

    def __init__(self, pairs: StatePairs, distances: Tensor | None, loss: str) -> None:
        self._pairs, self._distances, self._loss = pairs, distances, LOSS_FUNCTIONS[loss]
        self._targets = torch.tensor(pairs.targets, dtype=torch.float32)

    def __len__(self) -> int:
        return len(self._targets)

    def loss(self, encoder: Encoder, batch: Sequence[int]) -> Tensor:
        """The loss of the pairs at the given places."""
        heads, places = cast(LayerHeads, encoder), list(batch)
        if self._distances is not None:
            scores = heads.score(self._distances[places].to(heads.device))
        else:
            rows = [side[place] for side in (self._pairs.first, self._pairs.second) for place in places]
            vectors = heads(take_states(self._pairs.values, rows, heads.device))
            scores = heads.similarities(vectors[: len(places)], vectors[len(places) :])
        return self._loss(scores.float(), self._targets[places].to(heads.device))


class PairsEvaluator(WithoutTexts):
    """Spearman and Pearson correlation of ŷ and y, × 100. distances: known where no network is trained."""

    def __init__(self, pairs: StatePairs, distances: Tensor | None) -> None:
        self._pairs, self._distances = pairs, distances

    def score(self, encoder: Encoder) -> tuple[float, float | None]:
        """Spearman and Pearson."""
        found = self.evaluation(cast(LayerHeads, encoder))
        return found.spearman, found.pearson

    @torch.inference_mode()
    def evaluation(self, heads: LayerHeads) -> Evaluation:
        """Both correlations and the scores themselves."""
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
    """Untrained heads of a step on the states of `train_pairs`; those of `AUTOENCODER` start from its networks."""
    generator = torch.Generator().manual_seed(seed)
    blocks, width = train_pairs.values.shape[1:]
    networks = None if step == COSINE else BlockNetworks(width, code_widths, generator, depth=settings.depth)
    if networks is not None and step == AUTOENCODER:
        assert autoencoders is not None
        _take_lowest(networks, autoencoders.networks)
    elif networks is not None:
        rows = np.unique([*train_pairs.first, *train_pairs.second])
        networks.fit(*moments(train_pairs.values[rows]))
    heads = LayerHeads(
        width,
        blocks,
        networks,
        PairScore(blocks, settings.hidden, cast(ScoreKind, settings.score), generator),
    )
    typical = pair_distances(heads, train_pairs).mean(dim=0)
    heads.score.scale.copy_(torch.where(typical > 0, typical, 1.0))
    return heads


def _take_lowest(networks: BlockNetworks, source: BlockNetworks) -> None:
    """Copy the networks of the lowest blocks, as many as `networks` has."""
    found = source.state_dict()
    for name, own in networks.state_dict().items():
        own.copy_(found[name][: len(own)])  # blocks come first everywhere, in the flat biases too


def save_heads(heads: LayerHeads, folder: Path) -> None:
    """Write heads into a new folder, for `read_layer_heads`. Raises `FileProblemError`."""
    with replacing(folder) as target:
        write_layer_heads(heads, target)


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
