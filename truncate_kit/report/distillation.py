"""The view of a distillation: numbers of blocks, graphs, and what was chosen."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from truncate_kit.core.precisions import PRECISIONS
from truncate_kit.core.wording import blocks_in_words, counted, in_points, listed, longer_texts, with_interval
from truncate_kit.report.view import GREY, ORANGE, Cell, Plot, Series, Table, View, ring, rough_speeds

if TYPE_CHECKING:
    from truncate_kit.methods.distill.result import Agreement, DistillResult, Frontier, FrontierPoint, TextCounts

_SAID_CHANCE = 5  # share × 100 of nearest texts in common by chance, from which on it is said
_LARGEST = 9.0  # points across a mark of all dimensions
_MARKS = {("fp32", False): "D", ("fp32", True): "^", ("int8", False): "s", ("int8", True): "v"}
"""By precision, and whether words went."""


def view_distill_result(result: DistillResult) -> View:
    """Show numbers of blocks before and after learning, and the graphs that were measured."""
    from truncate_kit.report.training import vocabulary_sentences

    frontier, words, search = result.frontier, result.vocabulary, result.search
    rules = Table.of(
        f"Without training: the best choice of blocks by {result.metric}, and what simpler rules keep",
        search.best,
        {
            "blocks": lambda row: len(row.blocks),
            "best": lambda row: row.score,
            **{rule.replace("_", " "): partial(search.simpler, rule) for rule in search.baselines},
        },
        detail=True,
    )
    tryouts = Table.of(
        "Choices of blocks after learning from few texts; the higher score counts",
        sorted(result.tryouts, key=lambda one: (len(one.blocks), -one.best)),
        {
            "blocks": lambda one: listed(one.blocks),
            "without training": lambda one: one.untrained,
            "after learning": lambda one: one.learned,
            "nearest": lambda one: None if one.overlap is None else f"{one.overlap:.1f} %",
        },
        detail=True,
    )
    tables, plots = [sizes_table(result), rules, *([tryouts] if tryouts.rows else [])], [_sizes_plot(result)]
    if frontier is not None:
        tables = [_graphs(result, frontier, every=False), *tables, _graphs(result, frontier, every=True)]
        plots.append(_graphs_plot(result, frontier))
    how = "" if search.exact else "; simpler rules, and the ones named" if result.budget.named_blocks else "; by a beam"
    return View(
        key="sizes",
        title="How many blocks",
        notes=(
            f"Texts: {texts_in_words(result.texts)}.",
            *(() if words is None else vocabulary_sentences(words)),
            *_notes(result),
        ),
        tables=tables,
        sentences=(
            f"{counted(search.tried, 'choice')} of blocks tried without training in {search.seconds:.0f} s{how}.",
            choice(result),
            *_graph_choice(result),
        ),
        plots=plots,
    )


def _notes(result: DistillResult) -> list[str]:
    """Say what to know beside the numbers: of the data, the machine, and what learning has cost."""
    student, untrained, model, notes = result.student, result.candidate.untrained, Path(result.model).name, []
    if result.num_seen:
        seen = counted(result.num_seen, "test pair")
        notes.append(f"{seen} left out: {model} was trained on them or chosen by them.")
    if student.scores and (student.as_it_came or untrained >= max(student.scores)):
        kept = ", so they are saved as they came" if student.as_it_came else ""
        notes.append(
            f"Learning has not helped these blocks: {untrained:.2f} before, at most {max(student.scores):.2f} after "
            f"{counted(student.steps, 'step')}{kept}. Give more texts, or a smaller `learning_rate`."
        )
    notes += rough_speeds(result.others_busy)
    if result.all_words is not None:
        notes.append(f"With the whole vocabulary the agreement is {agreement_in_words(result.all_words)}.")
    if result.measure != "cosine":
        notes.append(f"{model} compares vectors by {result.measure}; learning keeps directions only: use the cosine.")
    if result.data_tokens is not None:
        notes += longer_texts(result.data, result.data_tokens, result.texts.long)
    measured = set() if result.frontier is None else {one.blocks for one in result.frontier.points}
    missing = [listed(one.blocks) for one in result.students if one.blocks not in measured]
    if measured and missing:
        notes.append(f"The frontier lacks blocks {'; '.join(missing)}: their weights, of other runs, are gone.")
    return notes


def texts_in_words(texts: TextCounts) -> str:
    """Say what is learned from, and what was left out of it."""
    said = f"{texts.num_texts:,} distinct texts, {texts.middle} tokens in the middle, 95 of 100 at most {texts.long}"
    said += f", {texts.cut:,} cut at the model's length" if texts.cut else ""
    if not texts.compared:
        return f"{said}; not compared with any evaluation set"
    found = f"{texts.excluded:,} found and left out" if texts.excluded else "none found"
    return f"{said}; {counted(texts.compared, 'text')} of evaluation sets compared as whole texts, {found}"


def agreement_in_words(found: Agreement) -> str:
    """Give the correlation with its interval."""
    return with_interval(found.correlation, (found.low, found.high))


def choice(result: DistillResult) -> str:
    """Say which blocks were chosen, how fast they are and how like the full model."""
    from truncate_kit.methods.distill.result import NEAR, taught_by

    agreement, scores, within = result.student.agreement, result.scores, in_points(result.budget.points or 0)
    common, chance = f"{agreement.overlap:.0f} %", 100 * NEAR / (agreement.num_texts - 1)
    if agreement.overlap_low is not None:
        common += f" [{agreement.overlap_low:.0f}, {agreement.overlap_high:.0f}]"
    said = (
        f"Chosen: {counted(len(result.chosen), 'block')} of {result.depth} ({listed(result.chosen)}), "
        f"{with_interval(result.speedup, result.candidate.speedup_interval)} times the texts a second; agreement "
        f"{agreement_in_words(agreement)} with {taught_by(result.settings)} on held-out texts, {common} of nearest "
        f"texts in common{f' (by chance {chance:.0f} %)' * (chance >= _SAID_CHANCE)}."
    )
    if scores is not None:
        some = f" of {scores.num_compared:,} queries" if scores.of_queries and scores.num_compared else ""
        ends = f"; {scores.too_few}" if scores.too_few else f" [{scores.low:+.2f}, {scores.high:+.2f}]"
        said += (
            f" {scores.data}, {scores.metric}{some}: {scores.lean:.2f} against {scores.full:.2f}, "
            f"{scores.difference:+.2f}{ends}."
        )
        if scores.mixed is not None:
            said += f" Lean queries on the full model's documents: {scores.mixed:.2f}."
    if result.holds_unseen is False and result.holds:
        said += f" On held-out data they lose more than {within}."
    if not result.holds:
        said += f" No cut reaches {result.needed:.2f}, {within} less: this is the closest."
    return said


def _graph_choice(result: DistillResult) -> list[str]:
    """Say which graph of the frontier the budget takes."""
    if result.frontier is None or result.budget.kind == "blocks":
        return []
    found, full, budget = result.graph, result.frontier.points[0], result.budget
    if found is None:
        return ["No graph that was measured keeps the budget."]
    asked = {
        "within": f"The fastest graph that loses at most {in_points(budget.points)}",
        "speedup": f"The best graph that is {budget.speedup} times as fast as the full float32 one",
        "megabytes": f"The best graph of at most {budget.megabytes} MB",
    }[budget.kind]
    speedup = with_interval(found.texts_per_second / full.texts_per_second, found.speedup_interval)
    said = f"{asked}: {_named(found)}; {speedup} × the speed, score {with_interval(found.score, found.interval, '.2f')}"
    if found.agreement is not None:
        said += f", agreement {agreement_in_words(found.agreement)} on held-out texts"
    other = f" Saved: {blocks_in_words(result.chosen)}; `blocks` saves others."
    return [f"{said}.{'' if found.blocks == result.chosen else other}"]


def sizes_table(result: DistillResult) -> Table:
    """Give each number of blocks a row, the full model last; speeds are factors, and texts a second in torch."""
    from truncate_kit.methods.distill.result import taught_by

    full, needed = result.candidates[-1], ""
    if result.needed is not None:
        needed = f", {result.needed:.2f} stands for {in_points(result.budget.points)} less"
    return Table.of(
        f"The best choice of each number of blocks by {result.metric} (selection score, optimistic); "
        f"{taught_by(result.settings)} has {result.full_score:.2f}{needed}; speed 1 is "
        f"{full.texts_per_second:,.0f} texts a second in torch",
        result.candidates,
        {
            "blocks": lambda row: listed(row.blocks) + " (full model)" * (row is full),
            "without training": lambda row: with_interval(row.untrained, row.interval, ".2f"),
            "after learning": lambda row: row.learned,
            "agreement": lambda row: None if row.agreement is None else agreement_in_words(row.agreement),
            "nearest": lambda row: None if row.agreement is None else f"{row.agreement.overlap:.0f} %",
            "speed": lambda row: f"{row.texts_per_second / full.texts_per_second:.2f} ×",
            "MB": lambda row: f"{row.megabytes:.1f}",
            "result": lambda row: "chosen" if row is result.candidate else "beaten" if row.dominated else "",
            "texts/s": lambda row: f"{row.texts_per_second:,.0f}",
        },
        marked=result.candidate,
        detail=result.frontier is not None,  # which holds what these rows are for
    )


def _graphs(result: DistillResult, frontier: Frontier, *, every: bool) -> Table:
    """Give each graph a row with its scores by dimensions; every: also those that another one beats."""
    full, taken = frontier.points[0], result.graph
    widths = sorted({one.dims for one in frontier.points}, reverse=True)
    graphs: dict[tuple[object, ...], list[FrontierPoint]] = {}
    for one in frontier.points:
        graphs.setdefault(one.graph, []).append(one)
    shown = [row for row in graphs.values() if every or any(one in (full, taken) or not one.dominated for one in row)]

    def score(dims: int, row: list[FrontierPoint]) -> Cell:
        found = next((one for one in row if one.dims == dims), None)
        return None if found is None else f"({found.score:.2f})" if found.dominated else found.score

    title = (
        f"{'All' if every else f'{len(shown)} of'} {len(graphs)} graphs, with scores ({result.metric}) by dimensions; "
        f"in brackets: another one beats it; speed 1 is {full.texts_per_second:,.0f} texts a second"
    )
    if frontier.words is not None:
        title += f"; {frontier.covered:.1f} % of held-out texts need no further words"
    columns: dict[str, Callable[[list[FrontierPoint]], Cell]] = {
        "blocks": lambda row: listed(row[0].blocks),
        "precision": lambda row: row[0].precision,
        "words": lambda row: row[0].words,
        **{f"{dims} dims": partial(score, dims) for dims in widths},
        "speed": lambda row: f"{row[0].texts_per_second / full.texts_per_second:.2f} ×",
        "MB": lambda row: f"{row[0].megabytes:.1f}",
        "result": lambda row: f"chosen at {taken.dims}" if taken is not None and taken in row else "",
        "texts/s": lambda row: f"{row[0].texts_per_second:,.0f}",
    }
    return Table.of(title, shown, columns, detail=every)


def _sizes_plot(result: DistillResult) -> Plot:
    """Draw each number of blocks by its speed and score, before and after learning, and the choice."""
    rows, full = result.candidates, result.candidates[-1]
    speeds = [row.texts_per_second / full.texts_per_second for row in rows]
    best = {len(full.blocks): (full.blocks, full.untrained)}
    best |= {len(row.blocks): (row.blocks, row.score) for row in result.search.best}
    first = {len(row.blocks): row.score for row in result.search.baselines["first"]}
    untrained, others = [best[len(row.blocks)][1] for row in rows], "the blocks that learned best, before it"
    series = [
        Series(speeds, untrained, "best choice, without training", ORANGE, line="--"),
        Series(speeds, [first.get(len(row.blocks)) for row in rows], "first blocks", GREY, marker="s", line=":"),
        Series(speeds, [row.score for row in rows], marker="", line="", texts=[str(len(row.blocks)) for row in rows]),
    ]
    learned = [(speed, row) for speed, row in zip(speeds, rows, strict=True) if row.learned is not None]
    if learned:
        x = [speed for speed, _ in learned]
        series.append(Series(x, [row.score for _, row in learned], "after learning", marker="D", line="", size=8))
    if found := {speed: row.untrained for speed, row in learned if row.blocks != best[len(row.blocks)][0]}:
        series.append(Series([*found], [*found.values()], others, marker="D", line="", hollow=True))
    series.append(ring(result.speedup, result.candidate.score, f"chosen: {listed(result.chosen)}"))
    axes = (
        f"texts a second, full model = 1 ({full.texts_per_second:,.0f} in torch)\nnumbers are blocks",
        f"score in points\n({result.metric})",  # two lines: names of layers make it longer than the axis
    )
    title = f"Blocks of {Path(result.model).name}: score against speed"
    return Plot("sizes", title, *axes, series, file="frontier")


def _graphs_plot(result: DistillResult, frontier: Frontier) -> Plot:
    """Draw every point by speed and score.

    Color is the precision, shape the words too, size the dimensions; a point that another one beats is hollow.
    """
    full, every, taken = frontier.points[0], frontier.points, result.graph
    labelled, series = set[tuple[str, bool]](), list[Series]()
    for one in every:
        kind = one.precision, one.words < full.words
        speed = one.texts_per_second / full.texts_per_second
        whole = (one.dims, one.words) == (full.dims, full.words)
        label = "" if kind in labelled else f"ONNX Runtime {kind[0]}" + ", fewer words" * kind[1]
        tip = f"{_named(one)}: {speed:.2f} × the speed, score {one.score:.2f}"
        look: dict[str, Any] = {
            "marker": _MARKS[kind],
            "hollow": one.dominated,
            "size": _LARGEST * (one.dims / full.dims) ** 0.5,  # the area is the share of dimensions
            "texts": [str(len(one.blocks))] if whole else (),
            "tip": f"{tip}, {one.megabytes:.1f} MB" + ", beaten" * one.dominated,
        }
        series.append(Series([speed], [one.score], label, PRECISIONS[one.precision].color, line="", **look))
        labelled.add(kind)
    if any(one.dims < full.dims for one in every):
        series.append(Series((), (), "smaller marks: fewer dimensions", GREY, line="", size=4.5))
    if any(one.dominated for one in every):
        series.append(Series((), (), "hollow: another one beats it", GREY, line="", hollow=True))
    if taken is not None:
        series.append(ring(taken.texts_per_second / full.texts_per_second, taken.score, f"chosen: {_named(taken)}"))
    axes = (
        f"texts a second, full model's float32 graph = 1 ({full.texts_per_second:,.0f})\nnumbers are blocks",
        f"score in points\n({result.metric})",
    )
    return Plot("graphs", "Each graph that was measured, by dimensions and words", *axes, series)


def _named(one: FrontierPoint) -> str:
    return f"{counted(len(one.blocks), 'block')} in {one.precision}, {one.dims} dimensions, {one.words:,} words"
