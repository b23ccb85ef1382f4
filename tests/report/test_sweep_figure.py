"""The curve of a sweep is a readable PNG whatever the sweep was."""

from dataclasses import replace

from matplotlib import image

from tests.support.training import SHORT
from truncate_kit.report.sweep_figure import draw_sweep
from truncate_kit.runs.trial import Trial
from truncate_kit.similarity.drop import DropPrediction
from truncate_kit.sweep.results import LayerScores, SweepResult
from truncate_kit.sweep.settings import SweepSettings


def row(layer, dev, test, spread):
    return LayerScores(
        layer=layer,
        parameters=1000 * layer,
        seeds=(0, 1),
        dev=dev,
        dev_std=spread,
        test=test,
        test_std=spread,
        test_pearson=test,
        test_pearson_std=spread,
    )


def trial(layer, dev):
    return Trial(
        layer=layer,
        seed=0,
        epochs=1,
        steps=4,
        dev_scores=(dev,),
        best_epoch=1,
        dev=dev,
        dev_pearson=dev,
        test=None,
        test_pearson=None,
        seconds=1.0,
    )


def a_sweep() -> SweepResult:
    dev, test = [50.7, 69.6, 68.0, 67.6, 68.3, 67.3, 65.0, 64.0, 61.5], [40, 54, 55.7, 56.7, 57.6, 56.4, 54.7, 55, 53.8]
    rows = tuple(row(layer, dev[layer], test[layer], 0.6) for layer in range(9))
    return SweepResult(
        model="mini <b>", data="stsb", data_fingerprint="", settings=SweepSettings(), training=SHORT,
        learning_rate=1e-4, layers=rows, search=tuple(trial(layer, dev[layer] - 4) for layer in range(9)), trials=(),
        chosen=5, chosen_seed=0, full=rows[-1], choice="Layer 5.", metric="Spearman × 100", search_cost=1,
        exhaustive_cost=2, seconds=1.0,
        prediction=DropPrediction(
            falls=True, from_layer=6, confidence=0.8, sentence="", with_reference=True, signs=()
        ),
    )  # fmt: skip


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
