"""Which layers dev cannot tell apart: resampled scores against scores of the resamples, intervals by hand."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from tests.support.pairs import labelled_splits, word_splits
from tests.support.training import swept
from tests.support.trials import made_trial
from truncate_kit.core.vectors import DRAWS
from truncate_kit.data.pairs import TextPair
from truncate_kit.evaluation.graded import correlate
from truncate_kit.methods.tmft.finetune import best_layers, certainty
from truncate_kit.models.loading import load_encoder
from truncate_kit.report.training import certainty_in_words
from truncate_kit.training.examples import LabelledTask, best_threshold, f1


def resamples(count):
    return np.random.default_rng(0).integers(0, count, (DRAWS, count)).tolist()


@pytest.mark.parametrize("objective", ["cosine", "paraphrase", "entailment"])
def test_resampled_scores_are_the_scores_of_the_resamples(encoder, objective):
    cuts = {"paraphrase": (0.5,), "entailment": (0.2, 0.6)}
    pairs = labelled_splits(cuts[objective]) if objective in cuts else word_splits()
    count = len(pairs.dev)
    twice = (*pairs.dev, *(TextPair(pair.second, pair.first, pair.target) for pair in pairs.dev))
    pairs = replace(pairs, dev=replace(pairs.dev, pairs=twice))  # both rows of a pair are drawn
    examples, dev, _ = LabelledTask(encoder, pairs, objective).trial(encoder, 0)
    if objective == "entailment":
        torch.nn.init.normal_(examples.head.weight)
    vectors, targets = encoder.encode_ids(dev.texts()), pairs.dev.scores()
    found, outcomes = dev.resampled(vectors), dev.outcomes(vectors)
    assert len(found) == DRAWS
    for row, score in list(zip(resamples(count), found, strict=True))[:10]:
        row = [*row, *(place + count for place in row)]
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
    return made_trial(layer, seed, dev=(dev,), dev_draws=tuple(draws))


@pytest.mark.parametrize("number", [19, 20])
def test_few_dev_pairs_do_not_rank_layers(tiny_folder, tmp_path, caplog, number):
    """And the choice is called chance before the model is saved."""
    data = word_splits()
    data = replace(data, dev=replace(data.dev, pairs=data.dev.pairs[:number]))
    found = swept(load_encoder(tiny_folder("bert")), tmp_path, data, layers="1,2")
    assert found.certainty.number == number
    assert (found.certainty.lead is None) == (number < 20)
    if number < 20:
        assert found.certainty.alike == found.certainty.compared
        assert "19 dev pairs are too few to tell layers apart." in certainty_in_words(found.certainty)
    assert [record.message for record in caplog.records].count(found.certainty.warning or "") == bool(
        found.certainty.warning
    )


def made(generator, layers, seeds, better=0.0):
    """Layers of one quality but for the last; scores that depend on 300 pairs and on the seed."""
    pairs = generator.normal(0, 30, (layers, 1, 300)) + generator.normal(0, 30, (1, 1, 300))
    scores = 60 + pairs + generator.normal(0, 1.0, (layers, seeds, 1)) * (seeds > 1)
    scores[-1] += better
    drawn = scores[:, :, generator.integers(0, 300, (DRAWS, 300))].mean(-1)
    return scores.mean(-1), drawn


@pytest.mark.parametrize(("layers", "seeds"), [(2, 1), (9, 1), (2, 2), (4, 3), (9, 3)])
def test_layers_that_are_alike_are_rarely_left_out(layers, seeds):
    """All of them together, in all but some 5 % of data sets; pairwise intervals do so in half of them."""
    generator = np.random.default_rng(0)
    whole = sum(len(best_layers(*made(generator, layers, seeds))[0]) == layers for _ in range(200))
    assert whole >= 0.91 * 200  # three standard errors below 95 %


@pytest.mark.parametrize("seed", range(8))
def test_the_set_is_the_model_confidence_set(seed):
    """Hansen, Lunde and Nason (2011, section 3.1.2, T_R): losses of 300 pairs, by loops over pairs of layers."""
    generator = np.random.default_rng(seed)
    values = generator.normal(0, 20, (1, 300)) + generator.normal(np.linspace(0, 6, 7)[:, None], 20, (7, 300))
    means, draws = values.mean(1), values[:, generator.integers(0, 300, (DRAWS, 300))].mean(-1)
    left, removed = list(range(7)), 0
    while len(left) > 1:
        excess, boots = dict.fromkeys(left, 0.0), []
        for one, other in itertools.permutations(left, 2):
            moved = draws[other] - draws[one] - (draws[other] - draws[one]).mean()
            error = np.sqrt(np.mean(moved**2))
            boots.append(np.abs(moved) / error)
            excess[one] = max(excess[one], (means[other] - means[one]) / error)
        worst = max(excess, key=excess.get)
        if np.mean(np.max(boots, axis=0) >= excess[worst]) > 0.05:
            break
        left.remove(worst)
        removed += 1
    assert best_layers(means[:, None], draws[:, None])[0] == left
    assert removed


def test_a_better_layer_is_found_and_its_lead_is_that_of_the_largest_of_many():
    found = [best_layers(*made(np.random.default_rng(seed), 9, 3, 12.0)) for seed in range(40)]
    assert all(8 in places for places, _ in found)
    assert sum(places == [8] for places, _ in found) > 30
    # Studentised range of nine normal means, here of a difference of two layers: √(2 · 900 / 300) and √(2 / 3) points.
    nine = [best_layers(*made(np.random.default_rng(seed), 9, 1))[1] for seed in range(20)]
    wanted = stats.studentized_range.ppf(0.95, 9, np.inf) / np.sqrt(2) * np.sqrt(2 * 900 / 300)
    assert np.mean(nine) == pytest.approx(wanted, rel=0.06)


def test_a_choice_among_noise_is_called_chance():
    sure = certainty(of_layers({1: 70.0, 2: 60.0}), number=1500)
    assert sure.warning is None
    assert replace(sure, alike=(1, 2), lead=4.9).warning is None
    noise = replace(sure, alike=(1, 2), lead=7.2, number=60)
    assert "60 dev pairs are too few to tell these layers apart" in noise.warning
    assert certainty_in_words(noise).startswith(noise.warning)
    few = certainty(of_layers({1: 70.0}), number=49, unit="queries")
    assert "49 queries are too few" in few.warning


def of_layers(scores, seeds=(0,)):
    """Trials whose resamples all have the same score."""
    return [trial(layer, seed, score, [score] * DRAWS) for layer, score in scores.items() for seed in seeds]


def test_layers_are_compared_on_the_same_pairs():
    noise = np.random.default_rng(1).normal(0, 5, DRAWS)  # the same pairs are hard for every layer
    own = np.random.default_rng(2).normal(0, 0.5, DRAWS)
    trials = [trial(1, 0, 70.0, 70 + noise), trial(2, 0, 70.2, 70.2 + noise + own), trial(3, 0, 60.0, 60 + noise)]
    found = certainty(trials, number=300)
    assert (found.best, found.alike, found.compared) == (2, (1, 2), (1, 2, 3))
    said = certainty_in_words(found)
    assert said.startswith("Layers 1, 2 cannot be told apart on dev (one seed")
    assert "95 %" not in said
    assert "95 %, over dev pairs and seeds" in certainty_in_words(replace(found, seeds=2))
    assert certainty([trials[0], trials[2]], number=300).alike == (1,)


def test_seeds_that_disagree_tell_no_layer_apart():
    lead = [trial(3, 0, 6.0, [6.0] * DRAWS), trial(3, 1, -1.0, [-1.0] * DRAWS)]
    found = certainty([*of_layers({1: 0.0, 2: 0.0}, (0, 1)), *lead], number=300)
    assert (found.best, found.alike) == (3, (1, 2, 3))
    assert found.lead > 6.0


def test_layers_that_are_not_compared_are_named():
    """An earlier look at one layer with one seed, or with another one, is no reason to say less of all."""
    of_two = of_layers({2: 70.0, 3: 60.0}, (0, 1))
    alone = certainty(of_two, (1, 2, 3), (0, 1), number=300)
    assert (alone.seeds, alone.compared, alone.not_trained) == (2, (2, 3), (1,))
    for seed in (0, 7):
        found = certainty([*of_layers({1: 90.0}, (seed,)), *of_two], (1, 2, 3), (0, 1), number=300)
        assert found == replace(alone, not_trained=(), fewer_seeds=(1,))
    known = certainty([*of_layers({1: 90.0}), *of_two], (1, 2, 3, 4), (0, 1), number=300)
    assert (known.not_trained, known.fewer_seeds) == ((4,), (1,))
    assert "Not compared, trained with fewer seeds: layer 1." in certainty_in_words(known)
    # If a race left one layer alone with all seeds, those are compared that it shares with the others.
    raced = certainty(of_two[:3], (2, 3), (0, 1), number=300)
    assert (raced.seeds, raced.compared) == (1, (2, 3))


def test_nothing_is_said_of_one_layer_or_without_resamples():
    assert certainty(of_layers({1: 70.0}), number=300) is None
    assert certainty([trial(1, 0, 70.0, ()), trial(2, 0, 70.0, ())], number=300) is None
    assert certainty([*of_layers({1: 70.0}), *of_layers({2: 70.0}, (1,))], number=300) is None
