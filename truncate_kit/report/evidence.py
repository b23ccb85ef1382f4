"""Which scores of a run a model may be recommended by: those on the bundled pairs say something of miniatures only."""

from truncate_kit.bench.bench_report import BenchReport, QualityDifference
from truncate_kit.methods.distill.result import HeldOutScores
from truncate_kit.methods.tmft.sweep_result import SweepResult
from truncate_kit.report.run import Run
from truncate_kit.wording import too_few

PAIRS = "PAIRS.csv"  # in commands, for what only the user can name


def judged(run: Run) -> QualityDifference | None:
    """Lean less full as `bench` found it, where its pairs say something of what the model is for."""
    bench = run.bench
    return None if bench is None or is_on_bundled(run, bench) or too_few_in(bench) else bench.quality


def too_few_in(bench: BenchReport) -> str | None:
    """That a bench compared on too few pairs or queries for an interval to say anything; None where it did not."""
    unit = ("pair", "pairs") if bench.scored is None else bench.scored.unit
    return None if bench.quality is None else too_few(bench.quality.num_pairs, *unit)


def unjudged_by_few(run: Run, bench: BenchReport) -> str | None:
    """As `too_few_in`, where the pairs would judge the model if there were more of them."""
    return None if is_on_bundled(run, bench) else too_few_in(bench)


def judged_sweep(run: Run) -> SweepResult | None:
    """Likewise what `finetune` found."""
    sweep = run.sweep
    # Queries choose and report in the place of pairs.
    synthetic = sweep is not None and not sweep.retrieval and says_nothing(run, sweep.data)
    return None if synthetic else sweep


def judged_scores(run: Run) -> HeldOutScores | None:
    """Likewise what `distill` found on pairs or queries."""
    scores = None if run.distilled is None else run.distilled.scores
    return None if scores is None or scores.too_few or says_nothing(run, scores.data) else scores


def is_on_bundled(run: Run, bench: BenchReport) -> bool:
    """Whether a bench scored a model of the user's on the bundled pairs; likely so where an early file names none."""
    if bench.scored is not None:
        return bench.scored.bundled and not _is_miniature(run)
    named = run.workspace.remembered().data.name
    return bench.quality is not None and says_nothing(run, bundled() if named is None else named)


def bench_of(run: Run) -> str:
    """The command that measures, on pairs of the user's own where the last ones say nothing of the model."""
    last = run.workspace.remembered()
    taken = last.benched or last.data
    own = last.queries is not None and last.benched is None
    return run.bench_command if own or not says_nothing(run, taken.name or bundled()) else own_bench(run)


def own_bench(run: Run) -> str:
    """The command that scores the model on pairs of the user's own."""
    if run.model is None:  # only measured here, by names that nobody noted
        return run.command("bench", "LEAN", "--full", "FULL", "--data", PAIRS)
    return run.bench_with("--data", PAIRS)


def says_nothing(run: Run, data: str) -> bool:
    """Whether a set of this name is the bundled one, and the model another than those that come with it."""
    name = bundled()
    return (data == name or data.startswith(f"{name}/")) and not _is_miniature(run)


def bundled() -> str:
    """The name of the bundled pairs."""
    from truncate_kit.data import BUNDLED  # takes a moment

    return BUNDLED


def _is_miniature(run: Run) -> bool:
    from truncate_kit.naming import miniature_path

    names = [run.origin] if run.origin else [row.name for row in run.bench.models] if run.bench is not None else []
    return bool(names) and all(miniature_path(name) is not None for name in names)
