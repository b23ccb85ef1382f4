"""What the model card of a distilled model says."""

from truncate_kit.distillation.distill_result import DistillResult, taught_by
from truncate_kit.runs.card import ModelCard, ScoreTable
from truncate_kit.wording import points


def distill_card(result: DistillResult) -> ModelCard:
    """Blocks, texts, agreement and scores of the chosen model."""
    settings, student = result.settings, result.student
    named = ", ".join(map(str, result.chosen))
    rows = [
        (", ".join(map(str, row.blocks)), f"{row.parameters:,}", points(row.untrained), points(row.learned))
        for row in result.candidates
    ]
    return ModelCard(
        base_model=result.model,
        title=f"{result.model}, {len(result.chosen)} of {result.depth} blocks",
        summary=f"A sentence encoder that keeps blocks {named} of {result.depth} and has learned the vectors of "
        f"{taught_by(settings)} from raw text, without labels: its vectors can be searched among these.",
        facts=(
            ("Blocks", f"{named} of {result.depth}"),
            *([("Before it", result.before)] if result.before else []),
            ("Texts", result.texts.sentence),
            (
                "Training",
                f"1 − cosine to the vectors of {taught_by(settings)}; {student.steps:,} steps of "
                f"{settings.batch_size} texts, peak learning rate {result.learning_rate:g}, {settings.precision}",
            ),
            ("Result", result.sentence),
        ),
        scores=ScoreTable(
            caption=f"Score in points of the best choice of each number of blocks: {result.metric}; "
            f"{taught_by(settings)} has {result.full_score:.2f}.",
            columns=("blocks", "parameters", "without training", "after learning"),
            rows=rows,
            marked=[row.blocks for row in result.candidates].index(result.chosen),
        ),
        tags=("truncated", "distilled"),
    )
