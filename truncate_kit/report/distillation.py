"""Show the result of a distillation, and exported graphs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from truncate_kit.core.errors import counted, in_points, longer_texts
from truncate_kit.core.hardware import PRECISIONS
from truncate_kit.core.vectors import FEWEST_COMPARED
from truncate_kit.core.workspace import blocks_in_words, listed
from truncate_kit.report.view import (
    GREY,
    ORANGE,
    Cell,
    Column,
    Plot,
    Series,
    Table,
    View,
    number,
    ring,
    vocabulary_sentences,
)

if TYPE_CHECKING:
    from truncate_kit.export.record import ExportReport
    from truncate_kit.methods.distill.settings import Agreement, DistillResult, LeanModel, Scored

_LARGEST = 9.0  # marker size in points, with all dimensions
_MARKS = {("fp32", False): "D", ("fp32", True): "^", ("int8", False): "s", ("int8", True): "v"}
"""Markers by precision and reduced vocabulary."""


def view_distill_result(result: DistillResult) -> View:
    """Show scores by number of blocks before and after training, and measured graphs."""
    from truncate_kit.methods.distill.settings import graph_within

    words, search = result.vocabulary, result.search
    winner = graph_within(result.frontier, result.budget, result.needed)
    columns: dict[str, Column] = {"blocks": lambda row: len(row[0]), "best": lambda row: row[1]}
    for rule, kept in search.baselines.items():
        columns[rule.replace("_", " ")] = partial(_same_size, kept)
    title = f"Before training: the best choice of blocks by {result.metric}, and the choices of simpler rules"
    tables = [sizes_table(result), Table.of(title, search.best, columns, detail=True)]
    if result.tryouts:
        tries: dict[str, Column] = {
            "blocks": lambda row: listed(row.blocks),
            "without training": "untrained",
            "so far": lambda row: max(row.scores),
            "evaluations": lambda row: str(len(row.scores)),
        }
        title = "Choices of blocks, compared early in training; the better half goes on"
        rows = sorted(result.tryouts, key=lambda row: (len(row.blocks), len(row.scores), -row.score))
        tables.append(Table.of(title, rows, tries, detail=True))
    plots = [_sizes_plot(result)]
    if result.frontier:
        tables = [_graphs(result, winner, every=False), *tables, _graphs(result, winner, every=True)]
        plots.append(_graphs_plot(result, winner))
    student, settings = result.student, result.settings
    training = (
        f"Training: 1 − cosine to the vectors of {settings.teacher}; {student.steps:,} steps of {settings.batch_size} "
        f"texts, peak learning rate {result.learning_rate:g}, {settings.precision}."
    )
    some = "" if search.num_texts is None else f" on {counted(search.num_texts, 'short text')}"
    tried = f"Scored {counted(search.tried, 'choice')} of blocks without training{some} in {search.seconds:.0f} s."
    return View(
        "sizes",
        "How many blocks",
        tables,
        [tried, choice(result), *_graph_choice(result, winner)],
        notes=[*(vocabulary_sentences(words) if words else ()), *_notes(result)],
        details=[bool(student.scores) and not student.as_it_came and training],
        plots=plots,
    )


def _same_size(kept: Sequence[Scored], row: Scored) -> Cell:
    return next((score for blocks, score in kept if len(blocks) == len(row[0])), None)


def _notes(result: DistillResult) -> list[Any]:
    from truncate_kit.methods.distill.settings import more_texts

    student, model, texts = result.student, Path(result.model).name, result.texts
    untrained, best = student.untrained or 0.0, max(student.scores, default=math.inf)
    compared = f"{counted(texts['compared'], 'text')} of evaluation sets (whole texts compared)"
    kept = ", so the untrained blocks are saved" if student.as_it_came else ""
    return [
        f"Texts: {texts['num_texts']:,} distinct texts; tokens: median {texts['middle']}, 95th percentile "
        f"{texts['long']}; {texts['cut']:,} truncated at the model's limit.",
        texts["compared"] and f"Excluded: {texts['excluded']:,} texts that equal one of {compared}.",
        result.num_seen
        and f"Not scored: {counted(result.num_seen, 'test pair')} on which {model} was trained or selected.",
        untrained >= best
        and f"Training did not improve these blocks: {untrained:.2f} before, at most {best:.2f} after "
        f"{counted(student.steps, 'step')}{kept}. Use more texts, or a smaller `learning_rate`.",
        result.all_words and f"With the full vocabulary the agreement is {agreement_in_words(result.all_words)}.",
        result.measure != "cosine"
        and f"{model} compares vectors by {result.measure}; distillation preserves only directions: compare by cosine.",
        result.budget.within is not None
        and more_texts(
            result.settings.layer or result.depth, len(result.chosen), texts["num_texts"], result.budget.within
        ),
        result.metric == result.settings.agreement
        and "Agreement measures similarity; if search matters, give queries and documents as `data`.",
        *(() if result.data_tokens is None else longer_texts(result.data, result.data_tokens, texts["long"])),
    ]


def agreement_in_words(agreement: Agreement | None) -> str | None:
    """Describe the correlation with its interval."""
    return None if agreement is None else _with_interval(agreement.correlation, (agreement.low, agreement.high))


def choice(result: DistillResult) -> str:
    """Describe the chosen blocks: speed, agreement with the full model, and scores."""
    student, agreement, scores = result.student, result.student.agreement, result.scores
    within = in_points(result.budget.within or 0)
    sentence = (
        f"Chosen: {counted(len(result.chosen), 'block')} of {result.depth} ({listed(result.chosen)}), "
        f"{result.expected_speedup:.1f} times as fast by its operations, "
        f"{_with_interval(result.speedup, student.speedup_interval)} measured"
    )
    if agreement is not None:
        common = f"{agreement.overlap:.0f} % [{agreement.overlap_low:.0f}, {agreement.overlap_high:.0f}]"
        sentence += f"; agreement {agreement_in_words(agreement)} with {result.settings.teacher} on held-out texts, "
        sentence += f"{common} of nearest texts in common"
    sentence += "."
    if scores is not None:
        some = f" of {scores.num_compared:,} queries" if scores.of_queries and scores.num_compared else ""
        ends = f"; {scores.too_few}" if scores.too_few else f" [{scores.low:+.2f}, {scores.high:+.2f}]"
        sentence += (
            f" {scores.data}, {scores.metric}{some}: {scores.lean:.2f} against {scores.full:.2f}, "
            f"{scores.difference:+.2f}{ends}."
        )
        if scores.mixed is not None:
            sentence += f" Lean queries on the full model's documents: {scores.mixed:.2f}."
    if result.holds_unseen is False and result.holds:
        sentence += f" On held-out data the loss exceeds {within}."
    if not result.holds:
        sentence += f" No choice of blocks reaches {result.needed:.2f} (a loss of {within}); this one is the closest."
    return sentence


def _graph_choice(result: DistillResult, winner: LeanModel | None) -> list[str]:
    budget = result.budget
    if not result.frontier or budget.blocks is not None:
        return []
    if winner is None:
        return ["No measured graph is within the budget."]
    asked = {
        "within": f"The fastest graph that loses at most {in_points(budget.within or 0)}",
        "speedup": f"The best graph that is {budget.speedup} times as fast as the full float32 one",
        "megabytes": f"The best graph of at most {budget.megabytes} MB",
    }[budget.kind]
    speedup = _with_interval(winner.texts_per_second / result.frontier[0].texts_per_second, winner.speedup_interval)
    score = _with_interval(winner.score, winner.interval, ".2f")
    sentence = f"{asked}: {_named(winner)}; {speedup} × the speed, score {score}"
    if winner.agreement is not None:
        sentence += f", agreement {agreement_in_words(winner.agreement)} on held-out texts"
    other = f" Saved: {blocks_in_words(result.chosen)}; set `blocks` to save others."
    return [f"{sentence}.{'' if winner.blocks == result.chosen else other}"]


def sizes_table(result: DistillResult) -> Table:
    """Return a row per number of blocks, the full model last."""
    full, needed, searched = result.candidates[-1], "", dict(result.search.best)
    if result.needed is not None:
        needed = f", a loss of at most {in_points(result.budget.within or 0)} needs {result.needed:.2f}"
    return Table.of(
        f"The best choice of each number of blocks by {result.metric} (selection score, optimistic), and agreement on "
        f"other held-out texts; {result.settings.teacher} scores {result.full_score:.2f}{needed}; speed estimated from "
        "operations, full model = 1",
        result.candidates,
        {
            "blocks": lambda row: listed(row.blocks) + " (full model)" * (row is full),
            "search": lambda row: searched.get(row.blocks),
            "without training": lambda row: (
                None if row.untrained is None else _with_interval(row.untrained, row.interval, ".2f")
            ),
            "after training": lambda row: row.score if row.scores else None,
            "agreement": lambda row: agreement_in_words(row.agreement),
            "nearest": lambda row: row.agreement and f"{row.agreement.overlap:.0f} %",
            "speed (estimate)": lambda row: f"{row.pace / full.pace:.1f} ×",
            "MB": "megabytes:.1f",
            "result": lambda row: "chosen" if row is result.student else "beaten" if row.dominated else "",
        },
        marked=result.student,
        detail=bool(result.frontier),  # then the table of graphs is shown first
    )


def _graphs(result: DistillResult, winner: LeanModel | None, *, every: bool) -> Table:
    full, by_graph = result.frontier[0], {(row.graph, row.dims): row for row in result.frontier}
    graphs = list({row.graph: row for row in reversed(result.frontier)}.values())[::-1]
    wanted = {row.graph for row in result.frontier if every or row in (full, winner) or not row.dominated}
    shown = [row for row in graphs if row.graph in wanted]

    def score(dims: int, graph: LeanModel) -> Cell:
        row = by_graph.get((graph.graph, dims))
        return None if row is None else f"({row.score:.2f})" if row.dominated else row.score

    title = (
        f"{'All' if every else f'{len(shown)} of'} {len(graphs)} graphs, with scores ({result.metric}) by dimensions; "
        f"in brackets: beaten by another graph; speed 1 is {full.texts_per_second:,.0f} texts a second"
    )
    columns: dict[str, Column] = {"blocks": lambda row: listed(row.blocks), "precision": "precision", "words": "words"}
    for dims in sorted({row.dims for row in result.frontier}, reverse=True):
        columns[f"{dims} dims"] = partial(score, dims)
    columns |= {
        "expected": lambda row: f"{row.pace / full.pace:.1f} ×",
        "speed": lambda row: f"{row.texts_per_second / full.texts_per_second:.2f} ×",
        "MB": "megabytes:.1f",
        "result": lambda row: f"chosen at {winner.dims}" if winner is not None and winner.graph == row.graph else "",
        "texts/s": "texts_per_second:,.0f",
    }
    return Table.of(title, shown, columns, detail=every)


def _sizes_plot(result: DistillResult) -> Plot:
    rows, full = result.candidates, result.candidates[-1]
    speeds = [row.pace / full.pace for row in rows]
    best = {len(blocks): score for blocks, score in result.search.best}
    first = {len(blocks): score for blocks, score in result.search.baselines.get("first", ())}
    learned = [(speed, row) for speed, row in zip(speeds, rows, strict=True) if row.scores]
    series = [
        Series(speeds, [best.get(len(row.blocks)) for row in rows], "best choice, without training", ORANGE, line="--"),
        Series(speeds, [row.score for row in rows], marker="", line="", texts=[str(len(row.blocks)) for row in rows]),
    ]
    if first:
        scores = [first.get(len(row.blocks)) for row in rows]
        series.append(Series(speeds, scores, "first blocks", GREY, marker="s", line=":"))
    if learned:
        x, y = zip(*((speed, row.score) for speed, row in learned), strict=True)
        series.append(Series(x, y, "after training", marker="D", line="", size=8))
    series.append(ring(result.expected_speedup, result.student.score, f"chosen: {listed(result.chosen)}"))
    axes = (
        "estimated speed by operations, full model = 1\nnumbers are blocks",
        f"score in points\n({result.metric})",  # some metrics are longer than the axis
    )
    return Plot(f"Blocks of {Path(result.model).name}: score against speed", *axes, series, file="frontier")


def _graphs_plot(result: DistillResult, winner: LeanModel | None) -> Plot:
    """Draw every graph by speed and score.

    Color: precision. Shape: precision and vocabulary. Size: dimensions. Hollow: dominated.
    """
    full, labelled, series = result.frontier[0], set[tuple[str, bool]](), list[Series]()
    for row in result.frontier:
        kind, speed = (row.precision, row.words < full.words), row.texts_per_second / full.texts_per_second
        label = "" if kind in labelled else f"ONNX Runtime {kind[0]}" + ", fewer words" * kind[1]
        tip = f"{_named(row)}: {speed:.2f} × the speed, score {row.score:.2f}, {row.megabytes:.1f} MB"
        style: dict[str, Any] = {
            "marker": _MARKS[kind],
            "hollow": row.dominated,
            "size": _LARGEST * (row.dims / full.dims) ** 0.5,  # the area shows the share of dimensions
            "texts": [str(len(row.blocks))] if (row.dims, row.words) == (full.dims, full.words) else (),
            "tip": tip + ", beaten" * row.dominated,
        }
        series.append(Series([speed], [row.score], label, PRECISIONS[row.precision].color, line="", **style))
        labelled.add(kind)
    if any(row.dims < full.dims for row in result.frontier):
        series.append(Series((), (), "smaller marks: fewer dimensions", GREY, line="", size=4.5))
    if any(row.dominated for row in result.frontier):
        series.append(Series((), (), "hollow: beaten", GREY, line="", hollow=True))
    if winner is not None:
        series.append(ring(winner.texts_per_second / full.texts_per_second, winner.score, f"chosen: {_named(winner)}"))
    axes = (
        f"texts a second, full model's float32 graph = 1 ({full.texts_per_second:,.0f})\nnumbers are blocks",
        f"score in points\n({result.metric})",
    )
    return Plot("All measured graphs, by dimensions and words", *axes, series)


def _named(row: LeanModel) -> str:
    return f"{counted(len(row.blocks), 'block')} in {row.precision}, {row.dims} dimensions, {row.words:,} words"


def _with_interval(value: float, ends: tuple[float, float] | None, form: str = ".1f") -> str:
    return format(value, form) + ("" if ends is None else f" [{ends[0]:.1f}, {ends[1]:.1f}]")


def view_export_report(report: ExportReport) -> View:
    """Show an exported graph and how far its vectors differ from torch."""
    precision, int8, stable = PRECISIONS[report.precision], report.quantization, report.invariance
    rows = [(name, f"{value:.1e}", number(precision.vector_limit, "g")) for name, value in report.checks.items()]
    agrees = f"Matches torch to {max(report.checks.values(), default=0.0):.1e} on {len(rows)} shapes"
    if report.spearman is not None:
        agrees += f"; Spearman {report.spearman[0]:.2f} → {report.spearman[1]:.2f} on {report.scored_on}"
    for name, scores in (("Spearman", report.spearman), ("Pearson", report.pearson)):
        if scores is not None:
            before, after = scores
            moved = f"{name} × 100 on {report.scored_on}: {before:.2f} to {after:.2f}"
            rows.append((moved, f"{round(after - before, 4) + 0.0:+.4f}", number(precision.score_limit, "g")))
    fused = f"fused: {counted(report.fused_attention, 'node')}, one per layer"
    if not report.fused_attention:
        fused = f"not fused: ONNX Runtime has no kernel for {report.family}"
    unit = " and length 1" if report.normalized else ""
    sentences = [
        f"{report.file}: {report.precision} for {report.target}, {report.file_bytes / 1e6:.1f} MB, opset "
        f"{report.opset}; vectors of {report.width} numbers{unit}.",
        f"{agrees}.",
        report.runtime == "onnx"
        and (f"Attention is {fused}." if report.layers else "A model cut at its embeddings has no attention."),
        report.largest_half and f"The largest value is {report.largest_half:,.0f}; float16 ends at 65,504.",
    ]
    if int8 is not None:
        lost = "an undefined score" if int8.drop_all_int8 is None else f"{int8.drop_all_int8:.2f} points"
        sentences += [
            f"Loss with all layers in int8: {lost} on {int8.searched_on}; of the exported graph: {int8.drop:.2f} "
            f"of {int8.budget:g} allowed. Layers kept in float: {', '.join(int8.in_float) or 'none'}.",
            int8.weight_bits != 8 and "Weights have 7 bits, because this processor lacks VNNI.",
            int8.num_pairs < FEWEST_COMPARED
            and f"{counted(int8.num_pairs, 'pair')}: too few to estimate the loss by int8.",
        ]
    batched = stable and (
        f"Lowest cosine to the vector of a text run alone: {stable['batch_cosine']:.4f} in a batch, "
        f"{stable['padding_cosine']:.4f} padded; Spearman {stable['spearman_alone']:.2f} alone, in batches "
        f"{stable['spearman_batched']:.2f} ({counted(int(stable['num_pairs']), 'pair')} of {report.invariant_on})."
    )
    table = Table("Graph against torch: largest difference", ("check", "difference", "allowed"), rows, detail=True)
    return View("graph", f"The graph {report.file}", [table], sentences, details=[batched])
