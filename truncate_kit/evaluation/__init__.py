"""Reports of the evaluation suites. Importing this module does not import torch.

Encoders without one vector per text or with an unknown similarity measure raise `ModelError`; vectors with NaN or
infinity raise `DataError`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from statistics import fmean

from truncate_kit.core.results import Amounts, Result
from truncate_kit.core.vectors import TextEncoder

Values = dict[str, int | float | None]
Note = Callable[[str], None]
"""Function that shows one sentence to the user."""


class Score(Result):
    """One row of a report; keys of mappings are column headings.

    Values and 95 % intervals are in points (× 100), unless the heading names a unit; counts are integers. `labels`:
    split, metric or vector format; `size` counts the data; values are means over `parts`, such as random splits.
    """

    task: str
    labels: dict[str, str] = field(default_factory=dict)
    values: Values
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    size: tuple[int, ...] = ()
    remark: str = ""
    parts: tuple["Score", ...] = ()


class SuiteReport(Result):
    """Scores of one model or comparison, and means over tasks by column heading.

    `suite` is the suite's name, or `pairs`, `search`, `comparison`, `mteb`, `mteb-comparison`; `runtime` is
    `torch` or `onnx`.
    """

    suite: str
    model: str
    runtime: str
    title: str
    rows: tuple[Score, ...]
    means: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    sha256: str | None = None

    def amounts(self) -> Iterator[Amounts]:
        """Yield the task, labels and size of each row."""
        for row in self.rows:
            yield (row.task, *row.labels.values()), row.size

    def measured_model(self) -> tuple[str, str | None]:
        """Return the model's name and digest."""
        return self.model, self.sha256


def means_of(rows: Iterable[Score]) -> dict[str, float]:
    """Return the mean of each column over rows; omit counts and columns with missing values."""
    first, *others = (row.values for row in rows)
    columns = {heading: [value, *(values.get(heading) for values in others)] for heading, value in first.items()}
    means = {heading: [value for value in column if isinstance(value, float)] for heading, column in columns.items()}
    return {heading: fmean(values) for heading, values in means.items() if len(values) > len(others)}


def report_of(
    suite: str, encoder: TextEncoder, model: str, about: str, rows: Sequence[Score], notes: Sequence[str] = ()
) -> SuiteReport:
    """Return a report of rows, one per task. about: data and metric, for the title."""
    runtime = getattr(encoder, "runtime", "torch")
    title, means = f"{model} in {runtime}: {about}", means_of(rows)
    return SuiteReport(
        suite=suite, model=model, runtime=runtime, title=title, rows=tuple(rows), means=means, notes=tuple(notes)
    )
