"""The predicted drop that may bound the pick and the search of a sweep."""

from truncate_kit.analysis.drop import DropPrediction
from truncate_kit.analysis.predicting import predicted_drop
from truncate_kit.data import PairSplits
from truncate_kit.methods.tmft.settings import SweepSettings
from truncate_kit.models import Encoder
from truncate_kit.training.objectives import OBJECTIVES
from truncate_kit.training.settings import TrainingSettings


def sweep_prediction(
    encoder: Encoder,
    data: PairSplits,
    settings: SweepSettings | None = None,
    training: TrainingSettings | None = None,
    *,
    max_length: int | None = None,
) -> DropPrediction | None:
    """What `finetune` may be given as `prediction`: by training pairs alone, since others choose and are reported.

    Args:
        encoder: Whose layers are tried.
        data: As for `finetune`; what `analyze` has stored may have seen its test scores.
        settings: As for `finetune`.
        training: As for `finetune`.
        max_length: Of the reference's texts, in tokens.

    Returns:
        None where layers are named one by one, where there is no train split, where the objective learns no graded
        similarity, and as `predicted_drop`.

    Raises:
        TruncateKitError: As `predicted_drop`.
    """
    train, settings, training = data.train, settings or SweepSettings(), training or TrainingSettings()
    if train is None or settings.layers not in ("auto", "all") or not OBJECTIVES[training.objective].is_graded:
        return None
    return predicted_drop(encoder, train.texts(), pairs=train.pairs, max_length=max_length)
