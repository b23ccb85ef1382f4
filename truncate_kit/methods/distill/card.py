"""What the model card of a distilled model says."""

from truncate_kit.methods.distill.result import DistillResult, taught_by
from truncate_kit.training.card import ModelCard, ScoreTable
from truncate_kit.wording import points


def distill_card(result: DistillResult) -> ModelCard:
    """Blocks, texts, agreement and scores of the chosen model."""
    named, source = ", ".join(map(str, result.chosen)), taught_by(result.settings)
    summary, training = _learned(result)
    rows = [
        (", ".join(map(str, row.blocks)), f"{row.parameters:,}", points(row.untrained), points(row.learned))
        for row in result.candidates
    ]
    return ModelCard(
        base_model=result.model,
        title=f"{result.model}, {len(result.chosen)} of {result.depth} blocks",
        summary=f"A sentence encoder that keeps blocks {named} of {result.depth} and {summary}.",
        facts=(
            ("Blocks", f"{named} of {result.depth}"),
            *([("Before it", result.before)] if result.before else []),
            *([] if result.vocabulary is None else [("Vocabulary", " ".join(result.vocabulary.sentences))]),
            ("Texts", result.texts.sentence),
            ("Training", training),
            ("Result", result.sentence),
        ),
        scores=ScoreTable(
            caption=f"Score in points of the best choice of each number of blocks: {result.metric}; "
            f"{source} has {result.full_score:.2f}."
            + ("" if result.vocabulary is None else " Scores are those with all word pieces."),
            columns=("blocks", "parameters", "without training", "after learning"),
            rows=rows,
            marked=[row.blocks for row in result.candidates].index(result.chosen),
        ),
        tags=("truncated", "distilled"),
    )


def _learned(result: DistillResult) -> tuple[str, str]:
    """What became of the blocks, to follow their names, and how they were trained."""
    settings, student, source = result.settings, result.student, taught_by(result.settings)
    if not student.scores:
        return f"is {source} itself", "none: the blocks have its vectors already"
    if student.as_it_came:
        return "is saved as it was cut", f"none that is kept: learning the vectors of {source} made these blocks worse"
    return (
        f"has learned the vectors of {source} from raw text, without labels: its vectors can be searched among these",
        f"1 − cosine to the vectors of {source}; {student.steps:,} steps of {settings.batch_size} texts, peak learning "
        f"rate {result.learning_rate:g}, {settings.precision}",
    )
