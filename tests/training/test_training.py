"""The lean loop against plain computations, and its promises: compact vocabulary, resume, determinism."""

import math
from dataclasses import replace

import pytest
import torch

from tests.support.pairs import make_pairs
from tests.support.training import SETTINGS, without_dropout
from truncate_kit.core.errors import TruncateKitError, UsageError
from truncate_kit.data.pairs import PairSet, PairSplits
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.pipeline import Dense
from truncate_kit.models.truncation import truncate
from truncate_kit.training import loop
from truncate_kit.training.examples import LabelledTask, PairEvaluator, Pairs, cosine_mse
from truncate_kit.training.loop import TrainingRun, bucketed, precision
from truncate_kit.training.settings import TrainingSettings, default_learning_rate, rate_at, scaled_learning_rate


def graded(encoder, pairs: PairSet) -> Pairs:
    return Pairs(
        encoder.token_ids([pair.first for pair in pairs]),
        encoder.token_ids([pair.second for pair in pairs]),
        pairs.scores01(),
        cosine_mse,
    )


@pytest.fixture(scope="module")
def pairs():
    return make_pairs(60), make_pairs(30, seed=1)


def trained(folder, pairs, settings, *, seed=0, checkpoint=None, layer=2, **options):
    encoder = truncate(load_encoder(folder), layer)
    examples, evaluator = graded(encoder, pairs[0]), PairEvaluator(encoder, pairs[1])
    state = TrainingRun(encoder, examples, evaluator, settings, seed=seed).train(checkpoint=checkpoint, **options)
    return encoder, state


def test_rates_follow_the_width_and_the_step():
    rates = {768: (2e-5, 2e-5), 1024: (2e-5, 2e-5), 384: (6.92e-5, 4e-5), 128: (5e-4, 1e-4), 64: (5e-4, 1e-4)}
    for width, expected in rates.items():
        assert (default_learning_rate(width), scaled_learning_rate(width)) == pytest.approx(expected, rel=1e-2)
    # Halfway between the logarithms of 128 and 768 is the geometric mean of both widths, and of both rates.
    assert default_learning_rate(round((128 * 768) ** 0.5)) == pytest.approx((5e-4 * 2e-5) ** 0.5, rel=0.01)
    assert [rate_at(step, 100, 0.1) for step in (0, 5, 10, 55, 100)] == pytest.approx([0, 0.5, 1, 0.5, 0])


def test_one_step_equals_plain_adamw(tiny_folder, pairs):
    """The loop's first two steps against torch.optim.AdamW on both sentences apart, decay on matrices only."""
    settings = TrainingSettings(epochs=1, batch_size=30, learning_rate=1e-3, warmup=0.0, buckets=False)
    encoder, plain = (without_dropout(truncate(load_encoder(tiny_folder("bert")), 2)) for _ in range(2))
    TrainingRun(encoder, graded(encoder, pairs[0]), PairEvaluator(encoder, pairs[1]), settings, seed=0).train()
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0)).tolist()
    groups = [
        {"params": [p for p in plain.parameters() if p.ndim > 1], "weight_decay": 0.01},
        {"params": [p for p in plain.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ]
    optimiser = torch.optim.AdamW(groups, lr=1e-3)
    for step in range(2):
        rows = [pairs[0].pairs[place] for place in order[30 * step : 30 * step + 30]]
        for group in optimiser.param_groups:
            group["lr"] = 1e-3 * (2 - step) / 2
        u = torch.cat([plain(**plain.tokenize([row.first])) for row in rows])
        v = torch.cat([plain(**plain.tokenize([row.second])) for row in rows])
        target = torch.tensor([row.target / 5 for row in rows])
        loss = ((torch.nn.functional.cosine_similarity(u, v) - target) ** 2).mean()
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        optimiser.step()
    for (name, ours), theirs in zip(encoder.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-3, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("name", ["roberta", "deberta-v3", "gpt2"])
def test_compact_vocabulary_changes_nothing_but_the_cost(name, tiny_folder, pairs):
    with_all, compact = (
        trained(tiny_folder(name), pairs, replace(SETTINGS, epochs=2, compact_vocabulary=kind))[0]
        for kind in (False, True)
    )
    started, table, expected = (
        encoder.backbone.get_input_embeddings().weight
        for encoder in (load_encoder(tiny_folder(name)), compact, with_all)
    )
    used = {token for part in pairs for row in graded(compact, part).texts() for token in row}
    unused = sorted({*range(5, len(table))} - used)
    torch.testing.assert_close(table[unused], expected[unused], atol=0, rtol=1e-5)  # shrunk as by AdamW
    assert not torch.equal(table[unused], started[unused])
    for ours, theirs in zip(compact.parameters(), with_all.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-3)


def test_a_stop_loses_at_most_the_running_epoch(tiny_folder, pairs, tmp_path):
    """However short the epochs are; also when the best of them is not the last one that was stored."""
    path, epochs = tmp_path / "checkpoint", 4
    settings = replace(SETTINGS, epochs=epochs, learning_rate=2e-2)
    whole, whole_state = trained(tiny_folder("bert"), pairs, settings)
    heard, steps = [], -(-len(pairs[0]) // settings.batch_size)
    for running in range(epochs - 1):

        def stop(task, done, total, running=running):
            if done == steps * (running + 1):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            trained(tiny_folder("bert"), pairs, settings, checkpoint=path, progress=stop)
        assert path.exists() == (running > 0)
    end, state = trained(
        tiny_folder("bert"), pairs, settings, checkpoint=path, stage_done=lambda done, *_: heard.append(done)
    )
    assert heard == [3, 4]
    assert state.scores == pytest.approx(whole_state.scores)
    for ours, theirs in zip(end.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(("together", "most"), [(24, 2500), (2, 10_000), (None, 30_000)])
def test_every_example_once_and_like_lengths_together(together, most):
    lengths = [(7 * place) % 40 for place in range(1000)]
    order = torch.randperm(1000, generator=torch.Generator().manual_seed(1)).tolist()
    batches = bucketed(order, lengths, 32, together)
    assert sorted(place for batch in batches for place in batch) == list(range(1000))
    padding = sum(max(lengths[p] for p in batch) - lengths[q] for batch in batches for q in batch)
    assert most / 3 < padding < most  # the more are sorted together, the less


def test_a_teacher_of_another_width_is_refused(tiny_folder, pairs):
    encoder, teacher = load_encoder(tiny_folder("bert")), load_encoder(tiny_folder("bert"))
    teacher.tail.append(Dense(16, 5, bias=True, activation="Tanh"))
    data = PairSplits(name="pairs", train=pairs[0], dev=pairs[1], test=pairs[1])
    with pytest.raises(UsageError, match="have 5 dimensions, the student's 16"):
        LabelledTask(encoder, data, teacher=teacher)


@pytest.mark.parametrize("looks_back", [1, 32])
def test_the_step_that_diverged_is_told_also_when_it_is_seen_later(tiny_folder, pairs, monkeypatch, looks_back):
    encoder = truncate(load_encoder(tiny_folder("bert")), 1)
    examples = graded(encoder, pairs[0])
    seen = []

    class Diverging(type(examples)):
        def loss(self, encoder, batch):
            seen.append(batch)
            return super().loss(encoder, batch) * (float("inf") if len(seen) == 6 else 1.0)

    examples.__class__ = Diverging
    monkeypatch.setattr(loop, "CHECK_EVERY", looks_back)  # fewer steps than 32 are a matter of milliseconds
    steps = -(-len(examples) // SETTINGS.batch_size)
    epoch, step = divmod(5, steps)
    with pytest.raises(TruncateKitError, match=f"epoch {epoch + 1}, step {step + 1},"):
        TrainingRun(encoder, examples, PairEvaluator(encoder, pairs[1]), SETTINGS, seed=0).train()


def test_attention_in_bf16_training_is_rounded_only_where_it_comes_in_and_goes_out():
    """Output and gradients against softmax(q·kᵀ/√d)·v in float64: one rounding to bfloat16 (2⁻⁸) away, no more."""
    torch.manual_seed(0)
    sides = [torch.randn(3, 2, 7, 8).bfloat16().requires_grad_() for _ in range(3)]
    seen = torch.ones(3, 1, 7, 7, dtype=torch.bool)
    seen[1, :, :, 4:] = False
    weights = torch.randn(3, 2, 7, 8).bfloat16()
    with precision(torch.device("cpu"), "bf16"):
        attended = torch.nn.functional.scaled_dot_product_attention(*sides, attn_mask=seen)
    found = [attended, *torch.autograd.grad(attended, sides, weights)]
    query, key, value = exact = [side.detach().double().requires_grad_() for side in sides]
    shares = (query @ key.transpose(2, 3) / math.sqrt(8)).masked_fill(~seen, -math.inf).softmax(dim=3)
    expected = [shares @ value, *torch.autograd.grad(shares @ value, exact, weights.double())]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == torch.bfloat16
        assert (ours.double() - theirs).abs().max() < 2**-8 * theirs.abs().max()
