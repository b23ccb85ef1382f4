"""States on disk: right, computed once, taken up after a kill, and damage is found."""

import random
from functools import partial

import numpy as np
import pytest
import torch
from transformers import AutoModel

from tests.support.killing import killed_beyond
from truncate_kit.methods.frozen.heads import cached_states
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.truncation import truncate

WORDS = ["the cat", "a red dog", "a small blue tree", "not", "the big mat sat under a tree and ran"]
TEXTS = [f"{WORDS[n % 5]} {WORDS[n * n % 5]} {'dog ' * (n % 11)}{'mat ' * (n // 55)}".strip() for n in range(100)]
CHUNK = 8


@pytest.fixture(scope="module")
def encoder(tiny_folder):
    return load_encoder(tiny_folder("gpt2"), pooling="last")


def entry(folder):
    (found,) = folder.iterdir()
    return found


def with_computed(encoder, texts, folder, chunk=CHUNK):
    """The states, and how many texts went through the model for them, chunk by chunk."""
    ends = []
    found = cached_states(encoder, texts, folder, chunk=chunk, progress=lambda task, done, total: ends.append(done))
    return found, sum((end - 1) % chunk + 1 for end in ends)


@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize(
    ("name", "blocks", "norm"),
    [
        ("bert", "encoder.layer", None),
        ("gpt2", "h", "ln_f"),
        ("qwen2", "layers", "norm"),
        ("modernbert", "layers", "final_norm"),
    ],
)
def test_states_are_the_outputs_of_each_block_with_and_without_the_final_norm(
    tiny_folder, tmp_path, name, blocks, norm, pooling
):
    """One unpadded text at a time, by transformers alone."""
    encoder, outputs = load_encoder(tiny_folder(name), pooling=pooling), []
    found = {whole: cached_states(encoder, TEXTS[:12], tmp_path, final_norm=whole) for whole in (False, True)}
    model, tokenizer = AutoModel.from_pretrained(encoder.name).eval(), encoder.tokenizer
    for block in model.get_submodule(blocks):
        block.register_forward_hook(lambda _, __, made: outputs.append(made if torch.is_tensor(made) else made[0]))
    for row, text in enumerate(TEXTS[:12]):
        outputs.clear()
        with torch.no_grad():
            model(torch.tensor([tokenizer(text)["input_ids"]]))
            for whole, values in found.items():
                last = model.get_submodule(norm) if whole and norm else torch.nn.Identity()
                states = torch.stack([last(output)[0] for output in outputs])
                expected = states[:, -1] if pooling == "last" else states.mean(dim=1)
                torch.testing.assert_close(torch.tensor(values[row]), expected, atol=1e-5, rtol=1e-4)


def test_they_are_computed_once_and_anew_for_another_model_pooling_or_list(encoder, tiny_folder, tmp_path):
    first, count = with_computed(encoder, TEXTS, tmp_path)
    again, count_again = with_computed(encoder, TEXTS, tmp_path)
    assert (count, count_again) == (100, 0)
    assert isinstance(again, np.memmap)
    np.testing.assert_array_equal(first, again)
    mean = load_encoder(tiny_folder("gpt2"), pooling="mean")
    for other, texts in ((mean, TEXTS), (truncate(encoder, 2), TEXTS), (encoder, TEXTS[::-1])):
        assert with_computed(other, texts, tmp_path)[1] == 100
    assert len(list(tmp_path.iterdir())) == 4


def last_note(cache):
    return max((note.stat().st_mtime_ns for note in cache.glob("*/states.jsonl")), default=0)


def fill(folder, cache):
    cached_states(load_encoder(folder, pooling="last"), TEXTS, cache, chunk=CHUNK)


def test_killed_at_any_instant_it_ends_with_the_same_bytes(encoder, tiny_folder, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    cached_states(encoder, TEXTS, whole, chunk=CHUNK)
    instants = random.Random(0)
    for _ in range(4):
        noted, wait = partial(last_note, killed), instants.random() * 0.005
        killed_beyond(noted(), noted, wait, fill, tiny_folder("gpt2"), killed)
    assert with_computed(encoder, TEXTS, killed)[1] < 100
    assert (entry(killed) / "states.f32").read_bytes() == (entry(whole) / "states.f32").read_bytes()


@pytest.mark.parametrize("harm", ["chunk", "note", "cut"])
def test_what_is_damaged_is_computed_again(encoder, tmp_path, harm):
    before = np.array(cached_states(encoder, TEXTS, tmp_path, chunk=CHUNK))
    file = entry(tmp_path) / "states.f32"
    if harm == "chunk":
        with file.open("r+b") as stream:
            stream.seek(20 * 3 * 16 * 4)  # text 20 is in the third chunk
            stream.write(b"\x00\x01\x02")
    elif harm == "note":
        file.with_suffix(".jsonl").write_text("{\n")
    else:
        file.write_bytes(b"short")
    found, count = with_computed(encoder, TEXTS, tmp_path)
    assert count == (CHUNK if harm == "chunk" else 100)
    np.testing.assert_array_equal(found, before)
