"""Read tables in memory."""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

from truncate_kit.core.errors import DataError, first_line
from truncate_kit.data.tables import Table, table_from_arrow

_ROWS = (
    "Give a data frame, a `datasets.Dataset`, a dict of columns, or a list of (first, second, score) tuples or dicts."
)


def table_from(data: Any, name: str) -> Table:
    """Convert a dict of columns, a `datasets.Dataset`, an Arrow stream (pandas, polars) or rows. Raises `DataError`."""
    import pyarrow

    try:
        if isinstance(data, Mapping):
            table = _table_of_columns(data, name)
        elif hasattr(data, "with_format") and hasattr(data, "__len__"):
            table = table_from_arrow(name, data.with_format("arrow")[:])  # in the order of its indices
        elif hasattr(data, "__arrow_c_stream__"):
            table = table_from_arrow(name, pyarrow.table(data))
        elif isinstance(data, Iterable) and not isinstance(data, str | bytes):
            table = _table_of_rows(list(data), name)
        else:
            raise DataError(f"{name} is no table of pairs.", hint=_ROWS)
    except (pyarrow.ArrowException, ValueError) as error:
        if isinstance(error, DataError):
            raise
        hint = "Give each column a name of its own, and values of one type."
        raise DataError(f"{name} cannot be read ({first_line(error)}).", hint=hint) from error
    if not len(table):
        raise DataError(f"{name} has no rows.", hint="Give at least one row.")
    return table


def _table_of_columns(data: Mapping[Any, Any], name: str) -> Table:
    if any(isinstance(cells, str) or not isinstance(cells, Iterable) for cells in data.values()):
        raise DataError(f"{name}: a column is no list.", hint=_ROWS)
    columns = {str(column): [None if _is_missing(cell) else cell for cell in cells] for column, cells in data.items()}
    lengths = {*map(len, columns.values())}
    if len(lengths) > 1:
        raise DataError(f"{name} has columns of different lengths.", hint="Give as many cells in each column.")
    return Table(name, columns, range(1, max(lengths, default=0) + 1), "row")


def _is_missing(cell: Any) -> bool:
    return (isinstance(cell, float) and math.isnan(cell)) or type(cell).__name__ in ("NAType", "NaTType")


def _table_of_rows(data: list[Any], name: str) -> Table:
    rows: list[Any] = [
        dataclasses.astuple(row) if dataclasses.is_dataclass(row) and not isinstance(row, type) else row for row in data
    ]
    if all(isinstance(row, Mapping) for row in rows):
        keys = dict.fromkeys(chain.from_iterable(rows))
        return _table_of_columns({key: [row.get(key) for row in rows] for key in keys}, name)
    if {len(row) if isinstance(row, tuple | list) else 0 for row in rows} not in ({2}, {3}):
        raise DataError(f"{name} holds other rows than tuples of two texts and a target.", hint=_ROWS)
    names = ("sentence1", "sentence2", "label")  # label: of scores and of classes
    return _table_of_columns(dict(zip(names, zip(*rows, strict=True), strict=False)), name)
