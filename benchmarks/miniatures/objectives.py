"""The objectives that truncate_kit does not have: replaced-token detection, and the next word.

Replaced-token detection (Clark et al. 2020, ELECTRA): a generator fills in masked words, and a discriminator finds the
words that are not the original ones. The hidden tokens, the generator's loss and its head are those of
`truncate_kit.methods.priors`. The next word (Radford et al. 2019, GPT-2) has the word embeddings as output weights.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers.models.electra.modeling_electra import ElectraDiscriminatorPredictions

from truncate_kit.methods.priors import Hidden, MaskedEvaluator, MaskedHead, hidden_states_at
from truncate_kit.models.encoder import Batch, Encoder, evaluating, length_batches
from truncate_kit.training.loop import Evaluator, Examples, Ids

EVALUATED_TOGETHER = 64


def draw_words(logits: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Draw one word for each row of logits (m, v) by their softmax, (m,).

    One number for each row instead of one for each logit, as Gumbel noise needs: half the time of a small model's step.
    """
    sums = logits.float().softmax(dim=1).cumsum(dim=1)
    draw = torch.rand(len(logits), 1, generator=generator, device=generator.device if generator else logits.device)
    found = torch.searchsorted(sums, draw.to(sums.device) * sums[:, -1:], right=True)
    return found.squeeze(1).clamp(max=logits.shape[1] - 1)


class ElectraHeads(nn.Module):
    """What is trained beside the discriminator: the generator, its head over words, and the head over replaced ones.

    The generator looks at the discriminator's embeddings, positions and their norm included, and its head over words
    is tied to them.
    """

    def __init__(self, discriminator: Encoder, generator: Encoder, words: MaskedHead) -> None:
        super().__init__()
        self.generator, self.words = generator, words
        self.replaced = ElectraDiscriminatorPredictions(discriminator.backbone.config)
        for module in self.replaced.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=discriminator.backbone.config.initializer_range)
                nn.init.zeros_(module.bias)


@dataclass(frozen=True, slots=True)
class Losses:
    """Losses of one batch.

    Attributes:
        words: Cross entropy in nats, mean over hidden tokens.
        replaced: Binary cross entropy in nats, mean over all tokens.
        share: Share of tokens that were replaced.
        found: Share of these that the discriminator marks.
    """

    words: Tensor
    replaced: Tensor
    share: Tensor
    found: Tensor


def electra_losses(
    discriminator: Encoder,
    heads: ElectraHeads,
    batch: Batch,
    hidden: Hidden,
    generator: torch.Generator | None = None,
) -> Losses:
    """Return both losses of a batch with hidden tokens.

    A word that the generator happens to get right counts as original. No gradient goes through the drawing. Nothing
    here makes the processor wait for a GPU: no mask is counted there.
    """
    places, truly = hidden
    logits = heads.words(hidden_states_at(heads.generator, batch, places)).float()
    words = nn.functional.cross_entropy(logits, truly)
    drawn = draw_words(logits.detach(), generator)
    ids = batch["input_ids"]
    filled = ids.flatten().scatter(0, places, drawn).view_as(ids)
    truth = torch.zeros(ids.numel(), device=ids.device).scatter(0, places, (drawn != truly).float())
    truth, seen = truth.view_as(ids), batch["attention_mask"].float()
    scores = heads.replaced(discriminator.token_states(filled, batch["attention_mask"])).float()
    terms = nn.functional.binary_cross_entropy_with_logits(scores, truth, reduction="none")
    marked = ((scores > 0) * truth).sum() / truth.sum().clamp(min=1)
    return Losses(words, (terms * seen).sum() / seen.sum(), truth.sum() / seen.sum(), marked)


def electra_loss(
    discriminator: Encoder, heads: ElectraHeads, batch: Batch, hidden: Hidden, weight: float = 50.0
) -> Tensor:
    """Return the generator's loss plus `weight` times the discriminator's, 0-d (section 3.1: 50).

    Adam scales every gradient to its own size, so the weight matters to what both share: the embeddings.
    """
    losses = electra_losses(discriminator, heads, batch, hidden)
    return losses.words + weight * losses.replaced


class ElectraEvaluator(MaskedEvaluator):
    """Held-out texts, always with the same tokens hidden and the same noise for the words drawn.

    Weights are kept by the generator's loss: the discriminator's rises whenever the generator's words get harder to
    tell, so it does not say which weights are better. figures: all that was measured at the last look.
    """

    def __init__(self, generator: Encoder, heads: ElectraHeads, ids: list[list[int]]) -> None:
        super().__init__(generator, ids, heads.words)
        self._heads = heads
        self.figures: dict[str, float] = {}

    @torch.inference_mode()
    def score(self, encoder: Encoder) -> tuple[float, float | None]:
        """Minus the generator's loss; no second figure. encoder: the discriminator."""
        noise = torch.Generator().manual_seed(0)
        rows = []
        with evaluating(encoder), evaluating(self._heads):
            for batch, hidden in self.batches:
                losses = electra_losses(encoder, self._heads, batch, hidden, noise)
                count, seen = len(hidden[1]), float(batch["attention_mask"].sum())
                changed = float(losses.share) * seen
                means = (float(losses.words) * count, float(losses.replaced) * seen, float(losses.found) * changed)
                rows.append((count, seen, changed, *means))
        count, seen, changed, words, replaced, found = (sum(column) for column in zip(*rows, strict=True))
        share = changed / seen
        self.figures = {
            "words": words / count,
            "replaced": replaced / seen,
            "base_rate": -(share * math.log(share) + (1 - share) * math.log(1 - share)),
            "found": found / changed,
        }
        return -self.figures["words"], None


def causal_loss(encoder: Encoder, batch: Batch, reduction: str = "mean") -> Tensor:
    """Return the cross entropy in nats of each token after the first, without padding; 0-d."""
    states = encoder.token_states(**batch)[:, :-1]
    asked = batch["attention_mask"][:, 1:].bool()
    logits = nn.functional.linear(states[asked], encoder.backbone.get_input_embeddings().weight)
    return nn.functional.cross_entropy(logits.float(), batch["input_ids"][:, 1:][asked], reduction=reduction)


class CausalTexts(Examples):
    """Raw texts, each of which is read from its beginning."""

    def texts(self) -> Sequence[Ids]:
        """Keep the whole vocabulary: every id is a possible next word."""
        return ()

    def loss(self, encoder: Encoder, batch: Sequence[int]) -> Tensor:
        """Return `causal_loss` of the texts at the given places."""
        return causal_loss(encoder, encoder.pad(self.ids(batch)))


class CausalEvaluator(Evaluator):
    """Minus the cross entropy (nats per token) on held-out texts."""

    def __init__(self, ids: list[Ids]) -> None:
        self._ids = ids

    @torch.inference_mode()
    def score(self, encoder: Encoder) -> tuple[float, float | None]:
        """Minus the mean loss; no Pearson."""
        total = 0.0
        with evaluating(encoder):
            for chunk in length_batches([len(row) for row in self._ids], EVALUATED_TOGETHER):
                total += float(causal_loss(encoder, encoder.pad([self._ids[place] for place in chunk]), "sum"))
        return -total / sum(len(row) - 1 for row in self._ids), None
