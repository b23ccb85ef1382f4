"""Scores of the contestants, and lean against full."""

from typing import NamedTuple

from truncate_kit.bench.bench_report import Key, QualityDifference, ScoredPairs
from truncate_kit.bench.contestants import Contestants
from truncate_kit.bench.evaluators import QualityEvaluator, Score
from truncate_kit.bench.yardstick import check_yardstick
from truncate_kit.progress import Progress
from truncate_kit.wording import counted, too_few

_BUNDLED = (
    "These scores are of the bundled pairs, which a grammar made: they say little of your task. Pairs of your own say "
    "more."
)


class Scored(NamedTuple):
    """What was scored, and lean − full on it, where both could be compared."""

    pairs: ScoredPairs
    quality: QualityDifference | None


def score_all(contestants: Contestants, evaluator: QualityEvaluator, *, seed: int, progress: Progress) -> Scored | None:
    """Write its score into every contestant's row; lean − full in the first runtime that both share, where it exists.

    None where nothing can be scored.
    """
    of = evaluator.of
    if contestants.random:
        contestants.notes.append(f"Random weights have no quality: no {of.metric}.")
        return None
    found = contestants.surviving("while scoring", lambda: _score_each(contestants, evaluator, progress))
    for key, score in found.items():
        contestants.update(key, **{of.field: score.value})
    if of.bundled:
        contestants.notes.append(_BUNDLED)
    return Scored(of, _difference(contestants, evaluator, found, seed)) if found else None


def _difference(
    contestants: Contestants, evaluator: QualityEvaluator, found: dict[Key, Score], seed: int
) -> QualityDifference | None:
    if len(contestants.subjects) < 2:
        return None
    comparable, warnings = check_yardstick(*contestants.subjects)
    contestants.notes += warnings
    for backend in contestants.backends:
        ours, theirs = found.get(("lean", backend.name)), found.get(("full", backend.name))
        if comparable and ours is not None and theirs is not None:
            quality = evaluator.difference(backend.name, ours, theirs, seed=seed)
            contestants.notes.append(quality_sentence(quality, evaluator.of))
            return quality
    return None


def _score_each(contestants: Contestants, evaluator: QualityEvaluator, progress: Progress) -> dict[Key, Score]:
    found: dict[Key, Score] = {}
    readers = contestants.reading_texts()
    for done, (key, runner) in enumerate(readers.items(), start=1):
        found[key] = evaluator.score(runner, contestants.encoders[key[0]])
        progress(f"Scoring the {evaluator.of.unit[1]}", done, len(readers))
    return found


def quality_sentence(quality: QualityDifference, of: ScoredPairs) -> str:
    """The difference with its interval, and what may be read from it, for the user; nothing of the bundled pairs.

    Over a few pairs or queries there is no interval: resamples of three hardly differ.
    """
    scores = f"{of.metric} lean {quality.lean:.2f}, full {quality.full:.2f}: {quality.difference:+.2f} points"
    if few := too_few(quality.num_pairs, *of.unit):
        return f"{scores}; {few}."
    verdict = ": no difference shown"
    if not quality.low <= 0 <= quality.high:
        verdict = f": lean is {'better' if quality.low > 0 else 'worse'}"
    if of.bundled:
        verdict = ""
    return (
        f"{scores} ({quality.level:.0%} interval {quality.low:+.2f} to {quality.high:+.2f}, paired bootstrap over "
        f"{counted(quality.num_pairs, *of.unit)}, {quality.resamples:,} resamples){verdict}."
    )
