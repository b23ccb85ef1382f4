"""What tells how good an encoder is after an epoch: scores on graded pairs, or closeness to a teacher."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from truncate_kit.data import PairSet
from truncate_kit.encoders import Encoder
from truncate_kit.training.evaluation import Evaluation, correlate
from truncate_kit.training.examples import Ids


class Judge(Protocol):
    """A held-out set in token ids. Higher is better, in points."""

    def texts(self) -> Sequence[Ids]:
        """All token ids."""

    def renumber(self, ids: Callable[[Ids], Ids]) -> None:
        """Replace the ids of every text."""

    def score(self, encoder: Encoder) -> tuple[float, float | None]:
        """Main score and, where there is one, Pearson correlation; both × 100."""


class PairJudge:
    """Spearman and Pearson correlation on graded pairs; each distinct text is encoded once."""

    def __init__(self, encoder: Encoder, pairs: PairSet) -> None:
        texts = pairs.texts()
        place = {text: index for index, text in enumerate(texts)}
        self._ids = encoder.token_ids(texts)
        self._first = torch.tensor([place[pair.first] for pair in pairs])
        self._second = torch.tensor([place[pair.second] for pair in pairs])
        self._targets = pairs.scores()

    def texts(self) -> list[Ids]:
        """The token ids of the distinct texts."""
        return self._ids

    def renumber(self, ids: Callable[[Ids], Ids]) -> None:
        """Replace the ids of every text."""
        self._ids = [ids(text) for text in self._ids]

    def evaluate(self, encoder: Encoder) -> Evaluation:
        """The full evaluation, with the cosine of each pair."""
        vectors = encoder.encode_ids(self._ids).double()
        cosines = torch.nn.functional.cosine_similarity(vectors[self._first], vectors[self._second])
        return correlate(cosines.tolist(), self._targets)

    def score(self, encoder: Encoder) -> tuple[float, float | None]:
        """Spearman and Pearson, × 100."""
        evaluation = self.evaluate(encoder)
        return evaluation.spearman, evaluation.pearson


class TeacherJudge:
    """Mean cosine (× 100) between the encoder's vectors and a teacher's, (n, d), on held-out texts."""

    def __init__(self, ids: list[Ids], vectors: Tensor) -> None:
        self._ids, self._vectors = ids, vectors

    def texts(self) -> list[Ids]:
        """The token ids."""
        return self._ids

    def renumber(self, ids: Callable[[Ids], Ids]) -> None:
        """Replace the ids of every text."""
        self._ids = [ids(text) for text in self._ids]

    def score(self, encoder: Encoder) -> tuple[float, float | None]:
        """Mean cosine × 100; no Pearson."""
        cosines = torch.nn.functional.cosine_similarity(encoder.encode_ids(self._ids), self._vectors)
        return 100 * float(cosines.mean()), None
