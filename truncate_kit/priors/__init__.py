"""What a model is trained on before TMFT: word similarity at the same layer, or masked words of raw text."""

from truncate_kit.priors.adapting import AdaptationResult, AdaptationSettings, adapt, adapted
from truncate_kit.priors.masked_head import MaskedHead, load_masked_head
from truncate_kit.priors.masking import MaskedJudge, MaskedTexts, mask_tokens
from truncate_kit.priors.words import WordPrior, word_training

__all__ = [
    "AdaptationResult",
    "AdaptationSettings",
    "MaskedHead",
    "MaskedJudge",
    "MaskedTexts",
    "WordPrior",
    "adapt",
    "adapted",
    "load_masked_head",
    "mask_tokens",
    "word_training",
]
