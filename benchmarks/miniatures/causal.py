"""The next word as an objective (Radford et al. 2019, GPT-2), with the word embeddings as output weights."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from truncate_kit.encoders import Batch, Encoder, evaluating, length_batches
from truncate_kit.training.examples import Ids, SingleTexts

EVALUATED_TOGETHER = 64


def causal_loss(encoder: Encoder, batch: Batch, reduction: str = "mean") -> Tensor:
    """Cross entropy in nats of each token given those before it, padding left out; 0-d. The first one is not asked."""
    states = encoder.token_states(**batch)[:, :-1]
    asked = batch["attention_mask"][:, 1:].bool()
    logits = nn.functional.linear(states[asked], encoder.backbone.get_input_embeddings().weight)
    return nn.functional.cross_entropy(logits.float(), batch["input_ids"][:, 1:][asked], reduction=reduction)


class CausalTexts(SingleTexts):
    """Raw texts, each of which is read from its beginning."""

    def texts(self) -> None:
        """Every id of the vocabulary is a possible next word."""

    def loss(self, encoder: Encoder, batch: Sequence[int]) -> Tensor:
        """`causal_loss` of the texts at the given places."""
        return causal_loss(encoder, encoder.pad([self._ids[place] for place in batch]))


class CausalEvaluator:
    """Minus the cross entropy (nats per token) on held-out texts."""

    def __init__(self, ids: list[Ids]) -> None:
        self._ids = ids

    def texts(self) -> None:
        """Every id of the vocabulary is a possible next word."""

    @torch.inference_mode()
    def score(self, encoder: Encoder) -> tuple[float, float | None]:
        """Minus the mean loss; no Pearson."""
        total = 0.0
        with evaluating(encoder):
            for chunk in length_batches([len(row) for row in self._ids], EVALUATED_TOGETHER):
                total += float(causal_loss(encoder, encoder.pad([self._ids[place] for place in chunk]), "sum"))
        return -total / sum(len(row) - 1 for row in self._ids), None
