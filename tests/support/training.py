"""Short trainings on tiny models."""

import dataclasses
from pathlib import Path
from typing import Any

import torch

from tests.support.pairs import word_splits
from truncate_kit.data.pairs import PairSplits
from truncate_kit.methods.tmft.finetune import finetune
from truncate_kit.methods.tmft.settings import SweepResult, SweepSettings
from truncate_kit.models.encoder import Encoder
from truncate_kit.training.settings import TrainingSettings

SETTINGS = TrainingSettings(epochs=3, batch_size=8, learning_rate=2e-3)
SHORT = TrainingSettings(epochs=2, batch_size=32, learning_rate=2e-3)
ONCE = dataclasses.replace(SHORT, epochs=1)  # where epochs are not looked at


def swept(
    encoder: Encoder, out: Path, data: PairSplits | None = None, training: TrainingSettings = ONCE, **options: Any
) -> SweepResult:
    """Fine-tune with one seed, on words unless told otherwise; options of `SweepSettings` and of `finetune`."""
    own = options.keys() & {field.name for field in dataclasses.fields(SweepSettings)}
    settings = SweepSettings(**{"seeds": (0,)} | {name: options.pop(name) for name in own})
    return finetune(encoder, data or word_splits(), out=out, settings=settings, training=training, **options)


def without_dropout(encoder: Encoder) -> Encoder:
    for module in encoder.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if hasattr(module, "dropout_prob"):  # attention
            module.dropout_prob = 0.0  # type: ignore[assignment]  # not in nn.Module
    return encoder
