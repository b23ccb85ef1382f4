"""The curve of a sweep is a readable PNG whatever the sweep was."""

from dataclasses import replace

from matplotlib import image

from tests.support.results import a_sweep
from truncate_kit.report.sweep_figure import draw_sweep
from truncate_kit.sweep.results import SweepResult


def test_the_figure_is_a_png_of_the_promised_size(tmp_path):
    path = draw_sweep(a_sweep(), tmp_path / "curve.png")
    height, width, _ = image.imread(path).shape
    assert (width, height) == (1080, 600)


def test_a_sweep_survives_its_json():
    sweep = a_sweep()
    assert SweepResult.from_dict(sweep.to_dict()) == sweep
    earlier = {name: value for name, value in sweep.to_dict().items() if name != "rankings"}  # of an earlier version
    assert SweepResult.from_dict(earlier) == sweep


def test_a_sweep_of_some_blocks_is_drawn_likewise(tmp_path):
    whole = a_sweep()
    some = replace(whole, blocks=(1, 4, 6), layers=whole.layers[:4], chosen=3)
    assert [some.row_name(layer) for layer in (0, 2, 8)] == ["layer 0", "blocks 1, 4", "layer 8"]
    path = draw_sweep(some, tmp_path / "curve.png")
    assert image.imread(path).shape[:2] == (600, 1080)
