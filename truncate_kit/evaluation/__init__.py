"""Evaluation suites, one row each in `SUITES`. Importing this imports no torch."""

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from truncate_kit.evaluation.suite import SuiteReport, SuiteRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """One suite of `evaluate --suite`.

    `function` is `module:name` of this folder. Suites `by_cosine` ignore the scores of trained heads.
    """

    data: str
    options: tuple[str, ...]
    function: str
    by_cosine: bool = False

    def run(self, run: "SuiteRun") -> "SuiteReport":
        """Score the model; imports the suite's module."""
        module, _, name = self.function.partition(":")
        report: SuiteReport = getattr(import_module(f"{__package__}.{module}"), name)(run)
        return report


_SETS = "the folder that holds its sets"
SUITES = {
    "sts": Suite(data=_SETS, options=("seen",), function="sts:run_sts"),
    "transfer": Suite(data=_SETS, options=("fractions", "quick", "head"), function="transfer:run_transfer"),
    "retrieval": Suite(
        data="a file of queries and answers", options=("corpus",), function="retrieval:run_retrieval", by_cosine=True
    ),
}
