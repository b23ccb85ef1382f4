"""What a distillation has to say beside its numbers."""

import numpy as np

from truncate_kit.data import PairSplits, RetrievalSet
from truncate_kit.distillation.distill_result import Student
from truncate_kit.distillation.step_results import TextCounts
from truncate_kit.encoders import Encoder
from truncate_kit.encoders.tail import Normalize
from truncate_kit.training.evaluators import VectorEvaluator

LONGER = 1.25  # times as many tokens are worth a note


def note_of_unlearned(student: Student) -> tuple[str, ...]:
    """That the blocks of the chosen one were better before they learned, and are saved so."""
    if not student.as_it_came:
        return ()
    return (
        f"These blocks had {student.best:.2f} before learning and at most {max(student.scores):.2f} in it, so they "
        "are saved as they came: the vectors of the model's end are no aim. `finetune()` trains them on labels.",
    )


def note_of_words(whole: Student, cut: Student) -> tuple[str, ...]:
    """How much the word pieces that were dropped have cost; whole: the same blocks with all pieces."""
    if whole is cut:
        return ()
    before, after = whole.agreement, cut.agreement
    return (
        f"With the whole vocabulary these blocks have an agreement of {before.correlation:.1f} "
        f"[{before.low:.1f}, {before.high:.1f}], with the pieces that are kept {after.correlation:.1f} "
        f"[{after.low:.1f}, {after.high:.1f}]; what chose them had all pieces.",
    )


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
    if data is None:
        return ()
    long = int(np.quantile([len(ids) for ids in evaluator.texts()], 0.95))
    if long <= LONGER * texts.long:
        return ()
    said = f"The texts of {data.name} are longer than those learned from: 95 of 100 have up to {long} tokens"
    return (f"{said}, and up to {texts.long} there. Learn from texts as long as those to be served.",)
