"""The view of a distillation: numbers of blocks, graphs, and what was chosen."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from truncate_kit.hardware import QUIET
from truncate_kit.methods.distill.result import (
    NEAR,
    Agreement,
    DistillResult,
    Frontier,
    FrontierPoint,
    HeldOutScores,
    SubsetScore,
    TextCounts,
    Tryout,
    taught_by,
)
from truncate_kit.naming import blocks_in_words
from truncate_kit.precisions import PRECISIONS
from truncate_kit.report.training import vocabulary_sentences
from truncate_kit.report.view import GREEN, GREY, NONE, ORANGE, Plot, Series, Table, View
from truncate_kit.wording import counted, in_points, longer_texts, points, with_interval

_SAID_CHANCE = 5  # share × 100 of nearest texts in common by chance, from which on it is said
_LARGEST = 9.0  # points across a mark of all dimensions
_MARKS = {("fp32", False): "D", ("fp32", True): "^", ("int8", False): "s", ("int8", True): "v"}
"""By precision, and whether words went."""


def view_distillation(result: DistillResult) -> View:
    """Show numbers of blocks before and after learning, and the graphs that were measured."""
    frontier, words = result.frontier, result.vocabulary
    graphs = [] if frontier is None else [_graphs(result, frontier, every=False), _graphs(result, frontier, every=True)]
    sentences = [_search(result), *_tryouts(result), choice(result), *_graph_choice(result)]
    plots = [_sizes_plot(result)] + ([] if frontier is None else [_graphs_plot(result, frontier)])
    return View(
        key="sizes",
        title="How many blocks",
        notes=(
            f"Texts: {texts_in_words(result.texts)}.",
            *(() if words is None else vocabulary_sentences(words)),
            *_notes(result),
        ),
        tables=(*graphs[:1], sizes_table(result), _rules(result), *graphs[1:]),
        sentences=sentences,
        plots=plots,
    )


def _notes(result: DistillResult) -> list[str]:
    """Say what to know beside the numbers: of the data, the machine, and what learning has cost."""
    student, untrained, model, notes = result.student, result.candidate.untrained, Path(result.model).name, []
    if result.num_seen:
        are = "test pair is" if result.num_seen == 1 else "test pairs are"
        notes.append(f"{result.num_seen:,} {are} left out: {model} was trained on them or chosen by them.")
    if student.as_it_came:
        notes.append(
            f"These blocks had {student.best:.2f} before learning and at most {max(student.scores):.2f} in it, so they "
            "are saved as they came: the vectors of the model's end are no aim. Labels can train them further."
        )
    elif student.scores and untrained >= max(student.scores):
        notes.append(
            f"Learning has not helped these blocks: {untrained:.2f} before, {student.best:.2f} after "
            f"{counted(student.steps, 'step')}. Give more texts, or a smaller `learning_rate`."
        )
    if (result.others_busy or 0.0) > QUIET:
        notes.append(
            f"Other processes took {result.others_busy:.0%} of this machine while sizes were timed: speeds are rough. "
            "The same call times them again."
        )
    if result.all_words is not None:
        notes.append(
            f"With the whole vocabulary these blocks have an agreement of {agreement_in_words(result.all_words)}, with "
            f"the pieces that other texts need {agreement_in_words(student.agreement)}; they were chosen with all."
        )
    if result.measure != "cosine":
        notes.append(
            f"{model} compares vectors by {result.measure}, and learning keeps their directions, not their lengths. "
            "Compare the lean model's by cosine, or measure it on queries first."
        )
    if result.data_tokens is not None:
        notes += longer_texts(result.data, result.data_tokens, result.texts.long)
    measured = set() if result.frontier is None else {one.blocks for one in result.frontier.points}
    missing = [", ".join(map(str, one.blocks)) for one in result.students if one.blocks not in measured]
    if measured and missing:
        lacking = "; ".join(missing)
        notes.append(f"The frontier lacks blocks {lacking}, which learned in other runs: their weights are gone.")
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


def common_in_words(found: Agreement) -> str:
    """Give the share of nearest texts in common; for few texts also that of unrelated models."""
    common = f"{found.overlap:.0f} %"
    if found.overlap_low is not None:
        common += f" [{found.overlap_low:.0f}, {found.overlap_high:.0f}]"
    chance = 100 * NEAR / (found.num_texts - 1)
    return f"{common} of nearest texts in common" + f" (by chance {chance:.0f} %)" * (chance >= _SAID_CHANCE)


def scores_in_words(found: HeldOutScores) -> str:
    """Give both scores, and their difference with its interval if there are enough pairs or queries for one."""
    some = (
        f" of the {found.num_compared:,} queries that chose nothing" if found.of_queries and found.num_compared else ""
    )
    both = f"{found.data}, {found.metric}{some}: {found.lean:.2f} against {found.full:.2f}, {found.difference:+.2f}"
    return f"{both}; {found.too_few}." if found.too_few else f"{both} [{found.low:+.2f}, {found.high:+.2f}]."


def choice(result: DistillResult) -> str:
    """Say which blocks were chosen, how fast they are and how like the full model."""
    named, agreement = ", ".join(map(str, result.chosen)), result.student.agreement
    speedup = with_interval(result.speedup, result.candidate.speedup_interval)
    said = (
        f"Chosen: {counted(len(result.chosen), 'block')} of {result.depth} ({named}), {speedup} times the texts a "
        f"second; agreement {agreement_in_words(agreement)} with {taught_by(result.settings)} on held-out texts, "
        f"{common_in_words(agreement)}."
    )
    if result.scores is not None:
        said += f" {scores_in_words(result.scores)}"
        if result.scores.mixed is not None:
            said += f" Lean queries on the full model's documents: {result.scores.mixed:.2f}."
    if result.holds_unseen is False and result.holds:
        said += f" On held-out data they lose more than {in_points(result.budget.points)}."
    if not result.holds:
        said += f" No cut reaches {result.needed:.2f}, {in_points(result.budget.points)} less: this is the closest."
    return said


def _search(result: DistillResult) -> str:
    search = result.search
    said = f"{counted(search.tried, 'choice')} of blocks tried without training in {search.seconds:.0f} s"
    if search.num_texts is not None:
        said += f", on {counted(search.num_texts, 'text')} that were cut short"
    named = result.budget.named_blocks is not None
    return said + ("." if search.exact else ": the ones named, and simpler rules." if named else ", by a beam.")


def _tryouts(result: DistillResult) -> list[str]:
    """Say how the choices of as many blocks as the lean model has learned from few texts."""
    size = len(result.chosen)
    rows = sorted((one for one in result.tryouts if len(one.blocks) == size), key=lambda one: one.best, reverse=True)
    if not rows:
        return []
    return [f"Choices of {counted(size, 'block')} after learning from few texts: {'; '.join(map(_tryout, rows))}."]


def _tryout(one: Tryout) -> str:
    before = f" ({one.untrained:.2f} before, which counts)" if one.untrained > one.learned else ""
    common = "" if one.overlap is None else f", {one.overlap:.1f} % of nearest texts in common"
    return f"{', '.join(map(str, one.blocks))}: {one.learned:.2f}{before}{common}"


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
    score = f"{found.score:.2f}" + ("" if found.interval is None else " [{:.1f}, {:.1f}]".format(*found.interval))
    said = (
        f"{asked} has {blocks_in_words(found.blocks)} in {found.precision}, {counted(found.dims, 'dimension')} and "
        f"{counted(found.words, 'word')}: {speedup} times the texts a second, {found.megabytes:.1f} MB, score {score}"
    )
    if found.agreement is not None:
        said += f", agreement {agreement_in_words(found.agreement)} on held-out texts"
    other = f" Saved: {blocks_in_words(result.chosen)}; `blocks` saves others."
    return [f"{said}.{'' if found.blocks == result.chosen else other}"]


def sizes_table(result: DistillResult) -> Table:
    """Give each number of blocks a row, the full model last; speeds are factors, and texts a second in torch."""
    full = result.candidates[-1]
    needed = ""
    if result.needed is not None:
        needed = f", {result.needed:.2f} stands for {in_points(result.budget.points)} less"
    rows = [
        (
            ", ".join(map(str, row.blocks)) + (" (full model)" if row is full else ""),
            f"{row.untrained:.2f}" + ("" if row.interval is None else " [{:.1f}, {:.1f}]".format(*row.interval)),
            points(row.learned),
            NONE if row.agreement is None else agreement_in_words(row.agreement),
            NONE if row.agreement is None else f"{row.agreement.overlap:.0f} %",
            f"{row.texts_per_second / full.texts_per_second:.2f} ×",
            f"{row.megabytes:.1f}",
            "chosen" if row.blocks == result.chosen else "beaten" if row.dominated else "",
            f"{row.texts_per_second:,.0f}",
        )
        for row in result.candidates
    ]
    return Table(
        f"The best choice of each number of blocks by {result.metric} (selection score, optimistic); "
        f"{taught_by(result.settings)} has {result.full_score:.2f}{needed}; speed 1 is "
        f"{full.texts_per_second:,.0f} texts a second in torch",
        ("blocks", "without training", "after learning", "agreement", "nearest", "speed", "MB", "result", "texts/s"),
        rows,
        marked=[row.blocks for row in result.candidates].index(result.chosen),
        detail=result.frontier is not None,  # which holds what these rows are for
    )


def _rules(result: DistillResult) -> Table:
    """Give each number of blocks a row: the best subset without training, and what simpler rules keep."""
    search = result.search
    rows = [
        (
            str(len(row.blocks)),
            f"{row.score:.2f}",
            *(points(search.simpler(rule, row)) for rule in search.baselines),
        )
        for row in search.best
    ]
    columns = ("blocks", "best", *(rule.replace("_", " ") for rule in search.baselines))
    title = f"Without training: the best choice of blocks by {result.metric}, and what simpler rules keep"
    return Table(title, columns, rows, detail=True)


def _graphs(result: DistillResult, frontier: Frontier, *, every: bool) -> Table:
    """Give each graph a row with its scores by dimensions; every: also those that another one beats."""
    full, taken = frontier.points[0], result.graph
    widths = sorted({one.dims for one in frontier.points}, reverse=True)
    graphs: dict[tuple[object, ...], dict[int, FrontierPoint]] = {}
    for one in frontier.points:
        graphs.setdefault(one.graph, {})[one.dims] = one
    kept = {one.graph for one in frontier.points if every or one in (full, taken) or not one.dominated}
    shown = [row for graph, row in graphs.items() if graph in kept]
    title = (
        f"{'All' if every else f'{len(shown)} of'} {len(graphs)} graphs, with scores ({result.metric}) by dimensions"
    )
    if any(one.dominated for row in shown for one in row.values()):
        title += "; in brackets: another one beats it"
    if frontier.words is not None:
        title += f"; {frontier.covered:.1f} % of held-out texts need no further words"
    title += f"; speed 1 is {full.texts_per_second:,.0f} texts a second"
    return Table(
        title,
        ("blocks", "precision", "words", *(f"{dims} dims" for dims in widths), "speed", "MB", "result", "texts/s"),
        [_graph_row(row, widths, full, taken) for row in shown],
        detail=every,
    )


def _graph_row(
    row: Mapping[int, FrontierPoint], widths: list[int], full: FrontierPoint, taken: FrontierPoint | None
) -> tuple[str, ...]:
    graph = next(iter(row.values()))
    scores = {dims: f"({one.score:.2f})" if one.dominated else f"{one.score:.2f}" for dims, one in row.items()}
    return (
        ", ".join(map(str, graph.blocks)),
        graph.precision,
        f"{graph.words:,}",
        *(scores.get(dims, NONE) for dims in widths),
        f"{graph.texts_per_second / full.texts_per_second:.2f} ×",
        f"{graph.megabytes:.1f}",
        f"chosen at {taken.dims}" if taken is not None and taken in row.values() else "",
        f"{graph.texts_per_second:,.0f}",
    )


def _sizes_plot(result: DistillResult) -> Plot:
    """Draw each number of blocks by its speed and score, before and after learning, and the choice."""
    rows, full = result.candidates, result.candidates[-1]
    speeds = [row.texts_per_second / full.texts_per_second for row in rows]
    best = {len(full.blocks): SubsetScore(blocks=full.blocks, score=full.untrained)}
    best |= {len(row.blocks): row for row in result.search.best}
    first = {len(row.blocks): row.score for row in result.search.baselines["first"]}
    learned = [(speed, row) for speed, row in zip(speeds, rows, strict=True) if row.learned is not None]
    counts = [str(len(row.blocks)) for row in rows]
    series = [
        Series(
            speeds, [best[len(row.blocks)].score for row in rows], "best choice, without training", ORANGE, line="--"
        ),
        Series(speeds, [first.get(len(row.blocks)) for row in rows], "first blocks", GREY, marker="s", line=":"),
        Series(speeds, [row.score for row in rows], marker="", line="", texts=counts),
    ]
    if learned:
        x, y = [speed for speed, _ in learned], [row.score for _, row in learned]
        series.append(Series(x, y, "after learning", marker="D", line="", size=8))
    others = [(speed, row) for speed, row in learned if row.blocks != best[len(row.blocks)].blocks]
    if others:
        x, y = [speed for speed, _ in others], [row.untrained for _, row in others]
        series.append(Series(x, y, "the blocks that learned best, before it", marker="D", line="", hollow=True))
    series.append(_chosen(result.speedup, result.candidate.score, f"chosen: {', '.join(map(str, result.chosen))}"))
    axes = (
        f"texts a second, full model = 1 ({full.texts_per_second:,.0f} in torch)\nnumbers are blocks",
        f"score in points\n({result.metric})",  # two lines: names of layers make it longer than the axis
    )
    title = f"Blocks of {Path(result.model).name}: score against speed"
    return Plot("sizes", title, *axes, series, file="frontier")


def _chosen(x: float, y: float, label: str) -> Series:
    """Draw a ring around the choice."""
    return Series([x], [y], label, GREEN, line="", hollow=True, size=16)


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
        speed = taken.texts_per_second / full.texts_per_second
        series.append(_chosen(speed, taken.score, f"chosen: {_named(taken)}"))
    axes = (
        f"texts a second, full model's float32 graph = 1 ({full.texts_per_second:,.0f})\nnumbers are blocks",
        f"score in points\n({result.metric})",
    )
    return Plot("graphs", "Each graph that was measured, by dimensions and words", *axes, series)


def _named(one: FrontierPoint) -> str:
    return f"{counted(len(one.blocks), 'block')} in {one.precision}, {one.dims} dimensions, {one.words:,} words"
