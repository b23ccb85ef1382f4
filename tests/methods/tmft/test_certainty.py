"""Which layers dev cannot tell apart: resampled scores against scores of the resamples, intervals by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from tests.support.pairs import labelled_splits, word_splits
from truncate_kit.evaluation.graded import correlate
from truncate_kit.methods.tmft.choosing import Picker
from truncate_kit.methods.tmft.finetune import finetune
from truncate_kit.methods.tmft.result import (
    SweepResult,
    certainty,
    layers_in_words,
    means_over_seeds,
    spread_over_seeds,
)
from truncate_kit.methods.tmft.settings import SweepSettings
from truncate_kit.models import load_encoder
from truncate_kit.report.view import view_of
from truncate_kit.statistics import DRAWS
from truncate_kit.training.evaluators import best_threshold, f1
from truncate_kit.training.settings import TrainingSettings, Trial
from truncate_kit.training.tasks import LabelledTask

# Scores that depend on layer and seed; how well anything learns is not looked at.
QUICK = TrainingSettings(epochs=1, batch_size=32, learning_rate=2e-3)


def resamples(count):
    return np.random.default_rng(0).integers(0, count, (DRAWS, count)).tolist()


def test_resampled_scores_are_the_scores_of_the_resamples(tiny_folder):
    encoder = load_encoder(tiny_folder("bert"))
    _, dev, _ = LabelledTask(encoder, word_splits()).trial(encoder, 0)
    vectors = encoder.encode_ids(dev.texts())
    cosines, targets = dev.cosines(vectors), word_splits().dev.scores()
    found = dev.resampled(vectors)
    assert len(found) == DRAWS
    for row, score in list(zip(resamples(len(targets)), found, strict=True))[:20]:
        expected = correlate([cosines[place] for place in row], [targets[place] for place in row]).spearman
        assert score == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("objective", ["paraphrase", "entailment"])
def test_classes_are_resampled_likewise(tiny_folder, objective):
    encoder = load_encoder(tiny_folder("bert"))
    pairs = labelled_splits((0.5,) if objective == "paraphrase" else (0.2, 0.6))
    examples, dev, _ = LabelledTask(encoder, pairs, objective).trial(encoder, 0)
    vectors, targets = encoder.encode_ids(dev.texts()), pairs.dev.scores()
    said = dev.cosines(vectors)
    if objective == "entailment":
        torch.nn.init.normal_(examples.head.linear.weight)
        said = dev.outcomes(vectors)
    for row, score in list(zip(resamples(len(targets)), dev.resampled(vectors), strict=True))[:10]:
        mine, true = [said[place] for place in row], [targets[place] for place in row]
        if objective == "paraphrase":
            threshold = best_threshold(mine, true)
            expected = f1([float(one >= threshold) for one in mine], true, 1.0)
        else:
            expected = np.mean([f1(mine, true, float(place)) for place in range(3)])
        assert score == pytest.approx(100 * expected, abs=1e-3)


def trial(layer, seed, dev, draws):
    return Trial(
        layer=layer, seed=seed, epochs=1, steps=4, dev_scores=(dev,), best_epoch=1, dev=dev, dev_pearson=None,
        test=None, test_pearson=None, seconds=1.0, dev_draws=tuple(draws),
    )  # fmt: skip


def test_the_interval_is_that_of_the_paired_difference():
    noise = np.random.default_rng(1).normal(0, 5, DRAWS)  # the same pairs are hard for every layer
    own = np.random.default_rng(2).normal(0, 0.5, DRAWS)
    trials = [trial(1, 0, 70.0, 70 + noise), trial(2, 0, 70.2, 70.2 + noise + own), trial(3, 0, 60.0, 60 + noise)]
    found = certainty(trials)
    assert (found.best, found.alike, found.compared) == (2, (1, 2), (1, 2, 3))
    assert (found.low[0], found.high[0]) == pytest.approx(np.quantile(0.2 + own, (0.025, 0.975)), abs=1e-3)
    assert "Layers 1 and 2, of the 3 that were trained out, cannot be told apart" in found.sentence
    assert "1 is the smallest" in found.sentence
    alone = certainty([trials[0], trials[2]])
    assert alone.alike == (1,)
    assert alone.sentence.startswith("Layer 1 is better on dev than layer 3, the only other one that was trained out")


def test_layers_that_were_not_trained_out_are_named():
    trials = [trial(1, 0, 70.0, [70.0] * DRAWS), trial(2, 0, 60.0, [60.0] * DRAWS), trial(8, 0, 60.0, [60.0] * DRAWS)]
    assert "not trained out" not in certainty(trials, (1, 2, 8)).sentence
    all_of_them = certainty(trials, range(9)).sentence
    assert "better on dev than every other layer that was trained out" in all_of_them
    assert all_of_them.endswith("Layers 0, 3, 4, 5, 6 and 7 were not trained out: they are not compared.")
    assert certainty(trials, (1, 2, 3, 8)).sentence.endswith("Layer 3 was not trained out: it is not compared.")


def test_a_layer_with_fewer_seeds_takes_none_from_the_others():
    """An earlier look at one layer with one seed, or with another one, is no reason to say less of all."""
    of_two = [trial(layer, seed, 70.0 - layer, [70.0 - layer] * DRAWS) for layer in (2, 3) for seed in (0, 1)]
    alone = certainty(of_two, (1, 2, 3), (0, 1))
    assert (alone.seeds, alone.compared) == (2, (2, 3))
    for seed in (0, 7):
        more = certainty([trial(1, seed, 90.0, [90.0] * DRAWS), *of_two], (1, 2, 3), (0, 1))
        assert more == alone
        assert more.sentence.endswith("Layer 1 was not trained out: it is not compared.")
    known = certainty([trial(1, 0, 90.0, [90.0] * DRAWS), *of_two], (1, 2, 3, 4), (0, 1), (1, 2, 3)).sentence
    assert "the only two that were compared" in known or "the only other one that was compared" in known
    assert "Layer 4 was not trained out" in known
    assert known.endswith("Layer 1 was trained with fewer seeds: it is not compared.")
    # Where a race left one layer alone with all seeds, those are compared that it shares with the others.
    raced = certainty([of_two[0], of_two[1], of_two[2]], (2, 3), (0, 1))
    assert (raced.seeds, raced.compared) == (1, (2, 3))


def test_a_quick_look_before_takes_nothing_from_the_certainty(tiny_folder, tmp_path):
    encoder, data = load_encoder(tiny_folder("bert")), word_splits()
    asked = SweepSettings(layers="1,2", seeds=(0, 1))
    found = finetune(encoder, data, out=tmp_path / "alone", settings=asked, training=QUICK)
    finetune(encoder, data, out=tmp_path / "again", settings=SweepSettings(layers="0", seeds=(7,)), training=QUICK)
    finetune(encoder, data, out=tmp_path / "again", settings=SweepSettings(layers="1", seeds=(0,)), training=QUICK)
    again = finetune(encoder, data, out=tmp_path / "again", settings=asked, training=QUICK)
    said = again.certainty.sentence  # layer 0 stands in the table as well
    assert said == found.certainty.sentence.replace("trained out", "compared")
    assert replace(again.certainty, sentence="") == replace(found.certainty, sentence="")
    assert found.certainty.seeds == 2
    assert [row.layer for row in again.rows] == [0, 1, 2, 3]  # no row is taken away


def test_the_choice_is_by_the_seeds_that_the_table_has(tiny_folder, tmp_path):
    """Of an earlier call with more seeds all count that each layer compared has."""
    encoder, data = load_encoder(tiny_folder("bert")), word_splits()

    def swept(layers, seeds, out, pick="best-dev", within=None):
        settings = SweepSettings(layers=layers, seeds=tuple(range(seeds)), pick=pick, within=within)
        return finetune(encoder, data, out=tmp_path / out, settings=settings, training=QUICK)

    more = swept("1,2,3", 2, "again")
    fewer = swept("1,3", 1, "again")
    assert fewer.rows == more.rows
    assert fewer.chosen == max((1, 3), key=lambda layer: more.rows[layer - 1].dev)
    assert (fewer.certainty.seeds, fewer.certainty.compared) == (2, (1, 3))
    assert "that were compared" in fewer.certainty.sentence or "one that was compared" in fewer.certainty.sentence
    assert fewer.seeds_in_words == "2 seeds"
    # Of a layer that has fewer, those that all of them have.
    swept("2", 3, "mixed")
    mixed = swept("1,2", 2, "mixed")
    alone = swept("1,2", 2, "alone")
    assert (mixed.chosen, mixed.choice, mixed.certainty) == (alone.chosen, alone.choice, alone.certainty)
    assert [len(row.seeds) for row in mixed.rows] == [2, 3, 3]
    view = view_of(mixed)
    assert "2 to 3 seeds" in view.tables[0].title
    assert any("2 to 3 seeds" in series.label for series in view.plots[0].series)


@pytest.mark.parametrize(("number", "compared"), [(19, False), (20, True)])
def test_few_dev_pairs_do_not_rank_layers(tiny_folder, tmp_path, number, compared):
    data = word_splits()
    data = replace(data, dev=replace(data.dev, pairs=data.dev.pairs[:number]))
    settings = SweepSettings(layers="1,2", seeds=(0,))
    found = finetune(load_encoder(tiny_folder("bert")), data, out=tmp_path, settings=settings, training=QUICK)
    assert (found.certainty is not None) == compared


def test_the_saved_seed_is_one_that_was_asked_for(tiny_folder, tmp_path):
    encoder, data = load_encoder(tiny_folder("bert")), word_splits()
    for layers, seeds, out in (("2", (0, 1), "one"), ("1,2", (0, 1), "two")):
        settings = SweepSettings(layers=layers, seeds=seeds)
        best = finetune(encoder, data, out=tmp_path / out, settings=settings, training=QUICK).chosen_seed
        other = next(seed for seed in seeds if seed != best)
        again = finetune(encoder, data, out=tmp_path / out, settings=replace(settings, seeds=(other,)), training=QUICK)
        assert again.chosen_seed == other
        assert len(again.lean.seeds) == 2


def test_after_a_search_the_certainty_is_by_all_seeds_of_what_it_trained(tiny_folder, tmp_path):
    encoder, data = load_encoder(tiny_folder("bert")), word_splits()
    settings = SweepSettings(layers="auto", seeds=(0, 1))
    found = finetune(encoder, data, out=tmp_path, settings=settings, training=QUICK)
    again = finetune(encoder, data, out=tmp_path, settings=replace(settings, seeds=(0,)), training=QUICK)
    assert found.chosen == again.chosen
    assert again.certainty == found.certainty


def test_the_bonus_for_depth_is_that_of_the_model_not_of_the_list(tiny_folder, tmp_path):
    encoder, data = load_encoder(tiny_folder("bert")), word_splits()
    settings = SweepSettings(layers="1,2", seeds=(0,), pick="depth-bonus", within=30)
    found = finetune(encoder, data, out=tmp_path, settings=settings, training=QUICK)
    first, second, _ = (row.dev for row in found.rows)
    assert found.chosen == (1 if first + 30 / 3 >= second + 30 * 2 / 3 else 2)
    assert Picker("depth-bonus", 30, None, 3).pick({1: 60.0, 2: 48.0}) == 1  # 15 a layer would take 2
    sweep = replace(settings, within=100)
    assert finetune(encoder, data, out=tmp_path, settings=sweep, training=QUICK).chosen == 2


@pytest.mark.parametrize(("layers", "seeds"), [(2, 2), (2, 3), (4, 2), (8, 3)])
def test_the_interval_holds_no_difference_where_there_is_none(layers, seeds):
    """Layers that are alike but for what their seeds draw, on a dev set that is large."""
    generator, held = np.random.default_rng(0), 0
    for _ in range(400):
        scores = generator.normal(60, 1, (layers, seeds))
        spread = spread_over_seeds(scores)
        found = means_over_seeds(np.repeat((scores[0] - scores[1])[:, None], DRAWS, 1), spread)
        low, high = np.quantile(found, (0.025, 0.975))
        held += low <= 0 <= high
    assert held > 0.9 * 400


def test_the_ends_are_those_of_students_t_and_a_layer_that_varies_more_has_wider_ones():
    table = np.array([[60.0, 61.0, 62.0], [60.0, 61.0, 62.0], [60.0, 61.0, 62.0], [66.0, 58.0, 59.0]])
    spread = spread_over_seeds(table)
    for other in (1, 3):
        ahead = table[0] - table[other]
        # Of eight values and 3 × 2 degrees of freedom, or of three differences where that is more.
        variance = max(
            2 * np.sum((table - table.mean(0) - table.mean(1)[:, None] + table.mean()) ** 2) / 6, ahead.var(ddof=1)
        )
        found = means_over_seeds(np.repeat(ahead[:, None], 4001, 1), spread)
        wanted = ahead.mean() + np.array(stats.t.interval(0.95, 6)) * np.sqrt(variance / 3)
        assert np.quantile(found, (0.025, 0.975)) == pytest.approx(wanted, abs=0.02)
    assert (table[0] - table[3]).var(ddof=1) > spread[0]


def test_seeds_that_disagree_widen_the_interval():
    trials = [trial(layer, seed, 0.0, [0.0] * DRAWS) for layer in (1, 2) for seed in (0, 1)]
    lead = [trial(3, 0, 6.0, [6.0] * DRAWS), trial(3, 1, -1.0, [-1.0] * DRAWS)]
    found = certainty([*trials, *lead])
    assert found.best == 3
    assert found.low[0] < -1.0  # the worse of its two seeds
    assert found.high[0] > 6.0
    assert found.alike == (1, 2, 3)


def test_nothing_is_said_of_one_layer_or_without_resamples():
    assert certainty([trial(1, 0, 70.0, [70.0] * DRAWS)]) is None
    assert certainty([trial(1, 0, 70.0, ()), trial(2, 0, 70.0, ())]) is None
    assert certainty([trial(1, 0, 70.0, [70.0] * DRAWS), trial(2, 1, 70.0, [70.0] * DRAWS)]) is None


@pytest.mark.parametrize(
    ("layers", "words"), [((1, 2, 3), "1 to 3"), ((1, 2), "1 and 2"), ((1, 2, 6), "1, 2 and 6"), ((4,), "4")]
)
def test_layers_in_words(layers, words):
    assert layers_in_words(layers) == words


def test_finetune_says_it_and_keeps_resamples_in_the_store_alone(tiny_folder, tmp_path):
    settings = SweepSettings(layers="1,2,3", seeds=(0, 1))
    result = finetune(load_encoder(tiny_folder("bert")), word_splits(), out=tmp_path, settings=settings, training=QUICK)
    assert result.certainty.compared == (1, 2, 3)
    assert result.certainty.best == result.chosen  # best-dev is the default
    assert result.certainty.sentence in (tmp_path / "lean" / "README.md").read_text()
    assert SweepResult.from_dict(result.to_dict()) == result
    assert all(trial.dev_draws == () for trial in result.trials)


def test_lean_is_compared_with_full_by_the_seeds_that_both_have(tiny_folder, tmp_path):
    encoder, data = load_encoder(tiny_folder("bert")), word_splits()
    finetune(encoder, data, out=tmp_path, settings=SweepSettings(layers="1", seeds=(0, 1)), training=QUICK)
    settings = SweepSettings(layers="2", seeds=(0,))
    found = finetune(encoder, data, out=tmp_path, settings=settings, training=QUICK)
    assert (found.lean.seeds, found.full.seeds) == ((0,), (0, 1))
    of_first = {trial.layer: trial.test for trial in found.trials if trial.seed == 0}
    assert found.tests_of_shared_seeds == (of_first[2], of_first[found.full.layer])
