"""From texts to token ids, the same for an encoder in torch and for its exported graph."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from transformers import AutoTokenizer, PretrainedConfig
from transformers import PreTrainedTokenizerBase as Tokenizer

from truncate_kit.core.errors import ModelError, first_line
from truncate_kit.core.settings import listed_texts
from truncate_kit.models.families import family_of
from truncate_kit.models.model_folder import quiet_transformers

_MOST_SPECIAL = 8  # tokens that a tokenizer puts around a text
_TOKENIZER_FILES = (
    "tokenizer.json", "vocab.txt", "vocab.json", "spm.model", "spiece.model", "sentencepiece.bpe.model",
    "tokenizer.model",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TextReader:
    """A tokenizer and what a model does to texts before it."""

    tokenizer: Tokenizer
    max_length: int  # tokens per text, special tokens included
    lower_case: bool = False
    settings: dict[str, Any] = field(default_factory=dict)  # of sentence-transformers; has the prompts

    @property
    def padding_id(self) -> int:
        """Return the id that fills up shorter texts; masked out everywhere."""
        return int(cast(int, self.tokenizer.pad_token_id) or 0)

    def token_ids(self, texts: Sequence[str], *, prompt: bool = True) -> list[list[int]]:
        """Return the ids of each text, special tokens included, cut at `max_length`, not padded.

        prompt: Put the model's default prompt before each text, as sentence-transformers does. Raises `UsageError` for
        other things than texts.
        """
        texts = listed_texts(texts)
        if not texts:
            return []
        texts = [(self._default_prompt if prompt else "") + text for text in texts]
        if self.lower_case:
            texts = [text.lower() for text in texts]
        encoded = self.tokenizer(
            texts, truncation=True, max_length=self.max_length, padding=False, return_attention_mask=False
        )
        return cast("list[list[int]]", encoded["input_ids"])

    @property
    def _default_prompt(self) -> str:
        """Return the default prompt, empty if the model has none or it is null."""
        default = self.settings.get("default_prompt_name")
        return (self.settings.get("prompts", {}).get(default) or "") if default else ""

    def num_cut(self, texts: Sequence[str]) -> int:
        """Count the texts of more than `max_length` tokens; only texts with at least as many bytes are tokenised."""
        room = self.max_length - len(self._default_prompt.encode()) - _MOST_SPECIAL
        return self.num_longer([text for text in texts if len(text.encode()) > room])

    def num_longer(self, texts: Sequence[str], *, prompt: bool = True) -> int:
        """Count the texts of more than `max_length` tokens; prompt as in `token_ids`."""
        one_more = replace(self, max_length=self.max_length + 1)
        return sum(len(ids) > self.max_length for ids in one_more.token_ids(texts, prompt=prompt))

    def shortened(self, ids: Sequence[int], tokens: int) -> list[int]:
        """Cut the ids of a text to a number of tokens as the tokenizer would, keeping a closing special token."""
        closing = list(ids[-1:]) if ids and ids[-1] in self.tokenizer.all_special_ids else []
        return list(ids) if len(ids) <= tokens else [*ids[: tokens - len(closing)], *closing]


def padded(rows: Sequence[Sequence[int]], padding: int, length: int | None = None) -> dict[str, NDArray[np.int64]]:
    """Return right-padded ids and their mask, each (b, t), named as a model's inputs; by default t is the longest row.

    Models need at least one position, also for a text without tokens.
    """
    shape = (len(rows), length or max(1, *(len(row) for row in rows)))
    ids, mask = np.full(shape, padding, np.int64), np.zeros(shape, np.int64)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = row
        mask[place, : len(row)] = 1
    return {"input_ids": ids, "attention_mask": mask}


def usable_length(*limits: int | None) -> int:
    """Return the smallest of the limits, 512 without any; tokenizers write 10³⁰ for no limit."""
    real = [limit for limit in limits if limit is not None and 0 < limit < 1_000_000]
    return min(real, default=512)


def position_limit(config: PretrainedConfig) -> int | None:
    """Return the number of tokens that the position table can hold; None if positions are relative only."""
    if getattr(config, "position_biased_input", True) is False:
        return None
    positions = getattr(config, "max_position_embeddings", None)
    offset = family_of(config).position_offset
    return None if positions is None else int(positions) - (0 if offset is None else offset(config))


def load_tokenizer(folder: Path, vocab_size: int) -> Tokenizer:
    """Load the tokenizer in `folder` for a model of `vocab_size` embeddings, padding on the right.

    Raises `ModelError` if it is missing, broken, or of another model.
    """
    if not any((folder / file).exists() for file in _TOKENIZER_FILES):
        hint = f"Save the model's tokenizer into the same folder, as one of {', '.join(_TOKENIZER_FILES)}."
        raise ModelError(f"{folder} has no tokenizer.", hint=hint)
    try:
        with quiet_transformers():
            tokenizer: Tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # anything from KeyError to what the Rust side raises
        raise ModelError(
            f"The tokenizer in {folder} cannot be read: {first_line(error)}.",
            hint="Download or save it again; it has to be one of transformers' own, as no code of a model is run.",
        ) from error
    entries = max(len(tokenizer), 1 + max(tokenizer.get_vocab().values(), default=0))
    if entries > vocab_size:
        raise ModelError(
            f"The tokenizer in {folder} has {entries:,} entries, but the model embeds only {vocab_size:,}.",
            hint="They belong to different models; save the right tokenizer beside the weights.",
        )
    tokenizer.padding_side = "right"
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token  # masked out everywhere: its value never matters
    if tokenizer.pad_token is None:
        problem = f"The tokenizer in {folder} has neither a padding nor an end token."
        raise ModelError(problem, hint="Give it a pad_token.")
    return tokenizer
