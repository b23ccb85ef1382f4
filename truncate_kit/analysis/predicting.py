"""The predicted drop at a model's end, from graded pairs or raw texts, before anything is trained."""

from collections.abc import Sequence
from contextlib import suppress

from truncate_kit.analysis.drop import DropPrediction
from truncate_kit.analysis.profiling import profile
from truncate_kit.analysis.settings import AnalysisSettings
from truncate_kit.data import TextPair
from truncate_kit.errors import DataError
from truncate_kit.models import Encoder, load_encoder
from truncate_kit.naming import default_reference

ANALYSED_TEXTS = 2000
"""Enough for intervals of a few hundredths, and a matter of seconds."""


def predicted_drop(
    encoder: Encoder,
    texts: Sequence[str],
    *,
    pairs: Sequence[TextPair] | None = None,
    max_length: int | None = None,
) -> DropPrediction | None:
    """What `profile` predicts from some texts, with the usual reference where there is one for such a model.

    Args:
        encoder: The whole model, by whose name the reference is found.
        texts: The first `ANALYSED_TEXTS` are read, unless there are pairs whose scores rank them.
        pairs: Graded pairs to learn from; `ANALYSED_TEXTS` of their texts are read instead, and the untrained scores
            are part of the prediction.
        max_length: Of the reference's texts, in tokens.

    Returns:
        None for a model of fewer than two layers, and where all scores of the pairs are 0 or 1.

    Raises:
        TruncateKitError: As `profile`.
    """
    usual = default_reference(encoder.name)
    reference = load_encoder(usual, max_length=max_length) if usual else None
    settings = AnalysisSettings(max_texts=ANALYSED_TEXTS)
    if pairs:
        with suppress(DataError):  # scores that rank nothing; what else is wrong is found below
            return profile(encoder, pairs=pairs, reference=reference, settings=settings).drop
    return profile(encoder, texts, reference=reference, settings=settings).drop
