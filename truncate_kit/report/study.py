"""The view of a study, and its files: tables as CSV and Markdown, figures."""

import csv
import io
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain, pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

from truncate_kit.core.files import write_text
from truncate_kit.core.wording import counted, in_markdown
from truncate_kit.methods.study.result import (
    CKARow,
    StudyResult,
    StudyRow,
    Summary,
    figure_name,
    pareto_front,
    summaries,
)
from truncate_kit.report.training import layer_series, points_of
from truncate_kit.report.view import (
    BLUE,
    GREEN,
    GREY,
    LAYERS,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    Cell,
    Plot,
    Series,
    Table,
    View,
)

SCORES, BEST, SIMILARITY, PAGE = "scores.csv", "best.csv", "cka.csv", "tables.md"
_MEASURES = {"dev": "published_dev", "dev_pearson": "published_dev_pearson", "test": "published"}
_MEASURES["test_pearson"] = "published_pearson"
_COLORS, _LINES, _MARKERS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY), ("-", "--", "-.", ":"), "osD^vPX"
_KINDS = ("curves", "layers", "pareto", "cka")
_STAGES = {
    "untrained": "untrained",
    "last_trained": "trained at the last layer",
    "own_trained": "trained at this layer",
}
_SUMMARY: dict[str, Callable[[Summary], Cell]] = {
    "model": lambda line: line.model,
    "best dev": lambda line: str(line.best_dev.scores.layer),
    "parameters": lambda line: line.best_dev.scores.parameters,
    "dev": lambda line: points_of(line.best_dev.scores, "dev"),
    "test": lambda line: points_of(line.best_dev.scores, "test"),
    "last": lambda line: None if line.last is None else str(line.last.scores.layer),
    "last test": lambda line: None if line.last is None else points_of(line.last.scores, "test"),
    "drops by": lambda line: None if line.drop is None else f"{line.drop:.2f}{' drop' * line.drops}",
}


def view_study(result: StudyResult) -> View:
    """Show the best layers of each task."""
    tables = []
    for task in result.tasks():
        lines = [line for line in summaries(result) if line.task == task]
        tables.append(Table.of(f"{task}: layers and their scores, {lines[0].metric}", lines, _SUMMARY))
    plots = [plot for task in result.tasks() for plot in _plots(result, task)]
    return View(key="study", title="Fine-tuned at every layer", tables=tables, plots=plots)


def write_tables(result: StudyResult, folder: Path) -> None:
    """Write all scores, best layers, CKA if there is any, and a page of it all. Raises `FileProblemError`."""
    front = {id(row) for task in result.tasks() for row in pareto_front(result.of_task(task))}
    scores = []
    for row in result.rows:
        named = {"model": row.model, "task": row.task, "metric": row.metric, "depth": row.depth}
        more = {"seeds": len(row.scores.seeds), "on_front": id(row) in front}
        scores.append({**named, **_figures(row), **more})
    best = []
    for line in summaries(result):
        cells: dict[str, object] = {"model": line.model, "task": line.task, "metric": line.metric}
        for name, found in (("best_dev", line.best_dev), ("last", line.last)):
            figures = _figures(found or line.best_dev)
            cells |= {f"{name}_{column}": value if found else None for column, value in figures.items()}
        best.append(cells | {"drop": line.drop, "drops": line.drops})
    _write_csv(folder / SCORES, scores, 2)
    _write_csv(folder / BEST, best, 2)
    if result.cka:
        _write_csv(folder / SIMILARITY, [row.to_dict() for row in result.cka], 4)
    write_text(folder / PAGE, page(result))


def _figures(row: StudyRow) -> dict[str, object]:
    """Give scores, sizes and published figures by the names of their columns."""
    scores = row.scores
    values = {"layer": scores.layer, "parameters": scores.parameters, "paper_parameters": row.paper_parameters}
    values |= {f"{name}{end}": getattr(scores, f"{name}{end}") for name in _MEASURES for end in ("", "_std")}
    return values | {f"published_{name}": getattr(row, field) for name, field in _MEASURES.items()}


def _write_csv(path: Path, rows: Sequence[dict[str, object]], digits: int) -> None:
    text = io.StringIO()
    table = csv.DictWriter(text, fieldnames=list(rows[0]) if rows else (), lineterminator="\n")
    if rows:
        table.writeheader()
    for row in rows:
        cells = {name: f"{value:.{digits}f}" if isinstance(value, float) else value for name, value in row.items()}
        table.writerow(cells)
    write_text(path, text.getvalue())


def page(result: StudyResult) -> str:
    """Write Markdown: for each task the best layers, the curves, every layer, the Pareto front, and CKA."""
    parts = ["# Fine-tuned at every layer"]
    for task in result.tasks():
        rows = result.of_task(task)
        seeds = max(len(row.scores.seeds) for row in rows)
        lines = [line for line in summaries(result) if line.task == task]
        figures = {kind: figure_name(task, kind) for kind in _KINDS}
        parts += [
            f"## {in_markdown(task)}",
            f"{in_markdown(rows[0].metric)}; mean ± standard deviation over {counted(seeds, 'seed')}.",
            Table.of("", lines, _SUMMARY).markdown(),
            "As Tables 1 and 2 of the TMFT paper: the layer that is best on dev, and the last one.",
            _paper_table(lines).markdown(),
            f"![Test score by layer]({figures['layers']})",
            f"![Score by layer]({figures['curves']})",
            f"![Score by parameters]({figures['pareto']})",
            "Every layer; * marks the Pareto front of test score and parameters.",
            _layer_table(rows).markdown(),
        ]
        if cka := [row for row in result.cka if row.task == task]:
            forms = dict(_STAGES)
            forms |= {f"{stage}_biased": f"biased: {name}" for stage, name in _STAGES.items()}
            columns: dict[str, Callable[[CKARow], Cell]] = {
                "model": lambda row: row.model,
                "layer": lambda row: str(row.layer),
                "layer of the reference": lambda row: str(row.reference_layer),
            }
            columns |= {name: partial(_similarity, field) for field, name in forms.items()}
            parts += [
                f"CKA, debiased and biased, to {in_markdown(cka[0].reference)} on {cka[0].num_texts:,} distinct test "
                "texts, one seed: both models untrained, both trained at their last layer, or both cut and trained "
                "at this one. The TMFT paper computed the biased form, which is high for few texts.",
                f"![CKA by layer]({figures['cka']})",
                Table.of("", cka, columns).markdown(),
            ]
    return "\n\n".join(parts) + "\n"


def _similarity(field: str, row: CKARow) -> str:
    value = getattr(row, field)
    return "" if value is None else f"{value:.4f}"


def _paper_table(lines: Sequence[Summary]) -> Table:
    """Give both layers of each model, the last one only if it is another, with parameters as the paper counts them."""
    found = [row for line in lines for row in dict.fromkeys((line.best_dev, line.last)) if row is not None]
    columns: dict[str, Callable[[StudyRow], Cell]] = {
        "model": lambda row: row.model,
        "layer": lambda row: str(row.scores.layer),
        "parameters, millions": lambda row: row.paper_parameters / 1e6,
    }
    main = " Spearman" if lines and "Spearman" in lines[0].metric else ""
    heads = {name: name.replace("_p", " P") + ("" if "_" in name else main) for name in _MEASURES}
    columns |= {head: partial(_scored, name) for name, head in heads.items()}
    if any(getattr(row, field) is not None for row in found for field in _MEASURES.values()):
        columns |= {f"published {head}": attrgetter(_MEASURES[name]) for name, head in heads.items()}
    return Table.of("", found, columns)


def _scored(name: str, row: StudyRow) -> str:
    return points_of(row.scores, name)


def _layer_table(rows: Sequence[StudyRow]) -> Table:
    front = {id(row) for row in pareto_front(rows)}
    columns: dict[str, Callable[[StudyRow], Cell]] = {
        "model": lambda row: row.model,
        "layer": lambda row: f"{row.scores.layer}{' *' * (id(row) in front)}",
        "parameters": lambda row: row.scores.parameters,
        "dev": lambda row: points_of(row.scores, "dev"),
        "test": lambda row: points_of(row.scores, "test"),
        "test Pearson": lambda row: points_of(row.scores, "test_pearson"),
    }
    if any(row.published is not None for row in rows):
        columns["published test"] = lambda row: row.published
    return Table.of("", rows, columns)


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
        layers.append(Series(x, test, model, spread=[row.test_std for row in scores], **look))
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
