"""What a recommendation rests on, in sentences."""

from truncate_kit.analysis.drop import DropPrediction
from truncate_kit.bench.backends import BACKENDS, BASE
from truncate_kit.bench.bench_report import BenchReport, QualityDifference
from truncate_kit.hardware import QUIET
from truncate_kit.methods.distill.result import DistillResult
from truncate_kit.methods.tmft.sweep_result import SweepResult
from truncate_kit.report.evidence import judged, own_bench, unjudged_by_few
from truncate_kit.report.measures import best_runtime, gain_in, has_interval, lean_and_full, measures, shared_runtimes
from truncate_kit.report.run import Run
from truncate_kit.wording import capitalized, counted, points

SEEDS = 3  # from this number on a deviation over seeds says something


def grounds(run: Run) -> list[str]:
    """How sure a recommendation is."""
    found = []
    bench, sweep = run.bench, run.sweep
    if bench is not None:
        if bench.quality is not None:
            found.append(_interval(bench, bench.quality) if judged(run) is not None else _unjudged(run, bench))
        found += _speed(bench)
    if sweep is not None:
        found += [_seeds(sweep), *map(capitalized, sweep.choice_sentences)]
        if sweep.prediction is not None:
            found.append(_prediction(run, sweep, sweep.prediction).sentence)
    if run.distilled is not None:
        found.append(capitalized(run.distilled.sentence))
        found += [*_agreement(run, run.distilled), *run.distilled.notes]
    if run.cut is not None:
        found.append("The model was cut and not trained: fine-tuning or distilling it usually scores higher.")
    return [*found, *run.notes]


def _prediction(run: Run, sweep: SweepResult, own: DropPrediction) -> DropPrediction:
    """That of `analyze`, which the page shows in full, where it says the same as the one that bounded the search."""
    shown = run.profile.drop if run.profile is not None and run.profile.model == sweep.model else None
    return shown if shown is not None and (shown.falls, shown.from_layer) == (own.falls, own.from_layer) else own


def _interval(bench: BenchReport, quality: QualityDifference) -> str:
    verdict = "lean is better" if quality.low > 0 else "lean is worse" if quality.high < 0 else "no difference is shown"
    over = counted(quality.num_pairs, "test pair") if bench.scored is None else bench.scored.words
    if bench.scored is not None and quality.num_pairs != bench.scored.num_pairs:
        over += f", {quality.num_pairs:,} of them different"
    return (
        f"Score: {quality.difference:+.2f} points, {100 * quality.level:g} % interval {quality.low:+.2f} to "
        f"{quality.high:+.2f} (paired bootstrap over {over}): {verdict}."
    )


def _unjudged(run: Run, bench: BenchReport) -> str:
    """Why the scores of a bench are no ground."""
    if bench.quality is not None and (few := unjudged_by_few(run, bench)):
        return f"Score: {bench.quality.difference:+.2f} points, without an interval: {few}."
    which = (
        "Score: measured on the bundled pairs alone, which a grammar made. What a model of yours scores on them says "
        "little of your task, so nothing is recommended by it"
    )
    if bench.scored is None:
        which = "Score: bench.json does not say on which pairs, so nothing is recommended by it"
    return f"{which}. On pairs of your own: {own_bench(run)}."


def _speed(bench: BenchReport) -> list[str]:
    """What fewer blocks gain within one runtime and precision, and what runtimes add to both models."""
    lean, full = lean_and_full(bench)
    if lean is None or full is None or lean.sentences_per_second is None:
        return []
    said = []
    if (gain := gain_in(bench, lean.backend)) is not None:
        fewer = " by fewer blocks" if lean.layers < full.layers else ""
        by = " (slower)" if round(gain, 2) < 1 else fewer
        said = [f"Speed: {gain:.1f} ×{by}, both models in {lean.runtime}.", *_runtimes(bench, lean.backend)]
    elif full.sentences_per_second is not None:
        said.append(
            f"Speed: lean was timed in {lean.runtime} and full in {full.runtime}. No runtime timed both, so no factor "
            "is stated."
        )
    alone = best_runtime(bench)
    timed_alone = alone is not None and alone not in shared_runtimes(bench)
    if timed_alone and (fastest := measures(bench, "lean", str(alone))) is not None:
        said.append(
            f"In {fastest.runtime} lean encodes {fastest.sentences_per_second:,.0f} sentences a second; the full model "
            "was not timed there, so that is no gain over it."
        )
    quality = bench.quality
    for name in dict.fromkeys([lean.backend, *([alone] if alone else [])]):
        here = measures(bench, "lean", name)
        if quality is not None and here is not None and here.score is not None and not has_interval(bench, name):
            said.append(
                f"In {here.runtime} lean scores {here.score:.2f}: the interval is not of that, but of runtimes in "
                f"which both score as in {BACKENDS[quality.backend].title}."
            )
    busy = bench.machine.others_busy
    if busy is not None and busy > QUIET:
        taken = f"{100 * busy:.0f} % of the machine"
        said.append(f"Other processes took {taken} meanwhile: factors are rough, measure again.")
    return said


def _runtimes(bench: BenchReport, chosen: str) -> list[str]:
    """What each other runtime that timed both gives to lean and to full, against torch in float32."""
    shared = shared_runtimes(bench)
    said = []
    if BASE in shared:
        for name in shared:
            if name == BASE:
                continue
            lean, full = (_ratio(bench, role, name) for role in ("lean", "full"))
            said.append(f"{BACKENDS[name].title} gives {lean:.1f} × to lean and {full:.1f} × to full")
        if said:
            said = [f"Runtime and precision, against {BACKENDS[BASE].title}: {'; '.join(said)}."]
    others = [f"{gain_in(bench, name):.1f} × in {BACKENDS[name].title}" for name in shared if name != chosen]
    return [*said, *([f"Lean against full in the others: {', '.join(others)}."] if others else [])]


def _ratio(bench: BenchReport, role: str, name: str) -> float:
    """Sentences a second in a runtime over those in torch, of one model that both timed."""
    here, base = (bench.timing(role, one, "real set") for one in (name, BASE))
    assert here is not None
    assert base is not None
    return here.sentences_per_second / base.sentences_per_second


def _agreement(run: Run, result: DistillResult) -> list[str]:
    held_out = counted(result.student.agreement.num_texts, "text")
    said = [f"Agreement: by the cosines of {held_out} that nothing was learned or chosen by; one seed."]
    if result.scores is None:
        said.append(f"No labels were used. How the lean model scores on pairs of your own: {own_bench(run)}.")
    return said


def _seeds(sweep: SweepResult) -> str:
    lean, full, seeds = sweep.lean, sweep.full, len(sweep.lean.seeds)
    if seeds == 1:
        return "One seed: another one may choose another layer and score otherwise."
    more = "" if len(full.seeds) == seeds else f" over {len(full.seeds)}"
    return (
        f"{seeds} seeds: test {points(lean.test, lean.test_std)} for the chosen layer, "
        f"{points(full.test, full.test_std)} for the full model{more} (mean ± standard deviation)."
    )
