"""The model card of a contrastive run."""

import json

from truncate_kit import __version__
from truncate_kit.contrastive.results import ContrastiveResult
from truncate_kit.contrastive.settings import ContrastiveSettings
from truncate_kit.encoders import Encoder
from truncate_kit.encoders.pooler_files import loading_words
from truncate_kit.sweep.card import one_line, points

_OBJECTIVES = {
    "in-batch": "supervised in-batch (equation 6)",
    "dropout": "unsupervised, two dropout masks of each text (equation 7)",
    "hard-negatives": "supervised with hard negatives (equation 8)",
}


def pooling_words(settings: ContrastiveSettings) -> str:
    """How a sentence vector was made in training, and whether it still is."""
    words = {
        "layer-attention": "layer-wise attention",
        "cls": "CLS through a tanh layer",
        "mean": "mean",
        "first-last": "mean over embeddings and last layer",
        "concat": "CLS and mean of the last layer through a tanh layer",
    }[settings.pooling]
    if settings.pooling == "layer-attention":
        over = {"both": "CLS over means", "cls": "CLS over CLS", "mean": "means over means"}[settings.over]
        words += f" ({over}{', with the last CLS' if settings.last_cls else ''}"
        words += ", literal equation 1)" if settings.literal else ")"
    return words if settings.keep_pooler else f"{words}; removed after training, a vector is the top CLS state"


def contrastive_card(result: ContrastiveResult, encoder: Encoder) -> str:
    """Markdown with the front matter that the hub and sentence-transformers read. encoder: as it is saved."""
    settings, chosen = result.settings, result.chosen
    return f"""---
library_name: sentence-transformers
pipeline_tag: sentence-similarity
base_model: {json.dumps(result.model)}
tags:
- sentence-transformers
- feature-extraction
- sentence-similarity
---

# {one_line(result.model)}, trained by contrast

A sentence encoder that keeps {result.layer} of {result.depth} layers: {result.parameters:,} parameters.

| | |
|---|---|
| Pooling | {pooling_words(settings)} |
| Objective | {_OBJECTIVES[settings.objective]}, temperature {settings.temperature:g} |
| {" | ".join(one_line(result.rows.rstrip(".")).split(": ", 1))} |
| Budget | {result.epochs} epochs, batch {result.batch_size}, peak learning rate {result.learning_rate:g}, \
{settings.precision}, {result.processes} process{"es" if result.processes > 1 else ""} |
| Judged on | {one_line(result.data)}, dev; look {chosen.best_epoch} of {len(chosen.dev_scores)} is kept |
| Dev, Spearman × 100 | {points(result.dev, result.dev_std)} (seeds: {len(result.trials)}; these weights \
{chosen.dev:.2f}) |
| Test, Spearman × 100 | {points(result.test, result.test_std)} ({result.seen} of {result.test_texts} test sentences \
are among the training texts) |

{loading_words(encoder.pooler)}

Made by truncate-kit {__version__}.
"""
