"""Define views of results; the terminal, the page, notebooks and model cards draw them."""

import dataclasses
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from truncate_kit.core.errors import counted, harmless
from truncate_kit.core.hardware import GRAPH_RUNTIMES, QUIET

if TYPE_CHECKING:
    from pandas import DataFrame

    from truncate_kit.core.workspace import Contents, VocabularyCut
    from truncate_kit.data.pairs import Overlap, PairSplits
    from truncate_kit.doctor import Diagnosis
    from truncate_kit.report.page import PageReport

Cell = str | float | None
Column = str | Callable[[Any], Cell]
# Okabe and Ito's palette, for colour-blind readers and grey print.
BLUE, SKY, GREEN, VERMILION, ORANGE, PURPLE = "#0072B2", "#56B4E9", "#009E73", "#D55E00", "#E69F00", "#CC79A7"
GREY, INK = "#777777", "#000000"
LAYERS = "layer (0 = embeddings)"
NONE = "–"


def number(value: float | None, form: str = ".2f") -> str:
    """Format a number, or a dash."""
    return NONE if value is None else format(value, form)


def points(mean: float | None, deviation: float | None = None) -> str:
    """Format a score in points and its standard deviation, or a dash."""
    return number(mean) if mean is None or deviation is None else f"{mean:.2f} ± {deviation:.2f}"


def in_markdown(text: str) -> str:
    """Escape text for one line of Markdown: no cells, links or HTML."""
    plain = harmless(" ".join(text.split()))
    return "".join(f"\\{char}" if char in "|<>[]`*_\\" else char for char in plain)


@dataclass(frozen=True, slots=True)
class Table:
    """A table of text cells, the most important columns first.

    `marked` is the marked row's index. A `detail` table is folded on pages, and terminals need `--verbose`.
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
        rows: Iterable[Any],
        columns: Mapping[str, Column],
        *,
        last: Sequence[Cell] = (),
        marked: Any = None,
        detail: bool = False,
    ) -> Self:
        """Make a table with one row per object; columns without values are dropped, except the first.

        A column is a function of the row, or an attribute with an optional format: `dev`, `seconds:.1f`, or `dev:±` for
        a mean with `dev_std`. `last` is one more row, `marked` an object.
        """
        every = list(rows)
        cells = [[_cell(row, column) for column in columns.values()] for row in every]
        cells += [[_text(value) for value in last]] if last else []
        full = [
            index for index in range(len(columns)) if not index or any(row[index] not in ("", NONE) for row in cells)
        ]
        shown = [tuple(row[index] for index in full) for row in cells]
        headings = [[*columns][index] for index in full]
        return cls(title, headings, shown, None if marked is None else every.index(marked), detail)

    def __len__(self) -> int:
        return len(self.rows)

    def markdown(self) -> str:
        """Return Markdown, without title and final newline."""
        rows = [[in_markdown(cell) for cell in row] for row in self.rows]
        if self.marked is not None:
            rows[self.marked][0] = f"**{rows[self.marked][0]}**"
        head = f"| {' | '.join(self.columns)} |" if any(self.columns) else "|" + " |" * len(self.columns)
        return "\n".join([head, "|" + "---|" * len(self.columns), *(f"| {' | '.join(row)} |" for row in rows)])


def _cell(row: Any, column: Column) -> str:
    if not isinstance(column, str):
        return _text(column(row))
    name, _, form = column.partition(":")
    value = attrgetter(name)(row)
    return points(value, attrgetter(f"{name}_std")(row)) if form == "±" else _text(value, form)


def _text(value: Cell, form: str = "") -> str:
    if isinstance(value, str):
        return value
    return number(value, form or ("," if isinstance(value, int) else ".2f"))


@dataclass(frozen=True, slots=True)
class Series:
    """Points, a line through points, or both; a missing y interrupts the line.

    Marker and line have matplotlib's names, or are empty; sizes are in points. `spread` is half the height of error
    bars and band, `low` and `high` bound a band, `bar` is the width of bars from 0.
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
    """Return a ring that marks the chosen point."""
    return Series([x], [y], label, GREEN, line="", hollow=True, size=16)


@dataclass(frozen=True, slots=True)
class Plot:
    """One panel: series over two axes (the last one on top), or a heat map.

    Levels are height, label and color of horizontal lines; `shade` is start, end and label of a range of x; `ticks` are
    named positions on x. Plots with one `file` share it.
    """

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


@dataclass(frozen=True, slots=True)
class View:
    """Sentences, tables and plots of a result, the most important first; empty ones are dropped.

    `key` is the anchor on a page. Terminals print `notes` on stderr and `details` with `--verbose`; `missing` pairs a
    missing part with the command that adds it.
    """

    key: str
    title: str
    tables: Sequence[Any] = ()
    sentences: Sequence[Any] = ()
    _: KW_ONLY
    notes: Sequence[Any] = ()
    details: Sequence[Any] = ()
    plots: Sequence[Any] = ()
    snippets: Sequence[tuple[str, str]] = ()
    missing: Sequence[tuple[str, str]] = ()

    def __post_init__(self) -> None:
        for name in ("tables", "sentences", "notes", "details", "plots"):
            object.__setattr__(self, name, [*filter(None, getattr(self, name))])


_MODULES = {
    "training": "LayerProfile SweepResult ContrastiveResult LayerWeights FrozenReport CombinationReport CutResult",
    "distillation": "DistillResult ExportReport",
    "measuring": "BenchReport EncodedFile SuiteReport",
    "study": "StudyResult",
    "view": "Contents Diagnosis PageReport",
}
"""Results by module; `view_sweep_result` shows a `SweepResult`."""


_SHORT = reprlib.Repr()
_SHORT.maxother = _SHORT.maxstring = 80
_NUMBER = r"([-+]?[\d,]*\.?\d+(?:e[-+]?\d+)?)"
_NUMBERS = re.compile(rf"{_NUMBER}(?: ± {_NUMBER}| [(\[]{_NUMBER}(?: to|,) {_NUMBER}[)\]])?(?: [%×])?(?: \((.+)\))?")
_PARTS = ("", " ±", " low", " high", " note")  # by group


def words_of(result: Any) -> str:
    """Return title and first sentences, or the fields."""
    kind = type(result).__name__
    if kind in " ".join(_MODULES.values()).split():
        view = view_of(result)
        return "\n  ".join([f"{kind}: {view.title}", *view.sentences[:4]])
    fields = (f"{field.name}={_SHORT.repr(getattr(result, field.name))}" for field in dataclasses.fields(result))
    return f"{kind}({', '.join(fields)})"


def frame_of(result: Any) -> "DataFrame":
    """Return the first table with its numbers, or the fields as one row."""
    import pandas

    view, columns = view_of(result), dict[str, Any]()
    if view.key == "fields" or not view.tables:
        return pandas.DataFrame([result.to_dict()])
    for place, name in enumerate(view.tables[0].columns):
        cells = [row[place] for row in view.tables[0].rows]
        found = [_NUMBERS.fullmatch(cell) for cell in cells]
        if not any(found) or any(
            cell not in ("", NONE) and not match for cell, match in zip(cells, found, strict=True)
        ):
            columns[name] = cells
            continue
        for ending, *texts in zip(_PARTS, *(match.groups() if match else [None] * 5 for match in found), strict=True):
            if any(texts):
                columns[name + ending] = (
                    texts if ending == " note" else pandas.to_numeric(pandas.Series(texts).str.replace(",", ""))
                )
    return pandas.DataFrame(columns)


def view_of(result: Any) -> View:
    """Return a result's view, by default a table of its fields. Imports no torch."""
    kind = type(result).__name__
    for module in (module for module, kinds in _MODULES.items() if kind in kinds.split()):
        function = re.sub("(?<!^)(?=[A-Z])", "_", f"View{kind}").lower()
        view: View = getattr(import_module(f"{__package__}.{module}"), function)(result)
        return view
    table = Table("", ("what", "value"), [(name.replace("_", " "), _value(x)) for name, x in result.to_dict().items()])
    return View("fields", kind, [table])


def _value(value: Any) -> str:
    if isinstance(value, list | tuple | dict) and len(value) > 4:
        return f"{len(value):,} values"
    text = number(value, ",.6g") if isinstance(value, float | None) else str(value)
    return text if len(text) <= 80 else f"{text[:80]}…"


def rough_speeds(others_busy: float | None) -> list[str]:
    """Warn if other processes used the machine during timing."""
    if (others_busy or 0.0) <= QUIET:
        return []
    return [f"Other processes used {others_busy or 0.0:.0%} of the processor during timing, so speeds are imprecise."]


def vocabulary_sentences(cut: "VocabularyCut") -> tuple[str, ...]:
    """Describe kept word pieces and their coverage of held-out texts."""
    kept = (
        f"{cut.pieces:,} of {cut.full_pieces:,} word pieces are kept, those of {cut.texts:,} texts: "
        f"float32 weights shrink from {cut.full_model_bytes / 1e6:.1f} to {cut.model_bytes / 1e6:.1f} MB."
    )
    if cut.covered_pieces is None or cut.covered_texts is None:  # too few texts
        return (kept,)
    covered = f"{100 * cut.covered_pieces:.2f} % of the word pieces"
    return (
        kept,
        f"In held-out texts {covered} are kept; {100 * cut.covered_texts:.1f} % of these texts keep their vector.",
    )


_KEPT = {"graphs": "graphs that bench made", "distillation": "texts and vectors of distill"}
_CODES: dict[frozenset[float], str] = {
    frozenset({0, 1}): "All scores are 0 or 1. If they mark paraphrases, use `objective=paraphrase`.",
    frozenset({0, 1, 2}): "All scores are 0, 1 or 2. If they are classes, use `objective=entailment`.",
}
"""Hints for scores that are probably labels."""


def data_sentences(splits: "PairSplits") -> list[str]:
    """Describe pairs: sizes, scale or classes, notes, and overlap of splits."""
    sets = [pairs for _, pairs in splits.items()]
    total, pairs, warning = sum(map(len, sets)), splits.evaluation, overlap_warning(splits.overlap)
    # A single file has no splits yet.
    sizes = f"{total:,}" if splits.one_file else ", ".join(f"{name} {len(split):,}" for name, split in splits.items())
    low, high = pairs.scale
    read = [f"Classes: {', '.join(pairs.classes)}."]
    if not pairs.classes:
        inferred = f"inferred from {counted(total, 'value')}"
        source = {"given": "as given", "inferred": inferred, "known": "known for this set"}[pairs.scale_source]
        code = _CODES.get(frozenset(pair.target for split in sets for pair in split), "")
        read = [f"Scores run from {low:g} to {high:g} ({source}).", *([code] if code else [])]
    return [f"Data: {splits.name} ({sizes} pairs). {' '.join(read)}", *splits.notes, *([warning] if warning else [])]


def overlap_warning(overlap: "Overlap") -> str | None:
    """Describe the overlap of test and train, if any."""
    if not overlap.test_sentences_in_train:
        return None
    same, either = overlap.train_test
    return (
        f"Overlap: {either:,} test pairs ({same:,} in the same order) and {overlap.test_sentences_in_train:,} of the "
        f"{overlap.test_sentences:,} distinct test sentences are also in train; the test score may be optimistic."
    )


def view_contents(kept: "Contents") -> View:
    """Show models, runs and graphs with their sizes."""
    graphs = {file: f"{runtime} {name}".removeprefix("onnx ") for runtime, row in GRAPH_RUNTIMES.items()
              for name, file in reversed(row.files.items())}  # fmt: skip
    rows: list[Any] = [
        (model.path, model.file_bytes, ", ".join(graphs.get(name, name) for name in model.graphs), model.origin)
        for model in kept.models
    ]
    for run in kept.runs:
        stopped = f", {run.waiting:,} stopped" if run.waiting else ""
        spare = f"; {_megabytes(run.spare_bytes)} MB to free" if run.spare_bytes else ""
        rows.append((run.path, run.file_bytes, "", f"run: {run.finished:,} finished{stopped}{spare}"))
    rows += [(path, size, "", _KEPT[Path(path).name]) for path, size in kept.kept.items()]
    others = kept.file_bytes - sum(row[1] for row in rows)
    rows += [("other files", others, "", "results, figures, notes")] if rows else []
    cells = [(path.removeprefix(f"{kept.folder}/"), _megabytes(size), *more) for path, size, *more in rows]
    freed = f"; {_megabytes(kept.freed_bytes)} MB were freed" if kept.freed_bytes else ""
    return View(
        "contents",
        "What the workspace holds",
        [Table(f"Models and runs in {kept.folder}", ("folder", "MB", "graphs", "what it is"), cells)],
        [
            kept.reports and f"Results: {', '.join(kept.reports)}",
            f"{kept.folder}: {counted(len(kept.models), 'model')}, {_megabytes(kept.file_bytes)} MB{freed}.",
            kept.spare_bytes and f"--clean frees {_megabytes(kept.spare_bytes)} MB that only repeated runs would read.",
        ],
    )


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f}"


def view_diagnosis(diagnosis: "Diagnosis") -> View:
    """Show the checks; problems come before warnings."""
    table = Table.of("This machine", diagnosis.checks, {"what": "name", "found": "found", "verdict": "verdict"})
    wrong = sorted(
        (row for row in diagnosis.checks if row.verdict in ("problem", "warning")), key=attrgetter("verdict")
    )
    problems = [f"{row.verdict.title()}: {row.name}: {row.found}.\n  Do: {row.hint}." for row in wrong]
    able = diagnosis.able and "Everything requested can run."
    return View("diagnosis", "What runs on this machine", [table], [*problems, able])


def view_page_report(report: "PageReport") -> View:
    """Show the recommendation, missing parts, and the path."""
    missing = [f"{why}. This adds it: {command}" for why, command in zip(report.missing, report.commands, strict=True)]
    size = f"{report.file_bytes / 1e3:,.0f} kB, opens without a network"
    return View("page", "Page", (), [*report.recommendations, *missing, f"Page: {report.page} ({size})"])
