"""The model card of a frozen model with heads."""

import json

from truncate_kit import __version__
from truncate_kit.frozen.results import FrozenReport
from truncate_kit.sweep.card import points


def frozen_card(report: FrozenReport) -> str:
    """Markdown with the front matter that the hub reads."""
    rows = []
    for step in report.settings.ordered_steps():
        for layer in report.layers:
            spans = [report.score(step, layer, measure) for measure in ("dev", "test", "test_pearson")]
            cells = " | ".join(points(span.mean, span.std) for span in spans)
            rows.append(f"| {step} | {layer} | {cells} |")
    return f"""---
library_name: truncate-kit
pipeline_tag: sentence-similarity
base_model: {json.dumps(report.model)}
tags:
- sentence-similarity
- frozen
- truncated
---

# Frozen blocks with heads

The first {report.chosen_layer} of {report.depth} layers, frozen, and {report.chosen.parameters:,} trained parameters
over their {report.pooling}-pooled states (step: {report.chosen_step}).

{" ".join(report.statements())}

Spearman × 100, mean ± standard deviation over {len(report.settings.seeds)} seeds; last column Pearson.

| step | blocks | dev | test | test Pearson |
|---|---|---|---|---|
{chr(10).join(rows)}

{report.leakage()}

Vectors are the codes of all blocks side by side; `load_encoder(path).similarities(u, v)` is the trained score.
Made by truncate-kit {__version__}; sentence-transformers has no such module and cannot load this folder.
"""
