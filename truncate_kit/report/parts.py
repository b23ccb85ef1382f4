"""What is shown of each kind of result, on the page of a run and where a notebook shows the result itself."""

from collections.abc import Callable, Iterable
from typing import Any

from truncate_kit.analysis.layer_profile import LayerProfile
from truncate_kit.bench.bench_report import BenchReport
from truncate_kit.cells import NONE, TableCells, number
from truncate_kit.export.record import ExportReport
from truncate_kit.methods.bert_lc.result import CombinationReport
from truncate_kit.methods.contrast.contrastive_result import ContrastiveResult
from truncate_kit.methods.distill.result import DistillResult
from truncate_kit.methods.frozen.frozen_report import FrozenReport
from truncate_kit.methods.tmft.sweep_result import SweepResult
from truncate_kit.report.analysis_table import analysis_table
from truncate_kit.report.bench_tables import absences, bench_tables, machine_sentence, scored_sentences
from truncate_kit.report.charts import (
    attempts_chart,
    cka_charts,
    combined_charts,
    heads_charts,
    layers_chart,
    sizes_charts,
    speed_chart,
)
from truncate_kit.report.combination_tables import best_of_sizes_table, effects_table, scores_table
from truncate_kit.report.frozen_tables import step_table, worst_table
from truncate_kit.report.layout import TEXTS, Section
from truncate_kit.report.measuring import view_export
from truncate_kit.report.sweep_figure import RANKING_WORDS
from truncate_kit.report.training_tables import check_table, frontier_table, rules_table, sizes_table, sweep_table
from truncate_kit.results import Result
from truncate_kit.training.trials import Trial
from truncate_kit.wording import counted, points

_LONGEST = 80  # characters of a value in a table of fields


def part_of(result: Result) -> Section:
    """The part of a page for any result; one without a part of its own is a table of its fields."""
    found = PARTS.get(type(result))
    return fields_part(result) if found is None else found(result)


def profile_part(profile: LayerProfile) -> Section:
    """CKA, and what the layers show before training."""
    size = len(profile.cka_matrix[0]) if profile.cka_matrix else 0
    matrix = TableCells(
        "CKA of every pair: rows are layers of the model, columns of "
        + ("the model" if profile.reference is None else "the reference"),
        ("layer", *map(str, range(size))),
        [(str(layer), *(number(value, ".3f") for value in row)) for layer, row in enumerate(profile.cka_matrix)],
    )
    return Section(
        key="cka",
        title="What the layers show",
        sentences=(profile.sentence, *filter(None, [profile.best_sentence]), *profile.statements()),
        charts=cka_charts(profile),
        folded=(analysis_table(profile), matrix),
    )


def sweep_part(sweep: SweepResult) -> Section:
    """Scores of layers, the search's cheap rankings, and the trials."""
    return Section(
        key="layers",
        title="Which layer",
        sentences=(*sweep.choice_sentences, *sweep.cost_sentences),
        charts=(layers_chart(sweep),),
        tables=(sweep_table(sweep),),
        folded=tuple(_search_tables(sweep)),
    )


def _search_tables(sweep: SweepResult) -> list[TableCells]:
    found = []
    if sweep.rankings:
        names = tuple(sweep.rankings)
        scores = {name: dict(zip(row.layers, row.scores, strict=True)) for name, row in sweep.rankings.items()}
        every = sorted(set().union(*scores.values()))
        rows = [(sweep.row_name(layer), *(number(scores[name].get(layer)) for name in names)) for layer in every]
        titles = (RANKING_WORDS.get(name, name) for name in names)
        title = f"Cheap rankings of the search on dev, {sweep.metric}"
        found.append(TableCells(title, ("layer", *titles), rows))
    every_trial = (*sweep.search, *sweep.trials)
    return [
        *found,
        _trials_table(f"Every trial, those of the search first; {sweep.metric}", every_trial, sweep.row_name),
    ]


def _trials_table(title: str, trials: Iterable[Trial], name: Callable[[int], str] = str) -> TableCells:
    rows = [
        (
            name(trial.layer),
            f"{trial.seed}",
            f"{trial.epochs_run} of {trial.epochs}",
            f"{trial.best_epoch}",
            number(trial.dev),
            number(trial.test),
            f"{trial.seconds:,.1f}",
        )
        for trial in trials
    ]
    return TableCells(title, ("layer", "seed", "epochs", "best epoch", "dev", "test", "seconds"), rows)


def sizes_part(result: DistillResult) -> Section:
    """Numbers of blocks, before and after learning."""
    sizes = sizes_table(result)  # its last column, the rates, would not fit: the caption has the full model's
    graphs, folded = [], [rules_table(result.search, result.metric)]
    if (frontier := result.frontier) is not None:
        graphs.append(frontier_table(frontier, result.metric, result.graph))
        folded.append(frontier_table(frontier, result.metric, result.graph, every=True))
    return Section(
        key="sizes",
        title="How many blocks",
        sentences=(f"Texts: {result.texts.sentence}", *result.notes, *filter(None, [result.graph_sentence])),
        charts=sizes_charts(result),
        tables=(sizes._replace(columns=sizes.columns[:-1], rows=[row[:-1] for row in sizes.rows]), *graphs),
        folded=folded,
    )


def contrast_part(result: ContrastiveResult) -> Section:
    """Dev scores while the model learned, seed by seed, and what came out."""
    learned = result.rows.removeprefix("Training: ").rstrip(".")
    return Section(
        key="contrast",
        title="Contrastive training",
        sentences=(
            f"Learned from {learned}: objective {result.settings.objective}, layer {result.layer} of {result.depth}, "
            f"batches of {result.batch_size}, peak rate {result.learning_rate:g}.",
            f"Spearman × 100 on {result.data}: dev {points(result.dev, result.dev_std)}, test "
            f"{points(result.test, result.test_std)}, {counted(len(result.trials), 'seed')}. Saved: seed "
            f"{result.chosen_seed}.",
            *result.seen_sentences,
        ),
        charts=(attempts_chart(result),),
        tables=(_trials_table("Every seed, Spearman × 100", result.trials),),
    )


def heads_part(report: FrozenReport) -> Section:
    """Scores of heads over frozen states, and where the saved ones err most."""
    return Section(
        key="heads",
        title="Heads over frozen states",
        sentences=(*report.statements(), report.leakage()),
        charts=heads_charts(report),
        tables=(step_table(report)[0],),
        folded=(worst_table(report),),
    )


def combined_part(report: CombinationReport) -> Section:
    """The best mean of layers of each size, and what each layer is good for."""
    return Section(
        key="combined",
        title="Several layers together",
        sentences=(report.choice_sentence, *report.statements()),
        charts=combined_charts(report),
        tables=(scores_table(report, f"Spearman × 100 on {report.data}"),),
        folded=(best_of_sizes_table(report, with_layers=False), effects_table(report)),
    )


def bench_part(report: BenchReport) -> Section:
    """Speed, memory and quality of what was timed."""
    chart = speed_chart([report])
    first, *rest = bench_tables(report)
    return Section(
        key="speed",
        title="Speed against quality",
        sentences=(machine_sentence(report), *scored_sentences(report), *absences(report), *report.notes),
        charts=() if chart is None else (chart,),
        tables=(first,),
        folded=rest,
    )


def export_part(report: ExportReport) -> Section:
    """A graph, and what its export checked."""
    return Section(
        key="graph",
        title="What the export checked",
        sentences=export_sentences(report),
        folded=(export_table(report),),
    )


def export_sentences(report: ExportReport) -> tuple[str, ...]:
    """A graph in words."""
    return tuple(view_export(report).sentences)


def export_table(report: ExportReport) -> TableCells:
    """The checks of a graph, by the name of its file."""
    cells = check_table(report)
    return cells._replace(title=f"{report.file}. {cells.title}")


def fields_part(result: Result) -> Section:
    """Every field and its value, long ones cut."""
    rows = [(name.replace("_", " "), _shown(value)) for name, value in result.to_dict().items()]
    return Section(key="fields", title=type(result).__name__, tables=(TableCells("", TEXTS, rows),))


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple | dict) and len(value) > 4:
        return counted(len(value), "value")
    text = NONE if value is None else f"{value:,.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


PARTS: dict[type[Result], Callable[[Any], Section]] = {
    LayerProfile: profile_part,
    SweepResult: sweep_part,
    DistillResult: sizes_part,
    ContrastiveResult: contrast_part,
    FrozenReport: heads_part,
    CombinationReport: combined_part,
    BenchReport: bench_part,
    ExportReport: export_part,
}
"""The part of each kind of result that has one."""
