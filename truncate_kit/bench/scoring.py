"""Scores of the contestants, and whether lean and full may be compared."""

import json
from collections.abc import Sequence
from typing import NamedTuple

from truncate_kit.bench.bench_report import Key, QualityDifference, ScoredPairs
from truncate_kit.bench.contestants import Contestants
from truncate_kit.bench.quality import quality_difference
from truncate_kit.bench.subjects import Subject
from truncate_kit.data import PairSet, TextPair, is_bundled, pairs_fingerprint
from truncate_kit.evaluation import Evaluation, evaluate
from truncate_kit.files import read_text
from truncate_kit.progress import Progress

_BUNDLED = (
    "These scores are of the bundled pairs, which a grammar made: they say little of your task. Name pairs of your own "
    "as `pairs`."
)


class Scored(NamedTuple):
    """What was scored, and lean − full on it, where both could be compared."""

    pairs: ScoredPairs
    quality: QualityDifference | None


def scored_pairs(pairs: PairSet | Sequence[TextPair]) -> ScoredPairs:
    """What the report says of the pairs."""
    named = pairs if isinstance(pairs, PairSet) else None
    return ScoredPairs(
        name="" if named is None else named.name,
        fingerprint=pairs_fingerprint(pairs),
        num_pairs=len(pairs),
        bundled=named is not None and is_bundled(named),
    )


def score_pairs(
    contestants: Contestants, pairs: PairSet | Sequence[TextPair], *, seed: int, progress: Progress
) -> Scored | None:
    """Write Spearman into every contestant's row; lean − full in the first runtime that both share, where it exists.

    None where nothing can be scored.
    """
    if contestants.random:
        contestants.notes.append("Random weights have no quality: no Spearman.")
        return None
    every = tuple(pairs)
    found = contestants.surviving("while scoring", lambda: _evaluate_all(contestants, every, progress))
    for key, score in found.items():
        contestants.update(key, spearman=score.spearman)
    of = scored_pairs(pairs)
    if of.bundled:
        contestants.notes.append(_BUNDLED)
    return Scored(of, _difference(contestants, every, found, of, seed)) if found else None


def _difference(
    contestants: Contestants, pairs: Sequence[TextPair], found: dict[Key, Evaluation], of: ScoredPairs, seed: int
) -> QualityDifference | None:
    if len(contestants.subjects) < 2:
        return None
    comparable, warnings = check_yardstick(*contestants.subjects)
    contestants.notes += warnings
    for backend in contestants.backends:
        ours, theirs = found.get(("lean", backend.name)), found.get(("full", backend.name))
        if comparable and ours is not None and theirs is not None:
            targets = [pair.target for pair in pairs]
            quality = quality_difference(backend.name, ours.cosines, theirs.cosines, targets, seed=seed)
            contestants.notes.append(quality_sentence(quality, of))
            return quality
    return None


def _evaluate_all(contestants: Contestants, pairs: Sequence[TextPair], progress: Progress) -> dict[Key, Evaluation]:
    found: dict[Key, Evaluation] = {}
    readers = contestants.reading_texts()
    for done, (key, runner) in enumerate(readers.items(), start=1):
        found[key] = evaluate(runner, pairs)
        progress("Scoring the pairs", done, len(readers))
    return found


def check_yardstick(lean: Subject, full: Subject) -> tuple[bool, list[str]]:
    """Whether the difference in quality may be stated, and the warnings that belong to it."""
    # A model that was not fine-tuned is never the yardstick for one that was. Both had the same budget for certain
    # only where `finetune` wrote them side by side, with its `sweep.json`.
    if lean.fine_tuned != full.fine_tuned and None not in (lean.fine_tuned, full.fine_tuned):
        raw, tuned = ("lean", "full") if full.fine_tuned else ("full", "lean")
        return False, [
            f"Warning: the {raw} model was not fine-tuned and the {tuned} one was: their scores cannot be compared, "
            "so no difference is stated."
        ]
    if lean.fine_tuned is False:
        return True, ["Warning: neither model was fine-tuned: their scores say little about fine-tuned ones."]
    found = _swept(lean, full)
    if found is None:
        return True, [
            "Warning: nothing says that both models had the same fine-tuning budget; `finetune()` makes such a pair."
        ]
    if found != (lean.encoder.depth, full.encoder.depth):
        return True, [
            f"Warning: the yardstick differs: sweep.json is about layers {found[0]} and {found[1]}, these models end "
            f"at {lean.encoder.depth} and {full.encoder.depth}."
        ]
    return True, []


def _swept(lean: Subject, full: Subject) -> tuple[int, int] | None:
    """Layers of the pair that `finetune` recorded beside the two folders, None where there is no record."""
    if lean.folder is None or full.folder is None or lean.folder.resolve().parent != full.folder.resolve().parent:
        return None
    try:
        record = json.loads(read_text(lean.folder.resolve().parent / "sweep.json"))
        return int(record["chosen"]), int(record["full"]["layer"])
    except (OSError, ValueError, LookupError, TypeError, ArithmeticError, RecursionError):
        return None


def quality_sentence(quality: QualityDifference, of: ScoredPairs) -> str:
    """The difference with its interval, and what may be read from it, for the user; nothing of the bundled pairs."""
    verdict = ": no difference shown"
    if not quality.low <= 0 <= quality.high:
        verdict = f": lean is {'better' if quality.low > 0 else 'worse'}"
    if of.bundled:
        verdict = ""
    return (
        f"Spearman lean {quality.lean:.2f}, full {quality.full:.2f}: {quality.difference:+.2f} points "
        f"({quality.level:.0%} interval {quality.low:+.2f} to {quality.high:+.2f}, paired bootstrap over "
        f"{quality.num_pairs:,} pairs, {quality.resamples:,} resamples){verdict}."
    )
