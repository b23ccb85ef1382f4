"""Show a study, and write its tables as CSV and Markdown."""

import csv
import io
from collections.abc import Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from truncate_kit.core.errors import counted
from truncate_kit.core.files import write_text
from truncate_kit.methods.study.result import CKARow, Curve, StudyResult, StudyRow, figure_name, pareto_front
from truncate_kit.report.training import layer_series
from truncate_kit.report.view import (
    BLUE,
    GREEN,
    GREY,
    LAYERS,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    Column,
    Plot,
    Series,
    Table,
    View,
    in_markdown,
    points,
)

SCORES, BEST, SIMILARITY, PAGE = "scores.csv", "best.csv", "cka.csv", "tables.md"
_MEASURES = ("dev", "dev_pearson", "test", "test_pearson")
_COLORS, _LINES, _MARKERS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY), ("-", "--", "-.", ":"), "osD^vPX"
_STAGES = {
    "untrained": "untrained",
    "last_trained": "trained at the last layer",
    "own_trained": "trained at this layer",
}
_SUMMARY: dict[str, Column] = {
    "model": "best_dev.model",
    "best dev": lambda line: str(line.best_dev.scores.layer),
    **{"parameters": "best_dev.scores.parameters", "dev": "best_dev.scores.dev:±", "test": "best_dev.scores.test:±"},
    "last": lambda line: line.last and str(line.last.scores.layer),
    "last test": lambda line: line.last and points(line.last.scores.test, line.last.scores.test_std),
    "drops by": lambda line: None if line.drop is None else f"{line.drop:.2f}{' drop' * line.drops}",
}


def view_study_result(result: StudyResult) -> View:
    """Show the best and the last layer of each model, by task."""
    tables, plots = [], list[Plot]()
    for task in result.tasks():
        curves = result.curves(task)
        tables.append(Table.of(f"{task}: layers and their scores, {curves[0].best_dev.metric}", curves, _SUMMARY))
        plots += _plots(result, task, curves)
    return View("study", "Fine-tuned at every layer", tables, plots=plots)


def write_tables(result: StudyResult, folder: Path) -> None:
    """Write CSV files of scores, best layers and CKA, and a page of all tables. Raises `FileProblemError`."""
    front = {id(row) for task in result.tasks() for row in pareto_front(result.of(task))}
    scores = [_cells(row) | {"on_front": id(row) in front} for row in result.rows]
    best = []
    for curve in (curve for task in result.tasks() for curve in result.curves(task)):
        first, last = _cells(curve.best_dev), {} if curve.last is None else _cells(curve.last)
        cells = {name: first.pop(name) for name in ("model", "task", "metric")}
        cells |= {f"best_dev_{name}": value for name, value in first.items()}
        cells |= {f"last_{name}": last.get(name) for name in first}
        best.append(cells | {"drop": curve.drop, "drops": curve.drops})
    _write_csv(folder / SCORES, scores, 2)
    _write_csv(folder / BEST, best, 2)
    if result.cka:
        _write_csv(folder / SIMILARITY, [row.to_dict() for row in result.cka], 4)
    write_text(folder / PAGE, page(result))


def _cells(row: StudyRow) -> dict[str, Any]:
    values: dict[str, Any] = row.to_dict() | row.scores.to_dict() | {"seeds": len(row.scores.seeds)}
    del values["scores"]
    return values


def _write_csv(path: Path, rows: Sequence[dict[str, object]], digits: int) -> None:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerows([[*rows[0]]] if rows else [])
    for row in rows:
        table.writerow(f"{value:.{digits}f}" if isinstance(value, float) else value for value in row.values())
    write_text(path, text.getvalue())


def page(result: StudyResult) -> str:
    """Return a study's page: Markdown with all tables and plots."""
    parts = ["# Fine-tuned at every layer"]
    for task in result.tasks():
        rows, curves = result.of(task), result.curves(task)
        seeds = max(len(row.scores.seeds) for row in rows)
        parts += [
            f"## {in_markdown(task)}",
            f"{in_markdown(rows[0].metric)}; mean ± standard deviation over {counted(seeds, 'seed')}.",
            Table.of("", curves, _SUMMARY).markdown(),
            "The layer that is best on dev, and the last layer, as in Tables 1 and 2 of the TMFT paper.",
            _paper_table(curves).markdown(),
            f"![Test score by layer]({figure_name(task, 'layers')})",
            f"![Score by layer]({figure_name(task, 'curves')})",
            f"![Score by parameters]({figure_name(task, 'pareto')})",
            "Every layer; * marks the Pareto front of test score and parameters.",
            _layer_table(rows).markdown(),
        ]
        if cka := [row for row in result.cka if row.task == task]:
            columns: dict[str, Column] = {"model": "model", "layer": lambda row: str(row.layer)}
            columns["layer of the reference"] = lambda row: str(row.reference_layer)
            columns |= {name: f"{stage}:.4f" for stage, name in _STAGES.items()}
            columns |= {f"biased: {name}": f"{stage}_biased:.4f" for stage, name in _STAGES.items()}
            parts += [
                f"CKA, debiased and biased, to {in_markdown(cka[0].reference)} on {cka[0].num_texts:,} distinct test "
                "texts, one seed: both models untrained, both trained at their last layer, or both cut and trained "
                "at this layer. The TMFT paper computed the biased form, which is high for few texts.",
                f"![CKA by layer]({figure_name(task, 'cka')})",
                Table.of("", cka, columns).markdown(),
            ]
    return "\n\n".join(parts) + "\n"


def _ends(curves: Sequence[Curve]) -> list[StudyRow]:
    return [row for curve in curves for row in dict.fromkeys((curve.best_dev, curve.last)) if row is not None]


def _paper_table(curves: Sequence[Curve]) -> Table:
    columns: dict[str, Column] = {"model": "model", "layer": lambda row: str(row.scores.layer)}
    columns["parameters, millions"] = lambda row: row.paper_parameters / 1e6
    main = " Spearman" if "Spearman" in curves[0].best_dev.metric else ""
    heads = {name: name.replace("_p", " P") + ("" if "_" in name else main) for name in _MEASURES}
    columns |= {head: f"scores.{name}:±" for name, head in heads.items()}
    columns |= {f"published {head}": f"published_{name}" for name, head in heads.items()}
    return Table.of("", _ends(curves), columns)


def _layer_table(rows: Sequence[StudyRow]) -> Table:
    front = {id(row) for row in pareto_front(rows)}
    columns: dict[str, Column] = {
        "model": "model",
        "layer": lambda row: f"{row.scores.layer}{' *' * (id(row) in front)}",
        **{"parameters": "scores.parameters", "dev": "scores.dev:±", "test": "scores.test:±"},
        **{"test Pearson": "scores.test_pearson:±", "published test": "published_test"},
    }
    return Table.of("", rows, columns)


def _plots(result: StudyResult, task: str, curves: Sequence[Curve]) -> list[Plot]:
    unit = f"points ({curves[0].best_dev.metric})"
    layers, pareto, plots = list[Series](), list[Series](), list[Plot]()

    def plot(kind: str, title: str, series: Sequence[Series], y: str = unit, x: str = LAYERS) -> Plot:
        file = figure_name(task, kind).removesuffix(".png")
        return Plot(title, x, y, series, whole=x == LAYERS, file=file)

    for place, curve in enumerate(curves):
        turn, color = divmod(place, len(_COLORS))
        marker = _MARKERS[place % len(_MARKERS)]
        style: dict[str, Any] = {"color": _COLORS[color], "line": _LINES[turn % len(_LINES)], "marker": marker}
        model, scores = curve.best_dev.model, [row.scores for row in curve.rows]
        x, test, spread = zip(*((one.layer, one.test, one.test_std) for one in scores), strict=True)
        layers.append(Series(x, test, model, spread=spread, **style))
        pareto.append(Series([one.parameters / 1e6 for one in scores], test, model, width=1, **style))
        series = layer_series(scores)
        published = {row.scores.layer: row.published_test for row in curve.rows if row.published_test is not None}
        if published:
            series.append(Series([*published], [*published.values()], "published, test", line=":", marker=""))
        plots.append(plot("curves", model, series))
    fronts = [
        _front(result.of(task), "Pareto front", "-", 4),
        _front(_ends(curves), "Pareto front of best-dev and last layers only", "--", 1.5),
    ]
    axes = f"test score in {unit}", "parameters kept, millions"
    plots.append(plot("layers", f"Test score of each layer: {task}", layers))
    plots.append(plot("pareto", f"Score against parameters: {task}", (*fronts, *pareto), *axes))
    cka: dict[str, list[CKARow]] = {}
    for row in result.cka:
        if row.task == task:
            cka.setdefault(row.model, []).append(row)
    drawn = cka.items()
    return plots + [plot("cka", name, _cka(mine), f"CKA to {mine[0].reference}") for name, mine in drawn]


def _front(rows: Sequence[StudyRow], label: str, line: str, width: float) -> Series:
    front = [(row.scores.parameters / 1e6, row.scores.test) for row in pareto_front(rows)]
    steps = [*chain(*(((x, y), (there, y)) for (x, y), (there, _) in pairwise(front))), front[-1]]
    x, y = zip(*steps, strict=True)
    return Series(x, y, label, GREY, marker="", line=line, width=width)


def _cka(rows: Sequence[CKARow]) -> list[Series]:
    layers, series = [row.layer for row in rows], list[Series]()
    for (stage, label), color, marker in zip(_STAGES.items(), _COLORS, _MARKERS, strict=False):
        values, biased = ([getattr(row, f"{stage}{form}") for row in rows] for form in ("", "_biased"))
        series.append(Series(layers, values, label, color, marker=marker))
        if any(value is not None for value in biased):
            series.append(Series(layers, biased, f"{label}, biased", color, marker="", line=":"))
    return series
