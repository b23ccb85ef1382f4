"""Cheap scores of all layers at once, as work that engines run like trials."""

from dataclasses import dataclass, replace
from typing import Literal

from truncate_kit.errors import UsageError
from truncate_kit.methods.tmft.exits import MultiExitEvaluator, MultiExitPairs, probe
from truncate_kit.models import Encoder, truncate
from truncate_kit.parallel import Send, Steps
from truncate_kit.progress import Progress
from truncate_kit.training.evaluators import VectorEvaluator
from truncate_kit.training.examples import Pairs
from truncate_kit.training.loop import TrainingRun
from truncate_kit.training.settings import TrainingSettings
from truncate_kit.training.tasks import Task

RankingName = Literal["multi-exit", "probe"]
Scores = dict[int, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingOrder:
    """A ranking that is to be made. name: that of the strategy which needs nothing else."""

    name: RankingName
    layers: tuple[int, ...]
    seed: int

    @property
    def record(self) -> str:
        """What its record is called."""
        return f"{self.name}-seed{self.seed}-layers{'-'.join(map(str, self.layers))}"

    def __str__(self) -> str:
        return f"ranking the layers ({self.name})"


@dataclass(frozen=True, slots=True)
class RankingWork:
    """What the rankings of one model on one task share."""

    full: Encoder
    task: Task
    settings: TrainingSettings

    def move(self, device: str) -> None:
        """Go to another device; the task reads texts with the same encoder."""
        self.full.to(device)

    def perform(self, order: RankingOrder, send: Send) -> Scores:
        """Dev score of each layer, in points; sends `Steps`. Raises `UsageError` for a task without cosines."""

        def progress(task: str, done: int, total: int) -> None:
            send(Steps(task, done, total))

        if order.name == "probe":
            return probe(self.full, *self._exits(self.full, order), order.seed, progress)
        return self._multi_exit(order, progress)

    def _multi_exit(self, order: RankingOrder, progress: Progress) -> Scores:
        """After one epoch of the model, cut at the highest layer, with the loss on all of them."""
        encoder = truncate(self.full, max(order.layers))
        examples, dev = self._exits(encoder, order)
        evaluator, once = MultiExitEvaluator(dev), replace(self.settings, epochs=1)
        run = TrainingRun(encoder, MultiExitPairs(examples), evaluator, once, seed=order.seed)
        run.train(progress=progress, task="ranking layers, all trained at once")
        return evaluator.by_layer(encoder)

    def _exits(self, encoder: Encoder, order: RankingOrder) -> tuple[dict[int, Pairs], dict[int, VectorEvaluator]]:
        """The task's examples and dev evaluator for each layer, each with a head of its own where there is one."""
        examples, evaluators = {}, {}
        for layer in order.layers:
            pairs, dev, _ = self.task.trial(encoder, order.seed)
            if not isinstance(pairs, Pairs):
                raise UsageError(
                    f"The strategy {order.name} ranks layers by labelled pairs, which this objective does not have.",
                    hint='Use `strategy="guided"`.',
                )
            examples[layer], evaluators[layer] = pairs, dev
        return examples, evaluators
