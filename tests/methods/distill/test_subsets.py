"""The search over subsets of blocks, against models that keep them; and which layer's vectors are learned."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.support.cka import cka
from tests.support.families import WORDS
from tests.support.pairs import word_splits
from truncate_kit import find_aim
from truncate_kit.core.errors import LayerNotHeldError, LayerOutOfRangeError, ModelError, UsageError
from truncate_kit.core.hardware import INSTRUCTIONS
from truncate_kit.data.pairs import BUNDLED, load_pairs
from truncate_kit.methods.distill import subsets
from truncate_kit.methods.distill.learning import AgreementEvaluator
from truncate_kit.methods.distill.settings import LOWEST_TAUGHT, Budget
from truncate_kit.methods.distill.subsets import check_blocks, promise, search_subsets
from truncate_kit.models.layer_pooling import LayerPooling
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.truncation import keep
from truncate_kit.training.examples import PairEvaluator


@pytest.fixture(autouse=True)
def _in_float32(monkeypatch):
    monkeypatch.setenv(INSTRUCTIONS, "avx2")


def evaluator_of(encoder, count=50):
    texts = [" ".join(WORDS[(place * step) % len(WORDS)] for step in range(2, 4 + place % 9)) for place in range(count)]
    ids = encoder.token_ids([f"{text} {WORDS[place % len(WORDS)]}" for place, text in enumerate(texts)])
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
    for kept, score in found.best:
        best = max(score for blocks, score in tried.items() if len(blocks) == len(kept))
        assert score == pytest.approx(best, abs=1e-3)
        assert score == pytest.approx(tried[kept], abs=1e-3)
    assert found.best[-1] == ((1, 2, 3), pytest.approx(100))


def test_a_beam_in_bfloat16_loses_little_against_all_subsets(monkeypatch):
    model = load_encoder("mini-electra-discriminator")
    ids = [model.reader.shortened(row, 32) for row in model.token_ids(load_pairs(BUNDLED).texts()[:100])]
    evaluator = AgreementEvaluator(ids, model.encode_ids(ids))
    exact = search_subsets(model, evaluator, beam=2**8)
    monkeypatch.setenv(INSTRUCTIONS, "avx512f amx_bf16")
    beam = search_subsets(model, evaluator)
    assert (exact.exact, exact.tried, beam.exact) == (True, 2**8 - 1, False)
    assert beam.tried < exact.tried
    lost = [best - score for (_, best), (_, score) in zip(exact.best, beam.best, strict=True)]
    assert lost == pytest.approx([0.0] * 8, abs=0.5)
    some = search_subsets(model, evaluator, smallest=6)
    assert some.best == beam.best[5:]


def test_a_promise_is_exact_if_losses_add_up():
    losses = (3.0, 1.0, 4.0, 1.5, 9.0)
    every = [blocks for size in range(1, 6) for blocks in itertools.combinations(range(1, 6), size)]
    scores = {blocks: 100 - sum(losses[block - 1] for block in range(1, 6) if block not in blocks) for blocks in every}
    for blocks in every[:-6]:  # pairs are known from four blocks down
        larger = {other: score for other, score in scores.items() if len(other) > len(blocks)}
        assert promise(blocks, larger, 5) == pytest.approx(scores[blocks])


def test_a_search_goes_over_few_and_short_texts(encoder, monkeypatch):
    evaluator = evaluator_of(encoder, 90)
    monkeypatch.setattr(subsets, "SEARCHED_TEXTS", 45)
    monkeypatch.setattr(subsets, "SEARCHED_TOKENS", 5)
    found = search_subsets(encoder, evaluator)
    texts, smaller = evaluator.texts()[:45], evaluator.fewer(encoder, 45, 5)
    assert (found.num_texts, smaller.texts()) == (45, [row if len(row) <= 5 else [*row[:4], row[-1]] for row in texts])
    assert found.best[0][1] == pytest.approx(smaller.score(keep(encoder, found.best[0][0]))[0], abs=1e-3)


def test_of_named_blocks_only_their_own_score_is_found(encoder):
    evaluator = evaluator_of(encoder)
    found = search_subsets(encoder, evaluator, blocks=(2, 3))
    assert found.best == [((2, 3), evaluator.score(keep(encoder, (2, 3)))[0]), ((1, 2, 3), pytest.approx(100))]
    assert (found.tried, found.exact, found.baselines) == (2, False, {})


def test_graded_pairs_are_made_fewer_and_shorter(encoder):
    pairs = word_splits().dev
    smaller = PairEvaluator(encoder, pairs).fewer(encoder, 20, 4)
    drawn = np.random.default_rng(0).permutation(len(pairs.pairs))[:10]
    expected = PairEvaluator(encoder, replace(pairs, pairs=tuple(pairs.pairs[place] for place in drawn)))
    vectors = encoder.encode_ids([encoder.reader.shortened(row, 4) for row in expected.texts()])
    assert max(map(len, smaller.texts())) <= 4
    assert smaller.score(encoder)[0] == pytest.approx(expected.score_of(vectors)[0], abs=1e-3)


def test_simpler_rules_keep_what_their_papers_say(encoder):
    evaluator = evaluator_of(encoder)
    found = search_subsets(encoder, evaluator).baselines
    assert [blocks for blocks, _ in found["first"]] == [(1,), (1, 2), (1, 2, 3)]
    assert [blocks for blocks, _ in found["even"]] == [(3,), (2, 3), (1, 2, 3)]
    states: list[list[torch.Tensor]] = [[], [], [], []]
    with torch.inference_mode():
        for ids in evaluator.texts():  # one text at a time: no padding
            for place, layer in enumerate(encoder.hidden_states(encoder.pad([ids]))):
                states[place].append(layer[0].double())
    tokens = [torch.cat(parts) for parts in states]

    def cosine(first, second):
        return torch.nn.functional.cosine_similarity(tokens[first], tokens[second], dim=1).clamp(-1, 1)

    def largest(changed):
        order = sorted((1, 2, 3), key=lambda block: -changed[block - 1])
        return [tuple(sorted(order[:size])) for size in (1, 2, 3)]

    influence = [float(1 - cosine(block - 1, block).mean()) for block in (1, 2, 3)]
    assert [blocks for blocks, _ in found["block_influence"]] == largest(influence)
    angles = {(first, last): float(cosine(first, last).arccos().mean()) for first in range(4) for last in range(4)}
    for size, (kept, score) in enumerate(found["angular"], 1):
        start = min(range(size + 1), key=lambda at: angles[at, at + 3 - size])
        assert kept == tuple(block for block in (1, 2, 3) if not start < block <= start + 3 - size)
        assert score == pytest.approx(evaluator.score(keep(encoder, kept))[0], abs=1e-3)
    pooled = torch.stack([torch.stack([layer.mean(0) for layer in parts]) for parts in states])
    changed = [1 - float(cka(pooled[block - 1], pooled[block])) for block in (1, 2, 3)]
    assert [blocks for blocks, _ in found["cka"]] == largest(changed)


def test_no_subset_where_vectors_come_from_several_layers(encoder, tiny_folder):
    check_blocks(encoder, (1, 3))
    with pytest.raises(LayerOutOfRangeError):
        check_blocks(encoder, (1, 4))
    encoder.combine_layers((1, 2))
    with pytest.raises(ModelError, match="combine several layers"):
        search_subsets(encoder, evaluator_of(load_encoder(tiny_folder("bert"))))
    encoder.pool_with(LayerPooling(16, layers=(1, 3)))
    with pytest.raises(ModelError, match="combine several layers"):
        check_blocks(encoder)


@pytest.fixture(scope="module")
def electra():
    return load_encoder("mini-electra-discriminator")


def test_the_layer_before_a_predicted_drop_is_learned(electra):
    texts = list(dict.fromkeys(load_pairs(BUNDLED).texts()[:100]))
    layer, drop = find_aim(electra, iter(texts))
    assert layer == max(LOWEST_TAUGHT, drop.last_before) < electra.depth
    assert find_aim(electra, texts, Budget(blocks=layer + 1))[0] == layer + 1  # as many blocks have to be there
    assert find_aim(electra, texts, Budget(blocks=f"1,{electra.depth}")) == (None, drop)
    assert find_aim(load_encoder("mini-bert"), texts) == (None, None)
    assert find_aim(electra, texts[:2]) == (None, None)  # too few to be analysed


def test_a_budget_that_cannot_be_met_is_refused_before_texts_are_read(electra):
    with pytest.raises(UsageError, match="No lean model has 8 blocks"):
        find_aim(electra, (pytest.fail("read") for _ in range(1)), Budget(blocks=8))
