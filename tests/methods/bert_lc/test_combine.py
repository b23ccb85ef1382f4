"""The whole of BERT-LC on tiny models, against plain computations on the full model's own hidden states."""

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from transformers import AutoModel

from tests.support.families import TINY_CONFIGS, plain_states
from tests.support.layer_subsets import plain_scores
from tests.support.pairs import sentence_pairs
from truncate_kit.core.errors import DataError, ModelError, UsageError
from truncate_kit.data.pairs import TextPair
from truncate_kit.methods.bert_lc.combine import combine, divide, random_combinations
from truncate_kit.methods.bert_lc.settings import (
    BASELINES,
    CLS,
    LAST,
    LAST_FOUR,
    POOLER,
    RANDOM,
    CombinationReport,
    CombineSettings,
)
from truncate_kit.models.encoder import Encoder
from truncate_kit.models.loading import find_pooler_head, load_encoder, random_encoder


def states_of(encoder, pairs, pooled="mean"):
    """States of all layers (L', 2n, d), one text at a time through the transformers model itself."""
    rows = []
    for text in [pair.first for pair in pairs] + [pair.second for pair in pairs]:
        states = plain_states(Path(encoder.name), text)
        rows.append(torch.stack([state.mean(dim=0) if pooled == "mean" else state[0] for state in states]))
    return torch.stack(rows, dim=1)


def spearman(states, layers, places, pairs):
    mean = states[list(layers)].double().mean(dim=0)
    cosines = torch.cosine_similarity(mean[places], mean[[place + len(pairs) for place in places]])
    return 100 * stats.spearmanr(cosines.round(decimals=12), [pairs.pairs[place].target for place in places]).statistic


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_best_baselines_sizes_and_effects(tiny_folder, family):
    encoder, pairs = load_encoder(tiny_folder(family)), sentence_pairs()
    report = combine(encoder, pairs, settings=CombineSettings(dev_pairs=18, splits=2))
    assert CombinationReport.from_dict(report.to_dict()) == report
    assert (report.num_subsets, report.method, report.up_to) == (15, "exact", 4)
    states = states_of(encoder, pairs)
    for seed, split in enumerate(report.splits):
        dev, test = divided(split, pairs, seed)
        every = {
            layers: spearman(states, layers, dev, pairs)
            for layers in plain_scores(states, dev, dev, [1.0, *[0.0] * (len(dev) - 1)], 4)
        }
        layers, on_dev, on_test = split.best
        assert on_dev == pytest.approx(max(every.values()), abs=1e-6)
        assert on_test == pytest.approx(spearman(states, layers, test, pairs), abs=1e-6)
        for size, row in enumerate(split.by_size, 1):
            assert row[1] == pytest.approx(max(s for layers, s in every.items() if len(layers) == size), abs=1e-6)
        for layer, row in enumerate(split.without):
            assert row[1] == pytest.approx(max(s for layers, s in every.items() if layer not in layers), abs=1e-6)
        baselines = split.baselines
        for name, layers in ((LAST, [3]), (LAST_FOUR, [0, 1, 2, 3])):
            assert baselines[name][0] == pytest.approx(spearman(states, layers, dev, pairs), abs=1e-6)
            assert baselines[name][1] == pytest.approx(spearman(states, layers, test, pairs), abs=1e-6)
        drawn = [spearman(states, layers, test, pairs) for layers in random_combinations(4, 4, seed)]
        assert baselines[RANDOM][1] == pytest.approx(sum(drawn) / len(drawn), abs=1e-6)
        cls = spearman(states_of(encoder, pairs, "cls"), [3], test, pairs)
        if not encoder.family.decoder:  # a decoder's first token is the same for every text
            assert baselines[CLS][1] == pytest.approx(cls, abs=1e-6)
    effects = report.effects()
    assert effects[3][0] == pytest.approx(sum(split.without[3][1] - split.best[1] for split in report.splits) / 2)
    assert max(dev for dev, _ in effects.values()) <= 0


def divided(split, pairs, seed=0):
    """The dev and test places, found again from how they are drawn: whole groups of equal texts, by a hash."""
    (dev, _), (test, _) = divide(pairs, seed, 18)
    assert (len(dev), len(test)) == (split.num_dev, 22) == (18, 22)
    assert sorted(dev + test) == list(range(40))
    return dev, test


def test_chosen_is_the_split_winner_with_the_best_mean_on_dev(tiny_folder):
    encoder, pairs = load_encoder(tiny_folder("bert")), sentence_pairs(60)
    report = combine(encoder, pairs, settings=CombineSettings(dev_pairs=12))
    assert len(report.splits) == 5
    assert report.chosen in {split.best[0] for split in report.splits}
    states = states_of(encoder, pairs)
    dev = [divide(pairs, seed, 12)[0][0] for seed in range(5)]
    means = {
        split.best[0]: np.mean([spearman(states, split.best[0], places, pairs) for places in dev])
        for split in report.splits
    }
    assert report.chosen_dev == pytest.approx(max(means.values()), abs=1e-6)
    unseen = sorted(set(range(60)) - {place for places in dev for place in places})
    assert report.num_unseen == len(unseen)
    assert report.unseen == pytest.approx(spearman(states, report.chosen, unseen, pairs), abs=1e-6)


def test_a_pair_and_its_mirror_are_never_on_two_sides():
    pairs = sentence_pairs()
    mirrored = replace(pairs, pairs=pairs.pairs + tuple(TextPair(p.second, p.first, p.target) for p in pairs))
    (dev, _), (test, _) = divide(mirrored, 0, 30)
    assert {place % 40 for place in dev}.isdisjoint(place % 40 for place in test)


@pytest.mark.parametrize("over", ["mean", "max"])
def test_the_first_token_itself_and_through_the_trained_pooler_are_baselines_by_name(tiny_folder, over):
    folder, pairs = tiny_folder("bert"), sentence_pairs()
    encoder, settings = load_encoder(folder), CombineSettings(over=over, dev_pairs=18, splits=1)
    (split,) = combine(encoder, pairs, settings=settings, head=find_pooler_head(folder)).splits
    scores = split.baselines
    assert tuple(scores) == BASELINES
    dev, test = divided(split, pairs)
    firsts = states_of(encoder, pairs, "cls")[-1]
    with torch.no_grad():
        pooled = AutoModel.from_pretrained(folder).pooler(firsts[:, None])  # its own: linear and tanh of the first
    for name, vectors in ((CLS, firsts), (POOLER, pooled)):
        assert scores[name][0] == pytest.approx(spearman(vectors[None], [0], dev, pairs), abs=1e-6)
        assert scores[name][1] == pytest.approx(spearman(vectors[None], [0], test, pairs), abs=1e-6)
    assert scores[CLS][1] != scores[POOLER][1]
    (without,) = combine(encoder, pairs, settings=settings).splits
    assert without.best == split.best
    assert POOLER not in without.baselines
    assert find_pooler_head(tiny_folder("electra")) is None


def test_what_cannot_be_searched(encoder):
    with pytest.raises(DataError, match="7 pairs"):
        combine(encoder, sentence_pairs(7))
    with pytest.raises(ModelError, match="has no pooler head"):
        combine(encoder, sentence_pairs(), settings=CombineSettings(head=True))
    for wrong in ({"over": "median"}, {"search": "all"}, {"up_to": 0}, {"over": "max", "head": True}, {"splits": 0}):
        with pytest.raises(UsageError):
            CombineSettings(**wrong)
    with pytest.raises(UsageError, match="Beam search needs the mean"):
        CombineSettings(over="max", search="beam")


def test_a_beam_beyond_27_layers(tiny_folder):
    config, pairs = copy.deepcopy(TINY_CONFIGS["bert"]), sentence_pairs(30)
    config.num_hidden_layers = 27
    torch.manual_seed(0)
    reader = load_encoder(tiny_folder("bert")).reader
    encoder = Encoder(name="deep", backbone=random_encoder(config).backbone, reader=reader)
    settings = CombineSettings(dev_pairs=12, splits=1)
    report = combine(encoder, pairs, settings=replace(settings, width=2))
    assert (report.method, report.up_to, report.depth) == ("beam", 28, 27)
    assert report.num_subsets <= 28 + 2 * 27 * 28
    with pytest.raises(UsageError, match="268,435,455 combinations are too many"):
        combine(encoder, pairs, settings=replace(settings, search="exact"))
    few = combine(encoder, pairs, settings=replace(settings, up_to=2))
    assert (few.method, few.num_subsets) == ("exact", 28 + 28 * 27 // 2)
