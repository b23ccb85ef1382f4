"""Whether to take the lean model: one sentence, and what it rests on."""

from typing import TYPE_CHECKING, Literal

from truncate_kit.bench.backends import BACKENDS, BASE
from truncate_kit.hardware import QUIET
from truncate_kit.methods.distill.result import DistillResult, taught_by
from truncate_kit.methods.tmft.result import SweepResult
from truncate_kit.report.distillation import agreement_in_words
from truncate_kit.report.measuring import compared_in, gain_in
from truncate_kit.wording import capitalized, counted, too_few

if TYPE_CHECKING:
    from truncate_kit.report.page import Run

FASTER = 1.1  # below this factor nobody would change a model for speed
LOSS = 1.0  # points: an interval that holds such a loss shows no reason to take a model
SEEDS = 3  # from this number on a deviation over seeds says something

Verdict = Literal["Take the lean model", "Keep the full model", "Not shown"]


def recommend(run: "Run") -> tuple[str, list[str]]:
    """Return the recommendation for the model of a workspace, and what it rests on."""
    result, bench = run.result, run.bench
    if run.model is None:
        return "Nothing is cut yet.", [*run.notes]
    if isinstance(result, SweepResult) and result.chosen == result.full.layer:
        return f"Keep the full model: all {counted(result.chosen, 'layer')} are needed.", [result.choice, *run.notes]
    gain, grounds = None, list[str]()
    if bench is not None and (backend := compared_in(bench)) is not None:
        gain = gain_in(bench, backend)
        grounds.append(f"Speed: {gain:.1f} ×, both models in {BACKENDS[backend].title}.")
    elif isinstance(result, DistillResult):
        gain = result.speedup
        grounds.append(f"Speed: {gain:.1f} ×, by a short look in {BACKENDS[BASE].title}.")
    scores = _scores(run, grounds)
    verdict, why = _judge(scores, gain)
    if isinstance(result, DistillResult):
        held_out = counted(result.student.agreement.num_texts, "held-out text")
        agreement = agreement_in_words(result.student.agreement)
        grounds.append(f"Agreement: {agreement} of 100 with {taught_by(result.settings)} on {held_out}.")
    if isinstance(result, SweepResult):
        seeds = len(result.lean.seeds)
        grounds.append(f"Seeds: {seeds}{'' if seeds >= SEEDS else ', few'}. {capitalized(result.choice)}")
    busy = None if bench is None else bench.machine.others_busy
    if busy is not None and busy > QUIET:
        grounds.append(f"Other processes took {100 * busy:.0f} % of the machine meanwhile: speeds are rough.")
    return f"{verdict} ({run.place}): {why}.", [*grounds, *run.notes]


def _judge(scores: tuple[float, float, float, float] | None, gain: float | None) -> tuple[Verdict, str]:
    """Decide by the scores (lean, full, ends of the interval of lean − full) and the factor of speed."""
    speed = "its speed was not compared" if gain is None else f"it is {gain:.1f} times as fast"
    if scores is None:
        return "Not shown", f"{speed}, and no pairs of yours judge its score"
    lean, full, low, high = scores
    said = f"{lean:.1f} against {full:.1f} for the full model"
    if low > 0:
        return "Take the lean model", f"it scores higher ({said}) and {speed}"
    if gain is None:
        return "Not shown", f"{said}, and {speed}"
    if gain < FASTER:
        return "Keep the full model", f"the lean one is hardly faster ({gain:.2f} times the speed; {said})"
    if high < 0:
        return "Keep the full model", f"the lean one loses {full - lean:.1f} points ({said}), though {speed}"
    if low <= -LOSS:
        return "Not shown", f"{speed}, but a loss of {-low:.1f} points is not excluded ({said})"
    return "Take the lean model", f"{speed}, and no difference in score is shown ({said})"


def _scores(run: "Run", grounds: list[str]) -> tuple[float, float, float, float] | None:
    """Return the scores and the interval that judge the model, None if there are none; say in `grounds` why."""
    bench, result = run.bench, run.result
    if bench is not None and (found := bench.quality) is not None:
        on = counted(found.num_pairs, "test pair") if bench.scored is None else bench.scored.words
        ends = f"{100 * found.level:g} % interval {found.low:+.2f} to {found.high:+.2f}"
        few = too_few(found.num_pairs, *(("pair", "pairs") if bench.scored is None else bench.scored.unit))
        if run.on_bundled(bench):
            grounds.append(f"Score: measured on {on} alone, which say little of your task.")
        elif few:
            grounds.append(f"Score: {found.difference:+.2f} points, without an interval: {few}.")
        else:
            grounds.append(f"Score: {found.difference:+.2f} points, {ends} (paired bootstrap over {on}).")
            return found.lean, found.full, found.low, found.high
    elif isinstance(result, DistillResult) and (held := result.scores) is not None:
        ends = held.too_few or f"95 % interval {held.low:+.2f} to {held.high:+.2f}"
        grounds.append(f"Score: {held.difference:+.2f} points on {held.data}, {ends}.")
        if held.too_few is None and not run.says_little(held.data):
            return held.lean, held.full, held.low, held.high
    return None
