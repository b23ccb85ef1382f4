"""Contrastive objectives against plain loops, cached gradients against one batch, two processes against one."""

import math

import pytest
import torch
from safetensors.torch import load_file

from tests.support.contrastive import TRAINING, evaluator, examples, fresh, gradients_and_training
from tests.support.distributed import assert_same, gradients, in_two_processes, tiny_without_dropout
from truncate_kit.training import examples as contrastive
from truncate_kit.training.examples import ContrastiveTexts, contrastive_loss
from truncate_kit.training.loop import ALONE, TrainingRun
from truncate_kit.training.settings import TrainingSettings


@pytest.mark.parametrize(("negatives", "weight"), [(False, 0), (True, 0), (True, 1), (True, 2.5)])
def test_the_equations_one_term_at_a_time(negatives, weight):
    generator = torch.Generator().manual_seed(0)
    anchors, positives, against = torch.randn(3, 5, 7, generator=generator).double()

    def similar(first, second, more=0.0):
        return math.exp(float(first @ second / first.norm() / second.norm()) / 0.05 + more)

    losses = []
    for place, anchor in enumerate(anchors):
        total = sum(similar(anchor, other) for other in positives)
        if negatives:  # the released code adds the weight to the logit of the anchor's own one
            total += sum(similar(anchor, other, weight * (at == place)) for at, other in enumerate(against))
        losses.append(-math.log(similar(anchor, positives[place]) / total))
    found = contrastive_loss(anchors, positives, against if negatives else None, 0.05, weight)
    assert float(found) == pytest.approx(sum(losses) / 5, rel=1e-9)


@pytest.mark.parametrize(("pooling", "chunk"), [("layer-attention", 4), ("concat", 7)])
def test_cached_gradients_are_those_of_one_batch(tiny_folder, pooling, chunk):
    encoder = fresh(tiny_folder("bert"), pooling).eval()  # nothing is drawn, so that chunks and batch can be compared
    loss = examples(encoder).loss(encoder, range(13))
    loss.backward()
    expected = gradients(encoder)
    encoder.zero_grad(set_to_none=True)
    cached = examples(encoder, chunk=chunk).loss(encoder, range(13))
    assert float(cached.detach()) == pytest.approx(float(loss.detach()), rel=1e-5)
    assert not gradients(encoder)
    cached.backward()
    assert_same(gradients(encoder), expected, 1e-5)


def test_texts_of_like_length_go_together(tiny_folder, monkeypatch):
    encoder, pads, losses = fresh(tiny_folder("bert"), "layer-attention").eval(), [], []
    draw = torch.Generator().manual_seed(0)
    lengths = torch.randint(3, 12, (3, 16), generator=draw)
    rows = ContrastiveTexts([[torch.randint(5, 30, (n,), generator=draw).tolist() for n in row] for row in lengths])
    pad = encoder.pad
    monkeypatch.setattr(encoder, "pad", lambda ids: pads.append(len(ids) * max(map(len, ids))) or pad(ids))
    for alike in (48, 8):
        monkeypatch.setattr(contrastive, "ALIKE", alike)
        losses.append(float(rows.loss(encoder, range(16)).detach()))
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    longest = lengths.flatten().sort(descending=True).values.view(6, 8)[:, 0]
    assert pads == [48 * int(longest[0]), *(8 * longest).tolist()]


def test_cached_gradients_draw_the_same_dropout_twice(tiny_folder):
    encoder = fresh(tiny_folder("bert")).train()
    rows = examples(encoder, columns=2)
    ids = rows.texts()
    torch.manual_seed(5)
    vectors = torch.cat([encoder(**encoder.pad(ids[start : start + 4])) for start in range(0, 26, 4)])  # all graphs
    contrastive_loss(vectors[:13], vectors[13:], None, 0.05).backward()
    expected, after = gradients(encoder), torch.rand(3)
    encoder.zero_grad(set_to_none=True)
    torch.manual_seed(5)
    (3 * examples(encoder, columns=2, chunk=4).loss(encoder, range(13))).backward()
    assert torch.equal(torch.rand(3), after)  # what is drawn next does not depend on the second pass
    assert_same({name: value / 3 for name, value in gradients(encoder).items()}, expected, 1e-6)


def test_looks_at_dev_between_epochs_keep_the_best_also_when_resumed_between_two(tiny_folder, tmp_path):
    def setup():
        encoder = fresh(tiny_folder("bert"))
        return encoder, examples(encoder, chunk=8), evaluator(encoder)

    settings = TrainingSettings.from_dict(TRAINING.to_dict() | {"compact_vocabulary": False})
    whole, parts, resumed = setup(), setup(), setup()
    state = TrainingRun(*whole, settings, seed=0, evaluate_every=2).train()
    run = TrainingRun(*parts, settings, seed=0, evaluate_every=2)
    run.train_stage()
    run.store(tmp_path / "checkpoint")
    torch.rand(1)  # a new process has drawn other numbers
    again = TrainingRun(*resumed, settings, seed=0, evaluate_every=2).train(checkpoint=tmp_path / "checkpoint")
    assert again.scores == state.scores
    assert len(state.scores) == 3  # 2 epochs of 3 steps
    assert state.best_stage == max(range(3), key=lambda stage: (state.scores[stage], -stage))
    assert whole[2].score(whole[0])[0] == pytest.approx(state.scores[state.best_stage], abs=1e-3)
    for ours, theirs in zip(resumed[0].parameters(), whole[0].parameters(), strict=True):
        assert torch.equal(ours, theirs)


# Two processes

_WORKER = """
from pathlib import Path
from safetensors.torch import save_file
from tests.support.contrastive import gradients_and_training
from truncate_kit.core.errors import TruncateKitError
from truncate_kit.training.loop import joined
try:
    with joined() as (group, device):
        for chunk in (None, 4):
            found, scores = gradients_and_training({folder!r}, group, chunk)
            save_file(found, Path({out!r}) / f"{{group.rank}}-{{chunk}}.safetensors")
            assert group.size == 2 and group.collect(scores) == [scores, scores]
        if group.leads:
            raise TruncateKitError("There are no texts.", hint="Give some.")
        group.agree(None)
except TruncateKitError as error:
    print(error, error.hint)
"""


def test_two_processes_train_as_one_with_the_whole_batch_and_hear_if_the_other_ends(tmp_path):
    # Batches of 6, 6 and 1 row: the second process gets no row of the last one. Dropout, which differs, is off.
    folder = tiny_without_dropout(tmp_path / "model")
    messages = "There are no texts. Give some.", "Another process of this run has ended. Look for an error"
    done = in_two_processes(_WORKER.format(out=str(tmp_path), folder=str(folder)))
    for (code, printed, errors), expected in zip(done, messages, strict=True):
        assert (code, printed.strip().startswith(expected)) == (0, True), errors
    for chunk in (None, 4):
        alone, _ = gradients_and_training(folder, ALONE, chunk)
        first, second = (load_file(tmp_path / f"{rank}-{chunk}.safetensors") for rank in range(2))
        assert all(torch.equal(first[name], second[name]) for name in first)
        wanted = {name: value for name, value in alone.items() if name.startswith("gradient")}
        assert_same({name: first[name] for name in wanted}, wanted, 1e-5)
        # Adam turns a rounding difference of a gradient near 0 into a step, so the outcome is close, not equal.
        moved = float((alone["after"] - alone["before"]).abs().max())
        torch.testing.assert_close(first["after"], alone["after"], atol=0.05 * moved, rtol=0)
