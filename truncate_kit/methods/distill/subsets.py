"""Choose blocks without training: all subsets, a beam search for deep models, and simpler baselines."""

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial
from itertools import combinations, groupby, islice

import torch
from torch import Tensor

from truncate_kit.analysis.cka import cka_matrix
from truncate_kit.core.errors import LayerNotHeldError, ModelError, counted
from truncate_kit.core.progress import Progress, ProgressOption, announce, reporter, silent
from truncate_kit.methods.distill.settings import EXACT_DEPTH, LEADING, Blocks, SubsetSearch
from truncate_kit.models.encoder import Encoder, evaluating, length_batches, original_order
from truncate_kit.models.truncation import BlockRunner, keep, kept_config, operations
from truncate_kit.training.loop import Evaluator, Ids, precision

BEAM = 8
BATCH = 64
SEARCH_OPERATIONS, SEARCH_BYTES = 6e13, 4 * 2**30  # about ten minutes on two cores
FEWEST_SEARCHED, SEARCHED_TOKENS = 200, 128


def search_subsets(
    encoder: Encoder,
    evaluator: Evaluator,
    *,
    blocks: Blocks | None = None,
    beam: int = BEAM,
    progress: ProgressOption = False,
) -> SubsetSearch:
    """Score subsets of the blocks of `encoder` without training.

    Up to 12 blocks, every subset is scored, in 2^L − 1 block runs. For deeper models, a beam search drops one block at
    a time from the `beam` best subsets of each size. With `blocks`, only this subset and the full model are scored.

    Raises `ModelError` if vectors combine several layers or come from heads.
    """
    progress = reporter(progress)
    check_blocks(encoder, blocks)
    begin, depth, held = time.perf_counter(), encoder.depth, cache(partial(is_held, encoder))
    every, used, width = tuple(range(1, depth + 1)), evaluator, None
    baselines: dict[str, list[Blocks]] = {}
    with evaluating(encoder), torch.inference_mode(), precision(encoder.device, "fp32"):
        if blocks is not None:
            scores = {one: evaluator.score(keep(encoder, one, copy_weights=False))[0] for one in {blocks, every}}
        else:
            used, width = plan_search(encoder, evaluator, beam, progress)
            runners = list(_runners(encoder, used.texts()))
            score = partial(_scores, used, runners)
            if width is None:
                scores = score([one for size in every for one in combinations(every, size) if held(one)], progress)
            else:
                best, scores = [every], score([every])
                for size in range(depth - 1, 0, -1):
                    fewer = {(*b[:place], *b[place + 1 :]) for b in best for place in range(len(b))}
                    scored = score(filter(held, fewer))
                    if not scored:
                        break
                    scores |= scored
                    best = sorted(scored, key=lambda one: (-scored[one], one))[:width]
                    progress("Searching subsets", depth - size, depth - 1)
            baselines = {name: list(filter(held, kept)) for name, kept in baseline_blocks(runners, depth).items()}
            scores |= score({one for kept in baselines.values() for one in kept} - set(scores))
    ranked = sorted(scores.items(), key=lambda item: (len(item[0]), -item[1], item[0]))
    return SubsetSearch(
        leading=tuple(one for _, rows in groupby(ranked, lambda item: len(item[0])) for one in islice(rows, LEADING)),
        baselines={name: tuple((one, scores[one]) for one in kept) for name, kept in baselines.items()},
        tried=len(scores),
        exact=blocks is None and width is None,
        num_texts=None if used is evaluator else len(used.texts()),
        seconds=time.perf_counter() - begin,
    )


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


def _batches(ids: Sequence[Ids]) -> list[list[int]]:
    return length_batches([len(row) for row in ids], BATCH)


def _runners(encoder: Encoder, ids: Sequence[Ids]) -> Iterator[BlockRunner]:
    for places in _batches(ids):
        yield BlockRunner(encoder, encoder.pad([ids[place] for place in places]))


def _scores(
    evaluator: Evaluator, runners: Sequence[BlockRunner], subsets: Iterable[Blocks], progress: Progress = silent
) -> dict[Blocks, float]:
    """Score subsets in sorted order, so that neighbours share states."""
    scores: dict[Blocks, float] = {}
    order, ordered = original_order(_batches(evaluator.texts())), sorted(subsets)
    path: list[tuple[int, list[Tensor]]] = [(0, [runner.embedded for runner in runners])]
    for blocks in ordered:
        common = 0
        while common < min(len(path) - 1, len(blocks)) and path[common + 1][0] == blocks[common]:
            common += 1
        del path[common + 1 :]
        for block in blocks[common:]:
            path.append((block, [one.run(block, state) for one, state in zip(runners, path[-1][1], strict=True)]))
        vectors = [one.vectors(state).float().cpu() for one, state in zip(runners, path[-1][1], strict=True)]
        scores[blocks] = evaluator.score_of(torch.cat(vectors)[order])[0]
        progress("Searching subsets", len(scores), len(ordered))
    return scores


def baseline_blocks(runners: Iterable[BlockRunner], depth: int) -> dict[str, list[Blocks]]:
    """Return the blocks that each baseline keeps, for each number n of blocks.

    first: blocks 1 … n. even: n evenly spaced blocks, including the last. block_influence: the n blocks that change
    token directions most (ShortGPT, arXiv:2403.03853). angular: removes the consecutive blocks with the smallest
    angle between the token states before and after (PruneMe, arXiv:2403.17887; over all tokens). cka: the n blocks that
    change the sentence vectors most.
    """
    influence, angles, count = torch.zeros(depth), torch.zeros(depth + 1, depth + 1), 0
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
        count += int(real.sum())
        vectors.append(torch.stack([runner.vectors(state).float().cpu() for state in states]))
    influence, angles = influence / count, angles / count
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


def plan_search(encoder: Encoder, evaluator: Evaluator, beam: int, progress: Progress) -> tuple[Evaluator, int | None]:
    """Return the evaluator for the search, and the width if a beam search is needed.

    Shorten texts, then halve their number, then the beam width, until the search fits; announce this.
    """
    depth = encoder.depth
    used, number, width = evaluator, len(evaluator.texts()), None if encoder.depth <= EXACT_DEPTH else beam
    while True:
        states = 4 * encoder.width * _padded(used.texts()) * (depth + 1)  # float32
        if search_operations(encoder, used, width) <= SEARCH_OPERATIONS and states <= SEARCH_BYTES:
            break
        if used is evaluator:
            used = evaluator.fewer(encoder, number, SEARCHED_TOKENS)
        elif number > FEWEST_SEARCHED:
            number = max(FEWEST_SEARCHED, number // 2)
            used = evaluator.fewer(encoder, number, SEARCHED_TOKENS)
        elif width != 1:
            width = beam if width is None else width // 2
        else:
            break
    if used is not evaluator:
        texts = f"{counted(len(used.texts()), 'text')}, cut to {SEARCHED_TOKENS} tokens"
        announce(progress, f"To save time, blocks are searched on {texts}.")
    return used, width


def search_operations(encoder: Encoder, evaluator: Evaluator, width: int | None) -> float:
    """Count the operations of a search."""
    runs, ids = 2**encoder.depth - 1 if width is None else beam_runs(encoder.depth, width), evaluator.texts()
    longest = ((len(places), max(len(ids[place]) for place in places)) for places in _batches(ids))
    return runs * sum(number * operations(encoder, 1, length) for number, length in longest)


def beam_runs(depth: int, beam: int) -> int:
    """Estimate the block runs of a beam search over `depth` blocks; shared first blocks save about half."""
    tried = {size: min(math.comb(depth, size), beam * (size + 1)) for size in range(1, depth)}
    return depth + sum(number * (size + 1) // 2 for size, number in tried.items())


def _padded(ids: Sequence[Ids]) -> int:
    return sum(len(places) * max(len(ids[place]) for place in places) for places in _batches(ids))
