"""What the model card of a fine-tuned model says: layer, parameters, data, scores, seeds."""

from truncate_kit.data import PairSplits
from truncate_kit.methods.tmft.sweep_result import SweepResult
from truncate_kit.models import Encoder
from truncate_kit.training.card import Evaluation, ModelCard, ScoreTable
from truncate_kit.training.objectives import OBJECTIVES
from truncate_kit.training.trial import Trial
from truncate_kit.wording import capitalized, counted, points


def sweep_card(result: SweepResult, trial: Trial, encoder: Encoder, pairs: PairSplits) -> ModelCard:
    """The facts of the model of a trial.

    Args:
        result: The sweep.
        trial: Whose model it is.
        encoder: As it is saved.
        pairs: It was trained and scored on.
    """
    sizes = ", ".join(f"{part} {len(some.pairs):,}" for part, some in pairs.items())
    shared = pairs.overlap.warning()
    rows, depth, training = result.rows, result.full.layer, result.training
    marked = [row.layer for row in rows].index(trial.layer)
    row = rows[marked]
    place = result.place(trial.layer)
    name, _, numbers = place.partition(" ")
    kept = f"the first {trial.layer} of {depth} layers" if trial.layer < depth else f"all {depth} layers, the yardstick"
    uncut = trial.layer == depth
    done, kept = ("truncated at", kept) if name == "layer" else ("cut to", f"{place} of {depth}")
    budget = (
        f"{OBJECTIVES[training.objective].card}; {counted(trial.epochs, 'epoch')}, batch {training.batch_size}, peak "
        f"learning rate {result.learning_rate:g}, {training.precision}."
    )
    facts = [
        (capitalized(name), f"{numbers} of {depth}"),
        ("Parameters kept", f"{row.parameters:,} (full model: {result.full.parameters:,})"),
        ("Data", f"{result.data} ({sizes} pairs)"),
        ("Layers", f"their mean: {', '.join(map(str, encoder.combination))}" if encoder.combination else ""),
        ("Before it", result.before),
        ("Training", budget),
        ("Seeds", f"{', '.join(map(str, row.seeds))}; these weights: seed {trial.seed}, epoch {trial.best_epoch}"),
        ("Choice", " ".join(result.choice_sentences)),
    ]
    return ModelCard(
        base_model=result.model,
        title=f"{result.model}, fine-tuned" if uncut else f"{result.model}, {done} {place}",
        summary=f"A sentence encoder that keeps {kept}: {row.parameters:,} parameters.",
        facts=[(name, value) for name, value in facts if value],
        scores=ScoreTable(
            caption=f"Scores in points; mean ± standard deviation over seeds. Main score: {result.metric}.",
            columns=("layer", "parameters", "dev", "test", "test Pearson"),
            rows=[(result.row_name(row.layer), f"{row.parameters:,}", *row.cells) for row in rows],
            marked=marked,
        ),
        notes=(
            f"These weights: dev {trial.dev:.2f}, test {points(trial.test)}.",
            *filter(None, (shared, result.seen_before)),
        ),
        tags=() if uncut else ("truncated",),
        evaluations=_evaluations(result, trial),
    )


def _evaluations(result: SweepResult, trial: Trial) -> list[Evaluation]:
    """The correlations of these weights on test; none for other scores, which the hub has no one name for."""
    if trial.test is None or not result.metric.startswith("Spearman"):
        return []
    found = [Evaluation(data=result.data, metric="spearman_cosine", value=trial.test / 100)]
    if trial.test_pearson is not None:
        found.append(Evaluation(data=result.data, metric="pearson_cosine", value=trial.test_pearson / 100))
    return found
