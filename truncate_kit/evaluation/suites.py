"""Evaluation suites, one row each in `SUITES`. Importing this imports no torch."""

from importlib import import_module

from truncate_kit.evaluation import SuiteReport, SuiteRun

SUITES: dict[str, tuple[str, tuple[str, ...]]] = {
    "sts": ("graded:run_sts", ("seen",)),
    "transfer": ("transfer:run_transfer", ("fractions", "quick", "head")),
    "retrieval": ("retrieval:run_retrieval", ("corpus",)),
}
"""Function, as `module:name` in this folder, and options of each `evaluate --suite`."""


def run_suite(name: str, run: SuiteRun) -> SuiteReport:
    """Import the suite's module and score the model."""
    module, _, function = SUITES[name][0].partition(":")
    report: SuiteReport = getattr(import_module(f"{__package__}.{module}"), function)(run)
    return report
