"""What the model card of a contrastive run says."""

from truncate_kit.methods.contrast.contrastive_result import ContrastiveResult
from truncate_kit.methods.contrast.poolings import TABLE_2
from truncate_kit.methods.contrast.settings import ContrastiveSettings
from truncate_kit.training.card import ModelCard
from truncate_kit.training.objectives import OBJECTIVES
from truncate_kit.wording import counted, points


def pooling_words(settings: ContrastiveSettings) -> str:
    """How a sentence vector was made in training, and whether it still is."""
    if settings.pooling == "layer-attention":
        over = {"both": "CLS over means", "cls": "CLS over CLS", "mean": "means over means"}[settings.over]
        words = f"layer-wise attention ({over}{', with the last CLS' if settings.last_cls else ''}"
        words += ", equations as printed)" if settings.literal else ")"
    else:
        words = TABLE_2[settings.pooling].words
    words += ", through a tanh layer" if settings.mlp else ""
    if settings.keep_pooler:
        return words
    left = {"first-last": "this mean", "mean": "this mean", "mean-first-last": "the top mean"}
    return f"{words}; removed after training, a vector is {left.get(settings.pooling, 'the top CLS state')}"


def contrastive_card(result: ContrastiveResult) -> ModelCard:
    """The facts of the model of the seed that is best on dev."""
    settings, chosen = result.settings, result.chosen
    what, _, rows = result.rows.rstrip(".").partition(": ")
    processes = counted(result.processes, "process", "processes")
    weighted = f", own negatives weighted by {weight:g}" if (weight := settings.hard_negative_weight) else ""
    return ModelCard(
        base_model=result.model,
        title=f"{result.model}, trained by contrast",
        summary=f"A sentence encoder that keeps {result.layer} of {result.depth} layers: {result.parameters:,} "
        "parameters.",
        facts=(
            ("Pooling", pooling_words(settings)),
            ("Objective", f"{OBJECTIVES[settings.objective].card}, temperature {settings.temperature:g}{weighted}"),
            (what, rows),
            (
                "Budget",
                f"{counted(result.epochs, 'epoch')}, batch {result.batch_size}, peak learning rate "
                f"{result.learning_rate:g}, {settings.precision}, {processes}",
            ),
            ("Evaluated on", f"{result.data}, dev; evaluation {chosen.best_epoch} of {len(chosen.dev_scores)} is kept"),
            (
                "Dev, Spearman × 100",
                f"{points(result.dev, result.dev_std)} (seeds: {len(result.trials)}; these weights {chosen.dev:.2f})",
            ),
            (
                "Test, Spearman × 100",
                f"{points(result.test, result.test_std)} ({result.seen} of {result.test_texts} test sentences are "
                "among the training texts)",
            ),
        ),
        notes=tuple(filter(None, [result.seen_before])),
    )
