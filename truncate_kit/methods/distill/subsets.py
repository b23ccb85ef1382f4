"""Which blocks to keep, without training: every subset, or a beam, beside simpler rules."""

import math
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from truncate_kit.analysis.cka import cka_matrix
from truncate_kit.errors import LayerNotHeldError, ModelError
from truncate_kit.methods.distill.result import LEADING, Blocks, SubsetScore, SubsetSearch
from truncate_kit.models import Encoder, evaluating, keep, kept_config, length_batches, original_order
from truncate_kit.models.encoder import BlockRunner
from truncate_kit.progress import Progress, ProgressOption, announce, reporter
from truncate_kit.training.evaluators import VectorEvaluator
from truncate_kit.training.examples import Ids
from truncate_kit.training.loop import precision
from truncate_kit.wording import counted, lasting

BASELINES = ("first", "even", "block_influence", "angular", "cka")


@dataclass(frozen=True, slots=True)
class BlockChanges:
    """How much the L blocks of a model change what goes through them.

    Attributes:
        influence: 1 − mean cosine between a token before and behind each block, (L,).
        angles: Mean angle / π between the states of a token at any two layers, (L + 1, L + 1).
        dissimilarity: 1 − debiased CKA between the sentence vectors before and behind each block, (L,).
    """

    influence: Tensor
    angles: Tensor
    dissimilarity: Tensor

    @property
    def depth(self) -> int:
        """Number of blocks."""
        return len(self.influence)


def changes(runners: Iterable[BlockRunner], depth: int) -> BlockChanges:
    """Measure them over one batch of `runners` after another. Raises `DataError` below four texts."""
    influence, angles, count = torch.zeros(depth), torch.zeros(depth + 1, depth + 1), 0
    vectors: list[Tensor] = []
    for runner in runners:
        states = list(_states(runner, depth))
        real = runner.mask.bool()
        tokens = torch.nn.functional.normalize(torch.stack([state[real] for state in states]).double(), dim=-1)
        cosines = torch.einsum("itd,jtd->ijt", tokens, tokens).clamp(-1, 1).cpu()
        influence += (1 - cosines.diagonal(offset=1)).sum(0).float()
        angles += (cosines.arccos() / math.pi).sum(2).float()
        count += int(real.sum())
        vectors.append(torch.stack([runner.vectors(state).float().cpu() for state in states]))
    cka = cka_matrix(torch.cat(vectors, dim=1), undefined="nan").diagonal(offset=1).nan_to_num(0.0)
    return BlockChanges(influence / count, angles / count, 1 - cka)


def baseline_blocks(found: BlockChanges) -> dict[str, list[tuple[int, ...]]]:
    """What each rule of `BASELINES` keeps, for each number n of blocks.

    first: blocks 1 … n, the cut from the top. even: n blocks at even distances, the last one among them, as layer
    reduction for distillation usually takes them. block_influence: the n blocks that change their tokens' direction
    most (ShortGPT, arXiv:2403.03853). angular: all but the run of blocks with the smallest angle between the tokens
    before and behind it (PruneMe, arXiv:2403.17887; over all tokens). cka: the n blocks that change the sentence
    vectors most, by CKA.
    """
    depth = found.depth
    kept: dict[str, list[tuple[int, ...]]] = {name: [] for name in BASELINES}
    for size in range(1, depth + 1):
        kept["first"].append(tuple(range(1, size + 1)))
        kept["even"].append(tuple(math.ceil(depth * place / size) for place in range(1, size + 1)))
        kept["block_influence"].append(_largest(found.influence, size))
        start = min(range(size + 1), key=lambda at: float(found.angles[at, at + depth - size]))
        kept["angular"].append((*range(1, start + 1), *range(start + depth - size + 1, depth + 1)))
        kept["cka"].append(_largest(found.dissimilarity, size))
    return kept


def _largest(values: Tensor, number: int) -> tuple[int, ...]:
    order = sorted(range(1, len(values) + 1), key=lambda block: -float(values[block - 1]))
    return tuple(sorted(order[:number]))


def _states(runner: BlockRunner, depth: int) -> Iterator[Tensor]:
    states = runner.embedded
    yield states
    for block in range(1, depth + 1):
        states = runner.run(block, states)
        yield states


EXACT_DEPTH = 12
"""Deepest model of which every subset is tried: 4,095 of them."""
BATCH = 64
SEARCH_SECONDS = 600.0
"""A search that would take longer uses fewer and shorter texts, and then a beam."""
SEARCH_BYTES = 4 * 2**30
"""Likewise one whose states would take more memory."""
FEWEST_SEARCHED, SEARCHED_TOKENS = 200, 128
SAID_SECONDS = 5.0  # a longer search is announced
_TIMED = 3  # blocks


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """How subsets are searched.

    Attributes:
        evaluator: Scores them.
        exact: Whether all of them are tried.
        beam: Else, how many of each size are gone on from.
        reduced: Whether the evaluator has fewer or shorter texts than the one that was given.
        runs: Of a block over the texts.
        seconds: That they will take.
        whole: Seconds of the search that was wanted.
        whole_bytes: Of the states that it would hold.
    """

    evaluator: VectorEvaluator
    exact: bool
    beam: int
    reduced: bool
    runs: int
    seconds: float
    whole: float
    whole_bytes: int

    @property
    def sentence(self) -> str:
        """What is ahead, where it takes long or is less than was wanted; else empty."""
        texts, runs = counted(len(self.evaluator.texts()), "text"), counted(self.runs, "run")
        time_taken = f"about {lasting(self.seconds)}: {runs} of a block over {texts}"
        if self.reduced:
            way = "" if self.exact else f" and by a beam of {self.beam}"
            held = f" and {self.whole_bytes / 1e9:.0f} GB" if self.whole_bytes > SEARCH_BYTES else ""
            return (
                f"The search for blocks would take about {lasting(self.whole)}{held}. So it goes over fewer texts, cut "
                f"to {SEARCHED_TOKENS} tokens{way}, and takes {time_taken}."
            )
        return f"The search for blocks takes {time_taken}." if self.seconds > SAID_SECONDS else ""


def plan_search(encoder: Encoder, evaluator: VectorEvaluator, beam: int) -> SearchPlan:
    """The first way that ends within `SEARCH_SECONDS` and holds no more than `SEARCH_BYTES`, or the last there is.

    Every subset over all texts, over all of them cut to `SEARCHED_TOKENS`, over half of these and so on down to
    `FEWEST_SEARCHED`; then by a beam, which gets narrower. Deeper models than `EXACT_DEPTH` begin with the beam.

    Args:
        encoder: Its blocks are timed.
        evaluator: Of all texts.
        beam: The widest one.
    """
    block, score = _seconds(encoder, evaluator)
    fewer = cache(lambda number: evaluator.fewer(encoder, number, SEARCHED_TOKENS))
    depth, total = encoder.depth, len(evaluator.texts())
    wanted: tuple[float, int] | None = None
    for number, width in _ways(total, depth, beam):
        used = evaluator if number is None else fewer(number)
        ids = used.texts()
        runs, subsets = (2**depth - 1,) * 2 if width is None else beam_cost(depth, width)
        seconds = runs * block * _padded(ids) + subsets * score * len(ids) / total
        held = 4 * encoder.width * _padded(ids) * (depth + 1)  # float32 states behind each block of a subset
        wanted = wanted or (seconds, held)
        found = SearchPlan(used, width is None, width or beam, number is not None, runs, seconds, *wanted)
        if seconds <= SEARCH_SECONDS and held <= SEARCH_BYTES:
            break
    return found


def beam_cost(depth: int, beam: int) -> tuple[int, int]:
    """Runs of a block and subsets of a beam over a model of `depth` blocks, at most.

    Each of up to `beam` subsets loses each of its blocks; as beginnings are shared, about half of a subset is run.
    """
    sizes = range(1, depth)
    tried = [min(math.comb(depth, size), beam * (size + 1)) for size in sizes]
    return depth + sum(number * (size + 1) // 2 for size, number in zip(sizes, tried, strict=True)), 1 + sum(tried)


def _ways(total: int, depth: int, beam: int) -> Iterator[tuple[int | None, int | None]]:
    """Numbers of texts, None for all as they are, and widths of the beam, None to try all; the dearest first."""
    fewest, numbers = total, [None, total]
    while fewest > FEWEST_SEARCHED:
        numbers.append(fewest := max(FEWEST_SEARCHED, fewest // 2))
    widths = [beam]
    while widths[-1] > 1:
        widths.append(widths[-1] // 2)
    widest = None if depth <= EXACT_DEPTH else widths.pop(0)
    yield from ((number, widest) for number in numbers)
    yield from ((fewest, width) for width in widths)


def _seconds(encoder: Encoder, evaluator: VectorEvaluator) -> tuple[float, float]:
    """Of a block a padded token, on a batch of middle length; and of a score of all vectors."""
    ids = evaluator.texts()
    batches = length_batches([len(row) for row in ids], BATCH)
    some = [ids[place] for place in batches[len(batches) // 2]]
    runner = BlockRunner.of(encoder, encoder.pad(some))
    blocks = range(1, 1 + min(_TIMED, encoder.depth))
    width = runner.vectors(runner.run(1, runner.embedded)).shape[1]  # warms up as well
    begin = time.perf_counter()
    for block in blocks:
        runner.vectors(runner.run(block, runner.embedded)).float().cpu()
    taken = (time.perf_counter() - begin) / len(blocks)
    rows = torch.rand(len(ids), width, generator=torch.Generator().manual_seed(0))
    evaluator.score_of(rows)  # the first call takes several times as long as the thousands that follow
    begin = time.perf_counter()
    evaluator.score_of(rows)
    return taken / _padded(some), time.perf_counter() - begin


def _padded(ids: list[Ids]) -> int:
    """Tokens that a block runs over, padding included."""
    lengths = [len(row) for row in ids]
    return sum(len(places) * max(lengths[place] for place in places) for places in length_batches(lengths, BATCH))


BEAM = 8
RULED_TEXTS = 2000
"""Texts over which simpler rules look at the blocks of a model, at most, where no search goes over them anyway."""


def search_subsets(
    encoder: Encoder, evaluator: VectorEvaluator, *, beam: int = BEAM, progress: ProgressOption = False
) -> SubsetSearch:
    """Score subsets of blocks by what is left of `encoder` without training.

    Up to 12 blocks every subset is tried, each block run once behind every different beginning: 2^L − 1 runs of a
    block over the texts. Beyond, blocks are removed one at a time from the `beam` best subsets of each size. A block is
    timed first: what takes more than a few seconds is said, and what would take more than ten minutes or hold more
    than 4 GiB goes over fewer and shorter texts, and where these do not help by a beam as well (`search_plan`).

    Args:
        encoder: Its sentence vector is pooled from the last layer's tokens.
        evaluator: Scores the vectors of its texts; 2,000 short ones or fewer keep the states of a 12-layer model in
            1 GiB.
        beam: Subsets of each size that are gone on from.
        progress: True draws bars and logs; else what is called after each subset.

    Raises:
        ModelError: Vectors come from several layers or from heads.
    """
    progress = reporter(progress)
    check_blocks(encoder)
    begin = time.perf_counter()
    with evaluating(encoder), torch.inference_mode(), precision(encoder.device, "fp32"):
        plan = plan_search(encoder, evaluator, beam)
        if plan.sentence:
            announce(progress, plan.sentence)
        tree = _Tree(encoder, plan.evaluator)
        scores = tree.all_scores(progress) if plan.exact else tree.beam_scores(plan.beam, progress)
        baselines = tree.add_baselines(scores)
    num_texts = len(plan.evaluator.texts()) if plan.reduced else None
    return _found(scores, baselines, exact=plan.exact, num_texts=num_texts, begin=begin)


def compare_blocks(encoder: Encoder, evaluator: VectorEvaluator, blocks: Blocks) -> SubsetSearch:
    """What `search_subsets` gives where the blocks are known: these, the full model, and what simpler rules keep.

    Each is scored on all texts, batch by batch; the rules look at `RULED_TEXTS` of them at most. Raises as
    `search_subsets`.
    """
    check_blocks(encoder, blocks)
    begin, every = time.perf_counter(), tuple(range(1, encoder.depth + 1))
    with evaluating(encoder), torch.inference_mode(), precision(encoder.device, "fp32"):
        many = len(evaluator.texts()) > RULED_TEXTS
        used = evaluator.fewer(encoder, RULED_TEXTS, SEARCHED_TOKENS) if many else evaluator
        rules = baseline_blocks(changes(_runners(encoder, used.texts()), encoder.depth))
        baselines = {
            name: [one for one in kept if len(one) in (len(blocks), len(every)) and _is_held(encoder, one)]
            for name, kept in rules.items()
        }
        compared = {blocks, every, *(one for kept in baselines.values() for one in kept)}
        scores = {one: evaluator.score(keep(encoder, one, copy_weights=False))[0] for one in sorted(compared)}
    return _found(scores, baselines, exact=False, num_texts=None, begin=begin)


def _found(
    scores: dict[Blocks, float],
    baselines: dict[str, list[Blocks]],
    *,
    exact: bool,
    num_texts: int | None,
    begin: float,
) -> SubsetSearch:
    """All scores in order; begin: when the search began, by `perf_counter`."""
    ranked: dict[int, list[SubsetScore]] = {}
    for blocks, score in sorted(scores.items(), key=lambda item: (len(item[0]), -item[1], item[0])):
        ranked.setdefault(len(blocks), []).append(SubsetScore(blocks=blocks, score=score))
    return SubsetSearch(
        best=tuple(rows[0] for rows in ranked.values()),
        leading=tuple(one for rows in ranked.values() for one in rows[:LEADING]),
        baselines={
            name: tuple(SubsetScore(blocks=blocks, score=scores[blocks]) for blocks in found)
            for name, found in baselines.items()
        },
        tried=len(scores),
        exact=exact,
        num_texts=num_texts,
        seconds=time.perf_counter() - begin,
    )


def check_blocks(encoder: Encoder, blocks: Blocks | None = None) -> None:
    """Raise `ModelError` unless blocks of `encoder` can be left out, and unless these can be kept alone."""
    if not encoder.pools_tokens or encoder.combination is not None:
        raise ModelError(
            f"The vectors of {encoder.name} are made from several layers, so no block can be left out.",
            hint="Use the model that it was made from.",
        )
    if encoder.depth < 2:
        raise ModelError(f"{encoder.name} has no block to leave out.", hint="Use a model of two blocks or more.")
    if blocks is not None:
        kept_config(encoder.backbone.config, blocks)


def _is_held(encoder: Encoder, blocks: Blocks) -> bool:
    """Whether an ordinary checkpoint can hold this subset."""
    try:
        kept_config(encoder.backbone.config, blocks)
    except LayerNotHeldError:
        return False
    return True


def _batches(ids: list[Ids]) -> list[list[int]]:
    """Places of the texts of each batch, of like length."""
    return length_batches([len(row) for row in ids], BATCH)


def _runners(encoder: Encoder, ids: list[Ids]) -> Iterator[BlockRunner]:
    """The blocks over each batch."""
    for places in _batches(ids):
        yield BlockRunner.of(encoder, encoder.pad([ids[place] for place in places]))


class _Tree:
    """The beginnings of subsets over the texts of an evaluator, all batches at once."""

    def __init__(self, encoder: Encoder, evaluator: VectorEvaluator) -> None:
        self.encoder, self._evaluator = encoder, evaluator
        ids = evaluator.texts()
        self._runners = list(_runners(encoder, ids))
        self._order = original_order(_batches(ids))
        self._held: dict[Blocks, bool] = {}

    def held(self, blocks: Blocks) -> bool:
        """Whether an ordinary checkpoint can hold this subset."""
        if blocks not in self._held:
            self._held[blocks] = _is_held(self.encoder, blocks)
        return self._held[blocks]

    def all_scores(self, progress: Progress) -> dict[Blocks, float]:
        """The score of every subset that can be held."""
        scores: dict[Blocks, float] = {}
        number = 2**self.encoder.depth - 1
        for done, (blocks, states) in enumerate(self._walk((), self._embedded()), 1):
            if self.held(blocks):
                scores[blocks] = self._score(states)
            progress("Searching subsets", done, number)
        return scores

    def beam_scores(self, beam: int, progress: Progress) -> dict[Blocks, float]:
        """The scores of the full model and of what is left when its blocks go one by one."""
        depth = self.encoder.depth
        best: list[Blocks] = [tuple(range(1, depth + 1))]
        scores = {best[0]: self.score(best[0])}
        for size in range(depth - 1, 0, -1):
            fewer = sorted({(*b[:place], *b[place + 1 :]) for b in best for place in range(len(b))})
            found = self._several([blocks for blocks in fewer if self.held(blocks)])
            if not found:
                break
            scores |= found
            best = sorted(found, key=lambda blocks: (-found[blocks], blocks))[:beam]
            progress("Searching subsets", depth - size, depth - 1)
        return scores

    def score(self, blocks: Blocks) -> float:
        """Of one subset."""
        return self._several([blocks])[blocks]

    def add_baselines(self, scores: dict[Blocks, float]) -> dict[str, list[Blocks]]:
        """What simpler rules keep, of all numbers of blocks; `scores` gets those that it lacks."""
        rules = baseline_blocks(changes(self._runners, self.encoder.depth))
        found = {name: [one for one in kept if self.held(one)] for name, kept in rules.items()}
        scores |= self._several({one for kept in found.values() for one in kept} - set(scores))
        return found

    def _several(self, wanted: Collection[Blocks]) -> dict[Blocks, float]:
        """Scores of some subsets; what follows one another in order shares the states of its common beginning."""
        scores: dict[Blocks, float] = {}
        path: list[tuple[int, list[Tensor]]] = []
        for blocks in sorted(wanted):
            common = 0
            while common < min(len(path), len(blocks)) and path[common][0] == blocks[common]:
                common += 1
            del path[common:]
            for block in blocks[common:]:
                path.append((block, self._run(block, path[-1][1] if path else self._embedded())))
            scores[blocks] = self._score(path[-1][1])
        return scores

    def _walk(self, blocks: Blocks, states: list[Tensor]) -> Iterator[tuple[Blocks, list[Tensor]]]:
        for block in range(blocks[-1] + 1 if blocks else 1, self.encoder.depth + 1):
            longer, behind = (*blocks, block), self._run(block, states)
            yield longer, behind
            yield from self._walk(longer, behind)

    def _embedded(self) -> list[Tensor]:
        return [runner.embedded for runner in self._runners]

    def _run(self, block: int, states: list[Tensor]) -> list[Tensor]:
        return [runner.run(block, state) for runner, state in zip(self._runners, states, strict=True)]

    def _score(self, states: list[Tensor]) -> float:
        rows = [runner.vectors(state).float().cpu() for runner, state in zip(self._runners, states, strict=True)]
        return self._evaluator.score_of(torch.cat(rows)[self._order])[0]
