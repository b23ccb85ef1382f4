"""The view of a study, and its files: tables as CSV and Markdown, figures."""

import csv
import io
from collections.abc import Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from truncate_kit.files import write_text
from truncate_kit.methods.study.plan import figure_name
from truncate_kit.methods.study.result import CKARow, StudyResult, StudyRow, Summary, pareto_front, summaries
from truncate_kit.report.training import layer_series, score_cells
from truncate_kit.report.view import (
    BLUE,
    GREEN,
    GREY,
    LAYERS,
    NONE,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    Plot,
    Series,
    Table,
    View,
)
from truncate_kit.wording import counted, points

SCORES, BEST, SIMILARITY, PAGE = "scores.csv", "best.csv", "cka.csv", "tables.md"
_MEASURES = ("dev", "dev_pearson", "test", "test_pearson")
_COLORS, _LINES, _MARKERS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY), ("-", "--", "-.", ":"), "osD^vPX"
_KINDS = ("curves", "layers", "pareto", "cka")
_STAGES = {
    "untrained": "untrained",
    "last_trained": "trained at the last layer",
    "own_trained": "trained at this layer",
}


def view_study(result: StudyResult) -> View:
    """Show the best layers of each task."""
    lines, tables = summaries(result), []
    for task in result.tasks():
        mine = [line for line in lines if line.task == task]
        cells = []
        for line in mine:
            best = line.best_dev.scores
            cells.append((line.model, f"{best.layer}", score_cells(best)[1], *_last(line, " drop")))
        columns = ("model", "best dev", "test", "last", "test", "drops by")
        tables.append(Table(f"{task}: layers and their test scores, {mine[0].metric}", columns, cells))
    plots = [plot for task in result.tasks() for plot in _plots(result, task)]
    return View(key="study", title="Fine-tuned at every layer", tables=tables, plots=plots)


def _last(line: Summary, mark: str) -> tuple[str, str, str]:
    """Give the last layer, its test score and by how much it drops, with `mark` if that is a drop."""
    if line.last is None:
        return NONE, NONE, NONE
    scores = line.last.scores
    return f"{scores.layer}", score_cells(scores)[1], f"{line.drop:.2f}{mark if line.drops else ''}"


def write_tables(result: StudyResult, folder: Path) -> None:
    """Write all scores, best layers, CKA if there is any, and a page of it all. Raises `FileProblemError`."""
    front = {id(row) for task in result.tasks() for row in pareto_front(result.of_task(task))}
    scores = []
    for row in result.rows:
        named = {"model": row.model, "task": row.task, "metric": row.metric, "layer": row.scores.layer}
        sizes = {"depth": row.depth, "parameters": row.scores.parameters, "paper_parameters": row.paper_parameters}
        seeds = {"seeds": len(row.scores.seeds)}
        scores.append({**named, **sizes, **seeds, **_figures(row), "on_front": id(row) in front})
    best = []
    for line in summaries(result):
        cells: dict[str, object] = {"model": line.model, "task": line.task, "metric": line.metric}
        for name, found in (("best_dev", line.best_dev), ("last", line.last)):
            row = found or line.best_dev
            sizes = {"layer": row.scores.layer, "parameters": row.scores.parameters}
            of_layer = {**sizes, "paper_parameters": row.paper_parameters, **_figures(row)}
            cells |= {f"{name}_{column}": value if found else None for column, value in of_layer.items()}
        best.append(cells | {"drop": _number(line.drop), "drops": line.drops})
    _write_csv(folder / SCORES, scores)
    _write_csv(folder / BEST, best)
    if result.cka:
        _write_csv(folder / SIMILARITY, [row.to_dict() | _similarities(row) for row in result.cka])
    write_text(folder / PAGE, page(result))


def _figures(row: StudyRow) -> dict[str, object]:
    """Give scores and published figures by the names of their columns."""
    values = {f"{name}{end}": getattr(row.scores, f"{name}{end}") for name in _MEASURES for end in ("", "_std")}
    values |= zip((f"published_{name}" for name in _MEASURES), _published(row), strict=True)
    return {name: _number(value) for name, value in values.items()}


def _published(row: StudyRow) -> tuple[float | None, ...]:
    return row.published_dev, row.published_dev_pearson, row.published, row.published_pearson


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _similarities(row: CKARow) -> dict[str, str]:
    names = [f"{stage}{form}" for form in ("", "_biased") for stage in _STAGES]
    return {name: "" if (value := getattr(row, name)) is None else f"{value:.4f}" for name in names}


def _write_csv(path: Path, rows: Sequence[dict[str, object]]) -> None:
    text = io.StringIO()
    if rows:
        table = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    write_text(path, text.getvalue())


def page(result: StudyResult) -> str:
    """Write Markdown: for each task the best layers, the curves, every layer, the Pareto front, and CKA."""
    parts = ["# Fine-tuned at every layer\n"]
    for task in result.tasks():
        rows = result.of_task(task)
        seeds = max(len(row.scores.seeds) for row in rows)
        lines = [line for line in summaries(result) if line.task == task]
        parts += [
            f"## {_plain(task)}\n",
            f"{rows[0].metric}; mean ± standard deviation over {counted(seeds, 'seed')}.\n",
            _best_table(lines),
            "As Tables 1 and 2 of the TMFT paper: the layer that is best on dev, and the last one.\n",
            _paper_table(lines),
            f"![Test score by layer]({figure_name(task, 'layers')})\n",
            f"![Score by layer]({figure_name(task, 'curves')})\n",
            f"![Score by parameters]({figure_name(task, 'pareto')})\n",
            "Every layer; * marks the Pareto front of test score and parameters.\n",
            _layer_table(rows),
        ]
        if cka := [row for row in result.cka if row.task == task]:
            parts += _cka_section(cka, task)
    return "\n".join(parts)


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return f"{Table('', columns, rows).markdown()}\n"


def _best_table(lines: Sequence[Summary]) -> str:
    columns = ("model", "best dev: layer", "parameters", "dev", "test", "last: layer", "test")
    rows = []
    for line in lines:
        best = line.best_dev.scores
        chosen = (f"{best.layer}", f"{best.parameters:,}", *score_cells(best)[:2])
        rows.append((_plain(line.model), *chosen, *_last(line, " (a drop)")))
    return _markdown((*columns, "drops by, from the best on test"), rows)


def _paper_table(lines: Sequence[Summary]) -> str:
    """Give both layers of each model, the last one only if it is another, with parameters as the paper counts them."""
    found = []
    for line in lines:
        found.append((line.model, line.best_dev))
        if line.last not in (None, line.best_dev):
            found.append((line.model, line.last))
    published = any(value is not None for _, row in found for value in _published(row))
    heads = ["dev", "dev Pearson", "test", "test Pearson"]
    if lines and "Spearman" in lines[0].metric:
        heads = ["dev Spearman", "dev Pearson", "test Spearman", "test Pearson"]
    columns = ["model", "layer", "parameters, millions", *heads, *(f"published {head}" for head in heads if published)]
    cells = []
    for model, row in found:
        figures = [points(getattr(row.scores, name), getattr(row.scores, f"{name}_std")) for name in _MEASURES]
        figures += map(_number, _published(row)) if published else ()
        cells.append((_plain(model), f"{row.scores.layer}", f"{row.paper_parameters / 1e6:.2f}", *figures))
    return _markdown(columns, cells)


def _cka_section(rows: Sequence[CKARow], task: str) -> list[str]:
    stages = [*_STAGES.values(), *(f"biased: {stage}" for stage in _STAGES.values())]
    cells = [
        (_plain(row.model), f"{row.layer}", f"{row.reference_layer}", *_similarities(row).values()) for row in rows
    ]
    said = (
        f"CKA, debiased and biased, to {_plain(rows[0].reference)} on {rows[0].num_texts:,} distinct test texts, one "
        "seed: both models untrained, both trained at their last layer, or both cut and trained at this one. The "
        "TMFT paper computed the biased form, which is high for few texts.\n"
    )
    figure = f"![CKA by layer]({figure_name(task, 'cka')})\n"
    return [said, figure, _markdown(("model", "layer", "layer of the reference", *stages), cells)]


def _layer_table(rows: Sequence[StudyRow]) -> str:
    published = any(row.published is not None for row in rows)
    front = {id(row) for row in pareto_front(rows)}
    columns = ("model", "layer", "parameters", "dev", "test", "test Pearson", *(["published test"] * published))
    cells = []
    for row in rows:
        layer = f"{row.scores.layer}{' *' if id(row) in front else ''}"
        more = [points(row.published)] * published
        cells.append((_plain(row.model), layer, f"{row.scores.parameters:,}", *score_cells(row.scores), *more))
    return _markdown(columns, cells)


def _plain(text: str) -> str:
    """Put text from outside on one line, without cell borders and HTML."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _plots(result: StudyResult, task: str) -> list[Plot]:
    """Draw a task: dev and test by layer, a panel a model; all models in one; scores by parameters; CKA."""
    models = [model for model in result.models() if result.of(model, task)]
    rows = {model: result.of(model, task) for model in models}
    metric = rows[models[0]][0].metric
    layers, pareto, plots = list[Series](), list[Series](), list[Plot]()
    unit, files = f"points ({metric})", {kind: figure_name(task, kind).removesuffix(".png") for kind in _KINDS}
    for place, model in enumerate(models):
        turn, color = divmod(place, len(_COLORS))
        look: dict[str, Any] = {
            "color": _COLORS[color],
            "line": _LINES[turn % len(_LINES)],
            "marker": _MARKERS[place % len(_MARKERS)],
        }
        scores = [row.scores for row in rows[model]]
        x, test = [row.layer for row in scores], [row.test for row in scores]
        spread = [row.test_std or 0.0 for row in scores]
        low = [mean - half for mean, half in zip(test, spread, strict=True)]
        high = [mean + half for mean, half in zip(test, spread, strict=True)]
        layers.append(Series(x, test, model, low=low, high=high, **look))
        pareto.append(Series([row.parameters / 1e6 for row in scores], test, model, width=1, **look))
        series = layer_series(scores)
        published = [(row.scores.layer, row.published) for row in rows[model] if row.published is not None]
        if published:
            along, values = zip(*published, strict=True)
            series.append(Series(along, values, "published, test", line=":", marker=""))
        plots.append(Plot(f"curves-{place}", model, LAYERS, unit, series, whole=True, file=files["curves"]))
    lines = [line for line in summaries(result) if line.task == task]
    ends = [row for line in lines for row in (line.best_dev, line.last) if row is not None]
    fronts = [
        _front(result.of_task(task), "Pareto front", "-", 4),
        _front(ends, "of best-dev and last layers alone", "--", 1.5),
    ]
    title = f"Test score of each layer: {task}"
    plots.append(Plot("layers", title, LAYERS, unit, layers, whole=True, file=files["layers"]))
    title, axes = f"What parameters buy: {task}", ("parameters kept, millions", f"test score in {unit}")
    plots.append(Plot("pareto", title, *axes, (*fronts, *pareto), file=files["pareto"]))
    cka = [row for row in result.cka if row.task == task]
    return plots + [_cka_plot(cka, model, task) for model in dict.fromkeys(row.model for row in cka)]


def _front(rows: Sequence[StudyRow], label: str, line: str, width: float) -> Series:
    """Draw a Pareto front as steps: a score holds up to the parameters of the next one."""
    front = [(row.scores.parameters / 1e6, row.scores.test) for row in pareto_front(rows)]
    steps = [*chain(*(((x, y), (there, y)) for (x, y), (there, _) in pairwise(front))), front[-1]]
    x, y = zip(*steps, strict=True)
    return Series(x, y, label, GREY, marker="", line=line, width=width)


def _cka_plot(rows: Sequence[CKARow], model: str, task: str) -> Plot:
    """Draw CKA to the reference by layer, before and after fine-tuning; dotted in its biased form."""
    mine, series = [row for row in rows if row.model == model], []
    for (stage, label), color, marker in zip(_STAGES.items(), _COLORS, _MARKERS, strict=False):
        layers = [row.layer for row in mine]
        values, biased = [getattr(row, stage) for row in mine], [getattr(row, f"{stage}_biased") for row in mine]
        series.append(Series(layers, values, label, color, marker=marker))
        if any(value is not None for value in biased):
            series.append(Series(layers, biased, f"{label}, biased", color, marker="", line=":"))
    file = figure_name(task, "cka").removesuffix(".png")
    return Plot(f"cka-{model}", model, LAYERS, f"CKA to {mine[0].reference}", series, whole=True, file=file)
