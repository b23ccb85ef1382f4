"""The charts of a page, drawn as the figures of `report` are, for a column that fits a phone."""

from collections.abc import Callable, Sequence
from typing import Any

from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.container import Container
from matplotlib.figure import Figure

from truncate_kit.analysis.layer_profile import LayerProfile
from truncate_kit.bench.bench_report import BenchReport
from truncate_kit.methods.bert_lc.result import CombinationReport
from truncate_kit.methods.contrast.contrastive_result import ContrastiveResult
from truncate_kit.methods.distill.result import DistillResult
from truncate_kit.methods.frozen.frozen_report import FrozenReport
from truncate_kit.methods.tmft.sweep_result import SweepResult
from truncate_kit.naming import place_in_words
from truncate_kit.report.analysis_figure import plot_cka, plot_matrix, plot_untrained
from truncate_kit.report.bench_figure import plot_points, point_keys, quality_points
from truncate_kit.report.combination_figure import plot_effects, plot_sizes
from truncate_kit.report.frontier_figure import plot_frontier, plot_graphs
from truncate_kit.report.frozen_figures import plot_correlations, plot_depths, plot_reconstruction
from truncate_kit.report.layout import Chart
from truncate_kit.report.panel import BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION, whole_axis
from truncate_kit.report.svg import INK, inline_svg
from truncate_kit.report.sweep_figure import plot_sweep
from truncate_kit.wording import layers_in_words

_STYLE: Any = {
    "font.size": 11,
    "legend.fontsize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.parse_math": False,  # names are no formulas
}
_WIDTH, _HEIGHT = 5.8, 4.4  # inches; at 350 pixels, a phone, text is then nine pixels high
_MOST_NUMBERS = 13  # rows of a heat map whose cells can hold a number


def _chart(name: str, label: str, caption: str, plot: Callable[[Axes], object], *, height: float = _HEIGHT) -> Chart:
    """A panel with its legend below."""
    with rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        axes = figure.add_subplot()
        handles = plot(axes)
        keys = handles if isinstance(handles, list) else axes.get_legend_handles_labels()[0]
        keys = sorted(keys, key=lambda key: not isinstance(key, Container))  # what was trained comes first
        if keys:
            figure.legend(handles=keys, loc="outside lower left", ncols=1, frameon=False)
        return Chart(Markup(inline_svg(figure, name, label)), caption)


def speed_chart(reports: Sequence[BenchReport], *, name: str = "speed") -> Chart | None:
    """Speed against quality of every model in every runtime, by benches of one machine on the same pairs."""
    benches = [(report, quality_points(report)) for report in reports]
    benches = [(report, points) for report, points in benches if points]
    if not benches:
        return None
    metric, every = benches[0][0].metric, [point for _, points in benches for point in points]
    roles = {"lean": "filled: the lean model", "full": "hollow: the full model"}

    def plot(axes: Axes) -> object:
        plot_points(axes, *(points for _, points in benches), metric=metric)
        if len(benches) > 1:
            several = len({report.lean_folder for report, _ in benches}) > 1
            for report, points in benches:
                _name_depth(axes, report, points, report.lean_folder if several else "")
        return point_keys(every, {role: text for role, text in roles.items() if any(p[0] == role for p in every)})

    best = max(every, key=lambda point: point[2])
    label = (
        f"Scatter of {len(every)} points, sentences per second against {metric}. The fastest, {best[0]} in {best[1]}, "
        f"has {best[2]:,.0f} sentences per second and {best[3]:.2f}. The table below has them all."
    )
    caption = "Each mark is one model in one runtime and precision; up and to the right is better."
    if (scored := benches[0][0].scored) is not None:
        caption += f" {metric} is of {scored.words}."
    return _chart(name, label, caption, plot, height=5.2)


def _name_depth(axes: Axes, report: BenchReport, points: Sequence[tuple[str, str, float, float]], folder: str) -> None:
    lean = [point for point in points if point[0] == "lean"]
    for place in lean and [max(lean, key=lambda point: point[2])]:
        words = ", ".join(filter(None, (folder, place_in_words(report.lean.layer, report.lean.blocks))))
        axes.annotate(words, place[2:], xytext=(0, -16), textcoords="offset points", ha="center", parse_math=False)


def layers_chart(result: SweepResult) -> Chart:
    """Scores by layer with the deviation over seeds, and what the search saw."""
    lean, full = result.lean, result.full
    label = (
        f"Scores by layer. Chosen: {result.place(result.chosen)} with {lean.test:.2f} on test; the full model, layer "
        f"{full.layer}, has {full.test:.2f}."
    )
    caption = "Filled points were trained with the full budget, bars and bands are one standard deviation over seeds"
    if result.search or result.rankings:
        caption += "; grey is what the search saw of the other layers, in points of its own"
    return _chart("layers", label, f"{caption}.", lambda axes: plot_sweep(axes, result), height=5.4)


def cka_charts(profile: LayerProfile) -> list[Chart]:
    """The curve, the heat map, and the untrained scores where there are any."""
    values = ", ".join("none" if value is None else f"{value:.2f}" for value in profile.cka.values)
    other = "the reference" if profile.reference else "the model's middle layer"
    charts = [
        _chart(
            "cka",
            f"CKA to {other} by layer: {values}.",
            f"How like {other} each layer represents the same texts; the band is the {100 * profile.level:g} % "
            "interval."
            if profile.cka.low is not None
            else f"How like {other} each layer represents the same texts.",
            lambda axes: plot_cka(axes, profile),
        ),
        _heat_map(profile),
    ]
    if profile.spearman is not None or profile.searched:
        caption = "What the states of each layer score before any training."
        charts.append(_chart("untrained", caption, caption, lambda axes: plot_untrained(axes, profile)))
    return charts


def _heat_map(profile: LayerProfile) -> Chart:
    rows = profile.cka_matrix

    def plot(axes: Axes) -> object:
        mesh = plot_matrix(axes, profile)
        axes.figure.colorbar(mesh, ax=axes, label="CKA", shrink=0.9)
        if max(len(rows), len(rows[0])) <= _MOST_NUMBERS:
            for row, cells in enumerate(rows):
                for column, value in enumerate(cells):
                    if value is not None:
                        ink = INK if value > 0.5 else "#ffffff"
                        place = column + 0.5, row + 0.5
                        axes.text(*place, f"{value:.2f}", ha="center", va="center", fontsize=7, color=ink)
        return None

    caption = "CKA of every pair of layers; the raw tables have the numbers."
    return _chart("matrix", f"Heat map of {caption}", caption, plot, height=4.8)


def sizes_charts(result: DistillResult) -> list[Chart]:
    """Each number of blocks by speed and score, and the graphs of those that learned where they were measured."""
    label = (
        f"Scatter of {len(result.candidates)} numbers of blocks, speed against score. Chosen: "
        f"{len(result.chosen)} of {result.depth} blocks at {result.speedup:.1f} times the speed."
    )
    caption = "Each number of blocks by its best choice; numbers at the points count the blocks that are kept."
    charts = [_chart("sizes", label, caption, lambda axes: plot_frontier(axes, result), height=5.2)]
    if (frontier := result.frontier) is not None:
        caption = "Each graph that was exported and measured, by dimensions and words."
        if beaten := sum(one.dominated for one in frontier.points):
            caption += (
                f" Hollow: {beaten} of {len(frontier.points)}, for another one is nowhere worse in score, speed, size "
                "and dimensions, and better in one of these."
            )
        charts.append(
            _chart(
                "graphs",
                caption,
                caption,
                lambda axes: plot_graphs(axes, frontier, result.metric, result.graph),
                height=5.2,
            )
        )
    return charts


def attempts_chart(result: ContrastiveResult) -> Chart:
    """Dev score of each seed, look by look; the look whose weights were kept is marked."""
    colors = (BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY)

    def plot(axes: Axes) -> None:
        whole_axis(axes, "look at dev")
        for place, trial in enumerate(result.trials):
            color = colors[place % len(colors)]
            looks = range(1, len(trial.dev_scores) + 1)
            saved = ", saved" if trial.seed == result.chosen_seed else ""
            axes.plot(looks, trial.dev_scores, color=color, linewidth=1, label=f"seed {trial.seed}{saved}")
            axes.plot(trial.best_epoch, trial.dev_scores[trial.best_epoch - 1], "o", color=color)
        axes.set_ylabel("Spearman × 100 on dev")

    chosen = result.chosen
    label = (
        f"Dev score of {len(result.trials)} seeds over training. Saved: seed {chosen.seed}, with {chosen.dev:.2f} at "
        f"look {chosen.best_epoch} of {len(chosen.dev_scores)}."
    )
    return _chart("attempts", label, "Dev scores while the model learned; points are the looks that were kept.", plot)


def heads_charts(report: FrozenReport) -> list[Chart]:
    """Each block alone, what codes lose of the states, and heads on the lowest blocks, where these were tried."""
    best = report.score(report.chosen_step, report.chosen_layer, "test").mean
    caption = "Similarity by each block of the frozen model alone; the dotted line is the saved heads over all."
    label = f"Spearman by block. The saved heads, {report.chosen_step}, have {best:.2f} on test."
    charts = [_chart("blocks", label, caption, lambda axes: plot_correlations(axes, report), height=5.2)]
    if (losses := report.reconstruction) is not None:
        caption = "Error of the autoencoders on held-out sentences; 1 is what predicting the mean costs."
        plot = lambda axes: plot_reconstruction(axes, report, losses)  # noqa: E731  # as the others
        charts.append(_chart("reconstruction", caption, caption, plot))
    if any(len(layers) > 1 for layers in report.steps.values()):
        caption = "Heads on the lowest blocks only."
        charts.append(_chart("depths", caption, caption, lambda axes: plot_depths(axes, report), height=5.2))
    return charts


def combined_charts(report: CombinationReport) -> list[Chart]:
    """The best combination of each size, and what leaving out each layer changes."""
    label = f"Score of the best combination of each number of layers. Chosen: {layers_in_words(report.chosen)}."
    caption = "The best combination of each number of layers, chosen on dev."
    charts = [_chart("combined-sizes", label, caption, lambda axes: plot_sizes(axes, report))]
    if report.effects():
        caption = "What the best combination loses, or gains, where a layer may not be used."
        charts.append(_chart("without", caption, caption, lambda axes: plot_effects(axes, report)))
    return charts
