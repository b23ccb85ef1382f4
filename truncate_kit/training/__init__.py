"""TMFT: configuration, objectives and the lean loop."""

from truncate_kit.training.configuration import TrainingSettings, default_learning_rate
from truncate_kit.training.evaluation import Evaluation, TextEncoder, correlate, evaluate
from truncate_kit.training.examples import GradedPairs, TaughtTexts
from truncate_kit.training.judges import Judge, PairJudge, TeacherJudge
from truncate_kit.training.loop import train

__all__ = [
    "Evaluation",
    "GradedPairs",
    "Judge",
    "PairJudge",
    "TaughtTexts",
    "TeacherJudge",
    "TextEncoder",
    "TrainingSettings",
    "correlate",
    "default_learning_rate",
    "evaluate",
    "train",
]
