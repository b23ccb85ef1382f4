"""What a distillation has to say beside its numbers."""

from collections.abc import Sequence

from truncate_kit.data import PairSplits, RetrievalSet
from truncate_kit.evaluation.retrieval import longer_texts
from truncate_kit.hardware import QUIET
from truncate_kit.methods.distill.result import Frontier, Student, TextCounts
from truncate_kit.models import Encoder
from truncate_kit.models.pipeline import Normalize
from truncate_kit.training.evaluators import VectorEvaluator
from truncate_kit.wording import counted


def note_of_unlearned(student: Student, untrained: float) -> tuple[str, ...]:
    """That the blocks of the chosen one were better before they learned, and whether they are saved so.

    Args:
        student: The chosen one.
        untrained: Their score before.
    """
    if not student.scores or untrained < max(student.scores):
        return ()
    if not student.as_it_came:
        return (
            f"Learning has not helped these blocks: {untrained:.2f} before, {student.best:.2f} after "
            f"{counted(student.steps, 'step')}. Give more texts, or a smaller `learning_rate`.",
        )
    return (
        f"These blocks had {student.best:.2f} before learning and at most {max(student.scores):.2f} in it, so they "
        "are saved as they came: the vectors of the model's end are no aim. Labels can train them further.",
    )


def note_of_busy(share: float | None) -> tuple[str, ...]:
    """That others took more than `QUIET` of the machine while the sizes were timed."""
    if share is None or share <= QUIET:
        return ()
    return (
        f"Other processes took {share:.0%} of this machine while sizes were timed: how much faster they are is rough. "
        "The same call times them again.",
    )


def note_of_words(whole: Student, cut: Student) -> tuple[str, ...]:
    """How much the word pieces that were dropped have cost.

    Args:
        whole: The same blocks with all pieces.
        cut: The same blocks with fewer pieces.
    """
    if whole is cut:
        return ()
    before, after = whole.agreement, cut.agreement
    return (
        f"With the whole vocabulary these blocks have an agreement of {before.sentence}, with the pieces that other "
        f"texts need {after.sentence}; what chose them had all pieces.",
    )


def note_of_unmeasured(frontier: Frontier | None, students: Sequence[Student]) -> tuple[str, ...]:
    """Which blocks learned and are not in the frontier: only the weights of the last lean model are kept."""
    measured = set() if frontier is None else {one.blocks for one in frontier.points}
    missing = [", ".join(map(str, one.blocks)) for one in students if one.blocks not in measured]
    if not measured or not missing:
        return ()
    return (f"The frontier lacks blocks {'; '.join(missing)}, which learned in other runs: their weights are gone.",)


def note_of_measure(encoder: Encoder) -> tuple[str, ...]:
    """That the model compares vectors by more than their directions, which are all that is learned."""
    measure = encoder.settings.get("similarity_fn_name") or "cosine"
    if measure == "cosine" or any(isinstance(module, Normalize) for module in encoder.tail):
        return ()
    said = f"{encoder.name} compares vectors by {measure}, and their directions alone are learned, not their lengths"
    return (f"{said}. Compare the lean model's by cosine, or measure it on queries first.",)


def note_of_lengths(
    data: PairSplits | RetrievalSet | None, evaluator: VectorEvaluator, texts: TextCounts
) -> tuple[str, ...]:
    """That what is served is longer than what was learned from, which costs search most of all."""
    return () if data is None else longer_texts(data.name, evaluator.texts(), texts.long)
