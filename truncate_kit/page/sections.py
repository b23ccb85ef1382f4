"""The parts of a page, from the results of a run; a part that lacks its result names the command that makes it."""

from collections.abc import Sequence

from truncate_kit.bench.bench_report import BenchReport
from truncate_kit.page.charts import cka_charts, layers_chart, sizes_charts, speed_chart
from truncate_kit.page.layout import Section
from truncate_kit.page.loading import snippets
from truncate_kit.page.measures import against_table
from truncate_kit.page.run import Run
from truncate_kit.report.analysis_table import analysis_table
from truncate_kit.report.bench_tables import absences, bench_tables, ceiling_sentences, machine_sentence
from truncate_kit.report.cells import TableCells, number
from truncate_kit.report.sweep_figure import RANKING_WORDS
from truncate_kit.report.training_tables import check_table, frontier_table, sizes_table, sweep_table
from truncate_kit.wording import counted


def sections(run: Run) -> list[Section]:
    """All parts, in the order in which a reader asks."""
    found = [against(run), speed(run), layers(run), sizes(run), similarity(run), graph(run), loading(run)]
    return [section for section in found if section is not None]


def against(run: Run) -> Section | None:
    """Lean against full, at one glance."""
    if run.model is None:
        how = run.command("finetune"), run.command("distill", "--texts", "sentences.txt")
        return Section(
            key="against",
            title="Lean against full",
            missing=(("No lean model yet, with scored pairs", how[0]), ("No lean model yet, without labels", how[1])),
        )
    cells = None if run.bench is None else against_table(run.bench)
    if run.bench is None or cells is None:
        return Section(key="against", title="Lean against full", missing=(("Not measured yet", run.command("bench")),))
    unmeasured = all(row.memory is None for row in run.bench.measured())
    return Section(
        key="against",
        title="Lean against full",
        sentences=(
            "Lean in its fastest runtime, full in torch in float32, as most people run it; the score is that of each "
            "in the runtime named, the interval that of both in the same one.",
        ),
        tables=(cells,),
        missing=(("Peak memory was not measured", run.command("bench")),) if unmeasured else (),
    )


def speed(run: Run) -> Section | None:
    """Every depth, runtime and precision that was measured."""
    if not run.benches:
        return None
    first = run.benches[0].machine
    same = [
        row
        for row in run.benches
        if (row.machine.processor, row.machine.threads, row.machine.device)
        == (first.processor, first.threads, first.device)
    ]
    chart = speed_chart(same)
    more: tuple[tuple[str, str], ...] = ()
    if run.model is not None and first.device == "cpu" and all(report.precision != "int8" for report in run.graphs):
        commands = run.command("export", "--onnx", "--precision", "int8"), run.command("bench")
        more = (("No int8 graph was measured, often the fastest on a CPU", " && ".join(commands)),)
    others = [f"Measured elsewhere, so not drawn: {row.machine.processor}." for row in run.benches if row not in same]
    return Section(
        key="speed",
        title="Speed against quality",
        sentences=tuple(others),
        charts=() if chart is None else (chart,),
        tables=tuple(bench_tables(row)[0] for row in run.benches),
        missing=more,
    )


def layers(run: Run) -> Section | None:
    """Scores of layers, the search's cheap rankings, and the trials."""
    sweep = run.sweep
    if sweep is None:
        return None
    share = 100 * sweep.search_cost / max(1, sweep.exhaustive_cost)
    cost = f"The search cost {sweep.search_cost:,} block-steps, {share:.0f} % of trying every layer with every seed."
    few = len(sweep.settings.seeds) < 2
    return Section(
        key="layers",
        title="Which layer",
        sentences=(*sweep.choice_sentences, *([cost] if sweep.search_cost else [])),
        charts=(layers_chart(sweep),),
        tables=(sweep_table(sweep),),
        folded=tuple(_search_tables(run)),
        missing=(("No deviation over seeds", run.command("finetune", "--seeds", "3")),) if few else (),
    )


def _search_tables(run: Run) -> list[TableCells]:
    sweep = run.sweep
    if sweep is None:
        return []
    found = []
    if sweep.rankings:
        names = tuple(sweep.rankings)
        scores = {name: dict(zip(row.layers, row.scores, strict=True)) for name, row in sweep.rankings.items()}
        every = sorted(set().union(*scores.values()))
        rows = [(sweep.row_name(layer), *(number(scores[name].get(layer)) for name in names)) for layer in every]
        titles = (RANKING_WORDS.get(name, name) for name in names)
        found.append(TableCells("Cheap rankings of the search, dev score in points", ("layer", *titles), rows))
    trials = [
        (
            sweep.row_name(trial.layer),
            f"{trial.seed}",
            f"{trial.epochs_run} of {trial.epochs}",
            f"{trial.best_epoch}",
            number(trial.dev),
            number(trial.test),
            f"{trial.seconds:,.1f}",
        )
        for trial in (*sweep.search, *sweep.trials)
    ]
    columns = ("layer", "seed", "epochs", "best epoch", "dev", "test", "seconds")
    return [*found, TableCells("Every trial, those of the search first", columns, trials)]


def sizes(run: Run) -> Section | None:
    """Numbers of blocks, before and after learning."""
    result = run.distilled
    if result is None:
        return None
    graphs = [] if result.frontier is None else [frontier_table(result.frontier)]
    return Section(
        key="sizes",
        title="How many blocks",
        sentences=(f"Texts: {result.texts.sentence}", *result.notes),
        charts=sizes_charts(result),
        tables=(sizes_table(result), *graphs),
    )


def similarity(run: Run) -> Section | None:
    """CKA, and what the layers show before training."""
    profile = run.profile
    if profile is None:
        words = ("analyze", run.origin) if run.origin else ("analyze",)
        return Section(
            key="cka", title="What the layers show", missing=(("Layers were not analyzed", run.command(*words)),)
        )
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
        sentences=(profile.sentence, *profile.statements()),
        charts=cka_charts(profile),
        folded=(analysis_table(profile), matrix),
    )


def graph(run: Run) -> Section | None:
    """What each export checked."""
    if run.model is None:
        return None
    if not run.graphs:
        return Section(
            key="graph", title="The ONNX graph", missing=(("No graph yet", run.command("export", "--onnx")),)
        )
    sentences: list[str] = []
    for report in run.graphs:
        bounded = [check for check in report.checks if check.limit is not None]
        within = sum(check.difference <= (check.limit or 0.0) for check in bounded)
        sentences += [
            f"{report.file}: {report.precision} for {report.target}, {report.file_bytes / 1e6:.1f} MB, opset "
            f"{report.opset}; {within} of {counted(len(bounded), 'check')} within their limits.",
            report.fusion_sentence(),
            *report.precision_sentences(),
        ]
    return Section(
        key="graph",
        title="What the export checked",
        sentences=sentences,
        folded=[
            TableCells(f"{report.file}. {cells.title}", cells.columns, cells.rows)
            for report in run.graphs
            for cells in [check_table(report)]
        ],
    )


def loading(run: Run) -> Section | None:
    """Lines to copy."""
    if run.model is None:
        return None
    preferred = next((report for report in run.graphs if report.precision == "fp32"), None)
    return Section(
        key="loading",
        title="Use the model",
        sentences=("An ordinary sentence-transformers folder; each of these gives the same vectors.",),
        snippets=snippets(run.model, preferred or next(iter(run.graphs), None)),
    )


def bench_details(reports: Sequence[BenchReport]) -> tuple[list[str], list[TableCells]]:
    """What benches say beside their overview."""
    sentences: list[str] = []
    for report in reports:
        sentences += [machine_sentence(report), *ceiling_sentences(report), *absences(report), *report.notes]
    return list(dict.fromkeys(sentences)), [cells for report in reports for cells in bench_tables(report)[1:]]
