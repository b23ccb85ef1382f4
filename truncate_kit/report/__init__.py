"""Views of results: what terminals, pages, notebooks and model cards draw.

`view_of` shows a result of any kind. Views by subject: analysis, training, distillation, measuring, study, project.
Drawn by: chart (figures), page (HTML), card (model cards).
"""

from truncate_kit.report.view import Plot, Series, Table, View, view_of

__all__ = ["Plot", "Series", "Table", "View", "view_of"]
