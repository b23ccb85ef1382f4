"""What `truncate-kit evaluate --suite` runs and shows: one row per suite, at the end."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from truncate_kit.errors import UsageError

from .freeze import CODES
from .options import given, refuse, shares_in
from .output import print_json, progress_bar, say, table
from .workspace import Workspace

if TYPE_CHECKING:
    from truncate_kit.evaluation import TextEncoder
    from truncate_kit.progress import Progress
    from truncate_kit.report.cells import TableCells
    from truncate_kit.results import Result

    Found = tuple[Result, TableCells, list[str]]  # a result, its table, the sentences below it

QUICK = {"splits": 3, "max_rows": 2000}


@dataclass(frozen=True, slots=True)
class SuiteRun:
    """A model that is ready to encode, the sets to score it on, and the options of the suite.

    threads: CPU threads as given, None where they were not.
    """

    encoder: "TextEncoder"
    name: str
    runtime: str
    data: str
    own: Mapping[str, Any]
    workspace: Workspace
    threads: int | None


@dataclass(frozen=True, slots=True)
class Suite:
    """One suite. data: what --data names; own: the options that no other suite has."""

    data: str
    own: tuple[str, ...]
    score: "Callable[[SuiteRun, Progress], Found]"


def check_suite(name: str | None, data: str | None, own: Mapping[str, object]) -> None:
    """Raise `UsageError` for an unknown suite, one without data, and options that it would ignore."""
    if name is not None and name not in SUITES:
        raise UsageError(f"There is no suite {name!r}.", hint=f"Use one of: {', '.join(SUITES)}.")
    if name is not None and data is None:
        raise UsageError(f"--suite {name} needs its data.", hint=f"Name {SUITES[name].data} with --data.")
    for other, suite in SUITES.items():
        if other != name:
            refuse(f"--suite {other}", **{option: own[option] for option in suite.own})


def run_suite(name: str, run: SuiteRun) -> None:
    """Run the suite, write its result into the workspace, and show it."""
    with progress_bar(quiet=run.workspace.quiet) as progress:
        report, cells, sentences = SUITES[name].score(run, progress)
    path = run.workspace.suite(name)
    report.write(path)
    if run.workspace.quiet:
        print_json(report)
        return
    table(cells.title, cells.columns, cells.rows)
    for sentence in (*sentences, f"Saved: {path}"):
        say(sentence)


def _sts(run: SuiteRun, progress: "Progress") -> "Found":
    from truncate_kit.data import find_sts
    from truncate_kit.report.suite_tables import sts_table
    from truncate_kit.suites.sts import score_sts

    sets = find_sts(run.data)
    seen_name, seen = _seen(run)
    report = score_sts(
        run.encoder, sets, model=run.name, runtime=run.runtime, seen=seen, seen_name=seen_name, progress=progress
    )
    return report, sts_table(report), report.notes()


def _seen(run: SuiteRun) -> tuple[str | None, frozenset[frozenset[str]]]:
    """What the model was trained on: as given, or as the workspace knows of its own models; says which."""
    from truncate_kit.data import read_seen
    from truncate_kit.workspace.leakage import seen_pairs

    if run.own["seen"] is not None:
        return run.own["seen"], read_seen(run.own["seen"])
    if not Path(run.name).resolve().is_relative_to(run.workspace.folder.resolve()):
        return None, frozenset()
    found = seen_pairs(run.workspace)
    if found is None:
        run.workspace.note(f"What {run.name} was trained on is not known here: name it with --seen.")
        return None, frozenset()
    run.workspace.note(
        f"{run.name} was trained on {found.name}: scored with and without those pairs (not counting test)."
    )
    return found.name, found.pairs


def _transfer(run: SuiteRun, progress: "Progress") -> "Found":
    from truncate_kit.data import find_transfer
    from truncate_kit.report.suite_figure import draw_transfer
    from truncate_kit.report.suite_tables import transfer_sentences, transfer_table
    from truncate_kit.suites.settings import TransferSettings
    from truncate_kit.suites.transfer import score_transfer

    fractions = run.own["fractions"] and shares_in(run.own["fractions"], "--fractions")
    settings = TransferSettings(**given(fractions=fractions) | (QUICK if run.own["quick"] else {}))
    sets = find_transfer(run.data)
    if not run.own["quick"]:
        run.workspace.note("This takes minutes to hours, mostly for logistic regressions; --quick is a first look.")
    report = score_transfer(
        run.encoder, sets, model=run.name, runtime=run.runtime, settings=settings, progress=progress
    )
    figure = draw_transfer(report, run.workspace.suite("transfer").with_suffix(".png"))
    sentences = [*transfer_sentences(report), *([f"Drawn: {figure}"] if figure else [])]
    return report, transfer_table(report), sentences


def _retrieval(run: SuiteRun, progress: "Progress") -> "Found":
    from truncate_kit.data import read_retrieval
    from truncate_kit.report.suite_tables import retrieval_sentences, retrieval_table
    from truncate_kit.suites.retrieval import LISTS, score_retrieval

    data = read_retrieval(run.data, corpus=run.own["corpus"])
    report = score_retrieval(
        run.encoder, data, model=run.name, runtime=run.runtime, threads=run.threads or 1, progress=progress
    )
    codes = [CODES] if getattr(run.encoder, "heads", None) is not None else []
    return report, retrieval_table(report), [*retrieval_sentences(report, LISTS), *codes]


SUITES = {
    "sts": Suite("the folder that holds its sets", ("seen",), _sts),
    "transfer": Suite("the folder that holds its sets", ("fractions", "quick"), _transfer),
    "retrieval": Suite("a file of queries and answers", ("corpus",), _retrieval),
}
