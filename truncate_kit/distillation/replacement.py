"""Words of the vocabulary in place of words of a text, so that words that the texts lack are learned as well."""

import random
from collections.abc import Iterable, Iterator

from transformers import PreTrainedTokenizerBase as Tokenizer

from truncate_kit.errors import DataError

EVERY = 2
"""The second text of two is altered."""

SHORTEST = 3  # letters
FEWEST = 100
"""Words; a vocabulary of characters or bytes has less."""


def whole_words(tokenizer: Tokenizer) -> list[str]:
    """Words of letters that are one piece of the vocabulary each, in the order of its ids."""
    ids = sorted(set(tokenizer.get_vocab().values()))
    spelled = ((piece, str(tokenizer.decode([piece])).strip()) for piece in ids)
    found = [(piece, word) for piece, word in spelled if len(word) >= SHORTEST and word.isalpha()]
    if not found:
        return []
    read = tokenizer([f" {word}" for _, word in found], add_special_tokens=False)["input_ids"]
    return [word for (piece, word), pieces in zip(found, read, strict=True) if pieces == [piece]]


class WordReplacement:
    """Random words of the vocabulary, each as likely as any other, in every second text."""

    def __init__(self, tokenizer: Tokenizer, share: float, seed: int) -> None:
        """What is put in.

        Args:
            tokenizer: Whose vocabulary.
            share: Of the words of a text, parted by white space, that are replaced; above 0 to 1.
            seed: Of the choice of words and places.

        Raises:
            DataError: The vocabulary has fewer than `FEWEST` words.
        """
        self._share, self._draw, self._place = share, random.Random(seed), 0
        self._words = whole_words(tokenizer)
        self.altered = 0
        if len(self._words) < FEWEST:
            raise DataError(
                f"The vocabulary has {len(self._words)} whole words, too few to replace words of the texts by.",
                hint="Leave `replace_words` at 0.",
            )

    def of(self, texts: Iterable[str]) -> Iterator[str]:
        """The texts, the second, fourth … of all that were ever given with words replaced."""
        for text in texts:
            self._place += 1
            if self._place % EVERY:
                yield text
                continue
            self.altered += 1
            yield " ".join(self._word(word) for word in text.split())

    def _word(self, word: str) -> str:
        return self._draw.choice(self._words) if self._draw.random() < self._share else word
