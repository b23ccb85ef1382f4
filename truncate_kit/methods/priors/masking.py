"""Masked words as an objective: which tokens are hidden, the loss, and how well held-out texts are filled in."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from truncate_kit.errors import DataError, ModelError
from truncate_kit.methods.priors.masked_head import MaskedHead
from truncate_kit.models import Batch, Encoder, evaluating, length_batches
from truncate_kit.training.distributed import ALONE, Group
from truncate_kit.training.examples import Ids, SingleTexts

MASKED_SHARE = 0.15
HIDDEN, REPLACED = 0.8, 0.1  # of the chosen tokens; the rest stays as it is
IGNORED = -100
SCORED_BATCH = 64


def mask_tokens(
    input_ids: Tensor,
    maskable: Tensor,
    mask_id: int,
    vocabulary: int,
    generator: torch.Generator,
    share: float = MASKED_SHARE,
) -> tuple[Tensor, Tensor]:
    """Hide tokens as BERT does (Devlin et al. 2019, section 3.1).

    Each maskable token is chosen with a chance of `share` (15 %); of the chosen, 80 % become `mask_id`, 10 % any id
    below `vocabulary`, 10 % stay. A row without a chosen token gets one, so that no text is wasted.

    Args:
        input_ids: (b, t).
        maskable: (b, t) bool.
        mask_id: Of the mask token.
        vocabulary: Number of ids.
        generator: Draws what is chosen.
        share: Of the maskable tokens that are chosen.

    Returns:
        New ids and labels, (b, t) each; labels are the old id where chosen, else -100.
    """
    shape = input_ids.shape
    draw = torch.rand(shape, generator=generator).masked_fill(~maskable, 2.0)
    threshold = draw.min(dim=1, keepdim=True).values.clamp(min=share)
    chosen = maskable & ((draw < share) | (draw == threshold))
    labels = input_ids.masked_fill(~chosen, IGNORED)
    fate = torch.rand(shape, generator=generator)
    other = torch.randint(vocabulary, shape, generator=generator)
    hidden = chosen & (fate < HIDDEN)
    replaced = chosen & (fate >= HIDDEN) & (fate < HIDDEN + REPLACED)
    return torch.where(replaced, other, input_ids.masked_fill(hidden, mask_id)), labels


@dataclass(frozen=True, slots=True)
class HiddenWords:
    """The hidden tokens of a batch (b, t): their places in the flattened batch and the ids that stood there, (m,)."""

    places: Tensor
    words: Tensor

    @classmethod
    def of(cls, labels: Tensor) -> "HiddenWords":
        """From labels (b, t) as `mask_tokens` gives them."""
        places = (labels.flatten() != IGNORED).nonzero().squeeze(1)
        return cls(places, labels.flatten()[places])

    def of_states(self, states: Tensor) -> Tensor:
        """The states (m, d) of the hidden tokens among all (b, t, d)."""
        return states.flatten(0, 1).index_select(0, self.places)


class Masker:
    """What `mask_tokens` needs to know of an encoder's tokenizer; share: of the tokens that are hidden.

    Raises `ModelError` where it has no mask token.
    """

    def __init__(self, encoder: Encoder, share: float = MASKED_SHARE) -> None:
        tokenizer = encoder.reader.tokenizer
        if tokenizer.mask_token_id is None:
            raise ModelError(
                f"The tokenizer of {encoder.name} has no mask token.", hint="Adapt a model that was made with one."
            )
        self._mask_id, self._vocabulary = int(tokenizer.mask_token_id), int(encoder.backbone.config.vocab_size)
        self._share = share
        self._special = torch.tensor(sorted(tokenizer.all_special_ids))

    def __call__(self, encoder: Encoder, ids: Sequence[Ids], generator: torch.Generator) -> tuple[Batch, HiddenWords]:
        """A padded batch with hidden tokens, and what they were; both on the encoder's device."""
        batch = encoder.padded(ids)
        plain = batch["input_ids"]
        maskable = batch["attention_mask"].bool() & ~torch.isin(plain, self._special)
        shown, labels = mask_tokens(plain, maskable, self._mask_id, self._vocabulary, generator, self._share)
        hidden = HiddenWords.of(labels)  # counted here: on a GPU the processor would have to wait for it
        sent = encoder.moved(batch | {"input_ids": shown, "places": hidden.places, "words": hidden.words})
        return sent, HiddenWords(sent.pop("places"), sent.pop("words"))


Objective = Callable[[Encoder, Any, Batch, HiddenWords], Tensor]


def masked_loss(
    encoder: Encoder, head: MaskedHead, batch: Batch, hidden: HiddenWords, reduction: str = "mean"
) -> Tensor:
    """Cross entropy in nats over the hidden tokens; the head sees no other position."""
    states = hidden.of_states(encoder.token_states(**batch))
    return nn.functional.cross_entropy(head(states).float(), hidden.words, reduction=reduction)


class MaskedTexts(SingleTexts):
    """Raw texts of which other tokens are hidden each time they come."""

    def __init__(
        self,
        encoder: Encoder,
        ids: list[Ids],
        head: nn.Module,
        *,
        objective: Objective = masked_loss,  # gets the encoder, `head`, a batch with hidden tokens and what they were
        part: int | None = None,  # texts that are hidden and computed together, None takes all that come
        group: Group = ALONE,  # shares the parts of every batch; what is hidden does not depend on its size
    ) -> None:
        super().__init__(ids)
        self._masker = Masker(encoder)
        self._part, self._group = part or len(ids), group
        self.head = head
        self._objective = objective

    def texts(self) -> None:
        """Any id of the vocabulary may stand in place of a hidden token."""

    def loss(self, encoder: Encoder, batch: Sequence[int]) -> Tensor:
        """`masked_loss` of the texts at the given places, part by part; of this process's share, 0 without a part."""
        parts = [batch[start : start + self._part] for start in range(0, len(batch), self._part)]
        # A seed for each part, drawn where one process alone would draw it: the others must hide the same tokens.
        seeds = self._group.agree([int(torch.randint(2**62, ())) for _ in parts])
        own = self._group.share(list(zip(parts, seeds, strict=True)))
        losses = [self._loss_of(encoder, part, seed) * (len(part) / len(batch)) for part, seed in own]
        return torch.stack(losses).sum() if losses else torch.zeros((), device=encoder.device, requires_grad=True)

    def _loss_of(self, encoder: Encoder, part: Sequence[int], seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        inputs, hidden = self._masker(encoder, [self._ids[place] for place in part], generator)
        return self._objective(encoder, self.head, inputs, hidden)


class MaskedEvaluator:
    """Minus the masked cross entropy (nats per hidden token) on held-out texts, always with the same tokens hidden.

    Raises `DataError` where there is no token to hide.
    """

    def __init__(self, encoder: Encoder, ids: list[Ids], head: MaskedHead) -> None:
        generator, masker = torch.Generator().manual_seed(0), Masker(encoder)
        self._head = head
        chunks = length_batches([len(row) for row in ids], SCORED_BATCH)
        self.batches = [masker(encoder, [ids[place] for place in chunk], generator) for chunk in chunks]
        if not any(len(hidden.words) for _, hidden in self.batches):
            raise DataError(
                "No word of the held-out texts can be hidden: all are special or unknown to the tokenizer.",
                hint="Give texts in a language and script that the model knows.",
            )

    def texts(self) -> None:
        """Any id of the vocabulary may stand in place of a hidden token."""

    @torch.inference_mode()
    def score(self, encoder: Encoder) -> tuple[float, float | None]:
        """Minus the mean loss; no Pearson."""
        total, count = 0.0, 0
        with evaluating(encoder), evaluating(self._head):
            for batch, hidden in self.batches:
                total += float(masked_loss(encoder, self._head, batch, hidden, reduction="sum"))
                count += len(hidden.words)
        return -total / count, None
