"""The model card of a saved model: layer, parameters, data, scores, seeds."""

import json

from truncate_kit import __version__
from truncate_kit.encoders import Encoder
from truncate_kit.encoders.pooler_files import loading_words
from truncate_kit.sweep.results import LayerScores, SweepResult, Trial


def points(mean: float | None, deviation: float | None) -> str:
    """A score in points, with its standard deviation over seeds where there are several."""
    if mean is None:
        return "–"
    return f"{mean:.2f}" if deviation is None else f"{mean:.2f} ± {deviation:.2f}"


def model_card(result: SweepResult, trial: Trial, encoder: Encoder) -> str:
    """Markdown with the front matter that the hub and sentence-transformers read. Names are escaped as JSON strings.

    encoder: as it is saved.
    """
    rows = {row.layer: row for row in (*result.layers, result.full)}
    row, depth = rows[trial.layer], result.full.layer
    what = f"the first {trial.layer} of {depth} layers" if trial.layer < depth else f"all {depth} layers, the yardstick"
    how = {
        "cosine": "TMFT: mean squared error between cosine and score",
        "paraphrase": "TMFT: binary cross entropy with the cosine as logit; a pair is called a paraphrase from the "
        "cosine on that is best on dev",
        "entailment": "TMFT: a softmax classifier on (u, v, |u − v|), which is not kept",
        "distill": "distillation: the vectors of the full model on raw text",
    }[result.training.objective]
    budget = (
        f"{how}; {trial.epochs} epochs, batch {result.training.batch_size}, peak learning rate "
        f"{result.learning_rate:g}, {result.training.precision}."
        if trial.epochs
        else "None: this is the teacher as it was."
    )
    before = f"| Before it | {one_line(result.before)} |\n" if result.before else ""
    if encoder.combination is not None:
        before = f"| Layers | their mean: {', '.join(map(str, encoder.combination))} |\n{before}"
    return f"""---
library_name: sentence-transformers
pipeline_tag: sentence-similarity
base_model: {json.dumps(result.model)}
tags:
- sentence-transformers
- feature-extraction
- sentence-similarity
- truncated
---

# {one_line(result.model)}, truncated at layer {trial.layer}

A sentence encoder that keeps {what}: {row.parameters:,} parameters.

| | |
|---|---|
| Layer | {trial.layer} of {depth} |
| Parameters kept | {row.parameters:,} (full model: {result.full.parameters:,}) |
| Data | {one_line(result.data)} |
{before}| Training | {budget} |
| Seeds | {", ".join(map(str, row.seeds))}; these weights: seed {trial.seed}, epoch {trial.best_epoch} |
| Choice | {result.choice} |

Scores in points; mean ± standard deviation over seeds. Main score: {result.metric}.

| layer | parameters | dev | test | test Pearson |
|---|---|---|---|---|
{chr(10).join(_row(rows[layer], layer in (trial.layer,)) for layer in sorted(rows))}

These weights: dev {trial.dev:.2f}, test {points(trial.test, None)}.

{loading_words(encoder.pooler)}

Made by truncate-kit {__version__}.
"""


def _row(row: LayerScores, here: bool) -> str:
    mark = "**" if here else ""
    return (
        f"| {mark}{row.layer}{mark} | {row.parameters:,} | {points(row.dev, row.dev_std)} | "
        f"{points(row.test, row.test_std)} | {points(row.test_pearson, row.test_pearson_std)} |"
    )


def one_line(text: str) -> str:
    """Text from outside on one line of Markdown, unable to open a cell, a link or HTML."""
    return "".join(f"\\{char}" if char in "|<>[]`*_\\" else char for char in " ".join(text.split()))
