"""The evaluation suites, one row each.

Importing this imports no torch: the command line reads names and options from the rows.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from truncate_kit.evaluation.suite import SuiteReport, SuiteRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """One suite.

    Attributes:
        data: What `data` names, in words.
        options: Parameters of `evaluate` that no other suite has.
        report_class: The class of its report, as `module:name` of this folder.
        function: What scores, in the same way; importing it imports what it needs.
        by_cosine: Whether it searches by the cosine of vectors, which leaves out the score that heads have learnt.
    """

    data: str
    options: tuple[str, ...]
    report_class: str
    function: str
    by_cosine: bool = False

    def report(self) -> type[SuiteReport]:
        """Return the class of its report."""
        found: type[SuiteReport] = _named(self.report_class)
        return found

    def run(self, run: SuiteRun) -> SuiteReport:
        """Score the model."""
        report: SuiteReport = _named(self.function)(run)
        return report


def _named(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(f"{__package__}.{module}"), name)


SUITES = {
    "sts": Suite(
        data="the folder that holds its sets",
        options=("seen",),
        report_class="graded:StsReport",
        function="graded:run_sts",
    ),
    "transfer": Suite(
        data="the folder that holds its sets",
        options=("fractions", "quick", "head"),
        report_class="transfer:TransferReport",
        function="classifiers:run_transfer",
    ),
    "retrieval": Suite(
        data="a file of queries and answers",
        options=("corpus",),
        report_class="retrieval:RetrievalReport",
        function="retrieval:run_retrieval",
        by_cosine=True,
    ),
}
