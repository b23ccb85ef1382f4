"""States on disk: right, computed once, taken up after a kill, and damage is found."""

import multiprocessing
import os
import random
import signal
import time

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from truncate_kit.errors import FileProblemError, UsageError
from truncate_kit.files import run_lock
from truncate_kit.methods.frozen.states import CHUNK as CACHED
from truncate_kit.methods.frozen.states import cached_states
from truncate_kit.models import load_encoder, truncate

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
    """The states, and the number of texts that went through the model for them, chunk by chunk."""
    ends = []
    found = cached_states(encoder, texts, folder, chunk=chunk, progress=lambda task, done, total: ends.append(done))
    return found, sum((end - 1) % chunk + 1 for end in ends)


@pytest.mark.parametrize(("name", "blocks"), [("gpt2", "h"), ("qwen2", "layers"), ("modernbert", "layers")])
def test_without_the_final_norm_they_are_what_each_block_gives(tiny_folder, tmp_path, name, blocks):
    encoder = load_encoder(tiny_folder(name), pooling="last")
    values = cached_states(encoder, TEXTS[:9], tmp_path, final_norm=False).values
    model, tokenizer = (
        AutoModel.from_pretrained(tiny_folder(name)).eval(),
        AutoTokenizer.from_pretrained(tiny_folder(name)),
    )
    notes = []
    for block in getattr(model, blocks):
        block.register_forward_hook(lambda _, __, found: notes.append(found if torch.is_tensor(found) else found[0]))
    for row, text in enumerate(TEXTS[:9]):
        notes.clear()
        with torch.no_grad():
            model(torch.tensor([tokenizer(text)["input_ids"]]))
        expected = torch.stack([state[0, -1] for state in notes])
        torch.testing.assert_close(torch.tensor(values[row]), expected, atol=1e-5, rtol=1e-4)
    with_norm, computed = with_computed(encoder, TEXTS[:9], tmp_path, CACHED)
    assert computed == 9  # another entry
    assert not np.allclose(with_norm.values[:, -1], values[:, -1], atol=1e-2)


@pytest.mark.parametrize("name", ["bert", "gpt2", "qwen2"])
@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_they_are_the_hidden_states_of_each_block_and_padding_never_enters(tiny_folder, tmp_path, name, pooling):
    values = cached_states(load_encoder(tiny_folder(name), pooling=pooling), TEXTS[:20], tmp_path).values
    model, tokenizer = (
        AutoModel.from_pretrained(tiny_folder(name)).eval(),
        AutoTokenizer.from_pretrained(tiny_folder(name)),
    )
    norm = {"gpt2": "ln_f", "qwen2": "norm"}.get(name)
    assert values.shape == (20, 3, 16)
    for row, text in enumerate(TEXTS[:20]):
        with torch.no_grad():
            hidden = model(torch.tensor([tokenizer(text)["input_ids"]]), output_hidden_states=True).hidden_states
            states = [
                state if norm is None or block == 3 else getattr(model, norm)(state)
                for block, state in enumerate(hidden)
            ]
        for block in (1, 2, 3):
            expected = states[block][0, -1] if pooling == "last" else states[block][0].mean(dim=0)
            torch.testing.assert_close(torch.tensor(values[row, block - 1]), expected, atol=1e-5, rtol=1e-4)


def test_they_are_computed_once_and_anew_for_another_model_pooling_or_list(encoder, tiny_folder, tmp_path):
    first, computed = with_computed(encoder, TEXTS, tmp_path)
    again, computed_again = with_computed(encoder, TEXTS, tmp_path)
    assert (computed, computed_again, again.damaged) == (100, 0, 0)
    assert isinstance(again.values, np.memmap)
    assert not again.values.flags.writeable
    np.testing.assert_array_equal(first.values, again.values)
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
        process = multiprocessing.get_context("fork").Process(target=fill, args=(tiny_folder("gpt2"), killed))
        process.start()
        before = last_note(killed)
        while process.is_alive() and last_note(killed) == before:
            time.sleep(0.0005)
        time.sleep(instants.random() * 0.005)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    done, computed = with_computed(encoder, TEXTS, killed)
    assert computed < 100
    assert done.damaged == 0
    assert (entry(killed) / "states.f32").read_bytes() == (entry(whole) / "states.f32").read_bytes()


def test_a_damaged_chunk_is_computed_again_alone_and_said(encoder, tmp_path):
    before = np.array(cached_states(encoder, TEXTS, tmp_path, chunk=CHUNK).values)
    file = entry(tmp_path) / "states.f32"
    with file.open("r+b") as stream:
        stream.seek(20 * 3 * 16 * 4)  # text 20 is in the third chunk
        stream.write(b"\x00\x01\x02")
    found, computed = with_computed(encoder, TEXTS, tmp_path)
    assert (computed, found.damaged) == (CHUNK, CHUNK)
    assert "the states of 8 texts were computed again" in found.statement(tmp_path)
    np.testing.assert_array_equal(found.values, before)


@pytest.mark.parametrize("harm", ["note", "cut"])
def test_a_lost_note_or_file_is_made_again_and_said(encoder, tmp_path, harm):
    before = np.array(cached_states(encoder, TEXTS, tmp_path, chunk=CHUNK).values)
    if harm == "note":
        (entry(tmp_path) / "states.jsonl").write_text("{\n")
    else:
        (entry(tmp_path) / "states.f32").write_bytes(b"short")
    found, computed = with_computed(encoder, TEXTS, tmp_path)
    assert (computed, found.damaged) == (100, 100)
    np.testing.assert_array_equal(found.values, before)


def test_states_of_another_model_in_their_place_are_refused(encoder, tiny_folder, tmp_path):
    for model, place in ((encoder, "own"), (load_encoder(tiny_folder("bert")), "other")):
        cached_states(model, TEXTS[:9], tmp_path / place)
    own, other = entry(tmp_path / "own"), entry(tmp_path / "other")
    for name in ("states.f32", "states.jsonl"):
        (other / name).replace(own / name)
    with pytest.raises(UsageError, match="holds 9 rows of another run"):
        cached_states(encoder, TEXTS[:9], tmp_path / "own")


def test_another_process_at_the_same_entry_is_told(encoder, tmp_path):
    cached_states(encoder, TEXTS, tmp_path, chunk=CHUNK)
    with run_lock(entry(tmp_path)), pytest.raises(FileProblemError, match="Another process"):
        cached_states(encoder, TEXTS, tmp_path, chunk=CHUNK)
