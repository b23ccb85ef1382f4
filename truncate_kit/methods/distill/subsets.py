"""Which blocks to keep, without training: every subset by a tree of common beginnings, or a beam for deep models."""

import time
from collections.abc import Collection, Iterator

import torch
from torch import Tensor

from truncate_kit.errors import LayerNotHeldError, ModelError
from truncate_kit.methods.distill.baselines import baseline_blocks, changes
from truncate_kit.methods.distill.search_plan import BATCH, SEARCHED_TOKENS, plan_search
from truncate_kit.methods.distill.step_results import LEADING, Blocks, SubsetScore, SubsetSearch
from truncate_kit.models import Encoder, evaluating, keep, kept_config, length_batches, original_order
from truncate_kit.models.block_runner import BlockRunner
from truncate_kit.progress import Progress, ProgressOption, announce, reporter
from truncate_kit.training.evaluators import VectorEvaluator
from truncate_kit.training.examples import Ids
from truncate_kit.training.loop import precision

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
