"""Figures of many models: each curve has a look of its own, and none stands for nothing."""

from dataclasses import replace

import pytest
from matplotlib.figure import Figure

from truncate_kit.errors import UsageError
from truncate_kit.methods.study.plan import figure_name, read_study
from truncate_kit.methods.study.result import CKARow, StudyResult, StudyRow
from truncate_kit.methods.tmft.result import LayerScores
from truncate_kit.report.study_figures import (
    COLORS,
    FRONT_OF_ALL,
    FRONT_OF_ENDS,
    curve_style,
    draw_cka,
    draw_layers,
    draw_pareto,
)

pytestmark = pytest.mark.usefixtures("drawn")


def row(model: str, task: str, layer: int) -> StudyRow:
    scores = LayerScores(
        layer=layer, parameters=1_000_000 * (layer + 1), seeds=(0, 1), dev=50.0, dev_std=1.0, test=50.0 + layer,
        test_std=1.0, test_pearson=None, test_pearson_std=None,
    )  # fmt: skip
    return StudyRow(model=model, task=task, metric="x", depth=2, scores=scores, paper_parameters=1, published=None)


def test_no_two_of_168_models_look_alike():
    looks = [tuple(sorted(curve_style(place).items())) for place in range(168)]
    assert len(set(looks)) == 168
    assert len({curve_style(place)["color"] for place in range(len(COLORS))}) == len(COLORS)
    for place in range(20):  # those of one colour differ in line as well as marker
        one, other = curve_style(place), curve_style(place + len(COLORS))
        assert one["color"] == other["color"]
        assert one["linestyle"] != other["linestyle"]
        assert one["marker"] != other["marker"]


def test_models_are_drawn_where_they_have_rows(tmp_path, monkeypatch):
    drawn = []
    write = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (drawn.append(self), write(self, *a, **k))[1])
    models = [f"model {number}" for number in range(9)]
    rows = [row(model, "one", layer) for model in models for layer in range(3)]
    rows += [row(models[8], "other", layer) for layer in range(3)]
    result = StudyResult(rows=tuple(rows), seconds=0.0)
    for draw in (draw_layers, draw_pareto):
        for task in ("one", "other"):
            assert draw(result, task, tmp_path / "figure.png").stat().st_size > 10_000
    for figure, wanted in zip(drawn, (models, models[8:]) * 2, strict=True):
        lines = {line.get_label(): line for line in figure.axes[0].get_lines()}
        assert [name for name in lines if name not in (FRONT_OF_ALL["label"], FRONT_OF_ENDS["label"])] == wanted
        for place, model in enumerate(wanted):
            look = curve_style(place)
            assert {key: getattr(lines[model], f"get_{key}")() for key in look} == look
        beside = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
        assert set(beside) == set(lines)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_the_legend_of_a_cka_figure_is_whole_whatever_the_number_of_models(tmp_path, monkeypatch, count):
    drawn = []
    write = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (drawn.append(self), write(self, *a, **k))[1])
    rows = [
        CKARow(
            model=f"model {number}", reference="bert", task="one", layer=layer, reference_layer=layer, num_texts=99,
            untrained=0.9, last_trained=0.5, own_trained=0.6, untrained_biased=0.9, last_trained_biased=0.6,
            own_trained_biased=0.7,
        )
        for number in range(count)
        for layer in range(3)
    ]  # fmt: skip
    draw_cka(StudyResult(rows=(), seconds=0.0, cka=tuple(rows)), "one", tmp_path / "figure.png")
    (figure,) = drawn
    (legend,) = figure.legends
    assert len(legend.get_texts()) == 6
    frame = legend.get_window_extent()
    assert 0 <= frame.x0 < frame.x1 <= figure.bbox.width
    assert 0 <= frame.y0 < frame.y1 <= min(axes.get_tightbbox().y0 for axes in figure.axes)


def test_a_task_of_any_name_has_a_file_that_can_be():
    names = [figure_name(task, "curves") for task in ("../../sts b", "🙂" * 200, "é" * 300, "é" * 301, "a/b\0c")]
    assert len(set(names)) == 5
    assert all(len(name.encode()) <= 255 and "/" not in name and "\0" not in name for name in names)


def test_tasks_whose_figures_would_have_one_name_are_refused(tmp_path, tiny_folder):
    def read(*names):
        tasks = "".join(f'[[tasks]]\ndata = "bundled"\nname = "{name}"\n' for name in names)
        (tmp_path / "study.toml").write_text(f'[[models]]\nmodel = "{tiny_folder("bert")}"\n{tasks}')
        return read_study(tmp_path / "study.toml")

    for names, said in (
        (("stsb/en", "stsb-en"), "'stsb/en' and 'stsb-en'"),
        (("C", "C++"), r"'C' and 'C\+\+'"),
        (("a/x", "b/x", "a-x", "b-x"), "'a/x' and 'a-x'"),
    ):
        with pytest.raises(UsageError, match=f"the figures of {said} would have the same name"):
            read(*names)
    assert len(read("a" * 60 + "/x", "a" * 60 + "-x").tasks) == 2  # a digest tells the names of their files apart


def test_the_front_of_the_paper_is_that_of_best_dev_and_last_layers(tmp_path, monkeypatch):
    """Layer 1 beats both ends in test alone: it is on the front of all layers, not on that of the paper's two."""
    drawn = []
    write = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (drawn.append(self), write(self, *a, **k))[1])
    rows = [row("model", "one", layer) for layer in range(3)]
    for place, (dev, test) in enumerate(((70.0, 60.0), (65.0, 64.0), (60.0, 62.0))):
        rows[place] = replace(rows[place], scores=replace(rows[place].scores, dev=dev, test=test))
    draw_pareto(StudyResult(rows=tuple(rows), seconds=0.0), "one", tmp_path / "figure.png")
    lines = {line.get_label(): list(line.get_ydata()) for line in drawn[0].axes[0].get_lines()}
    assert lines[FRONT_OF_ALL["label"]] == [60.0, 64.0]
    assert lines[FRONT_OF_ENDS["label"]] == [60.0, 62.0]
