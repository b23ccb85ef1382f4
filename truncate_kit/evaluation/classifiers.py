"""Transfer to classification as BERT-LC does it: logistic regression on frozen vectors, over random divisions.

Each set is divided at random, by class, into 85 % to train and 15 % to test, ten times. For a model with layers, the
subset whose mean is used is chosen inside the training part only: all subsets are ranked by ridge regressions in closed
form over random divisions of it into 82 % and 18 %, and the finalists by exact logistic regressions over the same ones.
Where a class is too small to be divided in its share, rows are divided at random. A share of the training rows that is
too small to choose layers on is left out of its set.

All of it can take hours: a division that is finished is kept, and not gone through again.
"""

import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import ShuffleSplit, StratifiedShuffleSplit, train_test_split
from torch import Tensor, nn

from truncate_kit.core.errors import DataError, ModelError
from truncate_kit.core.progress import Progress, ProgressOption, reporter, silent
from truncate_kit.core.wording import counted
from truncate_kit.data.seen import seen_pairs
from truncate_kit.data.suites import LabelledSet, find_transfer
from truncate_kit.evaluation.graded import check_finite_vectors, encode_distinct
from truncate_kit.evaluation.suite import SuiteRun, TextEncoder
from truncate_kit.evaluation.transfer import (
    FEWEST_ROWS,
    KINDS,
    Layers,
    TransferPoint,
    TransferReport,
    TransferScore,
    TransferSettings,
    TransferSplit,
    mean_of,
)
from truncate_kit.models.encoder import Encoder
from truncate_kit.models.loading import find_pooler_head
from truncate_kit.models.pipeline import Dense, Digest
from truncate_kit.models.store import RunStore
from truncate_kit.models.truncation import iter_states, layer_states

Rows = NDArray[np.int64]
Labels = NDArray[np.int64]

QUICK: dict[str, Any] = {"splits": 3, "max_rows": 2000}
"""Settings of a first look."""
WIDTH = 256
"""Numbers of a state that the ridge regressions see: a fixed projection, drawn without looking at the data."""
RIDGE = 1e-3  # share of the mean variance of a feature that is added to each: enough to keep the factorisation stable
_CHUNK = 64  # subsets solved at a time: their matrices fit in some tens of megabytes


@dataclass(frozen=True, slots=True)
class Task:
    """One set in numbers."""

    labels: Labels  # from 0 on, (n,)
    as_is: Tensor  # features of the model's own vectors, (n, p)
    first: Tensor  # row in `states` of the first text of each row of the set, (n,)
    second: Tensor | None = None  # the same of the second text; None for single texts
    cls: Tensor | None = None  # features (n, p) of the last layer's first token through the model's trained pooler
    states: Tensor | None = None  # of the distinct texts, (L', m, d); None for a model of one vector
    small: Tensor | None = None  # the states as the ridge regressions see them, (L', m, k) in float64
    activation: nn.Module | None = None  # of the pooler that means of states go through, whose linear part they passed

    def subsets(self, settings: TransferSettings) -> list[Layers]:
        """Return all subsets of layers to choose from, small ones first: 1,092 of 13 layers up to 4."""
        layers = 0 if self.states is None else len(self.states)
        sizes = range(1, settings.largest_subset(layers) + 1)
        return [subset for size in sizes for subset in combinations(range(layers), size)]

    def features(self, subset: Layers, states: Tensor | None = None, rows: Rows | None = None) -> Tensor:
        """Return features (n, p) of the mean of these layers; None are `states` and all rows."""
        states = self.states if states is None else states
        assert states is not None
        mean = states[list(subset)].mean(dim=0)
        mean = mean if self.activation is None else self.activation(mean)
        places = slice(None) if rows is None else torch.from_numpy(rows)
        return _features(mean, self.first[places], None if self.second is None else self.second[places])


def _features(vectors: Tensor, first: Tensor, second: Tensor | None) -> Tensor:
    """Return the vectors, or for pairs |u − v| and the products by coordinate (SentEval, arXiv:1803.05449)."""
    left = vectors[first]
    if second is None:
        return left
    right = vectors[second]
    return torch.cat([(left - right).abs(), left * right], dim=1)


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
        settings: Number and seed of the rows, and whether means of layers go through `pooler`.
        progress: Called as the work goes on.
        pooler: The model's trained one, where it has one; each text is encoded once more for it.

    Raises:
        ModelError: The encoder does not give one vector for each text.
    """
    labels = np.asarray(one.labels)
    rows = drawn_rows(np.arange(len(one)), labels, settings.max_rows, settings.seed)
    sides = [[side[row] for row in rows] for side in (one.first, one.second) if side is not None]
    texts = list(dict.fromkeys(text for side in sides for text in side))
    place = {text: index for index, text in enumerate(texts)}
    named: Progress = lambda task, done, total: progress(f"{one.name}: {task}", done, total)  # noqa: E731
    vectors, states = text_features(encoder, texts, named)
    first, *others = (torch.tensor([place[text] for text in side]) for side in sides)
    second = others[0] if others else None
    cls = None
    with torch.inference_mode():
        if pooler is not None and isinstance(encoder, Encoder):
            cls = _features(pooler.cpu()(first_tokens(encoder, texts)), first, second)
        activation = pooler.activation if settings.head and pooler is not None else None
        if activation is not None and pooler is not None and states is not None:
            states = pooler.linear(states)  # W · mean + b is the mean of W · state + b
    return Task(
        labels=labels[rows],
        as_is=_features(vectors, first, second),
        first=first,
        second=second,
        cls=cls,
        states=states,
        small=None if states is None else _small(states, activation is None, second is None),
        activation=activation,
    )


def _small(states: Tensor, linear: bool, single: bool) -> Tensor:
    """Return at most `WIDTH` numbers of each state in float64: projected, or some coordinates where features bend.

    What is not linear in the coordinates does not survive a projection; of pairs there are two features for each.
    """
    width = states.shape[2]
    drawn = torch.Generator().manual_seed(0)
    if not linear or not single:
        kept = torch.randperm(width, generator=drawn)[: WIDTH if single else WIDTH // 2]
        return states[:, :, kept].double()
    if width <= WIDTH:
        return states.double()
    axes = torch.linalg.qr(torch.randn(width, WIDTH, generator=drawn, dtype=torch.float64)).Q
    return torch.stack([layer.double() @ axes for layer in states])


def accuracies(fits: Sequence[tuple[Tensor, Rows, Rows]], labels: Labels, settings: TransferSettings) -> list[float]:
    """Return the accuracy (0 … 1) of a logistic regression for each (features, rows to fit, rows to score)."""

    def accuracy(fit: tuple[Tensor, Rows, Rows]) -> float:
        features, train, test = fit
        values = features.numpy()
        if (labels[train] == labels[train[0]]).all():  # few rows may hold one class alone, which is then the answer
            return float((labels[test] == labels[train[0]]).mean())
        model = LogisticRegression(
            solver="saga",
            C=settings.penalty,
            tol=settings.tolerance,
            max_iter=settings.iterations,
            random_state=settings.seed,
        )
        return float(model.fit(values[train], labels[train]).score(values[test], labels[test]))

    with warnings.catch_warnings(), ThreadPoolExecutor(torch.get_num_threads()) as pool:
        warnings.simplefilter("ignore")  # the protocol stops at a number of iterations, converged or not
        return list(pool.map(accuracy, fits))


def divisions(labels: Labels, number: int, share: float, seed: int) -> list[tuple[Rows, Rows]]:
    """Return rows to fit on and to hold out for random divisions: each class in its share, where it is large enough."""
    held_out = int(np.ceil(share * len(labels)))
    kind = StratifiedShuffleSplit if by_class(labels, held_out) else ShuffleSplit
    division: Any = kind(number, test_size=held_out, random_state=seed)
    return list(division.split(labels, labels))


def by_class(labels: Labels, part: int) -> bool:
    """Return whether `part` of the rows, and the rest, can hold each class in its share."""
    counts = np.unique(labels, return_counts=True)[1]
    return bool(counts.min() >= 2 and len(counts) <= part <= len(labels) - len(counts))


def drawn_rows(rows: Rows, labels: Labels, count: int | None, seed: int) -> Rows:
    """Return `count` of the rows, each class in its share where it is large enough; all if there are no more."""
    if count is None or count >= len(rows):
        return rows
    stratify = labels[rows] if by_class(labels[rows], count) else None
    kept: Rows = train_test_split(rows, train_size=count, stratify=stratify, random_state=seed)[0]
    return kept


def choose_layers(task: Task, rows: Rows, settings: TransferSettings, seed: int) -> Layers:
    """Return the subset with the best mean accuracy over divisions of `rows`: ranked, then exact fits of the best."""
    subsets, labels = task.subsets(settings), task.labels
    folds = divisions(labels[rows], settings.inner_splits, settings.inner_share, seed)
    ranked = screened_accuracies(task, rows, folds, subsets)
    order = sorted(range(len(subsets)), key=lambda place: (-ranked[place], len(subsets[place]), subsets[place]))
    finalists = [subsets[place] for place in order[: settings.finalists]]
    fits = [
        (values, rows[fitted], rows[held_out]) for values in map(task.features, finalists) for fitted, held_out in folds
    ]
    exact = np.reshape(accuracies(fits, labels, settings), (len(finalists), len(folds))).mean(axis=1)
    # Of equally good ones that with fewer layers, then the one that was ranked higher.
    best = max(range(len(finalists)), key=lambda place: (exact[place], -len(finalists[place]), -place))
    return finalists[best]


def screened_accuracies(
    task: Task, rows: Rows, folds: Sequence[tuple[Rows, Rows]], subsets: Sequence[Layers]
) -> list[float]:
    """Return `ridge_accuracies` of each subset on these rows; `task` has layers."""
    assert task.small is not None
    if task.second is None and task.activation is None:
        return ridge_accuracies(task.small[:, task.first[rows]], task.labels[rows], folds, subsets)
    each = (task.features(subset, task.small, rows)[None] for subset in subsets)  # not linear in the states
    return [ridge_accuracies(features, task.labels[rows], folds, [(0,)])[0] for features in each]


def ridge_accuracies(
    states: Tensor, labels: Labels, folds: Sequence[tuple[Rows, Rows]], subsets: Sequence[Layers]
) -> list[float]:
    """Return the accuracy (0 … 1) over all rows held out of a ridge classifier on the mean of each subset of layers.

    No library fits 1,092 subsets at once. The mean over the layers of a subset D is linear in the states, so its second
    moments are sums of blocks that all subsets share: X_D' X_D = (1 / |D|²) Σ_{l,m ∈ D} X_l' X_m. The blocks are
    computed once; every subset then costs one small factorisation. The intercept is not penalised.

    Args:
        states: (L', n, k) in float64.
        labels: (n,) from 0.
        folds: Rows to fit on and rows held out.
        subsets: Of layers.
    """
    layers, _, width = states.shape
    indicators = torch.nn.functional.one_hot(torch.from_numpy(labels)).double()
    # No ridge regression depends on the mean of all rows; where all are equal, as the CLS states of the embeddings,
    # moments of large numbers would leave nothing but rounding errors.
    states = states - states.mean(dim=1, keepdim=True)

    def moments(part: Tensor, of: Tensor) -> list[Tensor]:
        """Return blocks X_l' X_m (L', L', k, k), X_l' Y (L', k, c), sums of X_l (L', k), and of Y (c,)."""
        transposed = part.transpose(1, 2)
        return [torch.stack([row @ part for row in transposed]), transposed @ of, part.sum(dim=1), of.sum(dim=0)]

    weights = torch.zeros(len(subsets), layers, dtype=torch.float64)
    for row, subset in enumerate(subsets):
        weights[row, list(subset)] = 1 / len(subset)
    whole, right = moments(states, indicators), []
    for _, held_out in folds:
        held = states[:, held_out]
        parts = zip(whole, moments(held, indicators[held_out]), strict=True)
        blocks, products, sums, counts = (every - part for every, part in parts)
        means, shares = sums / counts.sum(), counts / counts.sum()
        # Of the rows to fit on less their means.
        blocks = (blocks - torch.einsum("lk,mj->lmkj", sums, means)).reshape(layers * layers, -1)
        products = products - sums[:, :, None] * shares
        for start in range(0, len(subsets), _CHUNK):
            chunk = weights[start : start + _CHUNK]
            pairs = (chunk[:, :, None] * chunk[:, None, :]).flatten(1)
            grams = (pairs @ blocks).reshape(-1, width, width)
            penalty = RIDGE * grams.diagonal(dim1=1, dim2=2).mean(dim=1).clamp(min=1e-12)  # states may all be equal
            factors = torch.linalg.cholesky(grams + penalty[:, None, None] * torch.eye(width, dtype=grams.dtype))
            slopes = torch.cholesky_solve(torch.tensordot(chunk, products, 1), factors)
            offsets = shares - torch.einsum("sk,skc->sc", chunk @ means, slopes)
            scores = torch.tensordot(chunk, held, 1) @ slopes + offsets[:, None]
            right.append((scores.argmax(dim=2).numpy() == labels[held_out]).sum(axis=1))
    correct = np.concatenate(right).reshape(len(folds), len(subsets)).sum(axis=0)
    found: list[float] = (correct / sum(len(held_out) for _, held_out in folds)).tolist()
    return found


def baselines(task: Task, settings: TransferSettings, seed: int) -> tuple[Layers, Layers, Layers]:
    """Return the last layer, the last four, and layers at random (BERT-LC, Table 4, which does not say how drawn).

    Those at random are drawn evenly from all subsets that are searched.
    """
    subsets, layers = task.subsets(settings), tuple(range(0 if task.states is None else len(task.states)))
    return layers[-1:], layers[-4:], subsets[int(np.random.default_rng(seed).integers(len(subsets)))]


def run_transfer(run: SuiteRun) -> TransferReport:
    """Score the sets of a folder; options: `fractions` of the training rows, `head`, `quick` for a first look."""
    given = {name: run.options.get(name) for name in ("fractions", "head")}
    quick = QUICK if run.options.get("quick") else {}
    settings = TransferSettings(**{name: value for name, value in given.items() if value}, **quick)
    sets, seen = find_transfer(run.data), seen_pairs(run.model)
    for one in sets:
        for share, rows in settings.left_out(len(one)):
            run.note(f"{one.name} leaves {rows} rows to train on at {share:g} of them: left out.")
        if seen is None or one.second is None:
            continue
        known = sum(frozenset(pair) in seen for pair in zip(one.first, one.second, strict=True))
        if known:
            run.note(
                f"{run.model} was trained on or chosen by {known:,} of the {counted(len(one), 'row')} of {one.name}: "
                "accuracy there says little of other rows."
            )
    if settings.max_rows is None:
        run.note("This takes minutes to hours, mostly for logistic regressions; `quick` is a first look.")
    return score_transfer(
        run.encoder,
        sets,
        model=run.model,
        runtime=run.runtime,
        settings=settings,
        pooler=find_pooler_head(run.model, required=settings.head) if isinstance(run.encoder, Encoder) else None,
        work=run.work,
        progress=run.progress,
    )


def _check_rows(sets: Sequence[LabelledSet], settings: TransferSettings) -> None:
    """Raise `DataError` for a set of one class, or where the largest share leaves no set enough rows to fit on."""
    for one in sets:
        if len(one.classes) < 2:
            raise DataError(f"{one.name} has one class alone.", hint="Give a set with at least two classes.")
    counts = {one.name: settings.train_rows(len(one), max(settings.fractions)) for one in sets}
    name = max(counts, key=counts.__getitem__, default="")
    if counts and counts[name] < FEWEST_ROWS:
        others = ", and no other set more" if len(counts) > 1 else ""
        hint = f"Take more rows, or a larger share: {FEWEST_ROWS} are the fewest that can be fitted on."
        raise DataError(f"{name} leaves {counts[name]} rows to train on{others}.", hint=hint)


def score_transfer(
    encoder: TextEncoder,
    sets: Sequence[LabelledSet],
    *,
    model: str,
    runtime: str = "torch",
    settings: TransferSettings | None = None,
    pooler: Dense | None = None,
    work: Path | None = None,
    progress: ProgressOption = False,
) -> TransferReport:
    """Score logistic regressions on each set. An `Encoder` is also evaluated by its best mean of layers.

    Whatever else has `.encode(texts)` gives one vector, and there is nothing to choose.

    Args:
        encoder: What is scored.
        sets: On what.
        model: Its name in the report.
        runtime: What encodes, for the report.
        settings: The protocol.
        pooler: The model's trained pooler where it has one, a baseline over the last layer's first token; `head` of
            the settings needs it.
        work: Folder that keeps finished divisions: the same call goes on there. None keeps nothing.
        progress: Called after each part of the work.

    Raises:
        ModelError: The settings ask for a head, and there is no pooler or there are no layers.
        DataError: A set has one class alone, no share leaves any set enough rows, or the vectors are no numbers.
        FileProblemError: The folder cannot be written, or another process works there.
    """
    progress, settings, begin = reporter(progress), settings or TransferSettings(), time.perf_counter()
    _check_rows(sets, settings)
    if settings.head and (pooler is None or not isinstance(encoder, Encoder)):
        raise ModelError(f"{model} comes without a pooler head.", hint="Leave out `head`.")
    scores, subsets = [], 0
    for one in sets:
        task = prepare_task(encoder, one, settings, progress, pooler)
        if task.states is not None:
            settings = replace(settings, max_layers=settings.largest_subset(len(task.states)))
            subsets = len(task.subsets(settings))
        store = None if work is None else RunStore(work, _key(task, settings), {"model": model, "transfer": one.name})
        with store.open() if store else nullcontext():
            scores.append(_score(one, task, settings, store, progress))
    points = [score.whole for score in scores if score.curve]
    means: dict[str, Any] = {f"mean_{kind}": mean_of([point.mean(kind) for point in points]) for kind in KINDS}
    return TransferReport(
        model=model,
        runtime=runtime,
        settings=settings,
        num_subsets=subsets,
        sets=tuple(scores),
        mean_relative_error_reduction=mean_of([point.relative_error_reduction for point in points]),
        seconds=time.perf_counter() - begin,
        **means,
    )


def _key(task: Task, settings: TransferSettings) -> str:
    """Return the SHA-256 of all that the scores of a division depend on but the number of its rows and its own."""
    digest = Digest()
    found = {name: getattr(task, name) for name in ("as_is", "states", "cls", "first", "second")}
    tensors = {name: value for name, value in found.items() if value is not None}
    digest.add_weights({"labels": torch.from_numpy(task.labels), **tensors})
    digest.add_values(replace(settings, fractions=(1.0,), splits=1).to_dict())
    return digest.hexdigest()


def _score(
    one: LabelledSet, task: Task, settings: TransferSettings, store: RunStore | None, progress: Progress
) -> TransferScore:
    """Score one set through all splits, for each share of the training rows that leaves enough."""
    labels = task.labels
    shares = sorted(settings.fractions)[len(settings.left_out(len(one))) :]  # those with too few are the smallest
    parts = divisions(labels, settings.splits, settings.test_share, settings.seed)
    curve: list[TransferPoint] = []
    for fraction in shares:
        found: list[TransferSplit] = []
        stratified = True
        for number, (train, test) in enumerate(parts):
            seed = settings.seed + number
            rows = drawn_rows(train, labels, round(fraction * len(train)), seed)
            stratified &= len(np.unique(labels[rows])) == len(np.unique(labels))
            stratified &= by_class(labels[rows], int(np.ceil(settings.inner_share * len(rows))))
            name = f"rows{len(rows)}-split{number}"
            split = store.read(name, TransferSplit) if store else None
            if split is None:
                split = _split(task, (rows, test), settings, seed)
                if store:
                    store.write(name, split)
            found.append(split)
            progress(f"{one.name}: splits", len(parts) * len(curve) + len(found), len(parts) * len(shares))
        curve.append(
            TransferPoint(
                fraction=fraction,
                train_rows=len(rows),
                test_rows=len(test),
                by_class=stratified,
                splits=tuple(found),
            )
        )
    rows_of = list(zip(task.first.tolist(), (task.first if task.second is None else task.second).tolist(), strict=True))
    return TransferScore(
        name=one.name,
        num_rows=len(labels),
        num_classes=len(one.classes),
        majority=100 * float(np.bincount(labels).max() / len(labels)),
        repeated_rows=len(rows_of) - len(set(rows_of)),
        curve=tuple(curve),
    )


def _split(task: Task, places: tuple[Rows, Rows], settings: TransferSettings, seed: int) -> TransferSplit:
    """Score one division into rows to train on and to test on."""
    features, chosen = {"as_is": task.as_is}, None
    if task.states is not None:
        chosen = choose_layers(task, places[0], settings, seed)
        kinds = ("last", "last_four", "random", "combined")
        subsets = (*baselines(task, settings, seed), chosen)
        features |= {kind: task.features(subset) for kind, subset in zip(kinds, subsets, strict=True)}
        features |= {} if task.cls is None else {"cls": task.cls}
    found = accuracies([(values, *places) for values in features.values()], task.labels, settings)
    return TransferSplit(**{kind: 100 * share for kind, share in zip(features, found, strict=True)}, chosen=chosen)


def text_features(
    encoder: TextEncoder, texts: Sequence[str], progress: Progress = silent
) -> tuple[Tensor, Tensor | None]:
    """Return the vectors (n, out) and, for an `Encoder`, the states of all its layers (L', n, d) with its own pooling.

    One pass gives both, unless the vectors are made of other states. Raises `DataError`.
    """
    if not isinstance(encoder, Encoder):
        return encode_distinct(encoder, texts, progress), None
    states = layer_states(encoder, texts, progress=progress)
    other_heads = encoder.heads is not None and encoder.heads.raw
    if encoder.combination is not None or encoder.pooler is not None or other_heads:
        return encode_distinct(encoder, texts, progress), states
    with torch.inference_mode():
        vectors = states[-1] if encoder.heads is None else encoder.heads(states[1:].to(encoder.device)).cpu()
        for module in encoder.tail:
            vectors = module(vectors.to(encoder.device)).cpu()
    return check_finite_vectors(vectors.clone()), states


def first_tokens(encoder: Encoder, texts: Sequence[str]) -> Tensor:
    """Return the states (n, d) of the first token after the last layer."""
    found = torch.empty(len(texts), encoder.width, dtype=torch.float32)
    for batch in iter_states(encoder, texts, pooling="cls"):
        found[batch.places] = batch.states[-1]
    return found
