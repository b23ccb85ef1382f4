"""The recipe of the miniatures: its objective against plain computations, and that a stopped run ends like another."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForPreTraining, AutoTokenizer

from benchmarks.miniatures import corpus, objectives, pretrain
from tests.support.families import WORDS
from truncate_kit.methods.priors import IGNORED, hidden_words
from truncate_kit.models.loading import load_encoder
from truncate_kit.training import loop


def weights(out):
    return {path.parent.name: load_file(path) for path in sorted(out.glob("*/model.safetensors"))}


def test_losses_are_those_of_the_paper(finished):
    """Both losses from what the saved models give in transformers, token by token."""
    out = finished("electra")
    discriminator = AutoModelForPreTraining.from_pretrained(out / "electra-discriminator").eval()
    generator = AutoModelForMaskedLM.from_pretrained(out / "electra-generator").eval()
    tokenizer = AutoTokenizer.from_pretrained(out / "electra-discriminator")
    parts = [load_encoder(out / f"electra-{name}") for name in ("discriminator", "generator")]
    parts[1].backbone.embeddings = parts[0].backbone.embeddings
    heads = objectives.ElectraHeads(*parts, pretrain.load_masked_head(parts[1]))
    heads.replaced.load_state_dict(discriminator.discriminator_predictions.state_dict())
    batch = dict(tokenizer([" ".join(WORDS[:6]), " ".join(WORDS[4:8])], padding=True, return_tensors="pt"))
    batch.pop("token_type_ids", None)
    labels = torch.full_like(batch["input_ids"], IGNORED)
    for row, place in ((0, 1), (0, 4), (1, 2)):
        labels[row, place] = batch["input_ids"][row, place]
        batch["input_ids"][row, place] = tokenizer.mask_token_id
    with torch.no_grad():
        hidden = hidden_words(labels)
        found = objectives.electra_losses(parts[0], heads, batch, hidden, torch.Generator().manual_seed(3))
        torch.manual_seed(5)
        parted = objectives.electra_losses(parts[0], heads, batch, hidden)
        torch.manual_seed(5)
        whole = objectives.electra_loss(parts[0], heads, batch, hidden, weight=7.0)
        torch.testing.assert_close(whole, parted.words + 7 * parted.replaced)
        logits = generator(**batch).logits[labels != IGNORED].log_softmax(dim=1)
        truth = labels[labels != IGNORED]
        torch.testing.assert_close(found.words, -logits[torch.arange(3), truth].mean())
        drawn = objectives.draw_words(logits, torch.Generator().manual_seed(3))
        ids = batch["input_ids"].clone()
        ids[labels != IGNORED] = drawn
        chance = discriminator(input_ids=ids, attention_mask=batch["attention_mask"]).logits.sigmoid()
    original = torch.where(labels == IGNORED, batch["input_ids"], labels)
    terms = torch.where(ids != original, chance, 1 - chance)[batch["attention_mask"] == 1]
    torch.testing.assert_close(found.replaced, -terms.log().mean())
    assert float(found.share) == pytest.approx(float((drawn != truth).sum()) / len(terms))


def test_the_next_word_is_that_of_transformers(finished):
    """The loss that GPT-2's own class gives for the saved model, padding left out by its convention."""
    out = finished("gpt2")
    model = AutoModelForCausalLM.from_pretrained(out / "gpt2").eval()
    encoder = load_encoder(out / "gpt2")
    tokenizer = AutoTokenizer.from_pretrained(out / "gpt2")
    ids = tokenizer([" ".join(WORDS[:6]), " ".join(WORDS[4:7])])["input_ids"]
    batch = encoder.pad(ids)
    with torch.no_grad():
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, IGNORED)
        expected = model(**batch, labels=labels).loss
        torch.testing.assert_close(objectives.causal_loss(encoder, batch), expected)
        alone = [float(model(torch.tensor([row]), labels=torch.tensor([row])).loss) for row in ids]
    lengths = [len(row) - 1 for row in ids]
    weighted = sum(loss * length for loss, length in zip(alone, lengths, strict=True)) / sum(lengths)
    assert objectives.CausalEvaluator(ids).score(encoder) == (pytest.approx(-weighted, rel=1e-5), None)


@pytest.mark.parametrize("model", ["bert", "electra", "gpt2"])
def test_a_stopped_run_ends_with_the_same_weights(run, finished, tmp_path, monkeypatch, model):
    out = finished(model)
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)  # so that even these short stages leave one
    write = pretrain.add_row

    def write_and_stop(path, row):  # what a user's Ctrl-C does, at a moment that is known
        write(path, row)
        if row["step"] == 6:
            raise KeyboardInterrupt

    monkeypatch.setattr(pretrain, "add_row", write_and_stop)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "stopped", model)
    assert (tmp_path / "stopped" / f"{model}.checkpoint").exists()
    monkeypatch.setattr(pretrain, "add_row", write)
    run(tmp_path / "stopped", model)
    whole, stopped = weights(out), weights(tmp_path / "stopped")
    assert whole.keys() == stopped.keys()
    for name in whole:
        assert all(torch.equal(whole[name][key], stopped[name][key]) for key in whole[name])
    losses = [(home / f"{model}-losses.csv").read_text().splitlines() for home in (out, tmp_path / "stopped")]
    assert losses[0] == losses[1]
    assert [line.split(",")[0] for line in losses[0]] == ["step", "3", "6", "9"]
    assert len(list((out / "snapshots").iterdir())) == len(whole)


@pytest.mark.parametrize(("model", "start"), [("bert", "bert/bert"), ("electra", "electra"), ("electra", "bert/bert")])
def test_a_run_begins_with_the_weights_of_a_finished_one(run, finished, tmp_path, model, start):
    source, _, inside = start.partition("/")
    run(tmp_path, model, "--start", str(finished(source) / inside), "--rate", "1e-9")
    first, second = weights(finished(source)), weights(tmp_path)
    if model != source:  # a discriminator takes the blocks of a BERT
        bert, made = first["bert"].items(), second["electra-discriminator"]
        blocks = {key.replace("bert", "electra", 1): value for key, value in bert if key.startswith("bert.encoder.")}
        first, second = {model: blocks}, {model: {key: made[key] for key in blocks}}
    for name, saved in first.items():
        assert saved.keys() == second[name].keys()
        for key, value in saved.items():  # heads included
            torch.testing.assert_close(second[name][key], value)


def test_pieces_hold_every_token_once(text):
    lines = corpus.read_lines([text])
    tokenizer = corpus.learn_vocabulary(lines, 200, 8)
    plain = tokenizer(lines, add_special_tokens=False)["input_ids"]
    cut = corpus.pieces(tokenizer, lines, 8, packed=False)
    assert all(3 <= len(piece) - 2 <= 6 for piece in cut)
    assert {piece[0] for piece in cut} == {tokenizer.cls_token_id}
    kept = [ids[at : at + 6] for ids in plain for at in range(0, len(ids), 6)]
    assert [piece[1:-1] for piece in cut] == [part for part in kept if len(part) >= 3]
    packed = corpus.pieces(tokenizer, lines, 8, packed=True)
    assert {len(piece) for piece in packed} == {8}
    stream = [word for ids in plain for word in [*ids, tokenizer.sep_token_id]]
    assert [word for piece in packed for word in piece[1:-1]] == stream[: 6 * len(packed)]
