"""What the model card of a frozen model with heads says."""

from truncate_kit.methods.frozen.frozen_report import FrozenReport
from truncate_kit.training.card import ModelCard, ScoreTable
from truncate_kit.wording import points


def frozen_card(report: FrozenReport) -> ModelCard:
    """The facts of the model that was chosen."""
    rows = []
    for step, layer in report.groups:
        spans = [report.score(step, layer, measure) for measure in ("dev", "test", "test_pearson")]
        rows.append((step, str(layer), *(points(span.mean, span.std) for span in spans)))
    return ModelCard(
        base_model=report.model,
        title="Frozen blocks with heads",
        summary=f"The first {report.chosen_layer} of {report.depth} layers, frozen, and {report.chosen.parameters:,} "
        f"trained parameters over their {report.pooling}-pooled states (step: {report.chosen_step}). "
        + " ".join(report.statements()),
        scores=ScoreTable(
            caption=f"Spearman × 100, mean ± standard deviation over {report.num_seeds} seeds; last column Pearson.",
            columns=("step", "blocks", "dev", "test", "test Pearson"),
            rows=rows,
            marked=report.groups.index((report.chosen_step, report.chosen_layer)),
        ),
        notes=(report.leakage(),),
        tags=("frozen", "truncated"),
    )
