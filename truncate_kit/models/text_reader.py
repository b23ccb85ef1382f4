"""From texts to token ids, the same for an encoder in torch and for its exported graph."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from truncate_kit.errors import ModelError, first_line
from truncate_kit.text_lists import listed_texts

_MOST_SPECIAL = 8  # tokens that a tokenizer puts around a text


@dataclass(frozen=True, slots=True, kw_only=True)
class TextReader:
    """A tokenizer and what a model does to texts before it."""

    tokenizer: PreTrainedTokenizerBase
    max_length: int  # tokens per text, special tokens included
    lower_case: bool = False
    settings: dict[str, Any] = field(default_factory=dict)  # of sentence-transformers; has the prompts

    @property
    def padding_id(self) -> int:
        """The id that fills up shorter texts; masked out everywhere."""
        return int(cast(int, self.tokenizer.pad_token_id) or 0)

    def token_ids(self, texts: Sequence[str], *, prompt: bool = True) -> list[list[int]]:
        """Ids of each text, special tokens included, cut at `max_length`, not padded.

        Args:
            texts: Each is cut at `max_length`.
            prompt: Put the model's default prompt before each text, as sentence-transformers does.

        Raises:
            UsageError: What is given is no text.
            ModelError: The tokenizer fails.
        """
        texts = listed_texts(texts)
        if not texts:
            return []
        prefix = self._default_prompt if prompt else ""
        if prefix:
            texts = [prefix + text for text in texts]
        if self.lower_case:
            texts = [text.lower() for text in texts]
        try:
            encoded = self.tokenizer(
                texts, truncation=True, max_length=self.max_length, padding=False, return_attention_mask=False
            )
        except BaseException as error:
            if not is_of_tokenizer(error):
                raise
            raise ModelError(
                f"The tokenizer cannot read texts: {first_line(error)}.", hint="Download or save the model again."
            ) from error
        ids = cast("list[list[int]]", encoded["input_ids"])
        longest = max(map(len, ids))
        if longest > self.max_length:  # as where a template has the text twice
            raise ModelError(
                f"The tokenizer makes {longest:,} tokens of a text that it was to cut at {self.max_length:,}.",
                hint="Download or save the model again.",
            )
        return ids

    @property
    def _default_prompt(self) -> str:
        """What stands before each text; a prompt that is null is none."""
        default = self.settings.get("default_prompt_name")
        return (self.settings.get("prompts", {}).get(default) or "") if default else ""

    def num_cut(self, texts: Sequence[str]) -> int:
        """How many of the texts have more than `max_length` tokens; those of fewer bytes than that are taken to fit."""
        room = self.max_length - len(self._default_prompt.encode()) - _MOST_SPECIAL
        return self.num_longer([text for text in texts if len(text.encode()) > room])

    def num_longer(self, texts: Sequence[str], *, prompt: bool = True) -> int:
        """How many of the texts have more than `max_length` tokens.

        Args:
            texts: Those that are counted.
            prompt: As in `token_ids`.
        """
        one_more = replace(self, max_length=self.max_length + 1)
        try:
            return sum(len(ids) > self.max_length for ids in one_more.token_ids(texts, prompt=prompt))
        finally:
            self.token_ids(["a"])  # a tokenizer is saved with the maximum length of its last call

    def shortened(self, ids: Sequence[int], tokens: int) -> list[int]:
        """The ids of a text, cut to a number of tokens as the tokenizer would: the one that closes a text is kept."""
        closing = list(ids[-1:]) if ids and ids[-1] in self.tokenizer.all_special_ids else []
        return list(ids) if len(ids) <= tokens else [*ids[: tokens - len(closing)], *closing]


def padded(rows: Sequence[Sequence[int]], padding: int, length: int | None = None) -> dict[str, NDArray[np.int64]]:
    """Right-padded ids and their mask, each (b, t), named as a model's inputs; t None is the longest row.

    Some tokenizers make no token of a text; one that is alone so has a masked position, which models need.
    """
    shape = (len(rows), length or max(1, *(len(row) for row in rows)))
    ids, mask = np.full(shape, padding, np.int64), np.zeros(shape, np.int64)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = row
        mask[place, : len(row)] = 1
    return {"input_ids": ids, "attention_mask": mask}


def is_of_tokenizer(error: BaseException) -> bool:
    """Whether a tokenizer raised this: anything from KeyError to a panic of its Rust side, which is no `Exception`."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def usable_length(*limits: int | None) -> int:
    """The smallest of the given limits that is one (tokenizers write 10³⁰ for "none"); 512 when none is."""
    real = [limit for limit in limits if limit is not None and 0 < limit < 1_000_000 and math.isfinite(limit)]
    return min(real, default=512)
