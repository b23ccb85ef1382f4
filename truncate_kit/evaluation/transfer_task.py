"""A set of the transfer suite in numbers, and the choice of its layers inside a training part."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from truncate_kit.data import LabelledSet
from truncate_kit.encoding import first_tokens, text_features
from truncate_kit.evaluation.fitting import Rows, accuracies, drawn_rows, inner_divisions
from truncate_kit.evaluation.graded import TextEncoder
from truncate_kit.evaluation.screening import (
    WIDTH,
    few_coordinates,
    layer_subsets,
    projected,
    screen_features,
    screen_means,
)
from truncate_kit.evaluation.settings import Layers, TransferSettings
from truncate_kit.models import Encoder
from truncate_kit.models.tail import Dense
from truncate_kit.progress import Progress


@dataclass(frozen=True, slots=True)
class Task:
    """One set in numbers."""

    labels: Tensor  # from 0 on, (n,)
    as_is: Tensor  # features of the model's own vectors, (n, p)
    states: Tensor | None  # of the distinct texts, (L', m, d); None for a model of one vector
    first: Tensor  # row in `states` of the first text of each row of the set, (n,)
    second: Tensor | None  # the same of the second text; None for single texts
    cls: Tensor | None = None  # features (n, p) of the last layer's first token through the model's trained pooler


@dataclass(frozen=True, slots=True)
class LayeredTask:
    """A task whose model has layers."""

    task: Task
    states: Tensor
    small: Tensor  # the states as the screening takes them
    activation: nn.Module | None = None  # what means of states go through, which are then those of a pooler

    def subsets(self, settings: TransferSettings) -> list[Layers]:
        """All subsets of layers to choose from."""
        return layer_subsets(len(self.states), settings.largest_subset(len(self.states)))

    def features(self, subset: Layers) -> Tensor:
        """Features (n, p) of the mean of these layers."""
        return _features(self._mean(self.states, subset), self.task.first, self.task.second)

    def _mean(self, states: Tensor, subset: Layers) -> Tensor:
        mean = states[list(subset)].mean(dim=0)
        return mean if self.activation is None else self.activation(mean)

    def screen(self, rows: Tensor, folds: Sequence[tuple[Tensor, Tensor]], subsets: Sequence[Layers]) -> list[float]:
        """Screened accuracy of each subset on these rows."""
        labels, first = self.task.labels[rows], self.task.first[rows]
        second = None if self.task.second is None else self.task.second[rows]
        if second is None and self.activation is None:
            return screen_means(self.small[:, first], labels, folds, subsets)

        def features(subset: Layers) -> Tensor:
            return _features(self._mean(self.small, subset), first, second)

        return screen_features(features, labels, folds, subsets)


def prepare_task(
    encoder: TextEncoder,
    one: LabelledSet,
    settings: TransferSettings,
    progress: Progress,
    pooler: Dense | None = None,
) -> Task:
    """Draw the rows, encode each distinct text, and build the features.

    Args:
        encoder: Encodes the texts.
        one: The set.
        settings: Number and seed of the rows.
        progress: Called as the work goes on.
        pooler: The model's trained one, where it has one; each text is encoded once more for it.

    Raises:
        ModelError: The encoder does not give one vector for each text.
    """
    labels = np.asarray(one.labels)
    rows = drawn_rows(np.arange(len(one)), labels, settings.max_rows, settings.seed)
    first = [one.first[row] for row in rows]
    second = None if one.second is None else [one.second[row] for row in rows]
    texts = list(dict.fromkeys((*first, *(second or ()))))
    place = {text: index for index, text in enumerate(texts)}

    def named(task: str, done: int, total: int) -> None:
        progress(f"{one.name}: {task}", done, total)

    found = text_features(encoder, texts, named)
    left = torch.tensor([place[text] for text in first])
    right = None if second is None else torch.tensor([place[text] for text in second])
    cls = None
    if pooler is not None and isinstance(encoder, Encoder):
        with torch.inference_mode():
            cls = _features(pooler.cpu()(first_tokens(encoder, texts)), left, right)
    labels_of = torch.from_numpy(labels[rows])
    return Task(labels_of, _features(found.vectors, left, right), found.states, left, right, cls)


def layered_task(task: Task, head: Dense | None = None) -> LayeredTask | None:
    """The task with what the screening needs; None for a model of one vector.

    Args:
        task: Gets what the screening needs.
        head: The trained pooler that means of layers go through. Its linear part is taken of each layer once: W · mean
            + b is the mean of W · state + b.
    """
    if task.states is None:
        return None
    if head is not None:
        with torch.inference_mode():
            states = head.cpu().linear(task.states)
        return LayeredTask(
            task, states, few_coordinates(states, WIDTH if task.second is None else WIDTH // 2), head.activation
        )
    small = projected(task.states) if task.second is None else few_coordinates(task.states)
    return LayeredTask(task, task.states, small)


def choose_layers(layered: LayeredTask, rows: Rows, settings: TransferSettings, seed: int) -> Layers:
    """The subset with the best mean accuracy over divisions of `rows`: screened, then exact fits of the finalists."""
    subsets, labels = layered.subsets(settings), layered.task.labels.numpy()
    folds = inner_divisions(labels[rows], settings, seed)
    places = [(torch.from_numpy(fitted), torch.from_numpy(held_out)) for fitted, held_out in folds]
    screened = layered.screen(torch.from_numpy(rows), places, subsets)
    order = sorted(range(len(subsets)), key=lambda place: (-screened[place], len(subsets[place]), subsets[place]))
    finalists = [subsets[place] for place in order[: settings.finalists]]
    features = [layered.features(subset) for subset in finalists]
    fits = [(values, rows[fitted], rows[held_out]) for values in features for fitted, held_out in folds]
    exact = np.reshape(accuracies(fits, labels, settings), (len(finalists), len(folds))).mean(axis=1)
    # Of equally good ones that with fewer layers, then the one that was screened better.
    best = max(range(len(finalists)), key=lambda place: (exact[place], -len(finalists[place]), -place))
    return finalists[best]


def _features(vectors: Tensor, first: Tensor, second: Tensor | None) -> Tensor:
    """The vectors, or for pairs |u − v| and the products by coordinate, side by side (SentEval, arXiv:1803.05449)."""
    left = vectors[first]
    if second is None:
        return left
    right = vectors[second]
    return torch.cat([(left - right).abs(), left * right], dim=1)


def baselines(layered: LayeredTask, settings: TransferSettings, seed: int) -> tuple[Layers, Layers, Layers]:
    """The last layer, the last four, and layers at random (BERT-LC, Table 4; it says neither how drawn nor how often).

    Those at random are drawn evenly from all subsets that are searched.
    """
    subsets, layers = layered.subsets(settings), tuple(range(len(layered.states)))
    return layers[-1:], layers[-4:], subsets[int(np.random.default_rng(seed).integers(len(subsets)))]
