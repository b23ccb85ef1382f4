"""TMFT: configuration, objectives and the lean loop."""

from truncate_kit.training.configuration import TrainingSettings, default_learning_rate
from truncate_kit.training.evaluation import Evaluation, TextEncoder, correlate, evaluate
from truncate_kit.training.examples import (
    ClassifiedPairs,
    GradedPairs,
    PairClassifier,
    ParaphrasePairs,
    TaughtTexts,
)
from truncate_kit.training.judges import ClassJudge, Judge, PairJudge, ParaphraseJudge, TeacherJudge
from truncate_kit.training.loop import train

__all__ = [
    "ClassJudge",
    "ClassifiedPairs",
    "Evaluation",
    "GradedPairs",
    "Judge",
    "PairClassifier",
    "PairJudge",
    "ParaphraseJudge",
    "ParaphrasePairs",
    "TaughtTexts",
    "TeacherJudge",
    "TextEncoder",
    "TrainingSettings",
    "correlate",
    "default_learning_rate",
    "evaluate",
    "train",
]
