"""Which layers dev cannot tell apart: resampled scores against scores of the resamples, intervals by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from tests.support.pairs import labelled_splits, word_splits
from truncate_kit.core.vectors import DRAWS
from truncate_kit.evaluation.graded import correlate
from truncate_kit.methods.tmft.finetune import certainty, finetune, means_over_seeds, spread_over_seeds
from truncate_kit.methods.tmft.settings import SweepResult, SweepSettings
from truncate_kit.models.loading import load_encoder
from truncate_kit.report.training import certainty_in_words
from truncate_kit.training.examples import LabelledTask, best_threshold, f1
from truncate_kit.training.settings import TrainingSettings, Trial

# Scores that depend on layer and seed; how well anything learns is not looked at.
QUICK = TrainingSettings(epochs=1, batch_size=32, learning_rate=2e-3)


def resamples(count):
    return np.random.default_rng(0).integers(0, count, (DRAWS, count)).tolist()


@pytest.mark.parametrize("objective", ["cosine", "paraphrase", "entailment"])
def test_resampled_scores_are_the_scores_of_the_resamples(tiny_folder, objective):
    encoder = load_encoder(tiny_folder("bert"))
    pairs = {"cosine": word_splits, "paraphrase": lambda: labelled_splits((0.5,))}.get(
        objective, lambda: labelled_splits((0.2, 0.6))
    )()
    examples, dev, _ = LabelledTask(encoder, pairs, objective).trial(encoder, 0)
    if objective == "entailment":
        torch.nn.init.normal_(examples.head.weight)
    vectors, targets = encoder.encode_ids(dev.texts()), pairs.dev.scores()
    found, outcomes = dev.resampled(vectors), dev.outcomes(vectors)
    assert len(found) == DRAWS
    for row, score in list(zip(resamples(len(targets)), found, strict=True))[:10]:
        mine, true = [outcomes[place] for place in row], [targets[place] for place in row]
        if objective == "cosine":
            expected = correlate(mine, true).spearman
        elif objective == "paraphrase":
            threshold = best_threshold(mine, true)
            expected = 100 * f1([float(one >= threshold) for one in mine], true, 1.0)
        else:
            expected = 100 * np.mean([f1(mine, true, float(place)) for place in range(3)])
        assert score == pytest.approx(expected, abs=1e-3)


def trial(layer, seed, dev, draws):
    return Trial(
        layer=layer, seed=seed, epochs=1, steps=4, dev_scores=(dev,), best_epoch=1, dev=dev, dev_pearson=None,
        test=None, test_pearson=None, seconds=1.0, dev_draws=tuple(draws),
    )  # fmt: skip


@pytest.mark.parametrize(("number", "compared"), [(19, False), (20, True)])
def test_few_dev_pairs_do_not_rank_layers(tiny_folder, tmp_path, number, compared):
    data = word_splits()
    data = replace(data, dev=replace(data.dev, pairs=data.dev.pairs[:number]))
    settings = SweepSettings(layers="1,2", seeds=(0,))
    found = finetune(load_encoder(tiny_folder("bert")), data, out=tmp_path, settings=settings, training=QUICK)
    assert (found.certainty is not None) == compared


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


def of_layers(scores, seeds=(0,)):
    """Trials whose resamples all have the same score."""
    return [trial(layer, seed, score, [score] * DRAWS) for layer, score in scores.items() for seed in seeds]


def test_the_interval_is_that_of_the_paired_difference():
    noise = np.random.default_rng(1).normal(0, 5, DRAWS)  # the same pairs are hard for every layer
    own = np.random.default_rng(2).normal(0, 0.5, DRAWS)
    trials = [trial(1, 0, 70.0, 70 + noise), trial(2, 0, 70.2, 70.2 + noise + own), trial(3, 0, 60.0, 60 + noise)]
    found = certainty(trials)
    assert (found.best, found.alike, found.compared) == (2, (1, 2), (1, 2, 3))
    assert (found.low[0], found.high[0]) == pytest.approx(np.quantile(0.2 + own, (0.025, 0.975)), abs=1e-3)
    assert "Layers 1, 2 cannot be told apart" in certainty_in_words(found)
    assert certainty([trials[0], trials[2]]).alike == (1,)


def test_seeds_that_disagree_widen_the_interval():
    lead = [trial(3, 0, 6.0, [6.0] * DRAWS), trial(3, 1, -1.0, [-1.0] * DRAWS)]
    found = certainty([*of_layers({1: 0.0, 2: 0.0}, (0, 1)), *lead])
    assert (found.best, found.alike) == (3, (1, 2, 3))
    assert found.low[0] < -1.0  # the worse of its two seeds
    assert found.high[0] > 6.0


def test_layers_that_are_not_compared_are_named():
    """An earlier look at one layer with one seed, or with another one, is no reason to say less of all."""
    of_two = of_layers({2: 70.0, 3: 60.0}, (0, 1))
    alone = certainty(of_two, (1, 2, 3), (0, 1))
    assert (alone.seeds, alone.compared, alone.not_trained) == (2, (2, 3), (1,))
    for seed in (0, 7):
        found = certainty([*of_layers({1: 90.0}, (seed,)), *of_two], (1, 2, 3), (0, 1))
        assert found == replace(alone, not_trained=(), fewer_seeds=(1,))
    known = certainty([*of_layers({1: 90.0}), *of_two], (1, 2, 3, 4), (0, 1))
    assert (known.not_trained, known.fewer_seeds) == ((4,), (1,))
    assert "Not compared, trained with fewer seeds: layer 1." in certainty_in_words(known)
    # If a race left one layer alone with all seeds, those are compared that it shares with the others.
    raced = certainty(of_two[:3], (2, 3), (0, 1))
    assert (raced.seeds, raced.compared) == (1, (2, 3))


def test_nothing_is_said_of_one_layer_or_without_resamples():
    assert certainty(of_layers({1: 70.0})) is None
    assert certainty([trial(1, 0, 70.0, ()), trial(2, 0, 70.0, ())]) is None
    assert certainty([*of_layers({1: 70.0}), *of_layers({2: 70.0}, (1,))]) is None


def test_table_and_choice_are_by_the_seeds_asked_for(tiny_folder, tmp_path):
    encoder, data = load_encoder(tiny_folder("bert")), word_splits()

    def swept(layers, seeds, out):
        settings = SweepSettings(layers=layers, seeds=tuple(range(seeds)))
        return finetune(encoder, data, out=tmp_path / out, settings=settings, training=QUICK)

    more = swept("1,2,3", 2, "again")
    assert more.certainty.compared == (1, 2, 3)
    assert more.certainty.best == more.chosen  # best-dev is the default
    assert SweepResult.from_dict(more.to_dict()) == more
    assert all(trial.dev_draws == () for trial in more.trials)
    fewer, alone = swept("1,3", 1, "again"), swept("1,3", 1, "alone")
    assert [row.layer for row in fewer.rows] == [1, 2, 3]  # layers of earlier calls stay in the table
    assert [row for row in fewer.rows if row.layer != 2] == alone.rows
    assert (fewer.chosen, fewer.choice, fewer.certainty) == (alone.chosen, alone.choice, alone.certainty)
