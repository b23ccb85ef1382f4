"""The parts of a page, from the results of a run; a part that lacks its result names the command that makes it."""

from collections.abc import Sequence
from dataclasses import fields, replace

from truncate_kit.bench.backends import BACKENDS
from truncate_kit.bench.bench_report import BenchReport
from truncate_kit.cells import TableCells
from truncate_kit.methods.tmft.settings import SweepSettings
from truncate_kit.methods.tmft.strategies import STRATEGIES
from truncate_kit.methods.tmft.sweep_result import SweepResult
from truncate_kit.report.bench_tables import (
    absences,
    bench_tables,
    machine_sentence,
    scored_sentences,
)
from truncate_kit.report.charts import speed_chart
from truncate_kit.report.evidence import PAIRS, bench_of, bundled, is_on_bundled, own_bench
from truncate_kit.report.layout import Section
from truncate_kit.report.loading import snippets, what_they_give
from truncate_kit.report.measures import (
    ALIKE,
    against_table,
    has_interval,
    lean_and_full,
    shared_runtimes,
    stored_otherwise,
)
from truncate_kit.report.parts import export_sentences, export_table, part_of, profile_part, sweep_part
from truncate_kit.report.run import Run, named
from truncate_kit.training.objectives import OBJECTIVES
from truncate_kit.training.settings import TrainingSettings
from truncate_kit.wording import capitalized, counted

# What each setting of `finetune` is without its option; without these two it follows the pairs, so they are named.
_LEFT_OUT = {field.name: field.default for kind in (SweepSettings, TrainingSettings) for field in fields(kind)}
_LEFT_OUT |= {"epochs": None, "batch_size": None}
_NO_OPTION = {"weight_decay", "warmup", "max_gradient_norm", "buckets", "compact_vocabulary"}  # of the library alone


def sections(run: Run) -> list[Section]:
    """All parts, in the order in which a reader asks."""
    found = [against(run), speed(run), layers(run), *others(run), similarity(run), graph(run), loading(run)]
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
        return Section(key="against", title="Lean against full", missing=((_unmeasured(run), bench_of(run)),))
    missing = [("No score on pairs of your own", own_bench(run))] if is_on_bundled(run, run.bench) else []
    if all(row.peak_bytes is None for row in run.bench.measured()):
        missing.append(("Peak memory was not measured", bench_of(run)))
    return Section(
        key="against",
        title="Lean against full",
        sentences=(
            _how_compared(run.bench),
            *scored_sentences(run.bench),
            *filter(None, [stored_otherwise(run.bench)]),
        ),
        tables=(cells,),
        missing=missing,
    )


def _how_compared(bench: BenchReport) -> str:
    """In which runtimes lean and full stand side by side."""
    lean, full = lean_and_full(bench)
    if lean is None or full is None or lean.backend != full.backend:
        return (
            "No runtime timed both models: each stands in its own fastest one, so there is no factor of what depends "
            "on the runtime."
        )
    held = has_interval(bench, lean.backend)
    fastest = "the fastest of lean among those that timed both"
    if held and lean.backend != shared_runtimes(bench)[0]:
        fastest += " and score them as the interval says"
    scores = "score and interval are" if held else "the score is"
    quality = bench.quality
    if held and quality is not None and quality.backend != lean.backend:
        runtime = BACKENDS[quality.backend].title
        return (
            f"Both in one runtime and precision, {fastest}; the interval is of {runtime}, where both score within "
            f"{ALIKE:g} points of these."
        )
    return f"Both in one runtime and precision, {fastest}; {scores} of that one, too."


def _unmeasured(run: Run) -> str:
    """Why lean and full do not stand side by side."""
    if run.bench is None:
        return "Not measured yet"
    lean, full = lean_and_full(run.bench)
    said = [] if full is not None else ["the full model was not measured"]
    said += [] if lean is not None else ["the lean model was not timed on a real set"]
    return capitalized("; ".join(said))


def speed(run: Run) -> Section | None:
    """Every depth, runtime and precision that was measured."""
    benches = run.current_benches
    if not benches:
        return None
    first = benches[0].machine
    here = [
        row
        for row in benches
        if (row.machine.processor, row.machine.threads, row.machine.device)
        == (first.processor, first.threads, first.device)
    ]
    pairs = benches[0].scored
    same = [row for row in here if row.scored == pairs]
    chart = speed_chart(same)
    more: tuple[tuple[str, str], ...] = ()
    if run.model is not None and first.device == "cpu" and all(report.precision != "int8" for report in run.graphs):
        commands = run.command_on_model("export", "--onnx", "--precision", "int8"), run.bench_command
        more = (("No int8 graph was measured, often the fastest on a CPU", " && ".join(commands)),)
    others = [f"Measured elsewhere, so not drawn: {row.machine.processor}." for row in benches if row not in here]
    if gone := len(run.benches) - len(benches):
        others.append(f"{capitalized(counted(gone, 'bench', 'benches'))} of weights that are no longer here: left out.")
    apart = {"that names none" if row.scored is None else f"on {row.scored.words}" for row in here if row not in same}
    others += [f"Scored on other pairs, so not drawn: a bench {words}." for words in sorted(apart)]
    return Section(
        key="speed",
        title="Speed against quality",
        sentences=tuple(others),
        charts=() if chart is None else (chart,),
        tables=tuple(_speed_table(row, named=len(here) < len(benches)) for row in benches),
        missing=more,
    )


def _speed_table(report: BenchReport, *, named: bool) -> TableCells:
    """What a bench measured; named: on which machine, where there are several."""
    found, machine = bench_tables(report)[0], report.machine
    cpu = f"{counted(machine.threads, 'thread')} of {machine.processor}"
    place = cpu if machine.device == "cpu" else machine.device
    return found._replace(title=f"{found.title}; measured on {place}") if named else found


def layers(run: Run) -> Section | None:
    """Which layer, where layers were searched."""
    if run.sweep is None:
        return None
    few = len(run.sweep.lean.seeds) < 2
    again = _finetune_again(run, run.sweep) if few else None
    missing = () if again is None else (("No deviation over seeds", run.command(*again)),)
    return replace(sweep_part(run.sweep), missing=missing)


def _finetune_again(run: Run, sweep: SweepResult) -> tuple[str, ...] | None:
    """The command of a sweep with three seeds, which finds the trials of the first; None where it is not known."""
    if sweep.before or sweep.blocks is not None or sweep.metric != OBJECTIVES[sweep.training.objective].metric:
        return None  # priors, a teacher, a choice of blocks or a folder of queries: their files are not in the result
    settings = replace(sweep.settings, seeds=SweepSettings().seeds)
    if settings.layers != "auto" or settings.strategy == next(iter(STRATEGIES)):
        settings = replace(settings, strategy=None)  # refused beside layers; the first is what None is
    values = {field.name: getattr(one, field.name) for one in (settings, sweep.training) for field in fields(one)}
    changed = {name: value for name, value in values.items() if value != _LEFT_OUT[name]}
    if changed.keys() & _NO_OPTION:
        return None
    options = {name: "--" + ("layer" if name == "layers" else name.replace("_", "-")) for name in changed}
    words = [part for name, value in changed.items() for part in (options[name], str(value))]
    return ("finetune", sweep.model, *_how_read(run, sweep), *words, "--seeds", "3")


def _how_read(run: Run, sweep: SweepResult) -> list[str]:
    """The options that name model and pairs as the sweep took them; pairs that nobody noted have to be named."""
    source = run.learned
    if source is None:
        return [] if sweep.data == bundled() else ["--data", PAIRS]
    model = source.model
    words = ["--pooling", model.pooling] if model.pooling else []
    words += ["--max-length", str(model.max_length)] if model.max_length else []
    return words + named(source.data)


def others(run: Run) -> list[Section]:
    """What other ways to a model found."""
    found = (run.distilled, run.contrast, run.heads, run.combined)
    return [part_of(result) for result in found if result is not None]


def similarity(run: Run) -> Section:
    """CKA, and what the layers show before training."""
    if run.profile is not None:
        part, other = profile_part(run.profile), run.profile.model
        if run.workspace.located(other) == run.origin:
            return part
        whose = f"These are the layers of {other}, which analyze looked at, not those of {run.origin}."
        return replace(part, sentences=(whose, *part.sentences))
    words = ("analyze", run.origin) if run.origin else ("analyze",)
    return Section(
        key="cka", title="What the layers show", missing=(("Layers were not analyzed", run.command(*words)),)
    )


def graph(run: Run) -> Section | None:
    """What each export checked."""
    if run.model is None:
        return None
    if not run.graphs:
        return Section(
            key="graph", title="The ONNX graph", missing=(("No graph yet", run.command_on_model("export", "--onnx")),)
        )
    return Section(
        key="graph",
        title="What the export checked",
        sentences=[sentence for report in run.graphs for sentence in export_sentences(report)],
        folded=[export_table(report) for report in run.graphs],
    )


def loading(run: Run) -> Section | None:
    """Lines to copy."""
    if run.model is None:
        return None
    preferred = next((report for report in run.graphs if report.precision == "fp32"), next(iter(run.graphs), None))
    return Section(
        key="loading",
        title="Use the model",
        sentences=(what_they_give(run.model, preferred),),
        snippets=snippets(run.model, preferred),
    )


def bench_details(reports: Sequence[BenchReport]) -> tuple[list[str], list[TableCells]]:
    """What benches say beside their overview."""
    sentences: list[str] = []
    for report in reports:
        sentences += [machine_sentence(report), *scored_sentences(report)]
        sentences += [*absences(report), *report.notes]
    return list(dict.fromkeys(sentences)), [cells for report in reports for cells in bench_tables(report)[1:]]
