"""A study as CSV and Markdown."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from truncate_kit.files import write_text
from truncate_kit.study.results import CKARow, StudyResult, StudyRow, Summary, pareto_front, summaries
from truncate_kit.sweep.card import points
from truncate_kit.wording import counted

SCORES, BEST, SIMILARITY, PAGE = "scores.csv", "best.csv", "cka.csv", "tables.md"


def write_tables(result: StudyResult, folder: Path) -> None:
    """Write all scores, the best layers, CKA if it was asked for, and a page with it all and figures by name.

    Raises `CannotWriteError`.
    """
    front = {id(row) for task in result.tasks() for row in pareto_front(result.of_task(task))}
    write_text(folder / SCORES, _csv([_score_cells(row) | {"on_front": id(row) in front} for row in result.rows]))
    write_text(folder / BEST, _csv([_best_cells(line) for line in summaries(result)]))
    if result.cka:
        write_text(folder / SIMILARITY, _csv([row.to_dict() | _similarities(row) for row in result.cka]))
    write_text(folder / PAGE, page(result))


def figure_name(task: str, kind: str) -> str:
    """File name of the figure of a task: curves, layers, pareto or cka."""
    return f"{kind}-{''.join(char if char.isalnum() else '-' for char in task).strip('-')}.png"


def page(result: StudyResult) -> str:
    """Markdown: for each task the best layers, the curves, every layer, who is on the Pareto front, and CKA."""
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


def _best_table(lines: Sequence[Summary]) -> str:
    head = (
        "| model | best dev: layer | parameters | dev | test | picked: layer | test | last: layer | test | falls by |"
    )
    cells = [
        f"| {_plain(line.model)} | {line.best_dev.scores.layer} | {line.best_dev.scores.parameters:,} "
        f"| {points(line.best_dev.scores.dev, line.best_dev.scores.dev_std)} "
        f"| {points(line.best_dev.scores.test, line.best_dev.scores.test_std)} "
        f"| {line.picked.scores.layer} | {points(line.picked.scores.test, line.picked.scores.test_std)} "
        f"| {line.last.scores.layer} | {points(line.last.scores.test, line.last.scores.test_std)} "
        f"| {line.drop:.2f}{' (a drop)' if line.drops else ''} |"
        for line in lines
    ]
    return "\n".join((head, "|---" * 10 + "|", *cells, ""))


def _paper_table(lines: Sequence[Summary]) -> str:
    """Both layers of each model, the last one only where it is another, with parameters as the paper counts them."""
    rows = [
        (line.model, row)
        for line in lines
        for row in ((line.best_dev,) if line.best_dev is line.last else (line.best_dev, line.last))
    ]
    published = any(value is not None for _, row in rows for value in _published(row))
    heads = ["dev", "dev Pearson", "test", "test Pearson"]
    if rows and "Spearman" in rows[0][1].metric:
        heads = ["dev Spearman", "dev Pearson", "test Spearman", "test Pearson"]
    columns = ["model", "layer", "parameters, millions", *heads, *(f"published {head}" for head in heads if published)]
    table = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for model, row in rows:
        s = row.scores
        cells = [_plain(model), f"{s.layer}", f"{row.paper_parameters / 1e6:.2f}"]
        cells += [points(s.dev, s.dev_std), points(s.dev_pearson, s.dev_pearson_std)]
        cells += [points(s.test, s.test_std), points(s.test_pearson, s.test_pearson_std)]
        table.append("| " + " | ".join([*cells, *(map(_number, _published(row)) if published else ())]) + " |")
    return "\n".join((*table, ""))


def _published(row: StudyRow) -> tuple[float | None, ...]:
    """Published dev and test figures, each by the main score and by Pearson's correlation."""
    return row.published_dev, row.published_dev_pearson, row.published, row.published_pearson


def _cka_section(rows: Sequence[CKARow], task: str) -> list[str]:
    """Nothing where no CKA was asked for, or the reference is the only model so far."""
    if not rows:
        return []
    head = "| model | layer | layer of the reference | untrained | trained at the last layer | trained at this layer |"
    table = [
        f"| {_plain(row.model)} | {row.layer} | {row.reference_layer} | "
        + " | ".join(_similarities(row).values())
        + " |"
        for row in rows
    ]
    said = (
        f"Debiased CKA to {_plain(rows[0].reference)} on {rows[0].num_texts:,} distinct test texts, one seed; both "
        "models untrained, both trained at their last layer, or both cut and trained at this one, as the TMFT paper "
        "has it.\n"
    )
    if any(row.own_trained is None and row.untrained is not None for row in rows):
        said += (
            "\nThe last column is empty where a layer was trained before CKA was asked for, or not at all: only the "
            "states of a model that is being trained are read. To have them, delete the trials `layer…-seed0-…json` of "
            "both models and run the study again.\n"
        )
    figure = f"![CKA by layer]({figure_name(task, 'cka')})\n"
    return [said, figure, "\n".join((head, "|---" * 6 + "|", *table, ""))]


def _similarities(row: CKARow) -> dict[str, str]:
    stages = {"untrained": row.untrained, "last_trained": row.last_trained, "own_trained": row.own_trained}
    return {name: "" if value is None else f"{value:.4f}" for name, value in stages.items()}


def _layer_table(rows: Sequence[StudyRow]) -> str:
    published = any(row.published is not None for row in rows)
    front = {id(row) for row in pareto_front(rows)}
    head = "| model | layer | parameters | dev | test | test Pearson |" + (" published test |" if published else "")
    lines = [head, "|---" * (7 if published else 6) + "|"]
    for row in rows:
        scores = row.scores
        line = (
            f"| {_plain(row.model)} | {scores.layer}{' *' if id(row) in front else ''} | {scores.parameters:,} "
            f"| {points(scores.dev, scores.dev_std)} | {points(scores.test, scores.test_std)} "
            f"| {points(scores.test_pearson, scores.test_pearson_std)} |"
        )
        lines.append(line + (f" {points(row.published, None)} |" if published else ""))
    return "\n".join((*lines, ""))


def _score_cells(row: StudyRow) -> dict[str, object]:
    scores = row.scores
    return {
        "model": row.model,
        "task": row.task,
        "metric": row.metric,
        "layer": scores.layer,
        "depth": row.depth,
        "parameters": scores.parameters,
        "paper_parameters": row.paper_parameters,
        "seeds": len(scores.seeds),
        "dev": _number(scores.dev),
        "dev_std": _number(scores.dev_std),
        "dev_pearson": _number(scores.dev_pearson),
        "dev_pearson_std": _number(scores.dev_pearson_std),
        "test": _number(scores.test),
        "test_std": _number(scores.test_std),
        "test_pearson": _number(scores.test_pearson),
        "test_pearson_std": _number(scores.test_pearson_std),
        "published_dev": _number(row.published_dev),
        "published_dev_pearson": _number(row.published_dev_pearson),
        "published_test": _number(row.published),
        "published_test_pearson": _number(row.published_pearson),
    }


def _best_cells(line: Summary) -> dict[str, object]:
    cells: dict[str, object] = {"model": line.model, "task": line.task, "metric": line.metric}
    for name, row in (("best_dev", line.best_dev), ("picked", line.picked), ("last", line.last)):
        cells |= {
            f"{name}_layer": row.scores.layer,
            f"{name}_parameters": row.scores.parameters,
            f"{name}_paper_parameters": row.paper_parameters,
            f"{name}_dev": _number(row.scores.dev),
            f"{name}_dev_std": _number(row.scores.dev_std),
            f"{name}_dev_pearson": _number(row.scores.dev_pearson),
            f"{name}_dev_pearson_std": _number(row.scores.dev_pearson_std),
            f"{name}_test": _number(row.scores.test),
            f"{name}_test_std": _number(row.scores.test_std),
            f"{name}_test_pearson": _number(row.scores.test_pearson),
            f"{name}_test_pearson_std": _number(row.scores.test_pearson_std),
            f"{name}_published_dev": _number(row.published_dev),
            f"{name}_published_dev_pearson": _number(row.published_dev_pearson),
            f"{name}_published_test": _number(row.published),
            f"{name}_published_test_pearson": _number(row.published_pearson),
        }
    return cells | {"drop": _number(line.drop), "drops": line.drops}


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
