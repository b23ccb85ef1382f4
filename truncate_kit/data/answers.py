"""Which rows of a table are a query and its answer."""

from truncate_kit.data.columns import find_label_column, find_score_column
from truncate_kit.data.tables import MISSING, Table
from truncate_kit.errors import ColumnsError

_TRUTH = {"1": "1", "1.0": "1", "true": "1", "0": "0", "0.0": "0", "false": "0"}  # as tables write it


def answers_of(table: Table, layout: str) -> list[bool]:
    """Whether the second text of each row answers the first: every row, unless labels of 0 and 1 say otherwise.

    Args:
        table: Whose rows they are.
        layout: Of a retrieval folder, for hints.

    Raises:
        ColumnsError: There are scores, or labels that are neither.
    """
    label, score = find_label_column(table.source, tuple(table.columns)), find_score_column(tuple(table.columns))
    if label is None and score is not None:
        raise ColumnsError(
            table.source,
            f"column {score!r} grades the pairs, so not all of them are a query and its answer.",
            table.columns,
            hint=f"Leave out the pairs that are none, and the column. {layout}",
        )
    values = table.columns[label] if label is not None else []
    written = ["" if value is None or value is MISSING else str(value).strip().lower() for value in values]
    if not any(written):  # no labels at all
        return [True] * len(table)
    other = next((value for value in written if value not in ("", "nan", *_TRUTH)), None)
    if other is not None:
        raise ColumnsError(
            table.source,
            f"column {label!r} holds {other[:40]!r}, so it does not say which rows are a query and its answer.",
            table.columns,
            hint=f"Write 1 where the second text answers, else 0; or leave out the column. {layout}",
        )
    missing = next((row for row, value in enumerate(written) if value in ("", "nan")), None)
    if missing is not None:
        raise table.problem(missing, "there is no label.", hint="Write 1 where the second text answers, else 0.")
    return [_TRUTH[value] == "1" for value in written]
