"""Speed against quality: every model in every runtime as one point."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from truncate_kit.bench.backends import BACKENDS
from truncate_kit.bench.bench_report import BenchReport
from truncate_kit.precisions import PRECISIONS
from truncate_kit.report.panel import TIP, label_points, open_panel, write_figure
from truncate_kit.wording import counted

# Colour is the precision, shape the runtime; filled is lean, hollow is full; an arrow joins the two models in one
# runtime, with the gain in speed at its head.
Point = tuple[str, str, float, float]  # role, backend, sentences/s, score


def draw_bench(report: BenchReport, path: Path) -> Path | None:
    """Write sentences/s of the real set against the score as PNG, where both are known. Raises `FileProblemError`."""
    points = quality_points(report)
    if not points:
        return None
    on = "" if report.scored is None else f"\n{report.metric} of {report.scored.words}"
    figure, axes = open_panel(f"Speed against quality on {report.machine.processor}, {_place(report)}{on}")
    plot_points(axes, points, metric=report.metric)
    axes.set_xlabel(f"sentences per second ({report.num_texts:,} real sentences, tokeniser included)")
    roles: dict[str, str] = {row.role: row.title for row in report.models}
    # Beside the panel: inside, it would lie on the points that win.
    figure.legend(handles=point_keys(points, roles), fontsize="small", loc="outside right upper")
    return write_figure(figure, path)


def plot_points(axes: Axes, *benches: list[Point], metric: str) -> None:
    """Each model in each runtime, and what the lean one gains in each; from zero sentences a second on.

    Args:
        axes: Where they are drawn.
        *benches: The points of each bench.
        metric: What all scores are.
    """
    gains = [gain for points in benches for gain in _draw(axes, points, metric)]
    points = [point for bench in benches for point in bench]
    axes.set_xlabel("sentences per second, tokeniser included")
    axes.set_ylabel(f"{metric} × 100")
    axes.set_xlim(left=0, right=1.15 * max(point[2] for point in points))
    scores = [point[3] for point in points]
    margin = max(1.0, 0.35 * (max(scores) - min(scores)))  # rounding between runtimes must not look like a cliff
    axes.set_ylim(min(scores) - margin, max(scores) + margin)
    axes.grid(alpha=0.3)
    heads = {gain[:2] for gain in gains}
    arrows = [place for points in benches for place in _along(points)]
    label_points(axes, gains, beside=[*(point[2:] for point in points if point[2:] not in heads), *arrows])


def point_keys(points: list[Point], roles: Mapping[str, str]) -> list[Line2D]:
    """What the marks mean, for a legend.

    Args:
        points: Whose marks they are.
        roles: What to call the models.
    """
    backends = list(dict.fromkeys(point[1] for point in points))
    keys = [_key(_marker(name), BACKENDS[name].title, color=_color(name)) for name in backends]
    return keys + [_key("o", text, filled=role == "lean") for role, text in roles.items()]


def quality_points(report: BenchReport) -> list[Point]:
    """Every model in every runtime whose speed on the real set and score are both known."""
    timed = ((row, report.timing(row.role, row.backend, "real set")) for row in report.measured())
    return [
        (row.role, row.backend, timing.sentences_per_second, row.score)
        for row, timing in timed
        if timing is not None and row.score is not None
    ]


def _draw(axes: Axes, points: list[Point], metric: str) -> list[tuple[float, float, str]]:
    """Marks and arrows; where the arrows end, with the gains."""
    for role, backend, speed, score in points:
        axes.plot(
            speed,
            score,
            _marker(backend),
            markersize=11,
            markeredgewidth=2,
            color=_color(backend),
            markerfacecolor=_color(backend) if role == "lean" else "none",
            gid=f"{TIP}{role}, {BACKENDS[backend].title}: {speed:,.0f} sentences/s, {metric} {score:.2f}",
        )
    gains = []
    for backend in dict.fromkeys(point[1] for point in points):
        pair = {point[0]: point[2:] for point in points if point[1] == backend}
        if len(pair) < 2:
            continue
        arrow = {"arrowstyle": "->", "color": _color(backend), "alpha": 0.6, "shrinkA": 9, "shrinkB": 9}
        axes.annotate("", xy=pair["lean"], xytext=pair["full"], arrowprops=arrow)
        gains.append((*pair["lean"], f"×{pair['lean'][0] / pair['full'][0]:.1f}"))
    return gains


def _along(points: list[Point]) -> Iterator[tuple[float, float]]:
    """Places on the arrows, on which no text may stand."""
    for backend in dict.fromkeys(point[1] for point in points):
        pair = {point[0]: point[2:] for point in points if point[1] == backend}
        if len(pair) == 2:
            (x, y), (end_x, end_y) = pair["full"], pair["lean"]
            yield from ((x + share * (end_x - x), y + share * (end_y - y)) for share in np.linspace(0, 0.98, 50))


def _color(name: str) -> str:
    return PRECISIONS[BACKENDS[name].precision].color


def _marker(name: str) -> str:
    backend = BACKENDS[name]
    if backend.runtime == "onnx":
        return "X" if backend.tensorrt else "v" if backend.captured else "D"
    if backend.runtime == "sentence-transformers":
        return "P" if backend.attention is None else "*"
    if backend.compiled:
        return "^" if backend.captured else "h" if backend.static else "s"
    return "o" if backend.attention is None else "<"


def _place(report: BenchReport) -> str:
    machine = report.machine
    return counted(machine.threads, "thread") if machine.device == "cpu" else machine.device


def _key(marker: str, label: str, *, color: str = "#000000", filled: bool = True) -> Line2D:
    face = color if filled else "none"
    return Line2D(
        [], [], marker=marker, linestyle="none", color=color, markerfacecolor=face, markeredgewidth=2, label=label
    )
