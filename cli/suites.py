"""What `truncate-kit evaluate --suite` checks, runs and shows, for whichever row of `SUITES`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from truncate_kit.errors import UsageError, known_name
from truncate_kit.evaluation.registry import SUITES, MeasuredModel, SuiteReport, SuiteRun
from truncate_kit.results import file_for

from .freeze import CODES
from .options import refuse
from .output import print_json, progress_bar, say, table
from .parameters import in_options
from .workspace import Workspace

if TYPE_CHECKING:
    from truncate_kit.data import SeenPairs
    from truncate_kit.export.runtime import OnnxEncoder
    from truncate_kit.models import Encoder


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A model that is ready to encode, what to score it on, and where. threads: None where they were not given."""

    encoder: "Encoder | OnnxEncoder"
    name: str
    runtime: str
    data: str
    workspace: Workspace
    threads: int | None


def check_suite(name: str | None, data: str | None, own: Mapping[str, object]) -> None:
    """Raise `UsageError` for an unknown suite, one without data, and options that it would ignore."""
    if name is not None:
        suite = SUITES[known_name("suite", name, SUITES)]
        if data is None:
            raise UsageError(f"--suite {name} needs its data.", hint=f"Name {suite.data} with --data.")
    for other, suite in SUITES.items():
        if other != name:
            refuse(f"--suite {other}", **{option: own[option] for option in suite.options})


def run_suite(name: str, model: Evaluated, own: Mapping[str, Any]) -> None:
    """Run the suite, write its result into the workspace, and show it."""
    from truncate_kit.seen import seen_among

    suite, workspace = SUITES[name], model.workspace
    _, score = suite.load()
    run = SuiteRun(
        encoder=model.encoder,
        model=model.name,
        runtime=model.runtime,
        data=model.data,
        options=own,
        threads=model.threads,
        work=workspace.folder / "trials",
        trained_on=lambda: _trained_on(model, asks="seen" in suite.options),
        chosen_on=lambda data: seen_among(data, model.name),
        note=lambda text: workspace.note(in_options(text, "evaluate")),
    )
    with workspace.held(), progress_bar(quiet=workspace.quiet) as progress:
        report = replace(score(replace(run, progress=progress)), measured=MeasuredModel.of(model.name))
        path = write_report(report, workspace, name)
    show_report(report, workspace, path, codes=suite.by_cosine and model.encoder.heads is not None)


def write_report(report: SuiteReport, workspace: Workspace, name: str) -> Path:
    """Write a report under the name of its suite, or beside one there that measured more, and say so."""
    usual = workspace.suite(name)
    path = file_for(report, usual)
    report.write(path)
    if path != usual:
        workspace.note(f"{usual} measured more than this run and stays as it is.")
    return path


def show_report(report: SuiteReport, workspace: Workspace, path: Path, *, codes: bool) -> None:
    """Draw and show a report that is written to `path`. codes: whether cosines leave out what heads have learnt."""
    figure = _figure(report, path.with_suffix(".png"))
    if workspace.quiet:
        print_json(report)
        return
    table(*report.table())
    drawn = [f"Drawn: {figure}"] if figure else []
    say(*report.sentences(), *drawn, *([CODES] if codes else []), f"Saved: {path}")


def _figure(report: SuiteReport, path: Path) -> Path | None:
    from truncate_kit.report.suite_figure import FIGURES

    draw: Callable[[Any, Path], Path | None] | None = FIGURES.get(type(report))
    drawn = draw(report, path) if draw else None
    if drawn is None:
        path.unlink(missing_ok=True)  # that of a report whose place this one takes
    return drawn


def _trained_on(model: Evaluated, *, asks: bool) -> "SeenPairs | None":
    """What the model's folder says it has seen. asks: to say where it does not; an option may name it then."""
    from truncate_kit.origin import read_origin
    from truncate_kit.seen import seen_pairs

    found = seen_pairs(model.name)
    if found is None and asks and read_origin(model.name) is not None:
        model.workspace.note(f"What {model.name} was trained on is not known here: name it with --seen.")
    return found
