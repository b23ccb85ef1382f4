"""The few texts that leading subsets of one size learn from before one is chosen; longer ones are cut."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from truncate_kit.methods.distill.texts import TextStore
from truncate_kit.models import Encoder
from truncate_kit.training.examples import Ids

FEW_TEXTS, FEW_TOKENS = 2000, 64
"""How many texts, a tenth of all where these are few; and the length to which they are cut where too few are short."""


class CutTexts:
    """Some of the stored texts, cut, by places of their own; read as a `TextStore`.

    Args:
        tokens: That are left of a longer text, the one that closes it included.
    """

    def __init__(self, encoder: Encoder, texts: TextStore, places: NDArray[np.int64], tokens: int) -> None:
        places = np.sort(places)  # queries come first there as well
        self._ids = [encoder.reader.shortened(texts.ids(int(place)), tokens) for place in places]
        num_queries = int((places < texts.counts.num_queries).sum())
        self.counts = replace(texts.counts, num_texts=len(places), num_queries=num_queries)

    def ids(self, place: int) -> Ids:
        """Token ids of one text."""
        return self._ids[place]

    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each text, (n,)."""
        return np.array([len(row) for row in self._ids])

    def vectors(self, encoder: Encoder) -> NDArray[np.float16]:
        """What the teacher gives to the texts as they are cut, (n, out): the whole ones have other vectors."""
        return encoder.encode_ids(self._ids).numpy().astype(np.float16)


Taught = tuple[TextStore | CutTexts, NDArray[np.int64], NDArray[np.float16]]
"""Texts, the places of those that are learned from, and the full model's vectors of all."""


def few_texts(
    encoder: Encoder, texts: TextStore, places: NDArray[np.int64], vectors: NDArray[np.float16]
) -> Taught | None:
    """The first short ones of `places`; where these are too few, longer ones as well, cut. None where no text is left.

    Args:
        encoder: The teacher.
        texts: All texts.
        places: Of those that may be learned from, in random order.
        vectors: The teacher's, of all texts.
    """
    number = min(FEW_TEXTS, len(places) // 10)
    if not number:
        return None
    is_short = texts.lengths()[places] <= FEW_TOKENS
    short = places[is_short][:number]
    if len(short) == number:
        return texts, short, vectors
    longer = places[~is_short][: number - len(short)]
    cut = CutTexts(encoder, texts, np.concatenate([short, longer]), FEW_TOKENS)
    return cut, np.arange(number), cut.vectors(encoder)
