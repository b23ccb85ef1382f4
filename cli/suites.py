"""What `truncate-kit evaluate --suite` runs and shows."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from truncate_kit.errors import UsageError

from .frozen import CODES
from .output import note, print_json, progress_bar, say, table
from .workspace import Workspace

if TYPE_CHECKING:
    from truncate_kit.progress import Progress
    from truncate_kit.report.bench_tables import TableCells
    from truncate_kit.results import Result
    from truncate_kit.suites import TransferSettings
    from truncate_kit.training import TextEncoder

SUITES = ("sts", "transfer", "retrieval")
QUICK_SPLITS, QUICK_ROWS = 3, 2000


@dataclass(frozen=True, slots=True)
class SuiteOptions:
    """What the command line says about a suite. Raises `UsageError` for an option that does not go with it."""

    suite: str
    data: str | None
    seen: str | None
    corpus: str | None
    fractions: str | None
    quick: bool

    def __post_init__(self) -> None:
        """Refuse what would be ignored."""
        if self.suite not in SUITES:
            raise UsageError(f"There is no suite {self.suite!r}.", hint=f"Use one of: {', '.join(SUITES)}.")
        if self.data is None:
            what = "a file of queries and answers" if self.suite == "retrieval" else "the folder that holds its sets"
            raise UsageError(f"--suite {self.suite} needs its data.", hint=f"Name {what} with --data.")
        for option, suite, given in (
            ("--seen", "sts", self.seen is not None),
            ("--corpus", "retrieval", self.corpus is not None),
            ("--fractions", "transfer", self.fractions is not None),
            ("--quick", "transfer", self.quick),
        ):
            if given and suite != self.suite:
                raise UsageError(f"{option} goes with --suite {suite} only.", hint=f"Leave out {option}.")


def suite_options(
    suite: str | None, data: str | None, *, seen: str | None, corpus: str | None, fractions: str | None, quick: bool
) -> SuiteOptions | None:
    """The options of a suite, None where none was named. Raises `UsageError`, also for options without a suite."""
    if suite is not None:
        return SuiteOptions(suite, data, seen=seen, corpus=corpus, fractions=fractions, quick=quick)
    if seen is not None or corpus is not None or fractions is not None or quick:
        raise UsageError(
            "--seen, --fractions, --corpus and --quick belong to a suite.", hint=f"Add --suite {' or '.join(SUITES)}."
        )
    return None


@dataclass(frozen=True, slots=True)
class SuiteRun:
    """A model, ready to encode, and what to do with it. threads: CPU threads as told, None where nothing was."""

    encoder: "TextEncoder"
    name: str
    runtime: str
    options: SuiteOptions
    workspace: Workspace
    threads: int | None
    quiet: bool


@dataclass(frozen=True, slots=True)
class Shown:
    """A result, its table, and the sentences below it."""

    report: "Result"
    cells: "TableCells"
    sentences: list[str]


def run_suite(run: SuiteRun) -> None:
    """Run the suite, write its result into the workspace, and show it."""
    work = {"sts": _sts, "transfer": _transfer, "retrieval": _retrieval}[run.options.suite]
    with progress_bar(quiet=run.quiet) as progress:
        shown = work(run, progress)
    path = run.workspace.suite(run.options.suite)
    shown.report.write(path)
    if run.quiet:
        print_json(shown.report)
        return
    table(shown.cells.title, shown.cells.columns, shown.cells.rows)
    for sentence in (*shown.sentences, f"Saved: {path}"):
        say(sentence)


def _sts(run: SuiteRun, progress: "Progress") -> Shown:
    from truncate_kit.data import find_sts
    from truncate_kit.report.suite_tables import sts_table
    from truncate_kit.suites import score_sts

    sets = find_sts(run.options.data or "")
    seen_name, seen = _seen(run)
    report = score_sts(
        run.encoder, sets, model=run.name, runtime=run.runtime, seen=seen, seen_name=seen_name, progress=progress
    )
    return Shown(report, sts_table(report), report.notes())


def _seen(run: SuiteRun) -> tuple[str | None, frozenset[frozenset[str]]]:
    """What the model was trained on: as told, or as the workspace knows of its own models; says which."""
    from truncate_kit.data import read_seen

    if run.options.seen is not None:
        return run.options.seen, read_seen(run.options.seen)
    if not Path(run.name).resolve().is_relative_to(run.workspace.out.resolve()):
        return None, frozenset()
    found = run.workspace.seen()
    if found is None:
        note(f"What {run.name} was trained on is not known here: name it with --seen.", quiet=run.quiet)
        return None, frozenset()
    note(
        f"{run.name} was trained on {found[0]}: scored with and without those pairs (not counting test).",
        quiet=run.quiet,
    )
    return found


def _transfer(run: SuiteRun, progress: "Progress") -> Shown:
    from truncate_kit.data import find_transfer
    from truncate_kit.report.suite_figure import draw_transfer
    from truncate_kit.report.suite_tables import transfer_sentences, transfer_table
    from truncate_kit.suites import score_transfer

    settings, sets = _settings(run.options), find_transfer(run.options.data or "")
    if not run.options.quick:
        note("This takes minutes to hours, mostly for logistic regressions; --quick is a first look.", quiet=run.quiet)
    report = score_transfer(
        run.encoder, sets, model=run.name, runtime=run.runtime, settings=settings, progress=progress
    )
    figure = draw_transfer(report, run.workspace.suite("transfer").with_suffix(".png"))
    sentences = [*transfer_sentences(report), *([f"Drawn: {figure}"] if figure else [])]
    return Shown(report, transfer_table(report), sentences)


def _settings(options: SuiteOptions) -> "TransferSettings":
    from truncate_kit.suites import TransferSettings

    fractions = (1.0,) if options.fractions is None else _shares(options.fractions)
    if options.quick:
        return TransferSettings(splits=QUICK_SPLITS, max_rows=QUICK_ROWS, fractions=fractions)
    return TransferSettings(fractions=fractions)


def _shares(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise UsageError(
            f"--fractions {text!r} is not a list of numbers.", hint="Write it as --fractions 0.1,0.5,1."
        ) from error


def _retrieval(run: SuiteRun, progress: "Progress") -> Shown:
    from truncate_kit.data import read_retrieval
    from truncate_kit.report.suite_tables import retrieval_sentences, retrieval_table
    from truncate_kit.suites import score_retrieval
    from truncate_kit.suites.retrieval import LISTS

    data = read_retrieval(run.options.data or "", corpus=run.options.corpus)
    report = score_retrieval(
        run.encoder, data, model=run.name, runtime=run.runtime, threads=run.threads or 1, progress=progress
    )
    own = [CODES] if getattr(run.encoder, "heads", None) is not None else []
    return Shown(report, retrieval_table(report), [*retrieval_sentences(report, LISTS), *own])
