"""DiffCSE against a small implementation of its own, and a run from end to end."""

import copy
import math
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForMaskedLM, BertForMaskedLM

from tests.support.pairs import make_pairs
from truncate_kit.core.errors import ModelError, UsageError
from truncate_kit.data.pairs import PairSplits
from truncate_kit.data.triplets import raw_texts
from truncate_kit.methods.contrast.run import DifferenceTexts, finetune_contrastive, poolable_encoder
from truncate_kit.methods.contrast.settings import ContrastiveSettings
from truncate_kit.models.loading import load_encoder
from truncate_kit.training.loop import Group

TEXTS = ["the cat sat on the mat", "a dog", "the big red dog and not a small blue cat", "a mat under the tree"]


@pytest.fixture(scope="module")
def masked(tiny_folder, tmp_path_factory):
    """A tiny BERT with its head over masked words, wide enough that the likeliest word is no matter of rounding."""
    folder = tmp_path_factory.mktemp("masked")
    encoder = load_encoder(tiny_folder("bert"))
    torch.manual_seed(0)
    whole = AutoModelForMaskedLM.from_config(encoder.backbone.config)
    for weight in whole.parameters():
        weight.data.add_(0.2 * torch.randn_like(weight))
    whole.save_pretrained(folder)
    encoder.tokenizer.save_pretrained(folder)
    return folder


def hidden_by_hand(ids, tokenizer, vocabulary, generator, share):
    """Devlin et al., 3.1, a token at a time, of padded ids: new ids, and which tokens are hidden."""
    draws, fates = (torch.rand(ids.shape, generator=generator) for _ in range(2))
    others = torch.randint(vocabulary, ids.shape, generator=generator)
    shown, hidden = ids.clone(), torch.zeros_like(ids, dtype=torch.bool)
    for row in range(len(ids)):
        words = [n for n, one in enumerate(ids[row].tolist()) if one not in tokenizer.all_special_ids]
        chosen = [n for n in words if draws[row, n] < share] or [min(words, key=lambda n: float(draws[row, n]))]
        for n in chosen:
            hidden[row, n] = True
            if fates[row, n] < 0.8:
                shown[row, n] = tokenizer.mask_token_id
            elif fates[row, n] < 0.9:
                shown[row, n] = others[row, n]
    return shown, hidden


def contrasted(vectors):
    """Equation 7 of two copies of each text, one after the other."""
    half = len(vectors) // 2
    sims = torch.cosine_similarity(vectors[:half].unsqueeze(1), vectors[half:].unsqueeze(0), dim=-1) / 0.05
    return -torch.stack([sims[i, i] - torch.logsumexp(sims[i], dim=0) for i in range(half)]).mean()


def by_hand(folder, encoder, judge, batch, vectors, *, weight, share):
    """Equation 7 plus the detection of replaced words of a batch with these vectors, by transformers."""
    drawn = torch.Generator().manual_seed(int(torch.randint(2**62, ())))
    ids, mask, vocabulary = batch["input_ids"], batch["attention_mask"], encoder.backbone.config.vocab_size
    shown, hidden = hidden_by_hand(ids, encoder.tokenizer, vocabulary, drawn, share)
    with torch.no_grad():
        words = BertForMaskedLM.from_pretrained(folder).eval()(shown, attention_mask=mask).logits.argmax(dim=-1)
    filled, real = torch.where(hidden, words, ids), mask.bool()
    states = torch.cat([vectors.unsqueeze(1), judge.backbone.embeddings(filled)[:, 1:]], dim=1)  # instead of CLS
    unseen = torch.zeros(real.shape).masked_fill(~real, torch.finfo(torch.float32).min)[:, None, None]
    for block in judge.backbone.encoder.layer:
        states = block(states, unseen)
        states = states[0] if isinstance(states, tuple) else states
    chances = (states @ judge.replaced.weight.T + judge.replaced.bias).log_softmax(dim=-1)
    terms = -chances.gather(2, (filled != ids).long().unsqueeze(2)).squeeze(2)[real]
    return contrasted(vectors) + weight * terms.mean()


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("pooling", ["cls", "layer-attention"])
def test_both_losses_against_a_plain_implementation(masked, pooling, training):
    """In training both copies and the discriminator have dropout masks of their own, drawn from the same seed."""
    full = load_encoder(masked)
    settings = ContrastiveSettings(objective="diffcse", pooling=pooling, dropout=0.2)
    encoder = poolable_encoder(full, settings, seed=1).train(training)
    ids = encoder.token_ids(TEXTS)
    examples = DifferenceTexts(encoder, ids, full, temperature=0.05, weight=0.7, share=0.4)
    examples.head.train(training)
    torch.nn.init.normal_(examples.discriminator.replaced.weight)
    twin, judge = copy.deepcopy(encoder), copy.deepcopy(examples.discriminator)
    torch.manual_seed(3)
    found = examples.loss(encoder, range(4))
    torch.manual_seed(3)
    batch = encoder.tokenizer.pad({"input_ids": ids * 2}, return_tensors="pt")
    if pooling == "cls":
        cls = twin.backbone(**batch).last_hidden_state[:, 0]
        vectors = torch.tanh(cls @ twin.tail[0].linear.weight.T + twin.tail[0].linear.bias)
    else:
        vectors = twin(**batch)
    assert torch.allclose(vectors[:4], vectors[4:], atol=1e-3) != training
    expected = by_hand(masked, encoder, judge, batch, vectors, weight=0.7, share=0.4)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    found.backward()
    # The vector's gradient passes through the discriminator; the generator learns nothing.
    assert all(weight.grad is not None for weight in examples.discriminator.replaced.parameters())
    assert all(weight.grad is None for weight in full.parameters())
    assert any(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in encoder.parameters())


PAIRS = PairSplits(name="pairs", dev=make_pairs(20, seed=1), test=make_pairs(20, seed=2))
RAW = raw_texts("texts", [pair.first for pair in make_pairs(12, seed=5)])
SETTINGS = ContrastiveSettings(objective="diffcse", batch_size=4, epochs=1, learning_rate=1e-3, seeds=(0,))


def test_a_run_saves_the_encoder_alone(masked, tmp_path):
    result = finetune_contrastive(load_encoder(masked), RAW, PAIRS, out=tmp_path, settings=SETTINGS)
    lean = load_encoder(tmp_path / "lean")
    assert (lean.pooling_name, lean.depth) == ("layer-attention", 3)
    assert "DiffCSE" in (tmp_path / "lean/README.md").read_text()
    assert result.parameters == lean.num_parameters
    before = load_encoder(masked).backbone.get_input_embeddings().weight
    assert not torch.equal(lean.backbone.get_input_embeddings().weight, before)
    again = finetune_contrastive(load_encoder(masked), RAW, PAIRS, out=tmp_path, settings=SETTINGS)
    assert again.trials == result.trials


def test_trials_belong_to_the_head_that_filled_words_in(masked, tmp_path):
    """Two generators that differ in their heads alone, in one workspace."""
    other = shutil.copytree(masked, tmp_path / "other")
    weights = load_file(other / "model.safetensors")
    bias = next(name for name in weights if name.startswith("cls.predictions") and name.endswith("s.bias"))
    weights[bias] += 10 * torch.arange(len(weights[bias]))
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    options = {"settings": replace(SETTINGS, replaced_weight=9)}

    def run(generator, out):
        options["generator"] = load_encoder(generator)
        return finetune_contrastive(load_encoder(masked), RAW, PAIRS, out=out, **options).trials[0].dev

    first, second = run(masked, tmp_path / "w"), run(other, tmp_path / "w")
    assert second == run(other, tmp_path / "alone")
    assert second != first


class Half(Group):
    """One of two processes; the vectors of the other, which is not there, are taken to be its own."""

    def gather(self, own, total):
        return own.repeat(1, 2, 1)


def test_each_token_of_a_batch_counts_alike_in_whichever_process_it_is(masked):
    full = load_encoder(masked)
    encoder = poolable_encoder(full, ContrastiveSettings(objective="diffcse", pooling="cls"), seed=1).eval()
    ids = encoder.token_ids(TEXTS)
    own = [sum(len(ids[place]) for place in range(rank, 4, 2)) for rank in (0, 1)]
    assert own[0] != own[1]
    for rank in (0, 1):
        losses = []
        for weight in (1.0, 0.0):
            examples = DifferenceTexts(
                encoder, ids, full, temperature=0.05, weight=weight, share=0.5, group=Half(rank=rank, size=2)
            )
            examples.head.eval()
            torch.nn.init.zeros_(examples.discriminator.replaced.weight)  # so that each token costs log 2
            losses.append(float(examples.loss(encoder, range(4)).detach()))
        assert losses[0] - losses[1] == pytest.approx(math.log(2) * own[rank] / sum(own), abs=1e-5)


@pytest.mark.parametrize(("name", "error"), [("bert", "has no pretrained head for masked tokens"), ("gpt2", None)])
def test_what_cannot_be_a_generator(masked, tiny_folder, name, error):
    encoder = load_encoder(masked)
    with pytest.raises((UsageError, ModelError), match=error):
        DifferenceTexts(
            encoder, encoder.token_ids(TEXTS), load_encoder(tiny_folder(name)), temperature=1, weight=1, share=0.5
        )
