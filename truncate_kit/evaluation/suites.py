"""Evaluation suites, one row each in `SUITES`."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from truncate_kit.core.vectors import TextEncoder
from truncate_kit.evaluation import SuiteReport

SUITES: dict[str, tuple[str, tuple[str, ...]]] = {
    "sts": ("graded:run_sts", ("seen",)),
    "transfer": ("transfer:run_transfer", ("fractions", "quick", "head")),
    "retrieval": ("retrieval:run_retrieval", ("corpus",)),
}
"""Function (`module:name` in this folder) and options of each `evaluate --suite`."""


def run_suite(name: str, encoder: TextEncoder, data: str | None, options: Mapping[str, Any], **run: Any) -> SuiteReport:
    """Import a suite's module and score the model.

    options: Options of all suites; only this suite's are used.
    run: `model` (name in the report), `threads`, `work` (folder of finished parts), `note` and `progress`.
    """
    place, names = SUITES[name]
    module, _, function = place.partition(":")
    own = {option: options[option] for option in names}
    report: SuiteReport = getattr(import_module(f"{__package__}.{module}"), function)(encoder, data, **own, **run)
    return report
