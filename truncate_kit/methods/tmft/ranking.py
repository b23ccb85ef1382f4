"""All layers of one model at once: trained together, or probed on frozen states; both only rank layers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal

import torch
from torch import Tensor, nn

from truncate_kit.core.errors import UsageError
from truncate_kit.core.hardware import in_halves
from truncate_kit.core.progress import Progress, silent
from truncate_kit.models.encoder import Batch, Encoder, evaluating, length_batches, original_order
from truncate_kit.models.truncation import truncate
from truncate_kit.training.examples import Ids, Pairs, VectorEvaluator
from truncate_kit.training.loop import TrainingRun
from truncate_kit.training.settings import TrainingSettings
from truncate_kit.training.tasks import Task

PROBE_EPOCHS, PROBE_RATE, PROBE_BATCH = 5, 1e-3, 256
PROBE_PAIRS = 10_000  # all layers' states of their texts are held: 0.8 GB for 13 layers × 768
Scores = dict[int, float]


def exit_vectors(encoder: Encoder, batch: Batch, layers: Sequence[int]) -> list[Tensor]:
    """Return what the encoder truncated at each of `layers` gives for a batch, (b, out) each, in one pass."""
    states = encoder.hidden_states(batch)
    return [encoder.from_states(states[layer], batch["attention_mask"]) for layer in layers]


@torch.inference_mode()
def exit_vectors_of(
    encoder: Encoder, ids: Sequence[Ids], layers: Sequence[int], batch_size: int = 64, progress: Progress = silent
) -> Tensor:
    """Return `exit_vectors` of any number of texts: (layers, n, out) float32 on the CPU, in the order of `ids`."""
    batches = length_batches([len(row) for row in ids], batch_size)
    parts: list[Tensor] = []
    with evaluating(encoder):

        def read(places: Sequence[int]) -> Tensor:
            vectors = exit_vectors(encoder, encoder.pad([ids[place] for place in places]), layers)
            return torch.stack([one.float().cpu() for one in vectors])

        for done, batch in enumerate(batches, 1):
            parts += in_halves(read, batch)
            progress("ranking layers by their frozen states", done, len(batches))
    return torch.cat(parts, dim=1)[:, original_order(batches)]


class MultiExitPairs:
    """Pairs whose loss is the mean over the exits of several layers, each as if the model ended there.

    Args:
        exits: The same pairs for each layer, each with its own head if the objective has one.
    """

    def __init__(self, exits: Mapping[int, Pairs]) -> None:
        self._exits, self._any = exits, next(iter(exits.values()))
        self.separable = self._any.separable
        heads = [pairs.head for pairs in exits.values() if pairs.head is not None]
        self.head: nn.Module | None = nn.ModuleList(heads) if heads else None

    def __len__(self) -> int:
        return len(self._any)

    def lengths(self) -> list[int]:
        """Return the tokens of the longer text of each pair."""
        return self._any.lengths()

    def texts(self) -> list[Ids]:
        """Return first texts, then second texts."""
        return self._any.texts()

    def loss(self, encoder: Encoder, batch: Sequence[int]) -> Tensor:
        """Return the mean of the losses of the layers."""
        vectors = exit_vectors(encoder, self._any.inputs(encoder, batch), list(self._exits))
        losses = [pairs.loss_of(exit_, batch) for pairs, exit_ in zip(self._exits.values(), vectors, strict=True)]
        return torch.stack(losses).mean()


class MultiExitEvaluator:
    """The score of each exit on held-out pairs; the main score is their mean.

    Args:
        exits: The same pairs for each layer, each with the layer's own head if there is one.
    """

    def __init__(self, exits: Mapping[int, VectorEvaluator]) -> None:
        self._exits, self._any = exits, next(iter(exits.values()))

    def texts(self) -> list[Ids]:
        """Return the token ids of the distinct texts."""
        return self._any.texts()

    def by_layer(self, encoder: Encoder) -> dict[int, float]:
        """Return the main score of each exit, in points."""
        vectors = exit_vectors_of(encoder, self._any.texts(), list(self._exits))
        return {
            layer: pairs.score_of(exit_)[0] for (layer, pairs), exit_ in zip(self._exits.items(), vectors, strict=True)
        }

    def score(self, encoder: Encoder) -> tuple[float, float | None]:
        """Return the mean over the exits; no Pearson."""
        return fmean(self.by_layer(encoder).values()), None


def probe_layers(
    encoder: Encoder,
    exits: Mapping[int, Pairs],
    held_out: Mapping[int, VectorEvaluator],
    seed: int,
    progress: Progress = silent,
) -> Scores:
    """Return how well each layer serves the task frozen: best dev score, in points, of one linear map per layer.

    Args:
        encoder: The full model, which is not changed.
        exits: The same pairs for each layer, each with its own head if the objective has one.
        held_out: The same pairs for each layer, each with its own head if the objective has one.
        seed: Draws the pairs, and the order in which they are learned.
        progress: Called as the work goes on.
    """
    layers, pairs, evaluators = list(exits), list(exits.values()), list(held_out.values())
    generator = torch.Generator().manual_seed(seed)
    texts, count = pairs[0].texts(), len(pairs[0])
    kept = torch.arange(count)
    if count > PROBE_PAIRS:
        kept = torch.randperm(count, generator=generator)[:PROBE_PAIRS]
    both_sides = [texts[place] for place in torch.cat([kept, kept + count]).tolist()]
    # The states are computed once; the maps (out × out, from the identity) and the heads are trained on them together.
    train = exit_vectors_of(encoder, both_sides, layers, progress=progress)
    dev = exit_vectors_of(encoder, evaluators[0].texts(), layers)
    centre = train.mean(dim=1, keepdim=True)  # states share a large mean, which makes every cosine near 1
    train, dev = train - centre, dev - centre
    heads = [head.cpu() for head in (part.head for part in pairs) if head is not None]
    maps = nn.Parameter(torch.eye(train.shape[-1]).repeat(len(layers), 1, 1))
    trained = [maps, *nn.ModuleList(heads).parameters()]
    optimiser = torch.optim.Adam(trained, lr=PROBE_RATE)

    def scores(states: Tensor) -> list[float]:
        return [evaluator.score_of(layer)[0] for evaluator, layer in zip(evaluators, states, strict=True)]

    best = scores(dev)
    for _ in range(PROBE_EPOCHS):
        for places in torch.split(torch.randperm(len(kept), generator=generator), PROBE_BATCH):
            both = torch.cat([places, places + len(kept)])
            vectors = torch.bmm(train[:, both], maps)
            which = kept[places].tolist()
            loss = torch.stack([part.loss_of(layer, which) for part, layer in zip(pairs, vectors, strict=True)]).sum()
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
            optimiser.step()
        best = [max(pair) for pair in zip(best, scores(torch.bmm(dev, maps.detach())), strict=True)]
    return dict(zip(layers, best, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingOrder:
    """A ranking that is to be made. name: that of the strategy which needs nothing else."""

    name: Literal["multi-exit", "probe"]
    layers: tuple[int, ...]
    seed: int

    @property
    def record(self) -> str:
        """Name its record."""
        return f"{self.name}-seed{self.seed}-layers{'-'.join(map(str, self.layers))}"

    def __str__(self) -> str:
        return f"ranking the layers ({self.name})"


def rank(full: Encoder, task: Task, settings: TrainingSettings, order: RankingOrder, progress: Progress) -> Scores:
    """Return the dev score of each layer, in points: probed, or after one epoch with the loss on all of them.

    Raises `UsageError` for a task without pairs.
    """
    probed = order.name == "probe"
    encoder = full if probed else truncate(full, max(order.layers))
    examples, dev = dict[int, Pairs](), dict[int, VectorEvaluator]()
    for layer in order.layers:  # each has a head of its own if the objective has one
        pairs, evaluator, _ = task.trial(encoder, order.seed)
        if not isinstance(pairs, Pairs):
            raise UsageError(
                f"The strategy {order.name} ranks layers by labelled pairs, which this objective does not have.",
                hint='Use `strategy="guided"`.',
            )
        examples[layer], dev[layer] = pairs, evaluator
    if probed:
        return probe_layers(encoder, examples, dev, order.seed, progress)
    exits = MultiExitEvaluator(dev)
    run = TrainingRun(encoder, MultiExitPairs(examples), exits, replace(settings, epochs=1), seed=order.seed)
    run.train(progress=progress, task="ranking layers, all trained at once")
    return exits.by_layer(encoder)
