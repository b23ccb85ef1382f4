"""Figures of many models: each curve has a look of its own, and none stands for nothing."""

from dataclasses import replace

import pytest
from PIL import Image

from truncate_kit.core.errors import UsageError
from truncate_kit.methods.study.plan import figure_name, read_study
from truncate_kit.methods.study.result import StudyResult, StudyRow
from truncate_kit.methods.tmft.settings import LayerScores
from truncate_kit.report.chart import write_figures
from truncate_kit.report.view import view_of

pytestmark = pytest.mark.usefixtures("drawn")


def row(model: str, task: str, layer: int) -> StudyRow:
    scores = LayerScores(
        layer=layer, parameters=1_000_000 * (layer + 1), seeds=(0, 1), dev=50.0, dev_std=1.0, test=50.0 + layer,
        test_std=1.0, test_pearson=None, test_pearson_std=None,
    )  # fmt: skip
    return StudyRow(model=model, task=task, metric="x", depth=2, scores=scores, paper_parameters=1)


def plots_of(rows):
    return view_of(StudyResult(rows=tuple(rows), seconds=0.0)).plots


def test_no_two_of_168_models_look_alike():
    models = [f"model {number}" for number in range(168)]
    (plot,) = [one for one in plots_of([row(model, "one", 1) for model in models]) if one.file == "layers-one"]
    assert [series.label for series in plot.series] == models
    assert len({(series.color, series.line, series.marker) for series in plot.series}) == 168


def test_each_task_has_its_models_in_all_its_figures(tmp_path):
    models = [f"model {number}" for number in range(4)]
    rows = [row(model, "one", layer) for model in models for layer in range(3)]
    rows += [row(models[3], "other", layer) for layer in range(3)]
    view = view_of(StudyResult(rows=tuple(rows), seconds=0.0))
    drawn = {path.name: path for path in write_figures(view, tmp_path)}
    names = [(kind, task) for task in ("one", "other") for kind in ("curves", "layers", "pareto")]
    assert set(drawn) == {figure_name(task, kind) for kind, task in names}
    for path in drawn.values():
        assert path.stat().st_size > 10_000
        with Image.open(path) as image:
            assert image.width > 500
    curves = [plot.title for plot in view.plots if plot.file == "curves-one"]
    assert curves == models


def test_a_task_of_any_name_has_a_file_that_can_be():
    names = [figure_name(task, "curves") for task in ("../../sts b", "🙂" * 200, "é" * 300, "é" * 301, "a/b\0c")]
    assert len(set(names)) == 5
    assert all(len(name.encode()) <= 255 and "/" not in name and "\0" not in name for name in names)


def test_tasks_whose_figures_would_have_one_name_are_refused(tmp_path, tiny_folder):
    def read(*names):
        tasks = "".join(f'[[tasks]]\ndata = "bundled"\nname = "{name}"\n' for name in names)
        (tmp_path / "study.toml").write_text(f'[[models]]\nmodel = "{tiny_folder("bert")}"\n{tasks}')
        return read_study(tmp_path / "study.toml")

    with pytest.raises(UsageError, match=r"Two parts have the name 'curves-C\.png'"):
        read("C", "C++")
    assert len(read("a" * 60 + "/x", "a" * 60 + "-x").tasks) == 2  # a digest tells the names of their files apart


def test_the_front_of_the_paper_is_that_of_best_dev_and_last_layers():
    """Layer 1 beats both ends in test alone: it is on the front of all layers, not on that of the paper's two."""
    rows = [row("model", "one", layer) for layer in range(3)]
    for place, (dev, test) in enumerate(((70.0, 60.0), (65.0, 64.0), (60.0, 62.0))):
        rows[place] = replace(rows[place], scores=replace(rows[place].scores, dev=dev, test=test))
    (plot,) = [one for one in plots_of(rows) if one.file == "pareto-one"]
    every, ends, _ = plot.series
    assert sorted(set(every.y)) == [60.0, 64.0]
    assert sorted(set(ends.y)) == [60.0, 62.0]
