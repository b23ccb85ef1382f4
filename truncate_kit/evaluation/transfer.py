"""Score transfer to classification as in BERT-LC: logistic regression on frozen vectors, over random splits.

Layers are chosen on the training part: ridge regressions rank all subsets, and logistic regressions choose among the
finalists. A run takes hours, so finished splits are kept on disk.
"""

import warnings
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from itertools import combinations
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import ShuffleSplit, StratifiedShuffleSplit
from torch import Tensor, nn

from truncate_kit.core.errors import DataError, ModelError
from truncate_kit.core.progress import Progress, ProgressOption, reporter
from truncate_kit.core.results import COUNT, SEED, Bounds, Result, setting
from truncate_kit.core.vectors import TextEncoder
from truncate_kit.core.workspace import listed
from truncate_kit.data.pairs import PairSet, index_texts
from truncate_kit.data.seen import pair_keys, seen_by, seen_note
from truncate_kit.data.suites import find_transfer
from truncate_kit.evaluation import Score, SuiteReport, Values, means_of, report_of
from truncate_kit.evaluation.graded import encode_distinct
from truncate_kit.models.encoder import Encoder
from truncate_kit.models.loading import find_pooler_head
from truncate_kit.models.pipeline import Dense
from truncate_kit.models.store import RunStore, in_order, sha256_of, weight_parts
from truncate_kit.models.truncation import layer_states

Rows = NDArray[np.int64]
Labels = NDArray[np.int64]
Layers = tuple[int, ...]

BASE_LAYERS = 13  # embeddings included; large models have more
FEWEST_ROWS = 8  # training rows needed to choose layers
QUICK: dict[str, Any] = {"splits": 3, "max_rows": 2000}
WIDTH = 256  # features of a hidden state after reduction
RIDGE = 1e-3  # penalty as a share of the mean feature variance
# As in BERT-LC; the paper's "regularization parameter" of 10 is read as scikit-learn's C.
LOGISTIC: dict[str, Any] = {"solver": "saga", "C": 10.0, "tol": 0.01, "max_iter": 200}
_CHUNK = 64  # subsets computed at a time: some tens of megabytes
_PART = Bounds(0, 0.99, whole=False, above=True)


class TransferSettings(Result):
    """Settings of the protocol; defaults are BERT-LC's if the paper states them.

    Not from the paper: |u − v| and u · v of pairs, stratified splits, and `finalists`, the number of subsets fitted
    exactly after ridge ranking (the paper fits all). Shares are 0 … 1; `inner_share` is a share of the training rows.
    Subsets have at most four layers by default, three for large models. Each of `fractions` of the training rows is
    scored if it has `FEWEST_ROWS` rows. `head` feeds layer means through the trained pooler, as in BERT-LC for SimCSE.
    """

    splits: int = setting(10, bounds=COUNT)
    test_share: float = setting(0.15, bounds=_PART)
    inner_splits: int = setting(10, bounds=COUNT)
    inner_share: float = setting(0.18, bounds=_PART)
    max_layers: int | None = setting(None, bounds=COUNT)
    finalists: int = setting(3, bounds=COUNT)
    fractions: tuple[float, ...] = setting((1.0,), bounds=Bounds(0, 1, whole=False, above=True))
    head: bool = False
    max_rows: int | None = setting(None, bounds=COUNT)
    seed: int = setting(0, bounds=SEED)

    def largest_subset(self, num_layers: int) -> int:
        """Return the maximum number of layers in a subset; `num_layers` includes the embeddings."""
        return min(num_layers, self.max_layers or (4 if num_layers <= BASE_LAYERS else 3))

    def train_rows(self, rows: int) -> dict[float, int]:
        """Return the training rows per split by fraction, ascending."""
        used = min(rows, self.max_rows or rows)
        return {share: round(share * (used - ceil(self.test_share * used))) for share in sorted(self.fractions)}


class Task:
    """Vectors and pooled hidden states of one set's sampled rows; each distinct text is encoded once.

    Attributes:
        labels: Class indices, (n,).
        sides: Index in `states` of each row's text, (n,); two tensors for pairs.
        as_is: Features of the model's own vectors, (n, p).
        cls: Pooler features of the last layer's first token, (n, p), if there is a pooler.
        states: Pooled hidden states of distinct texts, (L', m, d), if the model has layers; with `activation`, after
            the pooler's linear part.
        small: `states` reduced for ridge regressions, (L', m, k) in float64.
        subsets: All subsets of layers, small ones first.
    """

    cls: Tensor | None = None
    activation: nn.Module | None = None

    def __init__(
        self, encoder: TextEncoder, data: PairSet, settings: TransferSettings, progress: Progress, pooler: Dense | None
    ) -> None:
        labels = np.array(data.scores(), np.int64)
        rows = drawn_rows(np.arange(len(data)), labels, settings.max_rows or len(data), settings.seed)
        texts, places = index_texts([data.pairs[row] for row in rows])
        self.labels, self.sides = labels[rows], [torch.tensor(side) for side in places]
        if not any(pair.second for pair in data):  # single texts
            self.sides = self.sides[:1]
        vectors = encode_distinct(encoder, texts, lambda task, *steps: progress(f"{data.name}: {task}", *steps))
        states = layer_states(encoder, texts) if isinstance(encoder, Encoder) else None
        if pooler is not None and states is not None and isinstance(encoder, Encoder):
            with torch.inference_mode():
                self.cls = self.features(pooler.cpu()(layer_states(encoder, texts, pooling="cls")[-1]))
                if settings.head:
                    # W · mean + b is the mean of W · state + b.
                    self.activation, states = pooler.activation, pooler.linear(states)
        self.as_is, self.states = self.features(vectors), states
        self.small = None if states is None else _small(states, self.activation is None, len(self.sides) == 1)
        layers = range(0 if states is None else len(states))
        sizes = range(1, settings.largest_subset(len(layers)) + 1)
        self.subsets = [subset for size in sizes for subset in combinations(layers, size)]

    def features(self, vectors: Tensor, rows: Rows | slice = slice(None)) -> Tensor:
        """Return vectors of rows, or for pairs |u − v| and elementwise u · v (SentEval, arXiv:1803.05449)."""
        first, *second = (vectors[side[rows]] for side in self.sides)
        return torch.cat([(first - second[0]).abs(), first * second[0]], dim=1) if second else first

    def mean_features(self, subset: Layers, states: Tensor | None, rows: Rows | slice = slice(None)) -> Tensor:
        """Return features (n, p) of the mean hidden state of these layers."""
        assert states is not None
        mean = states[list(subset)].mean(dim=0)
        return self.features(mean if self.activation is None else self.activation(mean), rows)


def _small(states: Tensor, linear: bool, single: bool) -> Tensor:
    """Reduce states to at most `WIDTH` features in float64, by random projection or random coordinates.

    Non-linear features need coordinates. Pairs have two features per coordinate.
    """
    width, drawn = states.shape[2], torch.Generator().manual_seed(0)
    if not linear or not single:
        kept = torch.randperm(width, generator=drawn)[: WIDTH if single else WIDTH // 2]
        return states[:, :, kept].double()
    if width <= WIDTH:
        return states.double()
    axes = torch.linalg.qr(torch.randn(width, WIDTH, generator=drawn, dtype=torch.float64)).Q
    return torch.stack([layer.double() @ axes for layer in states])


def accuracies(fits: Sequence[tuple[Tensor, Rows, Rows]], labels: Labels, settings: TransferSettings) -> list[float]:
    """Return accuracies (0 … 1) of logistic regression for each (features, rows to fit, rows to score)."""

    def accuracy(fit: tuple[Tensor, Rows, Rows]) -> float:
        features, train, test = fit
        if (labels[train] == labels[train[0]]).all():  # few rows may have only one class
            return float((labels[test] == labels[train[0]]).mean())
        model = LogisticRegression(random_state=settings.seed, **LOGISTIC)
        values = features.numpy()
        return float(model.fit(values[train], labels[train]).score(values[test], labels[test]))

    with warnings.catch_warnings(), ThreadPoolExecutor(torch.get_num_threads()) as pool:
        warnings.simplefilter("ignore")  # the protocol limits the iterations
        return list(pool.map(accuracy, fits))


def divisions(labels: Labels, number: int, held_out: int, seed: int) -> list[tuple[Rows, Rows]]:
    """Draw random splits into training and `held_out` rows, stratified if classes are large enough."""
    counts = np.unique(labels, return_counts=True)[1]
    by_class = counts.min() >= 2 and len(counts) <= held_out <= len(labels) - len(counts)
    division: Any = (StratifiedShuffleSplit if by_class else ShuffleSplit)(
        number, test_size=held_out, train_size=len(labels) - held_out, random_state=seed
    )
    return list(division.split(labels, labels))


def drawn_rows(rows: Rows, labels: Labels, count: int, seed: int) -> Rows:
    """Draw `count` rows, stratified if classes are large enough."""
    return rows if count >= len(rows) else rows[divisions(labels[rows], 1, len(rows) - count, seed)[0][0]]


def choose_layers(task: Task, rows: Rows, settings: TransferSettings, seed: int) -> Layers:
    """Choose the subset of layers with the best mean accuracy over inner splits of these rows."""
    subsets, labels = task.subsets, task.labels
    folds = divisions(labels[rows], settings.inner_splits, ceil(settings.inner_share * len(rows)), seed)
    assert task.small is not None
    if len(task.sides) == 1 and task.activation is None:
        ranked = ridge_accuracies(task.small[:, task.sides[0][rows]], labels[rows], folds, subsets)
    else:  # these features are not linear in the states
        means = (task.mean_features(subset, task.small, rows)[None] for subset in subsets)
        ranked = [ridge_accuracies(mean, labels[rows], folds, [(0,)])[0] for mean in means]
    order = sorted(range(len(subsets)), key=lambda place: (-ranked[place], len(subsets[place]), subsets[place]))
    finalists = [subsets[place] for place in order[: settings.finalists]]
    features = [task.mean_features(subset, task.states) for subset in finalists]
    fits = [(values, rows[fitted], rows[held]) for values in features for fitted, held in folds]
    exact = np.reshape(accuracies(fits, labels, settings), (len(finalists), len(folds))).mean(axis=1)
    # Ties: fewer layers first, then the higher rank.
    return finalists[max(range(len(finalists)), key=lambda place: (exact[place], -len(finalists[place]), -place))]


def ridge_accuracies(
    states: Tensor, labels: Labels, folds: Sequence[tuple[Rows, Rows]], subsets: Sequence[Layers]
) -> list[float]:
    """Return held-out accuracies (0 … 1) of a ridge classifier on the mean of each subset of layers.

    Second moments of the mean over a subset D are sums of shared blocks, X_D' X_D = (1 / |D|²) Σ_{l,m ∈ D} X_l' X_m, so
    a subset costs one small factorisation. The intercept is not penalised. states: (L', n, k) in float64; folds: rows
    to fit and rows held out.
    """
    layers, _, width = states.shape
    indicators = torch.nn.functional.one_hot(torch.from_numpy(labels)).double()
    # Centre: ridge regression ignores the mean, and equal states (CLS embeddings) must not leave rounding errors.
    states = states - states.mean(dim=1, keepdim=True)

    def moments(part: Tensor, goal: Tensor) -> list[Tensor]:
        """Return blocks X_l' X_m (L', L', k, k), X_l' Y (L', k, c), sums of X_l (L', k), and of Y (c,)."""
        transposed = part.transpose(1, 2)
        return [torch.stack([row @ part for row in transposed]), transposed @ goal, part.sum(dim=1), goal.sum(dim=0)]

    weights = torch.zeros(len(subsets), layers, dtype=torch.float64)
    for row, subset in enumerate(subsets):
        weights[row, list(subset)] = 1 / len(subset)
    whole, right = moments(states, indicators), np.zeros(len(subsets), np.int64)
    for _, held_out in folds:
        held = states[:, held_out]
        parts = zip(whole, moments(held, indicators[held_out]), strict=True)
        blocks, products, sums, counts = (every - part for every, part in parts)
        means, shares = sums / counts.sum(), counts / counts.sum()
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
            right[start : start + _CHUNK] += (scores.argmax(dim=2).numpy() == labels[held_out]).sum(axis=1)
    shares_right: list[float] = (right / sum(len(held_out) for _, held_out in folds)).tolist()
    return shares_right


def run_transfer(
    encoder: TextEncoder, data: str, *, fractions: tuple[float, ...] | None, quick: bool, head: bool, **run: Any
) -> SuiteReport:
    """Score the classification sets of a folder."""
    settings = TransferSettings(fractions=fractions or (1.0,), head=head, **(QUICK if quick else {}))
    model, note, work, progress = (run[name] for name in ("model", "note", "work", "progress"))
    sets, seen = find_transfer(data), seen_by(model)
    for one in sets:
        keys = pair_keys(pair for pair in one if pair.second)
        if optimistic := seen_note(keys, f"rows of {one.name}", {model: seen}):
            note(optimistic)
    if settings.max_rows is None:
        note("This takes minutes to hours, mostly for logistic regressions; use `quick` for rough scores.")
    pooler = find_pooler_head(model) if isinstance(encoder, Encoder) else None
    return score_transfer(encoder, sets, model=model, settings=settings, pooler=pooler, work=work, progress=progress)


def score_transfer(
    encoder: TextEncoder,
    sets: Sequence[PairSet],
    *,
    model: str,
    settings: TransferSettings | None = None,
    pooler: Dense | None = None,
    work: Path | None = None,
    progress: ProgressOption = False,
) -> SuiteReport:
    """Score logistic regressions on the sets of `find_transfer`; for an `Encoder`, also on the mean of its best layers.

    model: Name in the report.
    pooler: The model's trained pooler, for a baseline on the first token; `head` requires it.
    work: Folder for finished splits, to resume from.

    Raises:
        ModelError: `head` is set, but the pooler or the layers are missing.
        DataError: A set has a single class, or every share has too few rows.
        FileProblemError: The folder cannot be written, or another process uses it.
    """
    progress, settings = reporter(progress), settings or TransferSettings()
    for data in sets:
        if len(data.classes) < 2:
            raise DataError(f"{data.name} has only one class.", hint="Give a set with at least two classes.")
    most = {data.name: max(settings.train_rows(len(data)).values()) for data in sets}
    if most and max(most.values()) < FEWEST_ROWS:
        few = ", ".join(f"{name} leaves {rows} rows to train on" for name, rows in most.items())
        raise DataError(f"{few}.", hint=f"Use more rows or a larger share: at least {FEWEST_ROWS} are needed.")
    if settings.head and (pooler is None or not isinstance(encoder, Encoder)):
        raise ModelError(f"{model} has no trained pooler head.", hint="Leave out `head`.")
    rows, notes, subsets = list[Score](), list[str](), list[Layers]()
    for data in sets:
        task = Task(encoder, data, settings, progress, pooler)
        subsets = task.subsets
        store = None if work is None else RunStore(work, _key(task, settings), {"model": model, "transfer": data.name})
        with store.open() if store else nullcontext():
            rows += _score(data, task, settings, store, progress)
    if subsets:
        number = f"{len(subsets):,} subsets of up to {len(subsets[-1])} layers"
        notes.append(f"Layers were chosen inside the training part, among {number}.")
    if settings.head:
        notes.append("Layer means pass through the model's trained pooler.")
    if settings.max_rows is not None:
        notes.append(f"At most {settings.max_rows:,} rows of each set were used: not comparable with other runs.")
    metric = f"accuracy × 100 of logistic regression, {settings.splits} splits, tested on {settings.test_share:.0%}"
    last = {row.task: row for row in rows if row.size}  # of the largest scored share
    return replace(report_of("transfer", encoder, model, metric, [*last.values()], notes), rows=tuple(rows))


def _key(task: Task, settings: TransferSettings) -> str:
    tensors = {"labels": torch.from_numpy(task.labels), "as_is": task.as_is, "states": task.states, "cls": task.cls}
    tensors |= {f"side {place}": side for place, side in enumerate(task.sides)}
    kept = {name: value for name, value in tensors.items() if value is not None}
    return sha256_of((*weight_parts(kept), in_order(replace(settings, fractions=(1.0,), splits=1).to_dict())))


def _score(
    data: PairSet, task: Task, settings: TransferSettings, store: RunStore | None, progress: Progress
) -> list[Score]:
    labels, curve, done = task.labels, list[Score](), 0
    parts = divisions(labels, settings.splits, ceil(settings.test_share * len(labels)), settings.seed)
    shares = settings.train_rows(len(data))
    wanted = len(parts) * sum(number >= FEWEST_ROWS for number in shares.values())
    classes = {"most frequent": 100 * float(np.bincount(labels).max() / len(labels)), "classes": len(data.classes)}
    for fraction, number in shares.items():
        place: dict[str, Any] = {"task": data.name, "labels": {"share": f"{fraction:g}"}}
        if number < FEWEST_ROWS:
            curve.append(Score(**place, values={"rows to train on": number}, remark="too few rows"))
            continue
        splits = list[Score]()
        for split, (train, test) in enumerate(parts):
            name = f"rows{number}-split{split}"
            score = store.read(name, Score) if store else None
            if score is None:
                rows = drawn_rows(train, labels, number, settings.seed + split)
                score = Score(task=name, **_split(task, (rows, test), settings, settings.seed + split))
                if store:
                    store.write(name, score)
            splits.append(score)
            done += 1
            progress(f"{data.name}: splits", done, wanted)
        means = means_of(splits)
        if "last layer" in means:
            wrong, gained = 100 - means["last layer"], means["layers combined"] - means["last layer"]
            means["fewer errors %"] = 100 * gained / wrong if wrong else 0.0
        layers = Counter(layer for score in splits for layer in map(int, score.labels.get("layers", "").split()))
        often = listed(layer for layer, times in sorted(layers.items()) if times * 2 >= len(splits))
        sizes = (len(splits), number, len(parts[0][1]), len(means))
        values: Values = {"rows to train on": number, **means, **classes}
        remark = f"mostly layers {often}" if often else ""
        curve.append(Score(**place, values=values, size=sizes, remark=remark, parts=tuple(splits)))
    return curve


def _split(task: Task, places: tuple[Rows, Rows], settings: TransferSettings, seed: int) -> dict[str, Any]:
    features, labels = {"as it is": task.as_is}, dict[str, str]()
    if task.cls is not None:
        features["CLS pooler"] = task.cls
    if task.states is not None:
        chosen, layers = choose_layers(task, places[0], settings, seed), tuple(range(len(task.states)))
        drawn = task.subsets[int(np.random.default_rng(seed).integers(len(task.subsets)))]  # Table 4 of BERT-LC
        subsets = {"last layer": layers[-1:], "last four": layers[-4:], "random layers": drawn}
        for kind, subset in {**subsets, "layers combined": chosen}.items():
            features[kind] = task.mean_features(subset, task.states)
        labels = {"layers": " ".join(map(str, chosen))}
    shares = accuracies([(values, *places) for values in features.values()], task.labels, settings)
    return {"labels": labels, "values": {kind: 100 * share for kind, share in zip(features, shares, strict=True)}}
