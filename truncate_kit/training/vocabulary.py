"""Keep the word embeddings that no text uses out of the optimiser.

A row that no text uses gets no gradient: AdamW only shrinks it, by 1 − rate × decay a step. So the used rows are
trained alone, and the others are multiplied by the product of these factors at the end. The result equals training
with all rows but for rounding, and the optimiser neither stores nor visits what would stay zero (three quarters of
XLM-RoBERTa's parameters).
"""

from collections.abc import Iterable, Sequence

import torch
from torch import nn

from truncate_kit.encoders import Encoder


class CompactVocabulary:
    """The used rows of an encoder's word embeddings, put in place of all of them until `expand`."""

    def __init__(self, encoder: Encoder, texts: Iterable[Sequence[int]]) -> None:
        """texts: the token ids of every text that will be encoded before `expand`."""
        self._table = _word_embeddings(encoder)
        self._full = self._table.weight.detach()
        # Everything up to the padding id stays where it is: some models find padding, and positions, by that id.
        used = set(range((self._table.padding_idx or 0) + 1))
        if encoder.tokenizer is not None and encoder.tokenizer.pad_token_id is not None:
            used |= set(range(encoder.tokenizer.pad_token_id + 1)) if encoder.tokenizer.pad_token_id < 1000 else set()
            used.add(encoder.tokenizer.pad_token_id)
        for ids in texts:
            used.update(ids)
        self.kept = torch.tensor(sorted(used), dtype=torch.long)
        self._place = {old: new for new, old in enumerate(self.kept.tolist())}
        self._set(self._full[self.kept.to(self._full.device)].clone())

    def ids(self, ids: Sequence[int]) -> list[int]:
        """The ids of one text in the compact numbering."""
        return [self._place[token] for token in ids]

    def expand(self, decay: float) -> None:
        """Put all rows back: the trained ones as they are now, the others shrunk by the factor `decay`."""
        full = self._full * decay
        full[self.kept.to(full.device)] = self._table.weight.detach()
        self._set(full)

    def _set(self, weight: torch.Tensor) -> None:
        self._table.weight = nn.Parameter(weight)
        self._table.num_embeddings = weight.shape[0]


def _word_embeddings(encoder: Encoder) -> nn.Embedding:
    table = encoder.backbone.get_input_embeddings()
    assert isinstance(table, nn.Embedding)  # true for every family of the table
    return table
