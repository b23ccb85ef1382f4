"""Agreement with the full model, against loops over all pairs."""

import numpy as np
import pytest
import torch
from scipy import stats

from truncate_kit.core.errors import DataError
from truncate_kit.methods.distill.learning import AgreementEvaluator
from truncate_kit.methods.distill.settings import AMONG, NEAR


def vectors(seed, count=60, width=8):
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


def nearest(rows):
    unit = rows.numpy() / np.linalg.norm(rows.numpy(), axis=1, keepdims=True)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -2)
    near = []
    for place, row in enumerate(cosines):  # among the same number of texts, however many there are
        others = [(place + step) % len(row) for step in range(1, AMONG)]
        near.append(set(sorted(others, key=lambda other, row=row: -row[other])[:NEAR]))
    return cosines, near


def test_it_is_what_loops_give():
    full = vectors(0)
    lean = full + 0.7 * vectors(1)
    evaluator = AgreementEvaluator([[1]] * 60, full)
    (expected, near), (found, near_too) = nearest(full), nearest(lean)
    pairs = [(row, int(other)) for row, partners in enumerate(evaluator._partners) for other in partners]
    assert all(row != other for row, other in pairs)
    assert [set(partners[:NEAR].tolist()) for partners in evaluator._partners] == near
    correlation = stats.spearmanr([found[pair] for pair in pairs], [expected[pair] for pair in pairs]).statistic
    agreement = evaluator.agreement_of(lean)
    assert agreement.correlation == pytest.approx(100 * correlation, abs=1e-3)
    shared = [len(one & other) / NEAR for one, other in zip(near, near_too, strict=True)]
    assert agreement.overlap == pytest.approx(100 * np.mean(shared))
    drawn = [np.bincount(row, minlength=60) for row in np.random.default_rng(1).integers(0, 60, (4000, 60))]
    weights = [np.outer(times, times) for times in drawn]  # a pair comes as often as both of its texts
    near_ones = np.array([[other in one for other in range(60)] for one in near])
    both = near_ones & np.array([[other in one for other in range(60)] for one in near_too])
    shares = [100 * times[both].sum() / times[near_ones].sum() for times in weights]
    low, high = np.quantile(shares, (0.025, 0.975))
    assert (agreement.overlap_low, agreement.overlap_high) == pytest.approx((low, high), abs=1.5)
    assert agreement.low < agreement.correlation < agreement.high
    assert 0 < agreement.high - agreement.low < 35  # four nearest and four random of 60 texts
    assert evaluator.score_of(lean)[0] == agreement.correlation


def test_the_full_model_agrees_with_itself_and_a_constant_one_with_nobody():
    evaluator = AgreementEvaluator([[1]] * 60, vectors(0))
    own = evaluator.agreement_of(3 * vectors(0))  # lengths do not count
    assert (own.correlation, own.overlap, own.num_texts) == (pytest.approx(100), pytest.approx(100), 60)
    assert evaluator.score_of(torch.ones(60, 8))[0] == 0.0


def test_score_and_interval_have_the_same_ties():
    """Texts that have nothing to do with each other, but for rounding that repeats the order of the full model."""
    full = torch.nn.functional.normalize(vectors(0), dim=1)
    agreement = AgreementEvaluator([[1]] * 60, full).agreement_of(torch.eye(60) + 1e-14 * full @ full.T)
    assert (agreement.correlation, agreement.low, agreement.high) == (0.0, 0.0, 0.0)


def test_scores_are_as_exact_while_bf16_trains():
    evaluator, lean = AgreementEvaluator([[1]] * 60, vectors(0)), vectors(0) + vectors(1)
    plain = evaluator.score_of(lean)
    with torch.autocast("cpu", torch.bfloat16):
        assert evaluator.score_of(lean) == plain


def test_the_intervals_are_as_wide_as_scores_of_other_texts_differ():
    """Texts of a population of which a tenth is broken, drawn anew each time: an odd text is also a partner."""
    generator = torch.Generator().manual_seed(0)
    full, noise = vectors(0, 20_000, 32), vectors(1, 20_000, 32)
    lean = torch.where(torch.rand(20_000, 1, generator=generator) < 0.1, 1.3 * noise, full + 0.1 * noise)
    found = []
    for _ in range(25):
        places = torch.randperm(20_000, generator=generator)[:100]
        found.append(AgreementEvaluator([[1]] * 100, full[places]).agreement_of(lean[places]))
    for low, value, high in (("low", "correlation", "high"), ("overlap_low", "overlap", "overlap_high")):
        differ = np.std([getattr(one, value) for one in found], ddof=1)
        assert np.mean([getattr(one, high) - getattr(one, low) for one in found]) / 3.92 > 0.75 * differ


def test_a_handful_of_texts_is_refused():
    with pytest.raises(DataError, match="needs at least 41"):
        AgreementEvaluator([[1]] * 40, vectors(0, 40))
