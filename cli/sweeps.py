"""What `finetune` and `distill` show: the scores of layers, the choice, and where the models are."""

from typing import TYPE_CHECKING

from truncate_kit.blocks import blocks_in_words
from truncate_kit.wording import counted

from .output import print_json, say, table
from .workspace import Workspace

if TYPE_CHECKING:
    from truncate_kit.sweep.results import SweepResult


def show(result: "SweepResult", workspace: Workspace) -> None:
    """The result as JSON, or as sentences, a table and a figure."""
    from truncate_kit.report.sweep_figure import draw_sweep
    from truncate_kit.wording import points

    curve = draw_sweep(result, workspace.folder / "curve.png")
    if workspace.quiet:
        print_json(result)
        return
    if result.prediction is not None:
        whose = "" if result.blocks is None else f" Its layers are those of {blocks_in_words(result.blocks)} alone."
        say(result.prediction.sentence + whose)
    rows = sorted({row.layer: row for row in (*result.layers, result.full)}.values(), key=lambda row: row.layer)
    cells = []
    for row in rows:
        which = " (chosen)" * (row.layer == result.chosen) + " (full model)" * (row.layer == result.full.layer)
        scores = (row.dev, row.dev_std), (row.test, row.test_std), (row.test_pearson, row.test_pearson_std)
        cells.append(
            (f"{result.row_name(row.layer)}{which}", f"{row.parameters:,}", *(points(*score) for score in scores))
        )
    counts = f"{counted(len(result.settings.seeds), 'seed')}, {counted(result.training.epochs, 'epoch')}"
    table(
        f"{result.metric}; {counts}, peak learning rate {result.learning_rate:g}",
        ("layer", "parameters", "dev", "test", "test Pearson"),
        cells,
        marked=[row.layer for row in rows].index(result.chosen),
    )
    say(result.choice)
    if result.search_cost:
        share = 100 * result.search_cost / max(1, result.exhaustive_cost)
        say(
            f"Search cost: {result.search_cost:,} block-steps, {share:.0f} % of what trying every layer "
            f"with every seed costs ({result.exhaustive_cost:,})."
        )
    say(f"Saved: {workspace.lean} (seed {result.chosen_seed}), {workspace.full}, {curve}")
