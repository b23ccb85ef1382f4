"""The recommendation in one sentence, and how sure it is."""

from truncate_kit.bench.backends import BACKENDS, BASE
from truncate_kit.bench.bench_report import BenchReport, QualityDifference
from truncate_kit.hardware import QUIET
from truncate_kit.methods.distill.result import DistillResult, HeldOutScores, taught_by
from truncate_kit.methods.tmft.sweep_result import SweepResult
from truncate_kit.report.evidence import (
    PAIRS,
    judged,
    judged_scores,
    judged_sweep,
    own_bench,
    says_nothing,
    unjudged_by_few,
)
from truncate_kit.report.grounds import SEEDS, grounds
from truncate_kit.report.layout import Verdict
from truncate_kit.report.measures import compared_in, gain_in, has_interval, lean_and_full, shared_runtimes
from truncate_kit.report.run import Run
from truncate_kit.wording import counted, points

FASTER = 1.1  # below this factor nobody would change a model for speed
LOSS = 1.0  # points: where the interval holds such a loss, that no difference is shown is no reason to take a model


def verdict(run: Run) -> Verdict:
    """What to do with the model that came out of a run, by what was measured of it."""
    return Verdict(sentence=_sentence(run), signs=_signs(run), grounds=tuple(grounds(run)))


def _sentence(run: Run) -> str:
    sweep, bench, quality = judged_sweep(run), run.bench, judged(run)
    if sweep is not None and sweep.chosen == sweep.full.layer:
        return f"Keep all {counted(sweep.full.layer, 'layer')}: {sweep.choice.removeprefix(f'Layer {sweep.chosen}: ')}"
    if bench is not None and quality is not None:
        backend = next((name for name in shared_runtimes(bench) if has_interval(bench, name)), None)
        gain = None if backend is None else gain_in(bench, backend)
        return _by_interval(run, quality, _encodes(gain, "sentences", backend), gain)
    if run.distilled is not None:
        return _distilled(run, run.distilled)
    if sweep is not None:
        return _by_sweep(run, sweep)
    if run.sweep is not None:
        return (
            f"{_lean(run)} was chosen and scored on the bundled pairs, which are synthetic: they recommend no model. "
            f"{_speed_alone(bench)}. On pairs of your own: {run.command('finetune', '--data', PAIRS)}."
        )
    if run.cut is not None:
        return f"{run.cut.sentence} {_score_of_cut(run)}"
    if run.contrast is not None:
        scored = "no test split" if run.contrast.test is None else f"Spearman {run.contrast.test:.2f} on test"
        of = f" of {_named(run, run.contrast.data)}" if run.contrast.test is not None else ""
        return f"Layer {run.contrast.layer} of {run.contrast.depth}, trained by contrast: {scored}{of}."
    if bench is not None and bench.quality is not None:
        why = "There are no pairs of yours to judge the lean model by"
        if few := unjudged_by_few(run, bench):
            why = few
        elif bench.scored is None:
            why = "The bench does not say on which pairs it scored"
        return f"{why}. {_speed_alone(bench)}. {_own_pairs(run)}"
    return _without_lean(run)


def _by_sweep(run: Run, sweep: SweepResult) -> str:
    lean, full = sweep.tests_of_shared_seeds
    of = sweep.retrieval or sweep.data
    if sweep.lean.seeds != sweep.full.seeds:
        of += ", by the seeds that both have,"
    return (
        f"{_lean(run)} scores {lean:.2f} on test of {of} ({sweep.metric}) against "
        f"{full:.2f} of the full model ({lean - full:+.2f}); {_lean_alone(run.bench)}."
    )


def _score_of_cut(run: Run) -> str:
    """What a model that nothing was learned for scores, where that says something."""
    bench = run.bench
    lean = [] if bench is None else [row.score for row in bench.measured() if row.role == "lean"]
    if not lean or lean[0] is None:
        return "What it scores is not known."
    if bench is None or (bench.quality is not None and judged(run) is None):
        return f"What it scores on your task is not known. {_own_pairs(run)}"
    return f"It scores {points(lean[0])}" + (f" on {bench.scored.words}." if bench.scored is not None else ".")


def _named(run: Run, data: str) -> str:
    """The name of a set, and that the bundled pairs say nothing of a model of the user's."""
    return f"{data}, synthetic pairs that say little of your task" if says_nothing(run, data) else data


def _own_pairs(run: Run) -> str:
    return f"Measure it on pairs of your own: {own_bench(run)}."


def _speed_alone(bench: BenchReport | None) -> str:
    said = _lean_alone(bench)
    return said[:1].upper() + said[1:]


def _lean_alone(bench: BenchReport | None) -> str:
    """What is known of the speed where no score is compared."""
    lean, full = (None, None) if bench is None else lean_and_full(bench)
    if bench is None or lean is None or lean.sentences_per_second is None:
        return "how fast it is has not been measured"
    if (gain := gain_in(bench, lean.backend)) is not None:
        return f"it {_encodes(gain, 'sentences', lean.backend)}"
    speed = f"{lean.sentences_per_second:,.0f} sentences a second"
    other = "was not timed" if full is None or full.sentences_per_second is None else f"was only in {full.runtime}"
    return f"in {lean.runtime} it encodes {speed}, the full one {other}"


def _without_lean(run: Run) -> str:
    if run.heads is not None:
        heads = run.heads
        test = points(heads.chosen.test)
        return (
            f"Heads over {counted(heads.chosen_layer, 'frozen block')} of {heads.depth} score {test} on test of "
            f"{_named(run, heads.data)}; {heads.plain}."
        )
    if run.combined is not None:
        layers = ", ".join(map(str, run.combined.chosen))
        over = "maximum" if run.combined.settings.over == "max" else "mean"
        return f"The {over} of layers {layers} is the best combination found on {_named(run, run.combined.data)}."
    if run.profile is not None:
        return f"Nothing is cut yet. {run.profile.sentence}"
    return "Only measurements are here; no model was made in this workspace."


def _distilled(run: Run, result: DistillResult) -> str:
    if (scores := judged_scores(run)) is not None:
        return _by_interval(run, scores, _encodes(result.speedup, "texts", BASE), result.speedup)
    agreement, bench = result.student.agreement, run.bench
    backend = None if bench is None else compared_in(bench)
    # The distillation's own look at speeds is a short one.
    gain = gain_in(bench, backend) if bench is not None and backend is not None else None
    speed = _encodes(result.speedup, "texts", BASE) if gain is None else _encodes(gain, "sentences", backend)
    return (
        f"Try the lean model ({_place(run)}): it {speed}, and agrees with {taught_by(result.settings)} by "
        f"{agreement.correlation:.1f} [{agreement.low:.1f}, {agreement.high:.1f}] of 100 on "
        f"{counted(agreement.num_texts, 'held-out text')}. {_no_judge(run, result)}."
    )


def _no_judge(run: Run, result: DistillResult) -> str:
    scores, bench = result.scores, run.bench
    few = scores.too_few if scores is not None and not says_nothing(run, scores.data) else None
    few = (unjudged_by_few(run, bench) if bench is not None else None) or few
    return few or "No pairs of yours judge it yet"


def _lean(run: Run) -> str:
    return f"The lean model ({_place(run)})"


def _place(run: Run) -> str:
    """What the lean model is of the full one."""
    made = run.made
    if made is None or made.method not in ("cut", "distill", "finetune"):
        return "as measured"
    return f"{made.layer} of {counted(made.depth, 'block')}" if made.method == "distill" else made.place


def _encodes(gain: float | None, what: str, backend: str | None) -> str:
    """The factor of speed within one runtime. what: sentences or texts, which are counted by second."""
    if gain is None or backend is None:
        return "was not timed in a runtime that timed the full one as well"
    return f"encodes {gain:.1f} times the {what} a second, both in {BACKENDS[backend].title}"


def _by_interval(run: Run, found: QualityDifference | HeldOutScores, speed: str, gain: float | None) -> str:
    """By the interval of lean − full and the factor of speed, which `speed` says in words."""
    place, scores = _place(run), f"{found.lean:.1f} against {found.full:.1f}"
    if found.low > 0:
        return f"Take the lean model ({place}): it scores higher ({scores} for the full model) and {speed}."
    if gain is None:
        shown = f"scores {-found.difference:.1f} points less" if found.high < 0 else "shows no difference in score"
        return f"The lean model ({place}) {shown} ({scores}); it {speed}, so what it gains is not known."
    if gain < FASTER:
        rounded = round(gain, 2)
        faster = "slower" if rounded < 1 else "no faster" if rounded == 1 else "hardly faster"
        return (
            f"Keep the full model: the lean one ({place}) scores {scores} and is {faster} ({gain:.2f} times the speed "
            "in the same runtime)."
        )
    if found.high < 0:
        return (
            f"The lean model ({place}) {speed}, and scores {-found.difference:.1f} points less ({scores}): take it "
            "where speed is worth that."
        )
    if found.low <= -LOSS:
        return (
            f"Try the lean model ({place}): it {speed}, and no difference in score is shown ({scores}), but a loss of "
            f"{-found.low:.1f} points is not excluded."
        )
    return f"Take the lean model ({place}): it {speed}, and no difference in score is shown ({scores})."


def _signs(run: Run) -> tuple[tuple[str, str], ...]:
    """How sure score, seeds and speed are, in a few words each."""
    bench, learned, quality = run.bench, run.distilled, judged(run) or judged_scores(run)
    if quality is not None:
        shown = "difference shown" if quality.low > 0 or quality.high < 0 else "no difference shown"
    elif bench is not None and bench.quality is not None and not unjudged_by_few(run, bench):
        shown = "none on pairs of yours"
    else:
        shown = "no interval yet"
    seeds = len(run.sweep.lean.seeds) if run.sweep is not None else None
    busy = bench.machine.others_busy if bench is not None else None
    speed = "not measured" if bench is None else "machine not watched" if busy is None else "quiet machine"
    if bench is None and learned is not None:
        speed = "a short look, in torch"
    if busy is not None and busy > QUIET:
        speed = f"rough, others took {100 * busy:.0f} %"
    return (
        ("Score", shown),
        *([] if learned is None else [("Agreement", f"{learned.student.agreement.correlation:.1f} of 100")]),
        *([] if seeds is None else [("Seeds", f"{seeds}" if seeds >= SEEDS else f"{seeds}, few")]),
        ("Speed", speed),
    )
