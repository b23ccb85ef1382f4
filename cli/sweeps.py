"""What `finetune` and `distill` show: the scores of layers, the choice, and where the models are."""

from typing import TYPE_CHECKING

from truncate_kit.blocks import blocks_in_words

from .output import print_json, say, table
from .workspace import Workspace

if TYPE_CHECKING:
    from truncate_kit.sweep.sweep_result import SweepResult


def show(result: "SweepResult", workspace: Workspace) -> None:
    """The result as JSON, or as sentences, a table and a figure."""
    from truncate_kit.report.sweep_figure import draw_sweep
    from truncate_kit.report.training_tables import sweep_table
    from truncate_kit.runs.card import add_figure
    from truncate_kit.similarity.drop import NOT_PREDICTED
    from truncate_kit.training.objectives import OBJECTIVES

    curve = draw_sweep(result, workspace.curve)
    add_figure(workspace.lean, curve, "Scores by layer")
    if workspace.quiet:
        print_json(result)
        return
    if result.prediction is not None:
        whose = "" if result.blocks is None else f" Its layers are those of {blocks_in_words(result.blocks)} alone."
        say(result.prediction.sentence + whose)
    elif result.settings.layers in ("auto", "all") and (
        not OBJECTIVES[result.training.objective].is_graded or result.full.layer > 1  # all scores are 0 or 1
    ):
        say(NOT_PREDICTED)
    layers = [row.layer for row in result.rows]
    table(*sweep_table(result), marked=layers.index(result.chosen))
    say(*result.choice_sentences, *filter(None, [result.seen_before]))
    if result.search_cost:
        share = 100 * result.search_cost / max(1, result.exhaustive_cost)
        say(
            f"Search cost, trials of earlier runs included: {result.search_cost:,} block-steps, {share:.0f} % of what "
            f"trying every layer with every seed costs ({result.exhaustive_cost:,})."
        )
    say(f"Saved: {workspace.lean} (seed {result.chosen_seed}), {workspace.full}, {curve}")
