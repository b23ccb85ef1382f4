"""Adaptation to made texts by masked words: the same in the test's process and in others that it starts."""

from pathlib import Path

import torch
from torch import Tensor

from tests.support.distributed import gradients
from truncate_kit.methods.priors import MaskedTexts, adapted, load_masked_head
from truncate_kit.models.loading import load_encoder
from truncate_kit.training.loop import Group
from truncate_kit.training.settings import AdaptationSettings

_WORDS = ["the", "cat", "sat", "on", "mat", "a", "dog", "ran", "red", "small", "tree", "blue"]
TEXTS = [f"{a} {b} {c}" for a in _WORDS for b in _WORDS[:6] for c in _WORDS[6:]]
SETTINGS = AdaptationSettings(epochs=2, batch_size=96, learning_rate=1e-3)  # parts of 32: two for the one, one less


def gradients_and_adaptation(folder: Path, out: Path, group: Group) -> tuple[dict[str, Tensor], tuple[float, ...]]:
    """The gradients of one batch of 77 texts in parts of 32, and vectors before and after an adaptation."""
    encoder = load_encoder(folder)
    found = {"before": encoder.vectors(TEXTS[:5])}
    torch.manual_seed(0)
    head = load_masked_head(encoder)
    examples = MaskedTexts(encoder, encoder.token_ids(TEXTS), head, part=32, group=group)
    torch.manual_seed(7 + group.rank)  # the leading process draws what is hidden, whatever the others would draw
    examples.loss(encoder, range(77)).backward()
    group.sum_gradients(torch.nn.ModuleList([encoder, head]))
    found |= {f"gradient {name}": value for name, value in gradients(encoder).items()}
    model, result = adapted(load_encoder(folder), TEXTS, out, SETTINGS, group=group)
    return found | {"after": model.vectors(TEXTS[:5])}, result.losses
