"""DiffCSE: two dropout masks told apart, and replaced words found from the sentence vector (Chuang et al. 2022).

A frozen generator fills in hidden words of a text; a discriminator that is given the text's vector in place of its
first token finds the words that are not the original ones, so that the vector has to say what the text was.

Other than in DiffCSE: the generator is by default the model as it came, there DistilBERT; hidden words alone are
replaced, at least one of each text, by the likeliest word; the loss is a mean over real tokens.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from truncate_kit.core.errors import UsageError
from truncate_kit.methods.priors import HiddenWords, Masker, load_masked_head
from truncate_kit.models.encoder import Batch, Encoder, evaluating
from truncate_kit.training.distributed import ALONE, Group
from truncate_kit.training.examples import ContrastiveTexts, Ids, encoded


class Generator:
    """A frozen masked language model. Raises `UsageError` without a head of its own or with another vocabulary."""

    def __init__(self, model: Encoder, learner: Encoder) -> None:
        if model.reader.tokenizer.get_vocab() != learner.reader.tokenizer.get_vocab():
            raise UsageError(
                f"{model.name} and {learner.name} have different words.",
                hint="Give a `generator` with the same tokenizer, or leave it out.",
            )
        self.model, self.words = model, load_masked_head(model)
        if not self.words.pretrained:
            raise UsageError(
                f"{model.name} has no head that fills in hidden words.",
                hint="Give a masked language model with the same tokenizer as `generator`.",
            )

    @torch.no_grad()
    def fill(self, batch: Batch, hidden: HiddenWords) -> tuple[Tensor, Tensor]:
        """The ids of a batch (b, t) with the likeliest word at each hidden place, and 1 where it is another, (b, t)."""
        with evaluating(self.model), evaluating(self.words):
            found = self.words(hidden.of_states(self.model.token_states(**batch))).argmax(dim=-1)
        ids = batch["input_ids"]
        filled = ids.flatten().scatter(0, hidden.places, found)
        replaced = torch.zeros_like(filled).scatter(0, hidden.places, (found != hidden.words).to(filled.dtype))
        return filled.view_as(ids), replaced.view_as(ids)


class Discriminator(nn.Module):
    """Original or replaced, for each token of a text whose vector stands where the first token's embedding was.

    It starts as a copy of the blocks that are trained, and is not part of the sentence vector.
    """

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.backbone = copy.deepcopy(encoder.backbone)
        self._first_block = f"{encoder.family.blocks}.0"
        self.replaced = nn.Linear(encoder.width, 2)
        nn.init.normal_(self.replaced.weight, std=0.02)
        nn.init.zeros_(self.replaced.bias)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, vectors: Tensor) -> Tensor:
        """Logits (b, t, 2) of ids (b, t) under a mask (b, t), given vectors (b, d)."""

        def place(_: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            hook.remove()  # blocks that share their weights are one module, which is called again
            states: Tensor = inputs[0] if inputs else options.pop("hidden_states")
            states = torch.cat([vectors.to(states.dtype).unsqueeze(1), states[:, 1:]], dim=1)
            return (states, *inputs[1:]), options

        hook = self.backbone.get_submodule(self._first_block).register_forward_pre_hook(place, with_kwargs=True)
        try:
            states = self.backbone(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        finally:
            hook.remove()
        logits: Tensor = self.replaced(states)
        return logits


def replaced_loss(logits: Tensor, replaced: Tensor, mask: Tensor, tokens: int | None = None) -> Tensor:
    """Cross entropy in nats, mean over real tokens; 0-d.

    Args:
        logits: (b, t, 2).
        replaced: (b, t) of 0 and 1.
        mask: (b, t).
        tokens: What the sum is divided by, where these are a part of a batch; None for those of `mask`.
    """
    terms = nn.functional.cross_entropy(logits.float().transpose(1, 2), replaced, reduction="none")
    seen = mask.to(terms.dtype)
    return (terms * seen).sum() / (seen.sum() if tokens is None else tokens)


class DifferenceTexts(ContrastiveTexts):
    """Raw texts for equation 7 plus `weight` × `replaced_loss` of both copies of each text."""

    def __init__(
        self,
        encoder: Encoder,
        ids: list[Ids],
        generator: Generator,
        *,
        temperature: float,
        weight: float,
        share: float,  # of the tokens that are hidden
        group: Group = ALONE,
    ) -> None:
        super().__init__([ids, ids], temperature=temperature, group=group)
        self._generator, self._weight, self._masker = generator, weight, Masker(encoder, share)
        self.discriminator = Discriminator(encoder).to(encoder.device)
        self.head: nn.Module | None = self.discriminator

    def texts(self) -> None:
        """Any id of the vocabulary may stand in place of a hidden token."""

    def loss(self, encoder: Encoder, batch: Sequence[int]) -> Tensor:
        """Both losses of the texts at the given places."""
        own = self._group.share(batch)
        ids = [column[place] for column in self._columns for place in own]
        vectors = encoded(encoder, ids)
        loss = self._loss_of(vectors, len(batch))
        seed = int(torch.randint(2**62, ()))  # from torch's own generator, which checkpoints keep
        if not own:
            return loss
        inputs, hidden = self._masker(encoder, ids, torch.Generator().manual_seed(seed))
        filled, replaced = self._generator.fill(inputs, hidden)
        logits = self.discriminator(filled, inputs["attention_mask"], vectors)
        tokens = sum(len(column[place]) for column in self._columns for place in batch)  # of all processes
        return loss + self._weight * replaced_loss(logits, replaced, inputs["attention_mask"], tokens)
