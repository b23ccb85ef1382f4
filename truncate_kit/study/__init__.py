"""Many models on many tasks at every layer, from one file; tables and figures as the TMFT paper has them."""

from truncate_kit.study.plan import Study, StudyModel, StudyPrior, StudyTask
from truncate_kit.study.reading import read_study
from truncate_kit.study.results import StudyResult, StudyRow, Summary, summaries
from truncate_kit.study.running import adapt_all, run_study

__all__ = [
    "Study",
    "StudyModel",
    "StudyPrior",
    "StudyResult",
    "StudyRow",
    "StudyTask",
    "Summary",
    "adapt_all",
    "read_study",
    "run_study",
    "summaries",
]
