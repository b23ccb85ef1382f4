"""Keep the word embeddings that no text uses out of the optimiser.

A row that no text uses gets no gradient: AdamW only shrinks it, by 1 − rate × decay a step. So the used rows are
trained alone, and the others are multiplied by the product of these factors at the end. The result equals training
with all rows but for rounding, and the optimiser neither stores nor visits what would stay zero (three quarters of
XLM-RoBERTa's parameters).
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from truncate_kit.models import Encoder


class CompactVocabulary:
    """The used rows of an encoder's word embeddings, put in place of all of them until `expand`; token ids stay.

    Args:
        texts: The token ids of every text that will be encoded before `expand`; another id is an IndexError.
    """

    def __init__(self, encoder: Encoder, texts: Iterable[Sequence[int]]) -> None:
        table = encoder.backbone.get_input_embeddings()
        assert isinstance(table, nn.Embedding)  # true for every family of the table
        self._table, self._full = table, table.weight.detach()
        # The row of the padding id is also the table's `padding_idx`: with all rows below it, it stays where it is.
        used = set(range((table.padding_idx or 0) + 1))
        if encoder.tokenizer is not None and encoder.tokenizer.pad_token_id is not None:
            used |= set(range(encoder.tokenizer.pad_token_id + 1)) if encoder.tokenizer.pad_token_id < 1000 else set()
            used.add(encoder.tokenizer.pad_token_id)
        self._kept = torch.tensor(sorted(used.union(*texts)), device=self._full.device)
        self._row = torch.full((len(self._full),), -1, device=self._full.device)
        self._row[self._kept] = torch.arange(len(self._kept), device=self._full.device)
        self._hook = table.register_forward_pre_hook(self._to_rows)
        self._set(self._full[self._kept])

    def expand(self, decay: float) -> None:
        """Put all rows back: the trained ones as they are now, the others shrunk by the factor `decay`."""
        self._hook.remove()
        full = self._full * decay
        full[self._kept] = self._table.weight.detach()
        self._set(full)

    def _to_rows(self, _: nn.Module, inputs: tuple[Any, ...]) -> tuple[Tensor]:
        """Token ids of any shape to their rows in the compact table."""
        return (self._row[inputs[0]],)

    def _set(self, weight: Tensor) -> None:
        self._table.weight = nn.Parameter(weight)
        self._table.num_embeddings = weight.shape[0]
