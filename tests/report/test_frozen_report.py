"""Figures and tables of frozen heads, with gaps, one seed, one number of blocks."""

from dataclasses import replace

import pytest
from matplotlib import image

from tests.support.made_results import some_heads
from truncate_kit.data import overlap_of
from truncate_kit.report.frozen_figures import draw_correlations, draw_depths, draw_reconstruction
from truncate_kit.report.frozen_tables import step_table, worst_table


@pytest.mark.parametrize("report", [some_heads(), some_heads(seeds=(0,), layers=(2,), gap=True)])
def test_figures_have_the_promised_size(report, tmp_path):
    draws = [
        draw_correlations(report, tmp_path / "a.png"),
        draw_depths(report, tmp_path / "b.png"),
        draw_reconstruction(report, report.reconstruction, tmp_path / "c.png"),
    ]
    for path in draws:
        height, width, _ = image.imread(path).shape
        assert (width, height) == (1080, 600)


def test_tables():
    cells, chosen = step_table(some_heads())
    assert [row[0] for row in cells.rows[:2]] == [
        "states of block 2 as they are, the last one", "states of block 1 as they are, best on test",
    ]  # fmt: skip
    assert cells.rows[chosen] == ("siamese", "2", "1,234", "62.50 ± 0.71", "53.00 ± 1.41", "52.00 ± 0.00")
    (row,) = worst_table(some_heads()).rows
    assert row[0].endswith("… | b")
    assert row[1:] == ("0.25", "0.75", "-0.50")
    assert "1 of the 2 distinct test sentences are also in train" in some_heads().leakage()


def test_sentences_shared_with_nli_are_told_beside_those_of_train():
    said = replace(some_heads(), nli="snli", test_sentences_in_nli=2).leakage()
    assert said.endswith("NLI: 2 of the 2 distinct test sentences.")
    clean = replace(some_heads(), overlap=overlap_of([("a", "b")], [("c", "d")], [("e", "f")]))
    assert clean.leakage() == "Overlap: train and test share no sentence."


def test_what_is_said():
    said = " ".join(some_heads().statements())
    assert "100 raw sentences (3 left out that are in dev or test), codes of 5 and 10 numbers" in said
    assert said.endswith("Said.")
