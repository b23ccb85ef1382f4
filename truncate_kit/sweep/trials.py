"""One trial: cut, train, judge; read from the store where it is already there."""

from collections.abc import Sequence
from dataclasses import dataclass

from truncate_kit.data import PairSplits
from truncate_kit.encoders import Encoder, truncate
from truncate_kit.errors import DataError, UsageError
from truncate_kit.progress import Progress
from truncate_kit.sweep.results import Trial
from truncate_kit.sweep.store import TrialStore
from truncate_kit.training import GradedPairs, Judge, PairJudge, TaughtTexts, TeacherJudge, TrainingSettings, train
from truncate_kit.training.examples import Examples, Ids

HELD_OUT = 0.1
FEWEST_TEXTS = 20


class LabelledTask:
    """TMFT on graded pairs: Spearman × 100 on dev and test."""

    metric = "Spearman × 100"

    def __init__(self, full: Encoder, data: PairSplits) -> None:
        if data.train is None or data.dev is None or data.test is None:
            raise DataError(
                f"{data.name} has no train, dev and test set to fine-tune with.",
                hint="Give a folder with train, dev and test files, or one file to be divided.",
            )
        self._full, self._data = full, data
        train_set = data.train
        self._first = full.token_ids([pair.first for pair in train_set])
        self._second = full.token_ids([pair.second for pair in train_set])
        self._targets = train_set.scores01()

    def examples(self) -> Examples:
        """Fresh examples; the loop renumbers them."""
        return GradedPairs(list(self._first), list(self._second), self._targets)

    def judges(self) -> tuple[Judge, Judge]:
        """Fresh dev and test judges."""
        assert self._data.dev is not None
        assert self._data.test is not None
        return PairJudge(self._full, self._data.dev), PairJudge(self._full, self._data.test)


class DistillTask:
    """Give the full model's vectors on raw text; judged on graded pairs where there are some, else by closeness."""

    def __init__(self, full: Encoder, texts: Sequence[str], data: PairSplits | None) -> None:
        texts = list(dict.fromkeys(texts))
        if len(texts) < FEWEST_TEXTS:
            raise DataError(
                f"Only {len(texts)} distinct texts to distil from.",
                hint=f"Give at least {FEWEST_TEXTS}; thousands are better.",
            )
        held = max(2, round(len(texts) * HELD_OUT))
        self._full, self._data = full, data
        self._ids = full.token_ids(texts)
        self._vectors = full.encode_ids(self._ids)
        self._held = held
        labelled = data is not None and data.dev is not None and data.test is not None
        self.metric = "Spearman × 100" if labelled else "mean cosine to the full model × 100"
        self._labelled = labelled

    def examples(self) -> Examples:
        """All texts but those held out."""
        return TaughtTexts(list(self._ids[self._held :]), self._vectors[self._held :])

    def judges(self) -> tuple[Judge, Judge]:
        """Graded pairs, or two halves of the held-out texts."""
        if self._labelled and self._data is not None and self._data.dev is not None and self._data.test is not None:
            return PairJudge(self._full, self._data.dev), PairJudge(self._full, self._data.test)
        middle = self._held // 2
        dev: list[Ids] = list(self._ids[:middle])
        test: list[Ids] = list(self._ids[middle : self._held])
        return TeacherJudge(dev, self._vectors[:middle]), TeacherJudge(test, self._vectors[middle : self._held])


@dataclass(slots=True)
class TrialRunner:
    """Runs trials of one model on one task with one set of training settings."""

    full: Encoder
    task: LabelledTask | DistillTask
    settings: TrainingSettings
    store: TrialStore
    progress: Progress

    def run(self, layer: int, seed: int, *, epochs: int | None = None, keep_weights: bool = False) -> Trial:
        """The trial of this layer and seed, from the store where it is finished.

        epochs: a shorter search run, which never sees the test set; None is the full budget. keep_weights: a finished
        trial whose weights are gone is run again.
        """
        budget = epochs or self.settings.epochs
        done = self.store.read(layer, seed, budget)
        searching = epochs is not None and epochs < self.settings.epochs
        if done is not None and (not keep_weights or self.store.has_weights(layer, seed, budget)):
            return done
        encoder = truncate(self.full, layer)
        (dev, test), examples = self.task.judges(), self.task.examples()
        settings = self.settings if epochs is None else _shorter(self.settings, epochs)
        state = train(
            encoder,
            examples,
            _copy(dev),
            settings,
            seed=seed,
            checkpoint=self.store.checkpoint(layer, seed, budget),
            progress=self.progress,
            task=f"layer {layer}, seed {seed}, {settings.epochs} epochs",
        )
        dev_score, dev_pearson = dev.score(encoder)
        test_score, test_pearson = (None, None) if searching else test.score(encoder)
        trial = Trial(
            layer=layer,
            seed=seed,
            epochs=budget,
            steps=budget * -(-len(examples) // settings.batch_size),
            dev_scores=tuple(state.scores),
            best_epoch=state.best_epoch + 1,
            dev=dev_score,
            dev_pearson=dev_pearson,
            test=test_score,
            test_pearson=test_pearson,
            seconds=state.seconds,
        )
        self.store.write(trial, encoder if keep_weights else None)
        return trial


def _shorter(settings: TrainingSettings, epochs: int) -> TrainingSettings:
    return TrainingSettings.from_dict(settings.to_dict() | {"epochs": epochs})


def _copy(judge: Judge) -> Judge:
    """A judge for the loop, which renumbers its ids; the original goes on with the full vocabulary."""
    import copy

    return copy.copy(judge)


def parse_layers(text: str, held: Sequence[int], depth: int) -> tuple[int, ...]:
    """Layers named as "3", "3,6,9", "2..5", or "all". Raises `UsageError` and the errors of single layers."""
    if text == "all":
        return tuple(held)
    layers: list[int] = []
    try:
        for part in text.split(","):
            first, dots, last = part.partition("..")
            layers += range(int(first), int(last) + 1) if dots else [int(first)]
    except ValueError as error:
        raise UsageError(
            f"{text!r} names no layers.", hint=f"Use a number, 3,6,9, 2..5, all or auto; this model has 0..{depth}."
        ) from error
    if not layers:
        raise UsageError(f"{text!r} names no layers.", hint=f"This model has 0..{depth}.")
    return tuple(dict.fromkeys(layers))
