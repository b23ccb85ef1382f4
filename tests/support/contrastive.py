"""Contrastive training on made texts: the same in the test's process and in others that it starts."""

import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.support.distributed import gradients
from tests.support.families import WORDS
from tests.support.pairs import make_pairs
from truncate_kit.data.pairs import TextPair
from truncate_kit.methods.contrast.run import poolable_encoder
from truncate_kit.methods.contrast.settings import ContrastiveSettings
from truncate_kit.models.encoder import Encoder
from truncate_kit.models.loading import load_encoder
from truncate_kit.training.examples import ContrastiveTexts, PairEvaluator
from truncate_kit.training.loop import Group, TrainingRun
from truncate_kit.training.settings import TrainingSettings

TRAINING = TrainingSettings(epochs=2, batch_size=6, learning_rate=1e-3, weight_decay=0.0, warmup=0.0, buckets=False)


def words(count: int, seed: int) -> list[str]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, 9, (count,), generator=generator).tolist()
    return [" ".join(WORDS[int(p)] for p in torch.randint(16, (length,), generator=generator)) for length in lengths]


def examples(encoder: Encoder, count: int = 13, columns: int = 3, **options: Any) -> ContrastiveTexts:
    return ContrastiveTexts([encoder.token_ids(words(count, seed)) for seed in range(columns)], **options)


def evaluator(encoder: Encoder) -> PairEvaluator:
    pairs = [TextPair(a, b, float(n % 5)) for n, (a, b) in enumerate(zip(words(9, 7), words(9, 8), strict=True))]
    return PairEvaluator(encoder, dataclasses.replace(make_pairs(1), pairs=tuple(pairs), scale=(0, 4)))


def fresh(folder: Path, pooling: Any = "layer-attention", **options: Any) -> Encoder:
    return poolable_encoder(load_encoder(folder), ContrastiveSettings(pooling=pooling, **options), seed=3)


def gradients_and_training(folder: Path, group: Group, chunk: int | None) -> tuple[dict[str, Tensor], list[float]]:
    """The gradients of one batch of 13 rows, and vectors after training; with what the encoder was before."""
    encoder = fresh(folder, "concat")
    texts = words(5, 20)
    found = {"before": encoder.vectors(texts)}
    encoder.train()
    examples(encoder, group=group, chunk=chunk).loss(encoder, range(13)).backward()
    group.sum_gradients(encoder)
    found |= {f"gradient {name}": value for name, value in gradients(encoder).items()}
    encoder.zero_grad(set_to_none=True)
    rows = examples(encoder, group=group, chunk=chunk)
    state = TrainingRun(encoder, rows, evaluator(encoder), TRAINING, seed=0, group=group).train()
    return found | {"after": encoder.vectors(texts)}, state.scores
