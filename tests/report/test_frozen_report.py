"""Figures and tables of frozen heads, with gaps, one seed, one number of blocks."""

from dataclasses import replace

import pytest
from matplotlib import image

from truncate_kit.data import overlap_of
from truncate_kit.frozen.frozen_report import FrozenReport, FrozenTrial, Reconstruction, WorstPair
from truncate_kit.frozen.settings import FrozenSettings
from truncate_kit.report.frozen_figures import draw_correlations, draw_depths, draw_reconstruction
from truncate_kit.report.frozen_tables import step_table, worst_table


def a_report(seeds=(0, 1), layers=(1, 2), gap=False):
    trials = tuple(
        FrozenTrial(
            step=step, layer=layer, seed=seed, dev_scores=(60.0,), best_epoch=1, dev=60.0 + layer + seed,
            dev_pearson=61.0, test=50.0 + layer + 2 * seed, test_pearson=52.0, parameters=1234, seconds=1.0,
            blocks=(None if gap else 40.0, 45.0)[:layer],
        )
        for step in ("cosine", "siamese") for layer in layers for seed in seeds
    )  # fmt: skip
    return FrozenReport(
        model="gpt <b>", data="stsb", data_fingerprint="", pooling="last", depth=2, width=16, parameters=99,
        num_texts=7, settings=FrozenSettings(steps=("cosine", "siamese"), seeds=seeds),
        states=(None if gap else 20.0, 10.0), trials=trials, chosen_step="siamese", chosen_layer=2, chosen_seed=0,
        reconstruction=Reconstruction(
            code_widths=(5, 10), losses=(0.4, 0.3), num_sentences=100, left_out=3, seconds=1.0
        ),
        nli=None, worst=(WorstPair(first="a " * 60, second="b", target=0.25, predicted=0.75, error=-0.5),),
        overlap=overlap_of([("a", "b")], [("c", "d")], [("a", "e")]), seconds=1.0, notes=("Said.",),
    )  # fmt: skip


@pytest.mark.parametrize("report", [a_report(), a_report(seeds=(0,), layers=(2,), gap=True)])
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
    cells, chosen = step_table(a_report())
    assert [row[0] for row in cells.rows[:2]] == [
        "states of block 2 as they are, the last one", "states of block 1 as they are, best on test",
    ]  # fmt: skip
    assert cells.rows[chosen] == ("siamese", "2", "1,234", "62.50 ± 0.71", "53.00 ± 1.41", "52.00 ± 0.00")
    (row,) = worst_table(a_report()).rows
    assert row[0].endswith("… | b")
    assert row[1:] == ("0.25", "0.75", "-0.50")
    assert "1 of the 2 distinct test sentences are also in train" in a_report().leakage()


def test_sentences_shared_with_nli_are_told_beside_those_of_train():
    said = replace(a_report(), nli="snli", test_sentences_in_nli=2).leakage()
    assert said.endswith("NLI: 2 of the 2 distinct test sentences.")
    clean = replace(a_report(), overlap=overlap_of([("a", "b")], [("c", "d")], [("e", "f")]))
    assert clean.leakage() == "Overlap: train and test share no sentence."


def test_what_is_said():
    said = " ".join(a_report().statements())
    assert "100 raw sentences (3 left out that are in dev or test), codes of 5 and 10 numbers" in said
    assert said.endswith("Said.")
