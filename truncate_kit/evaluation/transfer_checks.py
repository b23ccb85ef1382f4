"""What there is to say of the sets of the transfer suite before any is scored: few rows, and rows that a model saw."""

from collections.abc import Sequence

from truncate_kit.data import LabelledSet
from truncate_kit.errors import DataError
from truncate_kit.evaluation.registry import SuiteRun
from truncate_kit.evaluation.settings import FEWEST_ROWS, TransferSettings
from truncate_kit.evaluation.transfer_report import TooFewRows
from truncate_kit.wording import counted


def too_few_rows(one: LabelledSet, settings: TransferSettings) -> tuple[TooFewRows, ...]:
    """The shares of a set's training rows that are left out, rising."""
    counts = [(share, settings.train_rows(len(one), share)) for share in sorted(settings.fractions)]
    return tuple(TooFewRows(fraction=share, train_rows=rows) for share, rows in counts if rows < FEWEST_ROWS)


def check_rows(sets: Sequence[LabelledSet], settings: TransferSettings) -> None:
    """Raise `DataError` for a set of one class, or where the largest share leaves no set enough rows to fit on."""
    for one in sets:
        if len(one.classes) < 2:
            raise DataError(f"{one.name} has one class alone.", hint="Give a set with at least two classes.")
    counts = {one.name: settings.train_rows(len(one), max(settings.fractions)) for one in sets}
    name = max(counts, key=counts.__getitem__, default="")
    if counts and counts[name] < FEWEST_ROWS:
        others = ", and no other set more" if len(counts) > 1 else ""
        hint = f"Take more rows, or a larger share: {FEWEST_ROWS} are the fewest that can be fitted on."
        raise DataError(f"{name} leaves {counts[name]} rows to train on{others}.", hint=hint)


def seen_rows(sets: Sequence[LabelledSet], run: SuiteRun) -> list[str]:
    """Sentences for sets of pairs some of whose rows the model learned from or was chosen by, whatever their labels."""
    of_pairs = {one: zip(one.first, one.second, strict=True) for one in sets if one.second is not None}
    seen = run.trained_on() if of_pairs else None
    if seen is None:
        return []
    counts = {one: sum(frozenset(pair) in seen.pairs for pair in pairs) for one, pairs in of_pairs.items()}
    return [
        f"{run.model} was trained on or chosen by {known:,} of the {counted(len(one), 'row')} of {one.name}: accuracy "
        "there says little of other rows."
        for one, known in counts.items()
        if known
    ]
