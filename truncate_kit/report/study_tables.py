"""A study as CSV and Markdown."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from truncate_kit.files import write_text
from truncate_kit.methods.study.plan import figure_name
from truncate_kit.methods.study.result import CKARow, StudyResult, StudyRow, Summary, pareto_front, summaries
from truncate_kit.wording import NONE, counted, markdown, points

SCORES, BEST, SIMILARITY, PAGE = "scores.csv", "best.csv", "cka.csv", "tables.md"
_SCORES = ("dev", "dev_pearson", "test", "test_pearson")


def write_tables(result: StudyResult, folder: Path) -> None:
    """Write all scores, best layers, CKA if there is any, and a page of it all. Raises `FileProblemError`."""
    front = {id(row) for task in result.tasks() for row in pareto_front(result.of_task(task))}
    write_text(folder / SCORES, _csv([_score_cells(row) | {"on_front": id(row) in front} for row in result.rows]))
    write_text(folder / BEST, _csv([_best_cells(line) for line in summaries(result)]))
    if result.cka:
        write_text(folder / SIMILARITY, _csv([row.to_dict() | _similarities(row) for row in result.cka]))
    write_text(folder / PAGE, page(result))


def page(result: StudyResult) -> str:
    """Markdown: for each task the best layers, the curves, every layer, the Pareto front, and CKA."""
    parts = ["# Fine-tuned at every layer\n"]
    for task in result.tasks():
        rows = result.of_task(task)
        seeds = max(len(row.scores.seeds) for row in rows)
        parts.append(f"## {_plain(task)}\n")
        parts.append(f"{rows[0].metric}; mean ± standard deviation over {counted(seeds, 'seed')}.\n")
        lines = [line for line in summaries(result) if line.task == task]
        parts.append(_best_table(lines))
        parts.append("As Tables 1 and 2 of the TMFT paper: the layer that is best on dev, and the last one.\n")
        parts.append(_paper_table(lines))
        parts.append(f"![Test score by layer]({figure_name(task, 'layers')})\n")
        parts.append(f"![Score by layer]({figure_name(task, 'curves')})\n")
        parts.append(f"![Score by parameters]({figure_name(task, 'pareto')})\n")
        parts.append("Every layer; * marks the Pareto front of test score and parameters.\n")
        parts.append(_layer_table(rows))
        parts += _cka_section([row for row in result.cka if row.task == task], task)
    return "\n".join(parts)


def _markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return f"{markdown(columns, rows)}\n"


def _best_table(lines: Sequence[Summary]) -> str:
    columns = ("model", "best dev: layer", "parameters", "dev", "test", "last: layer", "test")
    rows = []
    for line in lines:
        best = line.best_dev.scores
        chosen = (f"{best.layer}", f"{best.parameters:,}", *best.cells[:2])
        rows.append((_plain(line.model), *chosen, *last_cells(line, " (a drop)")))
    return _markdown((*columns, "drops by, from the best on test"), rows)


def last_cells(line: Summary, mark: str) -> tuple[str, str, str]:
    """The last layer, its test score and by how much it drops, with `mark` where that is a drop."""
    if line.last is None:
        return NONE, NONE, NONE
    scores = line.last.scores
    return f"{scores.layer}", scores.cells[1], f"{line.drop:.2f}{mark if line.drops else ''}"


def _paper_table(lines: Sequence[Summary]) -> str:
    """Both layers of each model, the last one only where it is another, with parameters as the paper counts them."""
    rows = [
        (line.model, row)
        for line in lines
        for row in ((line.best_dev,) if line.last in (None, line.best_dev) else (line.best_dev, line.last))
    ]
    published = any(value is not None for _, row in rows for value in _published(row))
    heads = ["dev", "dev Pearson", "test", "test Pearson"]
    if rows and "Spearman" in rows[0][1].metric:
        heads = ["dev Spearman", "dev Pearson", "test Spearman", "test Pearson"]
    columns = ["model", "layer", "parameters, millions", *heads, *(f"published {head}" for head in heads if published)]
    cells = []
    for model, row in rows:
        figures = [points(getattr(row.scores, name), getattr(row.scores, f"{name}_std")) for name in _SCORES]
        figures += map(_number, _published(row)) if published else ()
        cells.append((_plain(model), f"{row.scores.layer}", f"{row.paper_parameters / 1e6:.2f}", *figures))
    return _markdown(columns, cells)


def _published(row: StudyRow) -> tuple[float | None, ...]:
    """Published dev and test figures, each by the main score and by Pearson's correlation."""
    return row.published_dev, row.published_dev_pearson, row.published, row.published_pearson


def _cka_section(rows: Sequence[CKARow], task: str) -> list[str]:
    """Nothing without CKA, or where the reference is the only model so far."""
    if not rows:
        return []
    stages = ["untrained", "trained at the last layer", "trained at this layer"]
    stages += [f"biased: {stage}" for stage in stages]
    table = [
        (_plain(row.model), f"{row.layer}", f"{row.reference_layer}", *_similarities(row).values()) for row in rows
    ]
    said = (
        f"CKA, debiased and biased, to {_plain(rows[0].reference)} on {rows[0].num_texts:,} distinct test texts, one "
        "seed; both models untrained, both trained at their last layer, or both cut and trained at this one, as the "
        "TMFT paper has it. The authors computed the biased form, which is high where texts are few.\n"
    )
    if any(row.own_trained is None and row.untrained is not None for row in rows):
        said += (
            "\nThe last column is empty where a layer was trained before CKA was asked for, or not at all: only the "
            "states of a model that is being trained are read. To have them, run the study in another workspace.\n"
        )
    figure = f"![CKA by layer]({figure_name(task, 'cka')})\n"
    return [said, figure, _markdown(("model", "layer", "layer of the reference", *stages), table)]


def _similarities(row: CKARow) -> dict[str, str]:
    stages = ("untrained", "last_trained", "own_trained")
    found = {name: getattr(row, name) for name in (*stages, *(f"{stage}_biased" for stage in stages))}
    return {name: "" if value is None else f"{value:.4f}" for name, value in found.items()}


def _layer_table(rows: Sequence[StudyRow]) -> str:
    published = any(row.published is not None for row in rows)
    front = {id(row) for row in pareto_front(rows)}
    columns = ("model", "layer", "parameters", "dev", "test", "test Pearson", *(["published test"] * published))
    cells = []
    for row in rows:
        scores = row.scores
        cells.append(
            (
                _plain(row.model),
                f"{scores.layer}{' *' if id(row) in front else ''}",
                f"{scores.parameters:,}",
                *scores.cells,
                *([points(row.published, None)] * published),
            )
        )
    return _markdown(columns, cells)


def _score_cells(row: StudyRow) -> dict[str, object]:
    return {
        "model": row.model,
        "task": row.task,
        "metric": row.metric,
        "layer": row.scores.layer,
        "depth": row.depth,
        "parameters": row.scores.parameters,
        "paper_parameters": row.paper_parameters,
        "seeds": len(row.scores.seeds),
    } | _figures(row)


def _figures(row: StudyRow) -> dict[str, object]:
    """Scores and published figures by the names of their columns."""
    values = {f"{name}{end}": getattr(row.scores, f"{name}{end}") for name in _SCORES for end in ("", "_std")}
    values |= zip((f"published_{name}" for name in _SCORES), _published(row), strict=True)
    return {name: _number(value) for name, value in values.items()}


def _best_cells(line: Summary) -> dict[str, object]:
    cells: dict[str, object] = {"model": line.model, "task": line.task, "metric": line.metric}
    for name, row in (("best_dev", line.best_dev), ("last", line.last)):
        found = dict.fromkeys(_layer_cells(line.best_dev)) if row is None else _layer_cells(row)
        cells |= {f"{name}_{column}": value for column, value in found.items()}
    return cells | {"drop": _number(line.drop), "drops": line.drops}


def _layer_cells(row: StudyRow) -> dict[str, object]:
    """What best.csv says of a layer, by the names of its columns."""
    return {
        "layer": row.scores.layer,
        "parameters": row.scores.parameters,
        "paper_parameters": row.paper_parameters,
    } | _figures(row)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _csv(rows: Sequence[dict[str, object]]) -> str:
    text = io.StringIO()
    if rows:
        table = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    return text.getvalue()


def _plain(text: str) -> str:
    """Text from outside in a cell: one line, no cell border, no HTML."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
