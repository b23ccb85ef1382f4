"""The figure and the table of an analysis."""

from pathlib import Path

import matplotlib.image
import numpy
import pytest

from tests.support.pairs import TEXTS, pairs_of
from truncate_kit.analysis.drop import DropPrediction
from truncate_kit.analysis.profiling import profile
from truncate_kit.analysis.settings import AnalysisSettings
from truncate_kit.models import load_encoder, truncate
from truncate_kit.report.analysis_figure import draw_analysis
from truncate_kit.report.analysis_table import analysis_table


@pytest.fixture(scope="module")
def models(tiny_folder):
    return load_encoder(tiny_folder("bert")), load_encoder(tiny_folder("electra"))


def _size(path: Path) -> tuple[int, int]:
    height, width = matplotlib.image.imread(path).shape[:2]
    return width, height


def _with_drop(found, layer):
    drop = DropPrediction(
        falls=True, from_layer=layer, confidence=0.7, sentence="It falls.", with_reference=True, signs=()
    )
    return type(found).from_dict({**found.to_dict(), "drop": drop.to_dict()})


def test_figure_has_a_panel_for_scores_where_there_are_any(models, tmp_path):
    encoder, other = models
    cls = AnalysisSettings(pooling="cls")  # layer 0 has no CKA
    scored = profile(encoder, TEXTS, reference=other, pairs=pairs_of(TEXTS), settings=cls)
    bare = profile(encoder, TEXTS, settings=AnalysisSettings(intervals=0, outliers=0))
    for found, size in ((scored, (1080, 840)), (bare, (1080, 600))):
        assert draw_analysis(found, tmp_path / "curve.png") == tmp_path / "curve.png"
        assert _size(tmp_path / "curve.png") == size
    assert [path.name for path in tmp_path.iterdir()] == ["curve.png"]


def test_predicted_drop_is_shaded(models, tmp_path):
    found = profile(models[0], TEXTS)
    pictures = []
    for layer in (None, 2, 3):
        shown = found if layer is None else _with_drop(found, layer)
        pictures.append(matplotlib.image.imread(draw_analysis(shown, tmp_path / f"{layer}.png"))[:, :, :3])
    right = [picture[300, 1040] for picture in pictures]  # between the last layer's point and the edge
    assert numpy.ptp(right[0]) < 0.02  # white or grey
    for colour in right[1:]:
        assert colour[0] > colour[2] + 0.05  # a red tint
    inner = [picture[300, 660] for picture in pictures]  # between layers 1.5 and 2.5
    assert not numpy.allclose(inner[1], inner[2])


def test_table_says_what_was_measured(models):
    encoder, other = models
    found = _with_drop(profile(encoder, TEXTS, reference=other, pairs=pairs_of(TEXTS)), 2)
    columns, rows = analysis_table(found).columns, analysis_table(found).rows
    assert columns == (
        "layer",
        "Spearman",
        "CKA (95 %)",
        "parameters",
        "CKA without 3 outliers",
        "Block Influence",
        "angular distance",
        "effective rank",
        "anisotropy",
    )
    assert [row[0] for row in rows] == ["0", "1", "2 (drop)", "3 (drop)"]
    assert all(len(row) == len(columns) for row in rows)
    assert rows[1] == (
        "1",
        f"{found.spearman[1]:.1f}",
        f"{found.cka.values[1]:.3f} ± {found.cka.high[1] - found.cka.values[1]:.3f}",
        f"{found.parameters[1]:,}",
        f"{found.cka_without_outliers.values[1]:.3f}",
        f"{found.block_influence[1]:.3f}",
        f"{found.angular_distance[1]:.3f}",
        f"{found.effective_rank[1]:.1f}",
        f"{found.anisotropy[1]:.3f}",
    )
    assert rows[3][5:7] == ("–", "–")  # nothing comes after the last layer
    assert analysis_table(found).title == "model against model: debiased linear CKA, mean pooling"


def test_table_leaves_out_what_was_not_measured_and_maps_layers(models):
    encoder, other = models
    bare = profile(encoder, TEXTS, settings=AnalysisSettings(intervals=0, outliers=0))
    assert analysis_table(bare).columns[1:4] == ("CKA", "parameters", "Block Influence")
    assert "±" not in analysis_table(bare).rows[0][1]
    assert "its own layer 1" in analysis_table(bare).title
    mapped = profile(encoder, TEXTS, reference=truncate(other, 1))
    assert analysis_table(mapped).columns[3] == "reference layer"
    assert [row[3] for row in analysis_table(mapped).rows] == ["0", "0", "1", "1"]
    deberta = profile(encoder, TEXTS)
    rows = analysis_table(type(deberta).from_dict({**deberta.to_dict(), "parameters": [None, 1000, 2000, 3000]})).rows
    assert [row[2] for row in rows] == ["–", "1,000", "2,000", "3,000"]


def test_kept_blocks_are_named_in_table_and_figure(models, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(
        "truncate_kit.report.analysis_figure.write_figure", lambda figure, path: drawn.append(figure) or path
    )
    found = _with_drop(profile(models[0], TEXTS, settings=AnalysisSettings(blocks=(2, 3))), 2)
    cells = analysis_table(found)
    assert "blocks 2, 3 of 3 against" in cells.title
    assert [row[0] for row in cells.rows] == ["0", "1 (block 2)", "2 (block 3, drop)"]
    draw_analysis(found, tmp_path / "curve.png")
    (axes,) = drawn[0].axes
    assert "blocks 2, 3 of 3" in axes.get_title(loc="left")
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "2", "3"]
