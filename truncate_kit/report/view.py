"""What a result looks like, before a terminal, a page, a notebook or a model card draws it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from importlib import import_module
from typing import Any, Self, TypeVar

from truncate_kit.core.wording import NONE, in_markdown, number

Row = TypeVar("Row")
Cell = str | float | None
# Okabe and Ito's palette: colour-blind readers distinguish them, and so does grey print.
BLUE, SKY, GREEN, VERMILION, ORANGE, PURPLE = "#0072B2", "#56B4E9", "#009E73", "#D55E00", "#E69F00", "#CC79A7"
GREY, INK = "#777777", "#000000"
LAYERS = "layer (0 = embeddings)"


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as text.

    Attributes:
        title: Stands above.
        columns: Names, the most wanted first.
        rows: Cells by row.
        marked: Place of the row that stands out.
        detail: Folded on a page; shown by the terminal with `--verbose` only.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    marked: int | None = None
    detail: bool = False

    @classmethod
    def of(
        cls,
        title: str,
        rows: Iterable[Row],
        columns: Mapping[str, Callable[[Row], Cell]],
        *,
        last: Sequence[Cell] = (),
        marked: Row | None = None,
        detail: bool = False,
    ) -> Self:
        """Describe a table by what each column shows of a row: text, a number in the usual form, or None for a dash.

        Args:
            title: Stands above.
            rows: One thing each.
            columns: What to show of it, by heading.
            last: Cells of one more row below, such as means.
            marked: The row that stands out.
            detail: See `Table`.
        """
        every = list(rows)
        shown = [*([show(row) for show in columns.values()] for row in every), *([last] if last else [])]
        cells = [tuple(map(_cell, row)) for row in shown]
        return cls(title, [*columns], cells, None if marked is None else every.index(marked), detail)

    def filled(self) -> "Table":
        """Leave out the columns that are empty in every row, but the first."""
        full = [at for at in range(len(self.columns)) if at == 0 or any(row[at] not in ("", NONE) for row in self.rows)]
        rows = [tuple(row[at] for at in full) for row in self.rows]
        return Table(self.title, [self.columns[at] for at in full], rows, self.marked, self.detail)

    def markdown(self) -> str:
        """Write the table in Markdown, without its title and the end of its last line."""
        rows = [[in_markdown(cell) for cell in row] for row in self.rows]
        if self.marked is not None:
            rows[self.marked][0] = f"**{rows[self.marked][0]}**"
        head = f"| {' | '.join(self.columns)} |" if any(self.columns) else "|" + " |" * len(self.columns)
        return "\n".join([head, "|" + "---|" * len(self.columns), *(f"| {' | '.join(row)} |" for row in rows)])


def _cell(value: Cell) -> str:
    return value if isinstance(value, str) else number(value, "," if isinstance(value, int) else ".2f")


@dataclass(frozen=True, slots=True)
class Series:
    """Points, a line through them, or both.

    Attributes:
        x, y: The points; a point without y is left out, and no line runs over it.
        label: In the legend; series without one have no entry.
        color: As `#rrggbb`.
        marker, line: As matplotlib names them; empty draws none.
        spread: Half the height of a bar and of a band at each point.
        low, high: Ends of a band that is not as wide on both sides.
        hollow: Draw markers as outlines.
        size, width: Of a marker and of the line, in points.
        texts: Written beside the points.
        tip: Shown by a page under the mouse.
        bar: Width of a bar from 0 to each point; 0 draws none.
    """

    x: Sequence[float]
    y: Sequence[float | None]
    label: str = ""
    color: str = BLUE
    _: KW_ONLY
    marker: str = "o"
    line: str = "-"
    spread: Sequence[float | None] = ()
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()
    hollow: bool = False
    size: float = 6.0
    width: float = 1.5
    texts: Sequence[str] = ()
    tip: str = ""
    bar: float = 0.0


def ring(x: float, y: float | None, label: str) -> Series:
    """Draw a ring around the choice."""
    return Series([x], [y], label, GREEN, line="", hollow=True, size=16)


@dataclass(frozen=True, slots=True)
class Plot:
    """One panel: series over two axes, or a heat map.

    Attributes:
        name: Its anchor on a page.
        title: Above the panel in a file, below it on a page, and for who does not see it.
        x, y: What the axes are.
        series: What is drawn; the last lies on top.
        levels: Horizontal lines, each with its height, label and color.
        shade: From, to and label of a stretch of x.
        heat: Rows of values instead of series, the first at the top; x and y count columns and rows.
        rows: Names of the rows of `heat`.
        heat_range: Values of the first and the last color; None takes the lowest and highest.
        ticks: Places along x with their names; None takes numbers.
        whole: Whether x counts, so that ticks are whole numbers.
        x_range, y_range: Ends of the axes; None leaves them to the points.
        logarithmic: Whether y is.
        file: Name of the figure without its ending; plots of one name share it, and one without is for pages alone.
        on_page: Whether a page has it.
    """

    name: str
    title: str
    x: str
    y: str
    series: Sequence[Series] = ()
    _: KW_ONLY
    levels: Sequence[tuple[float, str, str]] = ()
    shade: tuple[float, float, str] | None = None
    heat: Sequence[Sequence[float | None]] = ()
    rows: Sequence[str] = ()
    heat_range: tuple[float, float] | None = None
    ticks: Mapping[float, str] | None = None
    whole: bool = False
    x_range: tuple[float, float] | None = None
    y_range: tuple[float | None, float | None] = (None, None)
    logarithmic: bool = False
    file: str = ""
    on_page: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a result has to say.

    Attributes:
        key: Its anchor on a page.
        title: What it is about.
        notes: Cautions; a terminal writes them to stderr.
        tables: Numbers, the most wanted first.
        sentences: What the tables do not say: the choice, its cost, what the numbers rest on.
        plots: Of the same numbers.
    """

    key: str
    title: str
    notes: Sequence[str] = ()
    tables: Sequence[Table] = ()
    sentences: Sequence[str] = ()
    plots: Sequence[Plot] = ()


_VIEWS = {
    "LayerProfile": "analysis.view_profile",
    "SweepResult": "training.view_sweep",
    "ContrastiveResult": "training.view_contrast",
    "LayerWeights": "training.view_weights",
    "FrozenReport": "training.view_frozen",
    "CombinationReport": "training.view_combination",
    "CutResult": "training.view_cut",
    "DistillResult": "distillation.view_distillation",
    "BenchReport": "measuring.view_bench",
    "ExportReport": "measuring.view_export",
    "EncodedFile": "measuring.view_encoded",
    "SuiteReport": "measuring.view_suite",
    "StudyResult": "study.view_study",
    "Contents": "project.view_contents",
    "Diagnosis": "project.view_diagnosis",
    "PageReport": "project.view_page",
}
"""By the name of a result: module of this folder and function that shows it."""


def view_of(result: Any) -> View:
    """Show a result of any kind; one without a function of its own is a table of its fields. Imports no torch."""
    if place := _VIEWS.get(type(result).__name__):
        module, _, function = place.partition(".")
        view: View = getattr(import_module(f"{__package__}.{module}"), function)(result)
        return view
    columns: dict[str, Callable[[tuple[str, Any]], Cell]] = {
        "what": lambda field: field[0].replace("_", " "),
        "value": lambda field: _value(field[1]),
    }
    table = Table.of("", result.to_dict().items(), columns)
    return View(key="fields", title=type(result).__name__, tables=(table,))


def _value(value: Any) -> str:
    if isinstance(value, list | tuple | dict) and len(value) > 4:
        return f"{len(value):,} values"
    text = number(value, ",.6g") if isinstance(value, float | None) else str(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
