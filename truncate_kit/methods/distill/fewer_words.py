"""A lean model with the word pieces of given texts alone: they are chosen before learning, and dropped behind it."""

from collections.abc import Collection, Sequence

from truncate_kit.models import Encoder, keep_words
from truncate_kit.training.cutting import VocabularyCut, cut_vocabulary


class FewerWords:
    """The vocabulary of a lean model.

    The full model keeps its own: its vectors are what is learned, and what the lean model is compared with, which reads
    the same texts in the pieces that it has left.

    Raises `ModelError` where the vocabulary of `encoder` cannot be cut.

    Args:
        texts: Whose pieces are kept.
    """

    def __init__(self, encoder: Encoder, texts: Sequence[str]) -> None:
        self._texts = texts
        self.smallest, _ = cut_vocabulary(encoder, texts)
        self.spared = encoder.num_parameters - self.smallest.num_parameters

    def of(self, lean: Encoder) -> tuple[Encoder, VocabularyCut]:
        """A copy of the lean model that keeps them alone."""
        return cut_vocabulary(lean, self._texts)

    def unseen(self, lean: Encoder, reported: Collection[str]) -> Encoder:
        """The lean model as it would be had no piece been kept for the texts that it is measured by."""
        return keep_words(lean, [text for text in self._texts if text not in reported])
