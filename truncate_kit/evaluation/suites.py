"""Evaluation suites, one row each in `SUITES`. Importing this imports no torch."""

from importlib import import_module

from truncate_kit.evaluation import SuiteReport, SuiteRun

SUITES: dict[str, tuple[str, tuple[str, ...]]] = {
    "sts": ("graded:run_sts", ("seen",)),
    "transfer": ("transfer:run_transfer", ("fractions", "quick", "head")),
    "retrieval": ("retrieval:run_retrieval", ("corpus",)),
}
"""Function, `module:name` of this folder, and options of each suite of `evaluate --suite`."""


def run_suite(name: str, run: SuiteRun) -> SuiteReport:
    """Score the model; imports the suite's module."""
    module, _, function = SUITES[name][0].partition(":")
    report: SuiteReport = getattr(import_module(f"{__package__}.{module}"), function)(run)
    return report
