"""The model card of a combination."""

import json

from truncate_kit import __version__
from truncate_kit.combine.results import CombinationReport
from truncate_kit.encoders import Encoder, PoolingMode
from truncate_kit.encoders.layer_pooling import LayerPooling
from truncate_kit.encoders.pooler_files import loading_words
from truncate_kit.sweep.card import points

_TOKENS: dict[PoolingMode, str] = {
    "mean": "the mean over tokens",
    "cls": "the first token",
    "max": "the elementwise maximum over tokens",
    "last": "the last token",
}


def combination_card(report: CombinationReport, encoder: Encoder) -> str:
    """Markdown with the front matter that the hub and sentence-transformers read. encoder: as it is saved."""
    layers = ", ".join(map(str, report.chosen))
    title = f"layer {layers}"
    vector = f"the state of {title}"
    if len(report.chosen) > 1:
        title = f"{'maximum' if report.settings.over == 'max' else 'mean'} over the layers {layers}"
        vector = f"the {'elementwise ' if report.settings.over == 'max' else ''}{title}"
    own = encoder.pooler if isinstance(encoder.pooler, LayerPooling) else None
    norm = ", after a copy of the model's final norm" if own is not None and own.norm is not None else ""
    head = ", through the trained pooler head" if report.settings.head else ""
    test = report.best("test")
    measured = points(test.mean, test.std) if test is not None else "–"
    return f"""---
library_name: sentence-transformers
pipeline_tag: sentence-similarity
base_model: {json.dumps(report.model)}
tags:
- sentence-transformers
- feature-extraction
- sentence-similarity
- truncated
---

# {title.capitalize()}

A sentence encoder that keeps the first {max(report.chosen)} of {report.depth} layers, chosen as BERT-LC chooses.
A vector is {vector}{head} (0 = embeddings); of each layer it takes {_TOKENS[encoder.pooling]}{norm}.

{" ".join(report.statements())}

| Spearman × 100 | |
|---|---|
| Dev pairs, mean over the splits | {report.chosen_dev:.2f} |
| The {report.num_unseen} pairs that no split chose on | {points(report.unseen, None)} |
| Test, each split's own best combination | {measured} |

{loading_words(encoder.pooler)}

Made by truncate-kit {__version__}.
"""
