"""All layers of one model at once: trained together, or probed on frozen states; both only rank layers."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from truncate_kit.encoders import Batch, Encoder, evaluating, length_batches
from truncate_kit.training.examples import Ids, Pairs
from truncate_kit.training.judges import HeldOutPairs

PROBE_EPOCHS, PROBE_RATE, PROBE_BATCH = 5, 1e-3, 256


def exit_vectors(encoder: Encoder, batch: Batch, layers: Sequence[int]) -> list[Tensor]:
    """What the encoder truncated at each of `layers` gives for a batch, (b, out) each, in one pass."""
    states = encoder.hidden_states(batch)
    vectors = []
    for layer in layers:
        pooled = encoder.pooled(states[layer], batch["attention_mask"])
        for module in encoder.tail:
            pooled = module(pooled)
        vectors.append(pooled)
    return vectors


@torch.inference_mode()
def exit_vectors_of(encoder: Encoder, ids: Sequence[Ids], layers: Sequence[int], batch_size: int = 64) -> Tensor:
    """`exit_vectors` of any number of texts: (layers, n, out) float32 on the CPU, in the order of `ids`."""
    batches = length_batches([len(row) for row in ids], batch_size)
    with evaluating(encoder):
        parts = [
            torch.stack(
                [part.float().cpu() for part in exit_vectors(encoder, encoder.pad([ids[p] for p in b]), layers)]
            )
            for b in batches
        ]
    order = torch.tensor([place for batch in batches for place in batch]).argsort()
    return torch.cat(parts, dim=1)[:, order]


class MultiExitPairs:
    """Pairs whose loss is the mean over the exits of several layers, each as if the model ended there."""

    head: nn.Module | None = None

    def __init__(self, pairs: Pairs, layers: Sequence[int]) -> None:
        self._pairs, self._layers = pairs, layers

    def __len__(self) -> int:
        return len(self._pairs)

    def lengths(self) -> list[int]:
        """Tokens of the longer text of each pair."""
        return self._pairs.lengths()

    def texts(self) -> list[Ids]:
        """First texts, then second texts."""
        return self._pairs.texts()

    def renumber(self, ids: Callable[[Ids], Ids]) -> None:
        """Replace the ids of every text."""
        self._pairs.renumber(ids)

    def loss(self, encoder: Encoder, batch: Sequence[int]) -> Tensor:
        """Mean of the losses of the layers."""
        vectors = exit_vectors(encoder, self._pairs.inputs(encoder, batch), self._layers)
        return torch.stack([self._pairs.loss_of(exit_, batch) for exit_ in vectors]).mean()


class MultiExitJudge:
    """The score of each exit on held-out pairs; the main score is their mean."""

    def __init__(self, pairs: HeldOutPairs, layers: Sequence[int]) -> None:
        self._pairs, self._layers = pairs, layers

    def texts(self) -> list[Ids]:
        """The token ids of the distinct texts."""
        return self._pairs.texts()

    def renumber(self, ids: Callable[[Ids], Ids]) -> None:
        """Replace the ids of every text."""
        self._pairs.renumber(ids)

    def by_layer(self, encoder: Encoder) -> list[float]:
        """Main score of each exit, in points."""
        vectors = exit_vectors_of(encoder, self._pairs.texts(), self._layers)
        return [self._pairs.score_of(exit_)[0] for exit_ in vectors]

    def score(self, encoder: Encoder) -> tuple[float, float | None]:
        """Mean over the exits; no Pearson."""
        scores = self.by_layer(encoder)
        return sum(scores) / len(scores), None


def probe(encoder: Encoder, pairs: Pairs, held_out: HeldOutPairs, layers: Sequence[int], seed: int) -> list[float]:
    """How well each layer serves the task frozen: best dev score, in points, of one linear map per layer.

    The states of all texts are computed once; the maps (out × out, from the identity) are trained together by Adam on
    the pairs' own objective, `PROBE_EPOCHS` times over. The encoder is not changed.
    """
    train = exit_vectors_of(encoder, pairs.texts(), layers)
    dev = exit_vectors_of(encoder, held_out.texts(), layers)
    centre = train.mean(dim=1, keepdim=True)  # states share a large mean, which makes every cosine near 1
    train, dev = train - centre, dev - centre
    maps = nn.Parameter(torch.eye(train.shape[-1]).repeat(len(layers), 1, 1))
    optimiser = torch.optim.Adam([maps], lr=PROBE_RATE)
    generator = torch.Generator().manual_seed(seed)
    best = [held_out.score_of(states)[0] for states in dev]
    for _ in range(PROBE_EPOCHS):
        for places in torch.split(torch.randperm(len(pairs), generator=generator), PROBE_BATCH):
            both = torch.cat([places, places + len(pairs)])
            vectors = torch.bmm(train[:, both], maps)
            loss = torch.stack([pairs.loss_of(layer, places.tolist()) for layer in vectors]).sum()
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
            optimiser.step()
        scores = [held_out.score_of(states)[0] for states in torch.bmm(dev, maps.detach())]
        best = [max(old, new) for old, new in zip(best, scores, strict=True)]
    return best
