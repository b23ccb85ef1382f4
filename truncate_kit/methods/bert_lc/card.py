"""What the model card of a combination says."""

from truncate_kit.methods.bert_lc.result import CombinationReport
from truncate_kit.models import Encoder, PoolingMode
from truncate_kit.models.layer_pooling import LayerPooling
from truncate_kit.training.card import ModelCard, ScoreTable
from truncate_kit.wording import capitalized, points

_TOKENS: dict[PoolingMode, str] = {
    "mean": "the mean over tokens",
    "cls": "the first token",
    "max": "the elementwise maximum over tokens",
    "last": "the last token",
}


def combination_card(report: CombinationReport, encoder: Encoder) -> ModelCard:
    """The facts of the chosen combination.

    Args:
        report: Of the chosen combination.
        encoder: As it is saved.
    """
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
    return ModelCard(
        base_model=report.model,
        title=capitalized(title),
        summary=f"A sentence encoder that keeps the first {max(report.chosen)} of {report.depth} layers, chosen as "
        f"BERT-LC chooses. A vector is {vector}{head} (0 = embeddings); of each layer it takes "
        f"{_TOKENS[encoder.pooling]}{norm}. {' '.join(report.statements())}",
        scores=ScoreTable(
            caption="Spearman × 100",
            columns=("pairs", "score"),
            rows=(
                ("Dev pairs, mean over the splits", f"{report.chosen_dev:.2f}"),
                (f"The {report.num_unseen} pairs that no split chose on", points(report.unseen)),
                ("Test, each split's own best combination", measured),
            ),
        ),
        tags=("truncated",),
    )
