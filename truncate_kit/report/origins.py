"""How a run came about: data and what they share, machines, versions, seeds, settings, scores elsewhere."""

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from truncate_kit import __version__
from truncate_kit.cells import TableCells
from truncate_kit.errors import TruncateKitError
from truncate_kit.report.layout import TEXTS, Section
from truncate_kit.report.run import Run, is_of_gone_model, newest, suite_reports
from truncate_kit.report.sections import bench_details
from truncate_kit.training.objectives import OBJECTIVES
from truncate_kit.wording import capitalized


def origins(run: Run) -> list[Section]:
    """The last parts of a page."""
    return [section for section in (_data(run), _suites(run), _environment(run), _raw(run)) if section is not None]


def _data(run: Run) -> Section | None:
    """What was learned from, and what train and test share."""
    rows, sentences = [], []
    if run.sweep is not None:
        rows = [("data", run.sweep.data), ("fingerprint", run.sweep.data_fingerprint)]
        sentences = [*_statements(run, run.sweep.data_fingerprint), *filter(None, [run.sweep.seen_before])]
    elif run.contrast is not None:
        found = run.contrast
        rows = [("learned from", found.rows), ("rows", f"{found.num_rows:,}"), ("measured on", found.data)]
        sentences = [f"{found.seen:,} of {found.test_texts:,} distinct test texts are among the training texts."]
    elif run.heads is not None:
        rows, sentences = [("data", run.heads.data), ("fingerprint", run.heads.data_fingerprint)], [run.heads.leakage()]
    elif run.distilled is not None:
        texts = run.distilled.texts
        rows = [("learned from", texts.sentence), ("repeats left out", f"{texts.repeated:,}")]
        sentences = [f"{capitalized(texts.exclusion)}."]
        if not texts.compared:
            sentences.append("Name what the model will be measured on with --exclude.")
    if not rows:
        return None
    return Section(
        key="data", title="Data", sentences=sentences, tables=(TableCells("What it learned from", TEXTS, rows),)
    )


def _statements(run: Run, fingerprint: str) -> list[str]:
    """Sizes, scale and overlap of the pairs, where they are still what was learned from."""
    from truncate_kit.data import BUNDLED, complete_splits, load_pairs

    # A result that was made from Python has no note of its own.
    last = run.workspace.remembered().data if run.learned is None else run.learned.data
    name = last.name or BUNDLED
    gone = ["The pairs are not read again for this page: overlap of train and test is not known here."]
    if name != BUNDLED and not Path(name).exists():  # nothing is fetched
        return gone
    objective = None if run.sweep is None else OBJECTIVES.get(run.sweep.training.objective)
    classes = objective is not None and objective.data == "classes"
    try:
        found = complete_splits(load_pairs(name, columns=last.columns, scale=last.scale, classes=classes))
        same = found.fingerprint() == fingerprint
    except TruncateKitError:
        return gone
    if not same:
        return ["The pairs have changed since training: overlap of train and test is not known here."]
    said = list(found.statements())
    if found.overlap.train_test is not None and found.overlap.warning() is None:
        said.append("Overlap: train and test share no sentence.")
    return said


def _suites(run: Run) -> Section | None:
    """Scores of evaluation suites, where some were run."""
    found = suite_reports(run.workspace)
    if not found:
        return None
    gone = [file for file, report in found.items() if is_of_gone_model(report, run.workspace)]
    return Section(
        key="suites",
        title="Evaluation suites",
        sentences=[
            f"{file.name} is left out: in the place of the model that it measured there is another one. "
            "Run evaluate again."
            for file in gone
        ],
        tables=[report.table() for file, report in found.items() if file not in gone],
    )


def _environment(run: Run) -> Section:
    """Machine, versions, seeds and settings."""
    rows: dict[str, str] = {}
    if run.benches:
        machine = run.benches[0].machine
        rows |= {name.replace("_", " "): str(value) for name, value in asdict(machine).items() if value is not None}
        if machine.others_busy is not None:
            rows["others busy"] = f"{machine.others_busy:.0%} of the processor, while it was timed"
    for report in run.graphs:
        rows |= {f"{name} of {report.file}": version for name, version in report.versions.items()}
    if run.sweep is not None:
        rows |= {
            "seeds": ", ".join(map(str, run.sweep.lean.seeds)),
            "seed that was saved": str(run.sweep.chosen_seed),
        }
        rows |= {
            f"training: {name.replace('_', ' ')}": str(value) for name, value in asdict(run.sweep.training).items()
        }
        rows["training: learning rate"] = f"{run.sweep.learning_rate:g}"
        rows |= {"search: strategy": str(run.sweep.settings.strategy), "search: pick": run.sweep.settings.pick}
    if run.distilled is not None:
        settings = asdict(run.distilled.settings)
        rows |= {f"distillation: {name.replace('_', ' ')}": str(value) for name, value in settings.items()}
        rows["distillation: learning rate"] = f"{run.distilled.learning_rate:g}"
    rows["newest result"] = datetime.fromtimestamp(newest(run.workspace.folder), UTC).strftime("%Y-%m-%d %H:%M UTC")
    rows["this page"] = f"truncate-kit {__version__}"
    missing = () if run.benches else (("The machine is noted by the bench", run.bench_command),)
    return Section(
        key="environment",
        title="Environment",
        folded=(TableCells("Machine, versions, seeds and settings", TEXTS, list(rows.items())),),
        missing=missing if run.model is not None else (),
    )


def _raw(run: Run) -> Section | None:
    sentences, tables = bench_details(run.benches)
    if not sentences:
        return None
    return Section(key="raw", title="Raw measurements", sentences=sentences, folded=tables)
