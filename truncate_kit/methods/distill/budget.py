"""Which candidate a budget takes, and which candidates another one beats."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import combinations

from truncate_kit.errors import LayerNotHeldError, UsageError
from truncate_kit.methods.distill.distill_result import Candidate, megabytes_of
from truncate_kit.methods.distill.settings import Budget
from truncate_kit.methods.distill.step_results import Blocks, Frontier, FrontierPoint
from truncate_kit.methods.distill.subsets import check_blocks
from truncate_kit.models import Encoder, keep
from truncate_kit.wording import counted

SMALLER = (
    "Give more `megabytes`; most of a small model is its vocabulary, which `keep_words()` cuts, and its eight-bit "
    'graph is about a quarter of the size: `export_onnx(settings=ExportSettings(precision="int8"))`.'
)


def check_budget(budget: Budget, encoder: Encoder, layer: int | None = None) -> None:
    """Say before any work what blocks no lean model that learns the vectors of `layer`, None the last, can have.

    Raises `ModelError` for a model of which none can be left out, `LayerOutOfRangeError` for a block that it lacks, and
    `UsageError` for a number of blocks, or for blocks behind the layer.
    """
    check_blocks(encoder, budget.named_blocks)
    if layer is not None and (behind := [block for block in budget.named_blocks or () if block > layer]):
        hint = f"Give `blocks` up to {layer}, or leave out `layer`."
        raise UsageError(f"Block {behind[0]} lies behind layer {layer}, whose vectors are learned.", hint=hint)
    most = encoder.depth - 1 if layer is None else min(layer, encoder.depth - 1)
    number = len(budget.named_blocks or ()) or int(budget.blocks or 0)
    if budget.kind == "blocks" and not 0 < number <= most:
        hint = f"Give `blocks` from 1 to {most}."
        raise UsageError(f"No lean model has {counted(number, 'block')}.", hint=hint)


def check_size(budget: Budget, encoder: Encoder) -> None:
    """Raise `UsageError` where the smallest choice of blocks takes more than `megabytes`, before any work."""
    if budget.kind != "megabytes":
        return
    smallest = min(megabytes_of(model.num_parameters) for model in _smallest(encoder))
    if smallest > (budget.megabytes or 0):
        raise UsageError(f"The smallest choice of blocks takes {smallest:.1f} megabytes.", hint=SMALLER)


def _smallest(encoder: Encoder) -> list[Encoder]:
    """What keeps the fewest blocks that an ordinary checkpoint can hold."""
    found: list[Encoder] = []
    for size in range(1, encoder.depth + 1):
        for blocks in combinations(range(1, encoder.depth + 1), size):
            with suppress(LayerNotHeldError):
                found.append(keep(encoder, blocks, copy_weights=False))
        if found:
            break
    return found


def within_limit(candidates: Sequence[Candidate], budget: Budget) -> Candidate:
    """The candidate with the most blocks that `blocks`, `speedup` or `megabytes` allow. Raises `UsageError`."""
    full = candidates[-1]
    if budget.kind == "blocks":
        wanted = len(budget.named_blocks or ()) or int(budget.blocks or 0)
        fitting = [row for row in candidates[:-1] if len(row.blocks) == wanted]
        problem = f"No lean model has {counted(wanted, 'block')}"
        hint = f"Give `blocks` from {len(candidates[0].blocks)} to {len(candidates) - 1}."
    elif budget.kind == "speedup":
        wanted_rate = (budget.speedup or 0) * full.texts_per_second
        fitting = [row for row in candidates[:-1] if row.texts_per_second >= wanted_rate]
        fastest = max(row.texts_per_second for row in candidates)
        problem = (
            f"The fastest choice of blocks is {fastest / full.texts_per_second:.1f} times as fast as the full model"
        )
        eight_bits = 'export_onnx(settings=ExportSettings(precision="int8"))'
        hint = f"Give a smaller `speedup`; `{eight_bits}` makes any of them faster."
    else:
        fitting = [row for row in candidates[:-1] if row.megabytes <= (budget.megabytes or 0)]
        problem = f"The smallest choice of blocks takes {candidates[0].megabytes:.1f} megabytes"
        hint = SMALLER
    if not fitting:
        raise UsageError(f"{problem}.", hint=hint)
    return fitting[-1]


def graph_within(frontier: Frontier, budget: Budget, needed: float | None) -> FrontierPoint | None:
    """The graph that the budget takes of a frontier; None where none keeps it, or where it names blocks.

    That is the fastest one that has the score `needed`, the shortest and smallest of equals, or the one with the
    highest score that is as fast or as small as asked for; speed 1 is the full model's graph in float32.
    """
    points, full = frontier.points, frontier.points[0]
    if budget.kind == "within":
        fitting = [one for one in points if one.score >= (needed or 0.0)]
        return max(fitting, key=lambda one: (one.texts_per_second, -one.dims, -one.megabytes, one.score), default=None)
    if budget.kind == "speedup":
        fitting = [one for one in points if one.texts_per_second >= (budget.speedup or 0) * full.texts_per_second]
    else:
        limit = budget.megabytes if budget.kind == "megabytes" else 0.0
        fitting = [one for one in points if one.megabytes <= (limit or 0.0)]
    return max(
        fitting,
        key=lambda one: (round(one.score, 2), one.texts_per_second, -one.dims, -one.megabytes),
        default=None,
    )


def closest(candidates: Sequence[Candidate], learned: Mapping[Blocks, float]) -> Blocks:
    """The candidate with the highest score after learning, the smaller of equals; `learned` may hold other blocks."""
    known = [row.blocks for row in candidates if row.blocks in learned]
    return max(known, key=lambda blocks: (learned[blocks], -len(blocks)))


def marked(rows: list[Candidate]) -> tuple[Candidate, ...]:
    """The rows, marked where another one is as good and as fast, and better in one of the two.

    Scores before and after learning say nothing of each other; that of the full model, the last row, counts among
    both.
    """
    full = rows[-1]

    def beaten(row: Candidate) -> bool:
        return any(
            other.score >= row.score
            and other.texts_per_second >= row.texts_per_second
            and (other.score, other.texts_per_second) != (row.score, row.texts_per_second)
            for other in rows
            if full in (row, other) or (row.learned is None) == (other.learned is None)
        )

    return tuple(replace(row, dominated=beaten(row)) for row in rows)
