"""The model card of a combination."""

import json

from truncate_kit import __version__
from truncate_kit.combine.results import CombinationReport
from truncate_kit.sweep.card import points


def combination_card(report: CombinationReport) -> str:
    """Markdown with the front matter that the hub and sentence-transformers read."""
    layers = ", ".join(map(str, report.chosen))
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

# Mean over the layers {layers}

A sentence encoder that keeps the first {max(report.chosen)} of {report.depth} layers; its vectors are the mean over the
layers {layers} (0 = embeddings){", through the trained pooler head" if report.settings.head else ""} (BERT-LC).

{" ".join(report.statements())}

| Spearman × 100 | |
|---|---|
| Dev pairs, mean over the splits | {report.chosen_dev:.2f} |
| The {report.num_unseen} pairs that no split chose on | {points(report.unseen, None)} |
| Test, each split's own best combination | {measured} |

Made by truncate-kit {__version__}. Load it with `SentenceTransformer(path)`.
"""
