"""Labels to select blocks and to report scores; without labels, pairs scored by the full model's cosines."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import nn

from truncate_kit.core.errors import DataError, TruncateKitError, counted
from truncate_kit.core.files import name_without_folders
from truncate_kit.core.results import SEARCH_METRICS
from truncate_kit.core.vectors import changed_queries
from truncate_kit.core.workspace import RESULT_FILES, Workspace
from truncate_kit.data.pairs import PairSet, PairSplits, TextPair, splits_for
from truncate_kit.data.retrieval import RetrievalSet
from truncate_kit.data.seen import NO_KEYS, Keys, keys_of, numbers_of, query_keys, without_seen
from truncate_kit.evaluation.graded import evaluate, paired_difference
from truncate_kit.evaluation.retrieval import estimated
from truncate_kit.methods.distill.learning import FOLDER, TextStore, held_out_places, teacher_of
from truncate_kit.methods.distill.settings import DistillResult, HeldOutScores
from truncate_kit.models.encoder import Encoder
from truncate_kit.models.loading import load_encoder
from truncate_kit.training.examples import PairEvaluator, scored_as
from truncate_kit.training.loop import Evaluator
from truncate_kit.training.queries import RetrievalEvaluator, check_queries, choosing_queries, halved

FEWEST_TESTED = 3  # fewest pairs with a defined correlation
NOTE = "Without labels, the full model's cosines between held-out texts are the reference."
SEARCH_NOTE = "{name} has no graded pairs: the model's cosines between queries and documents replace the grades."
PAIRS = 1000  # maximum: the cosines between all texts are computed
FEWEST_PAIRED, _CHECKED = 10, 400  # texts of each half: to pair, to check a graph


class PairLabels:
    """Labels of pairs: dev to select the blocks, test to report scores.

    Raises `DataError` if both splits are missing, or for ungraded pairs.

    Attributes:
        texts: Texts to exclude from training.
        chosen_by: The pairs before splitting, if blocks are selected on dev.
        num_seen: Excluded test pairs, which the full model has seen.
    """

    metric = "Spearman × 100 on dev"

    def __init__(self, data: PairSplits, seed: int, full: Encoder) -> None:
        whole, data, self.num_seen = data, splits_for(data, seed), 0
        parts = [part for part in (data.dev, data.test) if part is not None]
        if not parts:
            hint = "Give a folder with dev and test files, or one file to split."
            raise DataError(f"{data.name} has neither dev nor test pairs.", hint=hint)
        for part in parts:
            part.check_graded()
        if data.test is not None:
            data, self.num_seen = without_seen(data, full.seen)
            if self.num_seen and len(data.test or ()) < FEWEST_TESTED:
                data = replace(data, test=None)
        self.name, self.fingerprint, self._dev, self._test = data.name, data.fingerprint(), data.dev, data.test
        self.texts = {text for part in (data.dev, data.test) if part is not None for text in part.texts()}
        self.chosen_by = None if data.dev is None else whole

    def judge(self, encoder: Encoder) -> Evaluator | None:
        """Return the evaluator on the dev pairs."""
        return None if self._dev is None else PairEvaluator(encoder, self._dev)

    def seen(self) -> Keys:
        """Return the dev pairs' keys."""
        return NO_KEYS if self._dev is None else keys_of(self._dev)

    def report(self, full: Encoder, lean: Encoder) -> HeldOutScores | None:
        """Compare both models on the test pairs."""
        if self._test is None:
            return None
        ours, theirs = (evaluate(model, self._test.pairs).cosines for model in (lean, full))
        numbers = numbers_of((pair.first, pair.second) for pair in self._test.pairs)
        scores, ends, _, number = paired_difference(ours, theirs, self._test.scores(), numbers=numbers)
        return _compared(self._test.name, "Spearman × 100", scores, ends, number)


class QueryLabels:
    """Labels of a retrieval set: half of the queries to select the blocks, half to report scores.

    Raises `DataError` for too few queries.
    """

    chosen_by, num_seen = None, 0

    def __init__(self, data: RetrievalSet, full: Encoder) -> None:
        check_queries(data)
        self._data, self.name, self.texts = data, data.name, data.held_out
        self.metric = f"{SEARCH_METRICS[data.metric]} of half the queries"
        self.fingerprint = data.fingerprint() + scored_as(data, full)

    def judge(self, encoder: Encoder) -> Evaluator:
        """Return the evaluator on the selection queries."""
        return RetrievalEvaluator(encoder, self._data, halved(self._data)[0])

    def seen(self) -> Keys:
        """Return the selection queries' keys."""
        return query_keys(choosing_queries(self._data))

    def report(self, full: Encoder, lean: Encoder) -> HeldOutScores:
        """Compare both models on the report queries."""
        queries, same = halved(self._data)[1], lean.backbone.config.vocab_size == full.backbone.config.vocab_size
        judge = RetrievalEvaluator(full, self._data, queries)
        ids = judge.texts()
        own_ids = ids if same else RetrievalEvaluator(lean, self._data, queries).texts()
        ours, theirs = lean.encode_ids(own_ids), full.encode_ids(ids)
        lean_scores, full_scores = judge.scores(ours, ours), judge.scores(theirs, theirs)
        scores, mixed = (lean_scores.mean(), full_scores.mean()), float(judge.scores(ours, theirs).mean())
        differences, metric = lean_scores - full_scores, SEARCH_METRICS[self._data.metric]
        made = _compared(self.name, metric, scores, estimated(differences)[1], len(differences), mixed)
        return replace(made, changed=changed_queries(differences))


Labels = PairLabels | QueryLabels


def labels_of(data: PairSplits | RetrievalSet, seed: int, full: Encoder) -> Labels:
    """Return the labels; pairs without splits are split by `seed`."""
    return QueryLabels(data, full) if isinstance(data, RetrievalSet) else PairLabels(data, seed, full)


def _compared(
    data: str, metric: str, scores: Sequence[float], ends: tuple[float, float], number: int, mixed: float | None = None
) -> HeldOutScores:
    lean, full = map(float, scores)
    return HeldOutScores(
        data=data,
        metric=metric,
        lean=lean,
        full=full,
        mixed=mixed,
        difference=lean - full,
        low=ends[0],
        high=ends[1],
        num_compared=number,
    )


def own_pairs(encoder: Encoder, texts: Sequence[str], name: str = "") -> PairSet:
    """Pair texts alternately with the nearest and a random text; scores are the encoder's cosines. Needs two texts."""
    some = list(dict.fromkeys(texts))
    unit = nn.functional.normalize(encoder.vectors(some), dim=1)
    cosines = (unit @ unit.T).fill_diagonal_(-2)
    steps = torch.randint(1, len(some), (len(some),), generator=torch.Generator().manual_seed(0))
    first = torch.arange(len(some))
    second = torch.where(first % 2 == 0, cosines.argmax(1), (first + steps) % len(some))
    scores, others = cosines[first, second].tolist()[:PAIRS], second.tolist()
    pairs = tuple(TextPair(some[place], some[others[place]], score) for place, score in enumerate(scores))
    return PairSet(name=name or f"cosines of {name_without_folders(encoder.name)}", pairs=pairs, scale=(-1.0, 1.0))


def own_pairs_of(workspace: Workspace) -> PairSplits | None:
    """Pair the held-out texts of a distillation: selection texts become dev, report texts become test.

    Returns no pairs if the texts are missing, or if the user gave labelled data.
    """
    result = DistillResult.read_if_whole(workspace.folder / RESULT_FILES["distill"])
    if result is None or workspace.remembered().data.name:
        return None
    try:
        store = TextStore(workspace.folder / FOLDER)
        teacher = teacher_of(load_encoder(workspace.full), result.settings.layer)
        if store.counts != result.texts:  # from another, stopped distillation
            return None
        halves = [store.read(half.tolist()) for half in held_out_places(len(store), result.settings)[:2]]
        return _splits(teacher, halves, f"cosines of {name_without_folders(result.model)}", NOTE)
    except (OSError, ValueError, KeyError, TruncateKitError):  # missing or damaged files
        return None


def distinct_texts(name: str, texts: Iterable[str]) -> list[str]:
    """Return distinct texts without empty ones. Raises `DataError` for fewer than 20."""
    texts = [text for text in dict.fromkeys(texts) if text]
    if len(texts) < 2 * FEWEST_PAIRED:
        raise DataError(
            f"{name} has {counted(len(texts), 'distinct text')}, too few to check a graph.",
            hint=f"Give at least {2 * FEWEST_PAIRED} distinct texts, or graded pairs.",
        )
    return texts


def text_pairs_of(encoder: Encoder, name: str, texts: Iterable[str], note: str = NOTE) -> PairSplits:
    """Pair texts, one half as dev, the other as test. Raises as `distinct_texts`."""
    texts = distinct_texts(name, texts)
    random.Random(0).shuffle(texts)
    middle = min(len(texts) // 2, _CHECKED)
    return _splits(encoder, (texts[:middle], texts[middle : 2 * middle]), name, note)


def _splits(encoder: Encoder, halves: Sequence[Sequence[str]], name: str, note: str) -> PairSplits:
    dev, test = (
        own_pairs(encoder, texts, f"{name}/{split}") for texts, split in zip(halves, ("dev", "test"), strict=True)
    )
    return PairSplits(name=name, dev=dev, test=test, notes=(note,))
