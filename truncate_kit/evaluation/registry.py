"""The evaluation suites: one row each. What a suite reads, scores and shows stands in a module of its own.

Importing this imports no torch: the command line reads names and options from the rows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from truncate_kit.evaluation.suite import SuiteReport, SuiteRun

if TYPE_CHECKING:
    pass


Loaded = tuple[type[SuiteReport], Callable[[SuiteRun], SuiteReport]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """One suite.

    Attributes:
        data: What `data` names, in words.
        options: Parameters of `evaluate` that no other suite has.
        load: The class of its report, and the function that scores; it imports what these need.
        by_cosine: Whether it searches by the cosine of vectors, which leaves out the score that heads have learnt.
    """

    data: str
    options: tuple[str, ...]
    load: Callable[[], Loaded]
    by_cosine: bool = False

    def report(self) -> type[SuiteReport]:
        """The class of its report."""
        return self.load()[0]


def _sts() -> Loaded:
    from truncate_kit.evaluation.graded import StsReport, run_sts

    return StsReport, run_sts


def _transfer() -> Loaded:
    from truncate_kit.evaluation.classifiers import run_transfer
    from truncate_kit.evaluation.transfer import TransferReport

    return TransferReport, run_transfer


def _retrieval() -> Loaded:
    from truncate_kit.evaluation.retrieval import RetrievalReport, run_retrieval

    return RetrievalReport, run_retrieval


SUITES = {
    "sts": Suite(data="the folder that holds its sets", options=("seen",), load=_sts),
    "transfer": Suite(data="the folder that holds its sets", options=("fractions", "quick", "head"), load=_transfer),
    "retrieval": Suite(data="a file of queries and answers", options=("corpus",), load=_retrieval, by_cosine=True),
}
