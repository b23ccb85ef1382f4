"""Choose blocks without training: by a beam search, and by simpler rules."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import chain, combinations, count, groupby, islice
from statistics import fmean

import torch
from torch import Tensor

from truncate_kit.analysis.cka import cka_matrix
from truncate_kit.core.errors import LayerNotHeldError, ModelError, counted
from truncate_kit.core.hardware import bf16_instructions
from truncate_kit.core.progress import Progress, ProgressOption, announce, reporter
from truncate_kit.methods.distill.settings import (
    BEAM,
    LEADING,
    SEARCHED_TEXTS,
    Blocks,
    SubsetSearch,
    expected_loss,
    megabytes_of,
    more_texts,
    numbers_scored,
)
from truncate_kit.models.encoder import Encoder, evaluating, length_batches, original_order
from truncate_kit.models.truncation import BlockRunner, keep, kept_config, operations
from truncate_kit.training.loop import Evaluator, Ids, precision

BATCH = 64
SEARCHED_TOKENS = 32
TOKENS = 32  # for estimated speeds
Scores = dict[Blocks, float]


def search_subsets(
    encoder: Encoder,
    evaluator: Evaluator,
    *,
    blocks: Blocks | None = None,
    smallest: int = 1,
    beam: int = BEAM,
    progress: ProgressOption = False,
) -> SubsetSearch:
    """Score subsets of the blocks of `encoder` without training, on a few short texts.

    Drops one block at a time, down to `smallest` blocks; of each size, the `beam` subsets of highest `promise` are
    scored, and the simpler rules' choices. With `blocks`, only this subset and all blocks are scored, on all texts.

    Raises `ModelError` if vectors combine several layers or come from heads.
    """
    progress = reporter(progress)
    check_blocks(encoder, blocks)
    begin, depth, held = time.perf_counter(), encoder.depth, cache(partial(is_held, encoder))
    every, exact, number, rules = tuple(range(1, depth + 1)), False, None, dict[str, list[Blocks]]()
    with evaluating(encoder), torch.inference_mode():
        if blocks is not None:
            scores = {one: evaluator.score(keep(encoder, one, copy_weights=False))[0] for one in {blocks, every}}
        else:
            evaluator = evaluator.fewer(encoder, SEARCHED_TEXTS, SEARCHED_TOKENS)
            number, done = len(evaluator.texts()), count(1)
            total = sum(numbers_scored(depth, smallest, beam).values())
            with precision(encoder.device, "bf16" if bf16_instructions(encoder.device) else "fp32"):
                runners = list(_runners(encoder, evaluator.texts()))
                for name, kept in baseline_blocks(runners, depth).items():
                    rules[name] = [one for one in kept if len(one) >= smallest and held(one)]

                def score(subsets: Iterable[Blocks]) -> Iterator[tuple[Blocks, float]]:
                    for one, vectors in _vectors(runners, subsets):
                        yield one, evaluator.score_of(vectors[order])[0]
                        progress("Searching subsets", min(next(done), total - 1), total)

                order = original_order(_batches(evaluator.texts()))
                scores, exact = descend(score, depth, smallest, beam, held)
                scores |= score(set(chain(*rules.values())) - set(scores))
            progress("Searching subsets", total, total)
    ranked = sorted(scores.items(), key=lambda item: (len(item[0]), -item[1], item[0]))
    return SubsetSearch(
        leading=tuple(one for _, rows in groupby(ranked, lambda item: len(item[0])) for one in islice(rows, LEADING)),
        baselines={name: tuple((one, scores[one]) for one in kept) for name, kept in rules.items()},
        tried=len(scores),
        exact=exact,
        num_texts=number,
        seconds=time.perf_counter() - begin,
    )


def descend(
    score: Callable[[Iterable[Blocks]], Iterable[tuple[Blocks, float]]],
    depth: int,
    smallest: int,
    beam: int,
    held: Callable[[Blocks], bool],
) -> tuple[Scores, bool]:
    """Score the most promising subsets of each size, and tell if these are all."""
    every = tuple(range(1, depth + 1))
    scores, complete = dict(score({every})), True
    known, best = dict(scores), [every]
    for size in range(depth - 1, smallest - 1, -1):
        fewer = {(*one[:place], *one[place + 1 :]) for one in best for place in range(size + 1)}
        fewer = set(filter(held, fewer)) or fewer
        guessed = {one: promise(one, known, depth) for one in fewer}
        best = sorted(fewer, key=lambda one: (-guessed[one], one))[: beam if size < depth - 1 else None]
        complete &= len(best) == len(fewer)
        scored = dict(score(best))
        known |= guessed | scored
        scores |= {one: value for one, value in scored.items() if held(one)}
    return scores, complete


def promise(blocks: Blocks, known: Mapping[Blocks, float], depth: int) -> float:
    """Estimate the score of `blocks` from `known` ones of larger subsets, as if losses added up.

    The mean of s(A + a) + s(A + b) − s(A + a + b) over pairs of left-out blocks.
    """

    def score_with(*others: int) -> float | None:
        return known.get(tuple(sorted((*blocks, *others))))

    left_out = [block for block in range(1, depth + 1) if block not in blocks]
    larger = {block: value for block in left_out if (value := score_with(block)) is not None}
    pairs = ((larger[a] + larger[b], score_with(a, b)) for a, b in combinations(larger, 2))
    guesses = [both - whole for both, whole in pairs if whole is not None]
    return fmean(guesses or larger.values())


def check_blocks(encoder: Encoder, blocks: Blocks | None = None) -> None:
    """Raise `ModelError` unless `encoder` can be cut to `blocks`."""
    if not encoder.pools_tokens or encoder.combination is not None:
        raise ModelError(
            f"The vectors of {encoder.name} combine several layers, so no block can be left out.",
            hint="Use the model before its layers were combined.",
        )
    if encoder.depth < 2:
        raise ModelError(f"{encoder.name} has a single block.", hint="Use a model of two blocks or more.")
    if blocks is not None:
        kept_config(encoder.backbone.config, blocks)


def is_held(encoder: Encoder, blocks: Blocks) -> bool:
    """Return whether a standard checkpoint can store these blocks."""
    try:
        kept_config(encoder.backbone.config, blocks)
    except LayerNotHeldError:
        return False
    return True


def announce_sizes(encoder: Encoder, texts: int, points: float, progress: Progress) -> None:
    """Announce what sizes should cost and lose, and how many texts a smaller one needs."""
    depth, every = encoder.depth, tuple(range(1, encoder.depth + 1))
    lost = {size: expected_loss(size / depth, texts) for size in every if 6 * size >= depth}
    whole, shown = operations(encoder, depth, TOKENS), list[str]()
    for size in sorted({max(1, round(depth * part / 6)) for part in range(1, 6)} & {*lost} - {depth}, reverse=True):
        megabytes = ""
        if is_held(encoder, every[:size]):
            cut = keep(encoder, every[:size], copy_weights=False)
            megabytes = f"{megabytes_of(cut.num_parameters):.1f} MB, "
        speed = whole / operations(encoder, size, TOKENS)
        shown.append(f"{counted(size, 'block')} {speed:.1f} × the speed, {megabytes}{lost[size]:.1f} points lost")
    announce(
        progress,
        f"Expected after {texts:,} texts, as measured on all-MiniLM-L6-v2 by share of blocks: {'; '.join(shown)}.",
    )
    fewest = min((size for size in lost if lost[size] <= points), default=depth)
    if (sentence := more_texts(depth, fewest, texts, points)) is not None:
        announce(progress, sentence)


def _batches(ids: Sequence[Ids]) -> list[list[int]]:
    return length_batches([len(row) for row in ids], BATCH)


def _runners(encoder: Encoder, ids: Sequence[Ids]) -> Iterator[BlockRunner]:
    for places in _batches(ids):
        yield BlockRunner(encoder, encoder.pad([ids[place] for place in places]))


def _vectors(runners: Sequence[BlockRunner], subsets: Iterable[Blocks]) -> Iterator[tuple[Blocks, Tensor]]:
    """Yield each subset with its vectors in batch order; sorted, so that neighbours share states."""
    path: list[tuple[int, list[Tensor]]] = [(0, [runner.embedded for runner in runners])]
    for blocks in sorted(subsets):
        common = 0
        while common < min(len(path) - 1, len(blocks)) and path[common + 1][0] == blocks[common]:
            common += 1
        del path[common + 1 :]
        for block in blocks[common:]:
            path.append((block, [one.run(block, state) for one, state in zip(runners, path[-1][1], strict=True)]))
        pooled = (one.vectors(state).float().cpu() for one, state in zip(runners, path[-1][1], strict=True))
        yield blocks, torch.cat(list(pooled))


def baseline_blocks(runners: Iterable[BlockRunner], depth: int) -> dict[str, list[Blocks]]:
    """Return the blocks that each baseline keeps, for each number n of blocks.

    first: blocks 1 … n. even: evenly spaced ones, with the last. block_influence: those that change token directions
    most (ShortGPT, arXiv:2403.03853). angular: without the consecutive blocks of smallest angle between token states
    before and after (PruneMe, arXiv:2403.17887; over all tokens). cka: those that change sentence vectors most.
    """
    influence, angles, num_tokens = torch.zeros(depth), torch.zeros(depth + 1, depth + 1), 0
    vectors: list[Tensor] = []
    for runner in runners:
        states = [runner.embedded]
        for block in range(1, depth + 1):
            states.append(runner.run(block, states[-1]))
        real = runner.mask.bool()
        tokens = torch.nn.functional.normalize(torch.stack([state[real] for state in states]).double(), dim=-1)
        cosines = torch.einsum("itd,jtd->ijt", tokens, tokens).clamp(-1, 1).cpu()
        influence += (1 - cosines.diagonal(offset=1)).sum(0).float()
        angles += (cosines.arccos() / math.pi).sum(2).float()
        num_tokens += int(real.sum())
        vectors.append(torch.stack([runner.vectors(state).float().cpu() for state in states]))
    influence, angles = influence / num_tokens, angles / num_tokens
    cka = cka_matrix(torch.cat(vectors, dim=1), undefined="nan").diagonal(offset=1).nan_to_num(0.0)
    kept: dict[str, list[Blocks]] = {name: [] for name in ("first", "even", "block_influence", "angular", "cka")}
    for size in range(1, depth + 1):
        kept["first"].append(tuple(range(1, size + 1)))
        kept["even"].append(tuple(math.ceil(depth * place / size) for place in range(1, size + 1)))
        kept["block_influence"].append(_largest(influence, size))
        start = min(range(size + 1), key=lambda first: float(angles[first, first + depth - size]))
        kept["angular"].append((*range(1, start + 1), *range(start + depth - size + 1, depth + 1)))
        kept["cka"].append(_largest(1 - cka, size))
    return kept


def _largest(values: Tensor, number: int) -> Blocks:
    return tuple(sorted(sorted(range(1, len(values) + 1), key=lambda block: -float(values[block - 1]))[:number]))
