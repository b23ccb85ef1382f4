"""The figures of a search of combinations are readable PNGs, with gaps and with one split."""

from matplotlib import image

from truncate_kit.combine.report import Baseline, Combination, CombinationReport, SplitReport
from truncate_kit.combine.settings import CombineSettings
from truncate_kit.report.combination_figure import draw_effects, draw_sizes


def a_report(splits, missing=False):
    rows = tuple(Combination(layers=(0, layer), dev=70.0 + layer, test=68.0 - layer) for layer in range(4))
    split = SplitReport(
        seed=0, num_dev=350, num_test=1029, best=rows[3], by_size=rows, without=(None, *rows[1:]) if missing else rows,
        baselines=(Baseline(name="last layer", dev=60.0, test=None if missing else 59.0),),
    )  # fmt: skip
    return CombinationReport(
        model="mini <b>", data="stsb", settings=CombineSettings(), pooling="mean", depth=3, method="exact", up_to=4,
        up_to_reason=None, num_subsets=15, num_pairs=1379, splits=(split,) * splits, chosen=(0, 3), chosen_dev=73.0,
        unseen=None, num_unseen=0, beam_loss=None, beam_layers=None, seconds=1.0,
    )  # fmt: skip


def test_figures_have_the_promised_size(tmp_path):
    for number, report in enumerate((a_report(5), a_report(1, missing=True))):
        for draw in (draw_sizes, draw_effects):
            height, width, _ = image.imread(draw(report, tmp_path / f"{number}.png")).shape
            assert (width, height) == (1080, 600)


def test_spans_and_effects():
    report = a_report(2)
    assert report.best("dev").mean == 73.0
    assert report.best("dev").std == 0.0
    assert report.size(2, "test").mean == 67.0
    assert [effect.dev for effect in report.effects()] == [-3.0, -2.0, -1.0, 0.0]
    gaps = a_report(1, missing=True)
    assert [effect.layer for effect in gaps.effects()] == [1, 2, 3]
    assert gaps.baseline("last layer", "test") is None
    assert gaps.best("dev").std is None
