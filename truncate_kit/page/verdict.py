"""The recommendation in one sentence, and how sure it is."""

from truncate_kit.bench.backends import BACKENDS
from truncate_kit.bench.bench_report import BenchReport, QualityDifference
from truncate_kit.distillation.distill_result import DistillResult, HeldOutScores, taught_by
from truncate_kit.page.layout import Verdict
from truncate_kit.page.measures import Measures, has_interval, lean_and_full, measures
from truncate_kit.page.run import Run
from truncate_kit.similarity.drop import DropPrediction
from truncate_kit.sweep.sweep_result import SweepResult
from truncate_kit.wording import capitalized, counted, points

FASTER = 1.1  # below this factor nobody would change a model for speed
BUSY = 0.1  # share of the processor that others may take before speeds are called rough
SEEDS = 3  # from this number on a deviation over seeds says something


def verdict(run: Run) -> Verdict:
    """What to do with the model that came out of a run, by what was measured of it."""
    signs, grounds = _signs(run), _grounds(run)
    return Verdict(sentence=_sentence(run), signs=signs, grounds=tuple(grounds))


def _sentence(run: Run) -> str:
    sweep, bench = run.sweep, run.bench
    if sweep is not None and sweep.chosen == sweep.full.layer:
        return f"Keep all {counted(sweep.full.layer, 'layer')}: {sweep.choice.removeprefix(f'Layer {sweep.chosen}: ')}"
    if bench is not None and bench.quality is not None:
        return _by_interval(run, bench.quality, _gain(bench, _of_interval(bench)), "sentences")
    if run.distilled is not None:
        return _distilled(run, run.distilled)
    if sweep is not None:
        gained = sweep.lean.test - sweep.full.test
        return (
            f"{_lean(run)} scores {sweep.lean.test:.2f} on test against {sweep.full.test:.2f} of the full model "
            f"({gained:+.2f}); {_lean_alone(bench)}."
        )
    if run.cut is not None:
        lean = [] if bench is None else [row.spearman for row in bench.measured() if row.role == "lean"]
        known = f"It scores {points(lean[0])}." if lean and lean[0] is not None else "What it scores is not known."
        return f"{run.cut.sentence} {known}"
    if run.contrast is not None:
        scored = "no test split" if run.contrast.test is None else f"Spearman {run.contrast.test:.2f} on test"
        return f"Layer {run.contrast.layer} of {run.contrast.depth}, trained by contrast: {scored}."
    return _without_lean(run)


def _lean_alone(bench: BenchReport | None) -> str:
    """What is known of the speed where nothing was compared with the full model."""
    lean = None if bench is None else lean_and_full(bench)[0]
    if bench is None or lean is None or lean.sentences_per_second is None:
        return "how fast it is has not been measured"
    if (gain := _gain(bench, lean)) is not None:
        return f"it encodes {gain:.1f} times the sentences a second in {lean.runtime}"
    speed = f"{lean.sentences_per_second:,.0f} sentences a second"
    return f"in {lean.runtime} it encodes {speed}, the full one was not timed"


def _without_lean(run: Run) -> str:
    if run.heads is not None:
        heads = run.heads
        test = points(heads.chosen.test)
        return f"Heads over {counted(heads.chosen_layer, 'frozen block')} of {heads.depth} score {test} on test."
    if run.combined is not None:
        layers = ", ".join(map(str, run.combined.chosen))
        over = "maximum" if run.combined.settings.over == "max" else "mean"
        return f"The {over} of layers {layers} is the best combination found."
    if run.profile is not None:
        return f"Nothing is cut yet. {run.profile.sentence}"
    return "Only measurements are here; no model was made in this workspace."


def _distilled(run: Run, result: DistillResult) -> str:
    if result.scores is not None:
        return _by_interval(run, result.scores, result.speedup, "texts")
    return (
        f"Try the lean model ({_place(run)}): {result.speedup:.1f} times the texts a second, agreement "
        f"{result.student.agreement.correlation:.1f} of 100 with {taught_by(result.settings)}; measure it on your task "
        "before you rely on it."
    )


def _lean(run: Run) -> str:
    return f"The lean model ({_place(run)})"


def _place(run: Run) -> str:
    if run.sweep is not None:
        return f"{run.sweep.place(run.sweep.chosen)} of {run.sweep.full.layer}"
    if run.distilled is not None:
        return f"{len(run.distilled.chosen)} of {counted(run.distilled.depth, 'block')}"
    return f"{run.cut.place} of {run.cut.depth}" if run.cut is not None else "as measured"


def _by_interval(run: Run, found: QualityDifference | HeldOutScores, gain: float | None, what: str) -> str:
    """By the interval of lean − full and the factor of speed. what: sentences or texts, which are counted by second."""
    place, scores = _place(run), f"{found.lean:.1f} against {found.full:.1f}"
    faster = "was not timed" if gain is None else f"encodes {gain:.1f} times the {what} a second"
    if found.low > 0:
        return f"Take the lean model ({place}): it scores higher ({scores} for the full model) and {faster}."
    if gain is not None and gain < FASTER:
        return f"Keep the full model: the lean one ({place}) scores {scores} and is hardly faster ({gain:.2f} times)."
    if found.high < 0:
        return (
            f"The lean model ({place}) {faster} and scores {-found.difference:.1f} points less ({scores}): take it "
            "where speed is worth that."
        )
    return f"Take the lean model ({place}): it {faster}, and no difference in score is shown ({scores})."


def _of_interval(bench: BenchReport) -> Measures | None:
    """The lean model in the fastest of the runtimes in which it scores what the interval is of."""
    found = [row for row in bench.timings if (row.role, row.scenario) == ("lean", "real set")]
    found = [row for row in found if has_interval(bench, row.backend)]
    best = max(found, key=lambda row: row.sentences_per_second, default=None)
    return None if best is None else measures(bench, "lean", best.backend)


def _gain(bench: BenchReport, lean: Measures | None) -> float | None:
    """Sentences a second of the lean model in a runtime over those of the full one in torch."""
    _, full = lean_and_full(bench)
    if lean is None or full is None or lean.sentences_per_second is None or not full.sentences_per_second:
        return None
    return lean.sentences_per_second / full.sentences_per_second


def _signs(run: Run) -> tuple[tuple[str, str], ...]:
    """How sure score, seeds and speed are, in a few words each."""
    bench, learned = run.bench, run.distilled
    quality = None if bench is None else bench.quality
    if quality is not None:
        shown = "difference shown" if quality.low > 0 or quality.high < 0 else "no difference shown"
    else:
        shown = "no interval yet"
    seeds = len(run.sweep.settings.seeds) if run.sweep is not None else None
    busy = bench.machine.others_busy if bench is not None else None
    speed = "not measured" if bench is None else "machine not watched" if busy is None else "quiet machine"
    if bench is None and learned is not None:
        speed = "a short look, in torch"
    if busy is not None and busy >= BUSY:
        speed = f"rough, others took {100 * busy:.0f} %"
    return (
        ("Score", shown),
        *([] if learned is None else [("Agreement", f"{learned.student.agreement.correlation:.1f} of 100")]),
        *([] if seeds is None else [("Seeds", f"{seeds}" if seeds >= SEEDS else f"{seeds}, few")]),
        ("Speed", speed),
    )


def _grounds(run: Run) -> list[str]:
    found = []
    bench, sweep = run.bench, run.sweep
    if bench is not None and bench.quality is not None:
        found.append(_interval(bench.quality))
    if bench is not None:
        found += _speed(bench)
    if sweep is not None:
        found += [_seeds(sweep), *map(capitalized, sweep.choice_sentences)]
        if sweep.prediction is not None:
            found.append(_prediction(run, sweep, sweep.prediction).sentence)
    if run.distilled is not None:
        found.append(capitalized(run.distilled.sentence))
        found += [*_agreement(run.distilled), *run.distilled.notes]
    if run.cut is not None:
        found.append("The model was cut and not trained: fine-tuning or distilling it usually scores higher.")
    return [*found, *run.notes]


def _prediction(run: Run, sweep: SweepResult, own: DropPrediction) -> DropPrediction:
    """That of `analyze`, which the page shows in full, where it says the same as the one that bounded the search."""
    shown = run.profile.drop if run.profile is not None and run.profile.model == sweep.model else None
    return shown if shown is not None and (shown.falls, shown.from_layer) == (own.falls, own.from_layer) else own


def _interval(quality: QualityDifference) -> str:
    verdict = "lean is better" if quality.low > 0 else "lean is worse" if quality.high < 0 else "no difference is shown"
    return (
        f"Score: {quality.difference:+.2f} points, {100 * quality.level:g} % interval {quality.low:+.2f} to "
        f"{quality.high:+.2f} (paired bootstrap over {counted(quality.num_pairs, 'test pair')}): {verdict}."
    )


def _speed(bench: BenchReport) -> list[str]:
    lean, full = lean_and_full(bench)
    gain = _gain(bench, lean)
    if lean is None or full is None or gain is None:
        return []
    found = next((row for row in bench.gains if (row.scenario, row.backend) == ("real set", lean.backend)), None)
    parts = (
        "" if found is None else f", {found.depth:.1f} × from fewer blocks and {found.runtime:.1f} × from the runtime"
    )
    said = [f"Speed: {gain:.1f} × with lean in {lean.runtime} against full in {full.runtime}{parts}."]
    quality = bench.quality
    if quality is not None and lean.spearman is not None and not has_interval(bench, lean.backend):
        said.append(
            f"In {lean.runtime} lean scores {lean.spearman:.2f}: the interval above is not of that, and the "
            f"recommendation is for runtimes in which it scores as in {BACKENDS[quality.backend].title}."
        )
    busy = bench.machine.others_busy
    if busy is not None and busy >= BUSY:
        taken = f"{100 * busy:.0f} % of the machine"
        said.append(f"Other processes took {taken} meanwhile: factors are rough, measure again.")
    return said


def _agreement(result: DistillResult) -> list[str]:
    held_out = counted(result.student.agreement.num_texts, "text")
    said = [f"Agreement: by the cosines of {held_out} that nothing was learned or chosen by; one seed."]
    if result.scores is None:
        said.append("No labels were used: how the lean model scores on a task is not shown by this.")
    return said


def _seeds(sweep: SweepResult) -> str:
    lean, full, seeds = sweep.lean, sweep.full, len(sweep.settings.seeds)
    if seeds == 1:
        return "One seed: another one may choose another layer and score otherwise."
    return (
        f"{seeds} seeds: test {points(lean.test, lean.test_std)} for the chosen layer, "
        f"{points(full.test, full.test_std)} for the full model (mean ± standard deviation)."
    )
