"""Views of results: what terminals, pages, notebooks and model cards draw.

`view_of` shows a result of any kind. Views by subject: analysis, training, distillation, measuring, study, project.
Drawn by: chart (figures), page (HTML), card (model cards).
"""
