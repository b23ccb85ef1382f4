"""The student: blocks of the full model, which learn its vectors."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from truncate_kit.methods.distill.settings import DistillSettings
from truncate_kit.methods.distill.step_results import Blocks
from truncate_kit.methods.distill.teacher import rows_of
from truncate_kit.methods.distill.texts import TextStore
from truncate_kit.methods.distill.tryout_texts import CutTexts
from truncate_kit.models import Batch, Encoder
from truncate_kit.progress import Progress
from truncate_kit.training.configuration import TrainingSettings
from truncate_kit.training.distributed import ALONE, Group
from truncate_kit.training.evaluators import Evaluator
from truncate_kit.training.examples import Ids
from truncate_kit.training.loop import TrainingRun

EVALUATIONS = 20
"""Evaluations of an epoch."""

PATIENCE = 10
"""Learning ends where this number of evaluations, half an epoch, have brought nothing: at the peak of the rate scores
dip for a while, also where they end higher."""


class TaughtTexts:
    """Texts with the full model's vectors, both read from the disk."""

    head: nn.Module | None = None

    def __init__(
        self,
        texts: TextStore | CutTexts,
        places: NDArray[np.int64],
        vectors: NDArray[np.float16],
        settings: DistillSettings,
        full: tuple[Encoder, Blocks] | None = None,
        group: Group = ALONE,
    ) -> None:
        """What a student learns from.

        Args:
            texts: All texts.
            places: Of those that are learned from.
            vectors: The full model's, of all texts, (n, out).
            settings: Weights of the parts of the loss.
            full: The full model and the blocks that the student keeps of it; for the states alone.
            group: Processes that learn together, each embedding its share of every batch.
        """
        self._texts, self._places, self._vectors, self._settings = texts, places, vectors, settings
        self._full, self._group = full if settings.states else None, group
        self._lengths = texts.lengths()[places].tolist()
        self.separable = not (settings.similarity or self._full)
        # Over all texts: a batch holds texts of like length, and one of queries alone would cancel their weight.
        share = float((places < texts.counts.num_queries).mean())
        self._mean_weight = share * settings.query_weight + 1 - share

    def __len__(self) -> int:
        return len(self._places)

    def lengths(self) -> list[int]:
        """Tokens of each text."""
        return self._lengths  # type: ignore[no-any-return]  # numpy's tolist

    def texts(self) -> None:
        """None: the word embeddings keep all their rows."""

    def loss(self, encoder: Encoder, batch: Sequence[int]) -> Tensor:
        """1 − cosine to the full model's vector, and `similarity` times the difference of all cosines in the batch.

        Every process of the group has the vectors of all, and gradients of its own share.
        """
        places = [int(self._places[place]) for place in batch]
        own = self._group.share(places)
        if own:
            inputs = encoder.pad([self._texts.ids(place) for place in own])
            states = encoder.hidden_states(inputs) if self._full else (encoder.token_states(**inputs),)
            mine = encoder.from_states(states[-1], inputs["attention_mask"]).float()
        else:  # a batch with fewer texts than there are processes
            mine = torch.zeros((0, encoder.vector_width), device=encoder.device, requires_grad=True)
        found = self._group.gather(mine[None], len(places))[0]
        places = [place for rank in range(self._group.size) for place in places[rank :: self._group.size]]
        wanted = rows_of(self._vectors, places).to(found.device)
        found, wanted = (nn.functional.normalize(side, dim=1) for side in (found, wanted))
        distance = 1 - (found * wanted).sum(1)
        if self._settings.query_weight != 1 and self._texts.counts.num_queries:
            queries = torch.tensor(places, device=found.device) < self._texts.counts.num_queries
            weight = torch.where(queries, self._settings.query_weight, 1.0)
            loss = (weight * distance).mean() / self._mean_weight
        else:
            loss = distance.mean()
        if self._settings.similarity:
            loss = loss + self._settings.similarity * nn.functional.mse_loss(found @ found.T, wanted @ wanted.T)
        if self._full and own:
            tokens = sum(self._lengths[place] for place in batch)
            loss = loss + self._settings.states * self._distance_of_states(states, inputs, tokens)
        return loss

    def _distance_of_states(self, states: Sequence[Tensor], inputs: Batch, tokens: int) -> Tensor:
        """Mean 1 − cosine between tokens behind the kept blocks and behind the same blocks of the full model.

        tokens: Number of them in the whole batch, of all processes.
        """
        assert self._full is not None
        full, blocks = self._full
        with torch.no_grad():
            wanted = full.hidden_states(inputs)
        real = inputs["attention_mask"].bool()
        mine = torch.stack([state[real].float() for state in states[1:]])
        its = torch.stack([wanted[block][real].float() for block in blocks])
        return (1 - nn.functional.cosine_similarity(mine, its, dim=-1)).sum() / (tokens * len(blocks))


class StudentRun(TrainingRun):
    """Learning without dropout, which would blur vectors that are to be met exactly; ends where scores stop growing."""

    dropout = False
    bucket_batches = 96
    """Of 118,000 texts, in batches of 16, padding is 2.5 % of the tokens, and 9.5 % with a quarter of that number."""

    def train_stage(self, progress: Progress, task: str) -> float:
        """One stage of `TrainingRun`."""
        loss = super().train_stage(progress, task)
        self._end_if_settled()
        return loss

    def restore(self, path: Path) -> None:
        """As `TrainingRun`; a run that had ended does not go on."""
        super().restore(path)
        self._end_if_settled()

    def _end_if_settled(self) -> None:
        scores = self.state.scores
        if len(scores) > PATIENCE and max(scores[-PATIENCE:]) <= max(scores[:-PATIENCE]):
            self.stages = self.state.stage


def student_run(
    student: Encoder,
    examples: TaughtTexts,
    evaluator: Evaluator,
    settings: DistillSettings,
    group: Group = ALONE,
    *,
    evaluations: int = EVALUATIONS,
) -> StudentRun:
    """The run that teaches an encoder in place.

    Args:
        student: Is taught.
        examples: What it learns from.
        evaluator: Scores it, and chooses the weights that are kept.
        settings: How it learns.
        group: Processes that learn together.
        evaluations: Number of scores in an epoch.
    """
    if not settings.train_embeddings:
        for path in student.family.embeddings.split(","):
            student.backbone.get_submodule(path).requires_grad_(False)
    training = TrainingSettings(
        epochs=settings.epochs,
        batch_size=settings.batch_size,
        learning_rate=settings.rate(student.width),
        warmup=settings.warmup,
        precision=settings.precision,
    )
    steps = -(-len(examples) // settings.batch_size)
    every = max(1, -(-steps // evaluations))
    return StudentRun(student, examples, evaluator, training, seed=settings.seed, evaluate_every=every, group=group)


def ids_of(texts: TextStore, places: NDArray[np.int64]) -> list[Ids]:
    """Token ids of some texts."""
    return [texts.ids(int(place)) for place in places]
