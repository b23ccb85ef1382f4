"""Short trainings on tiny models."""

import torch

from truncate_kit.models.encoder import Encoder
from truncate_kit.training.settings import TrainingSettings

SETTINGS = TrainingSettings(epochs=3, batch_size=8, learning_rate=2e-3)
SHORT = TrainingSettings(epochs=2, batch_size=32, learning_rate=2e-3)


def without_dropout(encoder: Encoder) -> Encoder:
    for module in encoder.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if hasattr(module, "dropout_prob"):  # attention
            module.dropout_prob = 0.0  # type: ignore[assignment]  # not in nn.Module
    return encoder
