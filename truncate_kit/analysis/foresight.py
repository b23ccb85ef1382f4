"""Whether a model's end is expected to fall, from raw texts, before anything is trained."""

from collections.abc import Sequence

from truncate_kit.analysis.profiling import profile
from truncate_kit.analysis.settings import AnalysisSettings
from truncate_kit.encoders import Encoder, default_reference, load_encoder
from truncate_kit.similarity.drop import DropPrediction

ANALYSED_TEXTS = 2000
"""Enough for intervals of a few hundredths, and a matter of seconds."""


def foresee_drop(
    encoder: Encoder, texts: Sequence[str], *, name: str, max_length: int | None = None
) -> DropPrediction | None:
    """What `profile` predicts from the first texts, with the usual reference where there is one for such a model.

    Args:
        encoder: The whole model.
        texts: The first `ANALYSED_TEXTS` are read.
        name: By which the reference is found.
        max_length: Of the reference's texts, in tokens.

    Returns:
        None for a model of fewer than two layers.

    Raises:
        TruncateKitError: As `profile`.
    """
    usual = default_reference(name)
    reference = load_encoder(usual, max_length=max_length) if usual else None
    settings = AnalysisSettings(max_texts=ANALYSED_TEXTS)
    return profile(encoder, texts, reference=reference, settings=settings).drop
