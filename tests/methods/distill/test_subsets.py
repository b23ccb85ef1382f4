"""The search over subsets of blocks, against models that keep them."""

import itertools
import math
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.support.families import make_tiny
from tests.support.pairs import word_splits
from truncate_kit.errors import LayerNotHeldError, LayerOutOfRangeError, ModelError
from truncate_kit.methods.distill import subsets
from truncate_kit.methods.distill.agreement import AgreementEvaluator
from truncate_kit.methods.distill.subsets import check_blocks, compare_blocks, search_subsets
from truncate_kit.models import keep, load_encoder
from truncate_kit.models.layer_pooling import LayerPooling
from truncate_kit.progress import silent
from truncate_kit.training.evaluators import PairEvaluator

WORDS = ["the", "cat", "dog", "sat", "ran", "on", "under", "a", "red", "blue", "big", "small", "tree", "mat", "and"]


def evaluator_of(encoder, count=30):
    texts = [" ".join(WORDS[(place * step) % len(WORDS)] for step in range(2, 4 + place % 9)) for place in range(count)]
    ids = encoder.token_ids([f"{text} {WORDS[place % 15]}" for place, text in enumerate(texts)])
    return AgreementEvaluator(ids, encoder.encode_ids(ids))


@pytest.mark.parametrize("name", ["bert", "deberta-v2-convolution", "modernbert", "qwen3", "albert-grouped"])
def test_every_subset_has_the_score_of_the_model_that_keeps_it(name, tiny_folder):
    encoder = load_encoder(tiny_folder(name))
    evaluator, tried = evaluator_of(encoder), {}
    for size in (1, 2, 3):
        for blocks in itertools.combinations((1, 2, 3), size):
            try:
                tried[blocks] = evaluator.score(keep(encoder, blocks))[0]
            except LayerNotHeldError:
                continue
    found = search_subsets(encoder, evaluator)
    assert found.exact
    assert found.tried == len(tried)
    for row in found.best:
        best = max(score for blocks, score in tried.items() if len(blocks) == len(row.blocks))
        assert row.score == pytest.approx(best, abs=1e-3)
        assert row.score == pytest.approx(tried[row.blocks], abs=1e-3)
    assert found.best[-1].blocks == (1, 2, 3)
    assert found.best[-1].score == pytest.approx(100)


def test_the_beam_finds_in_a_shallow_model_what_trying_all_finds(tiny_folder, monkeypatch):
    encoder = load_encoder(tiny_folder("bert"))
    exact = search_subsets(encoder, evaluator_of(encoder))
    monkeypatch.setattr(subsets, "EXACT_DEPTH", 2)
    beam = search_subsets(encoder, evaluator_of(encoder), beam=3)
    assert not beam.exact
    assert [row.blocks for row in beam.best] == [row.blocks for row in exact.best]
    narrow = search_subsets(encoder, evaluator_of(encoder), beam=1)
    assert narrow.tried <= beam.tried
    assert {len(row.blocks) for row in narrow.best} == {1, 2, 3}


class Heard:
    """Progress that keeps what is said, which has to be before the search begins."""

    def __init__(self):
        self.said, self.tasks = [], []

    def __call__(self, task, done, total):
        self.tasks.append(task)

    def say(self, sentence):
        assert not self.tasks
        self.said.append(sentence)


def test_a_short_search_goes_over_all_texts_and_is_not_announced(tiny_folder):
    encoder, heard = load_encoder(tiny_folder("bert")), Heard()
    found = search_subsets(encoder, evaluator_of(encoder), progress=heard)
    assert (found.exact, found.num_texts, heard.said) == (True, None, [])


def test_a_long_search_is_announced(tiny_folder, monkeypatch):
    encoder, heard = load_encoder(tiny_folder("bert")), Heard()
    monkeypatch.setattr(subsets, "SAID_SECONDS", 0.0)
    assert search_subsets(encoder, evaluator_of(encoder), progress=heard).exact
    assert heard.said == ["The search for blocks takes about 1 s: 7 runs of a block over 30 texts."]


def test_a_first_score_that_takes_long_makes_no_search_long(tiny_folder, monkeypatch):
    encoder = load_encoder(tiny_folder("bert"))
    evaluator = evaluator_of(encoder)
    score_of, spent = evaluator.score_of, []

    def slow_at_first(rows):
        spent.append(0.0 if spent else 200.0)
        return score_of(rows)

    # A clock of which 200 seconds are spent in the first score, so that no test has to wait for a slow processor.
    monkeypatch.setattr(evaluator, "score_of", slow_at_first)
    monkeypatch.setattr(subsets, "time", SimpleNamespace(perf_counter=lambda: time.perf_counter() + sum(spent)))
    assert subsets.plan_search(encoder, evaluator, beam=4).seconds < 200
    assert spent[0] == 200


def test_a_search_that_would_take_too_long_goes_over_fewer_and_shorter_texts(tiny_folder, monkeypatch):
    encoder, heard = load_encoder(tiny_folder("bert")), Heard()
    evaluator = evaluator_of(encoder, 90)
    monkeypatch.setattr(subsets, "FEWEST_SEARCHED", 40)
    monkeypatch.setattr(subsets, "SEARCHED_TOKENS", 5)
    # No test can wait for a machine that slow: a block is taken to need 100 s in all over 40 texts.
    monkeypatch.setattr(subsets, "_seconds", lambda *_: (100.0 / 7 / (40 * 5), 0.0))
    monkeypatch.setattr(subsets, "SEARCH_SECONDS", 101.0)
    found = search_subsets(encoder, evaluator, progress=heard)
    assert (found.exact, found.num_texts) == (True, 40)
    assert heard.said[0].startswith("The search for blocks would take about ")
    assert "cut to 5 tokens, and takes about 2 min: 7 runs of a block over 40 texts." in heard.said[0]
    texts = evaluator.texts()[:40]
    smaller = evaluator.fewer(encoder, 40, 5)
    assert smaller.texts() == [row if len(row) <= 5 else [*row[:4], row[-1]] for row in texts]
    assert max(map(len, texts)) > 5
    for row in found.best:
        assert row.score == pytest.approx(smaller.score(keep(encoder, row.blocks))[0], abs=1e-3)
    monkeypatch.setattr(subsets, "SEARCH_SECONDS", 0.0)
    least = search_subsets(encoder, evaluator, progress=(heard := Heard()))
    assert (least.exact, least.num_texts) == (False, 40)
    assert "and by a beam of 1, and takes" in heard.said[0]
    assert least.best[-1].score == pytest.approx(100)


def test_a_search_that_would_hold_too_much_goes_over_fewer_and_shorter_texts(tiny_folder, monkeypatch):
    encoder, heard = load_encoder(tiny_folder("bert")), Heard()
    evaluator = evaluator_of(encoder, 90)
    monkeypatch.setattr(subsets, "FEWEST_SEARCHED", 40)
    monkeypatch.setattr(subsets, "SEARCHED_TOKENS", 5)
    monkeypatch.setattr(subsets, "SEARCH_BYTES", 4 * 16 * 4 * 40 * 5)  # of width 16, at four layers
    found = search_subsets(encoder, evaluator, progress=heard)
    assert (found.exact, found.num_texts) == (True, 40)
    assert " and 0 GB. So it goes over fewer texts, cut to 5 tokens" in heard.said[0]
    everything = 4 * 16 * 4 * sum(len(row) for row in evaluator.texts())
    plan = subsets.plan_search(encoder, evaluator, 8)
    assert everything <= plan.whole_bytes <= 2 * everything


def test_simpler_rules_look_at_a_part_of_many_texts_and_all_of_them_score(tiny_folder, monkeypatch):
    encoder = load_encoder(tiny_folder("bert"))
    evaluator = evaluator_of(encoder, 60)
    monkeypatch.setattr(subsets, "RULED_TEXTS", 25)
    found = compare_blocks(encoder, evaluator, (2, 3))
    assert found.best[-1].score == pytest.approx(100)
    rows = {row.blocks: row.score for rows in found.baselines.values() for row in rows}
    rules = subsets.baseline_blocks(subsets.changes(subsets._runners(encoder, evaluator.texts()[:25]), 3))
    assert set(rows) == {kept[size - 1] for kept in rules.values() for size in (2, 3)}
    for blocks, score in rows.items():
        assert score == pytest.approx(evaluator.score(keep(encoder, blocks))[0], abs=1e-3)


def test_what_a_beam_costs_is_known_before(tmp_path):
    encoder = load_encoder(make_tiny("bert", tmp_path / "deep", blocks=9))
    tree, runs = subsets._Tree(encoder, evaluator_of(encoder)), []
    run = tree._run
    tree._run = lambda block, states: runs.append(block) or run(block, states)
    for beam in (1, 2, 8):
        runs.clear()
        tried = len(tree.beam_scores(beam, silent))
        expected, most = subsets.beam_cost(9, beam)
        assert 0.5 * most <= tried <= most
        assert 0.7 * len(runs) <= expected <= 2 * len(runs)


def test_blocks_that_are_named_are_compared_with_simpler_rules_alone(tiny_folder):
    encoder = load_encoder(tiny_folder("bert"))
    evaluator = evaluator_of(encoder)
    every, found = search_subsets(encoder, evaluator), compare_blocks(encoder, evaluator, (2, 3))
    rules = {row.blocks for rows in every.baselines.values() for row in rows if len(row.blocks) in (2, 3)}
    assert found.tried == len(rules | {(2, 3)})
    for name, rows in found.baselines.items():
        assert [row.blocks for row in rows] == [row.blocks for row in every.baselines[name][1:]]
        assert [row.score for row in rows] == pytest.approx([row.score for row in every.baselines[name][1:]])
    assert [len(row.blocks) for row in found.best] == [2, 3]


def test_graded_pairs_are_made_fewer_and_shorter(tiny_folder):
    encoder, pairs = load_encoder(tiny_folder("bert")), word_splits().dev
    smaller = PairEvaluator(encoder, pairs).fewer(encoder, 20, 4)
    drawn = np.random.default_rng(0).permutation(len(pairs.pairs))[:10]
    expected = PairEvaluator(encoder, replace(pairs, pairs=tuple(pairs.pairs[place] for place in drawn)))
    vectors = encoder.encode_ids([encoder.reader.shortened(row, 4) for row in expected.texts()])
    assert max(map(len, smaller.texts())) <= 4
    assert smaller.score(encoder)[0] == pytest.approx(expected.score_of(vectors)[0], abs=1e-3)


def test_simpler_rules_keep_what_their_papers_say(tiny_folder):
    encoder = load_encoder(tiny_folder("bert"))
    evaluator = evaluator_of(encoder)
    found = search_subsets(encoder, evaluator).baselines
    assert [row.blocks for row in found["first"]] == [(1,), (1, 2), (1, 2, 3)]
    assert [row.blocks for row in found["even"]] == [(3,), (2, 3), (1, 2, 3)]
    states: list[list[torch.Tensor]] = [[], [], [], []]
    with torch.inference_mode():
        for ids in evaluator.texts():  # one text at a time: no padding
            for place, layer in enumerate(encoder.hidden_states(encoder.pad([ids]))):
                states[place].append(layer[0].double())
    tokens = [torch.cat(parts) for parts in states]

    def cosine(first, second):
        return torch.nn.functional.cosine_similarity(tokens[first], tokens[second], dim=1).clamp(-1, 1)

    influence = [float(1 - cosine(block - 1, block).mean()) for block in (1, 2, 3)]
    order = sorted((1, 2, 3), key=lambda block: -influence[block - 1])
    assert [row.blocks for row in found["block_influence"]] == [tuple(sorted(order[:size])) for size in (1, 2, 3)]
    angles = {(first, last): float(cosine(first, last).arccos().mean()) for first in range(4) for last in range(4)}
    for size, row in enumerate(found["angular"], 1):
        start = min(range(size + 1), key=lambda at: angles[at, at + 3 - size])
        assert row.blocks == tuple(block for block in (1, 2, 3) if not start < block <= start + 3 - size)
        assert row.score == pytest.approx(evaluator.score(keep(encoder, row.blocks))[0], abs=1e-3)
    pooled = torch.stack([torch.stack([layer.mean(0) for layer in parts]) for parts in states])
    changed = [1 - debiased_cka(pooled[block - 1], pooled[block]) for block in (1, 2, 3)]
    order = sorted((1, 2, 3), key=lambda block: -changed[block - 1])
    assert [row.blocks for row in found["cka"]] == [tuple(sorted(order[:size])) for size in (1, 2, 3)]


def debiased_cka(first: torch.Tensor, second: torch.Tensor) -> float:
    """Of (n, d) states, by the sums over quadruples of texts as arXiv:2010.15327 writes them (eq. 3)."""

    def hsic(one: torch.Tensor, other: torch.Tensor) -> float:
        kernels = [side @ side.T for side in (one, other)]
        for kernel in kernels:
            kernel.fill_diagonal_(0)
        left, right = kernels
        n = len(left)
        rest = left.sum() * right.sum() / ((n - 1) * (n - 2)) - 2 * (left @ right).sum() / (n - 2)
        return float(((left @ right).trace() + rest) / (n * (n - 3)))

    return hsic(first, second) / math.sqrt(hsic(first, first) * hsic(second, second))


def test_no_subset_where_vectors_come_from_several_layers(tiny_folder):
    encoder = load_encoder(tiny_folder("bert"))
    check_blocks(encoder, (1, 3))
    with pytest.raises(LayerOutOfRangeError):
        check_blocks(encoder, (1, 4))
    encoder.combine_layers((1, 2))
    with pytest.raises(ModelError, match="made from several layers"):
        search_subsets(encoder, evaluator_of(load_encoder(tiny_folder("bert"))))
    encoder.pool_with(LayerPooling(16, layers=(1, 3)))
    with pytest.raises(ModelError, match="made from several layers"):
        check_blocks(encoder)


def test_the_best_subset_of_a_size_is_one_that_can_be_held(tiny_folder):
    encoder = load_encoder(tiny_folder("modernbert"))
    found = search_subsets(encoder, evaluator_of(encoder))
    assert next(row.blocks[0] for row in found.best if len(row.blocks) == 2) == 1
