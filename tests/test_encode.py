"""Encoding a file: the same bytes after any number of kills, and clear errors."""

import os
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.files import small_disk
from tests.support.killing import killed_beyond
from truncate_kit.core.errors import DataError, FileProblemError, UsageError
from truncate_kit.core.files import run_lock
from truncate_kit.core.progress import Engine
from truncate_kit.core.vectors import VectorFormat
from truncate_kit.export.encode import encode_file
from truncate_kit.export.runtime import OnnxEncoder
from truncate_kit.models.loading import load_encoder

WORDS = ["the cat", "a red dog", "a small blue tree", "not", "the big mat sat under a tree and ran"]
CHUNK = 7


@pytest.fixture(scope="module")
def encoder(exported_folder) -> OnnxEncoder:
    return OnnxEncoder.load(exported_folder, threads=1)


@pytest.fixture
def source(tmp_path) -> Path:
    texts = [f"{WORDS[n % 5]} {WORDS[n * n % 5]} {'dog ' * (n % 11)}".strip() for n in range(200)]
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(texts) + "\n")
    return path


def encode_alone(exported, source, out):
    encode_file(OnnxEncoder.load(exported, threads=1), source, out, chunk=CHUNK)


def interrupted(rows, encoder, source, out, **options):
    """Encode, and stop once `rows` rows are stored."""

    def stop_at(task, done, total):
        if task == "Encoding" and done >= rows:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encode_file(encoder, source, out, chunk=CHUNK, progress=stop_at, **options)


def left_over(out):
    return sorted(path.name for path in out.parent.iterdir() if path.name.startswith("."))


def test_row_n_is_the_vector_of_text_n(encoder, source, tmp_path):
    out = tmp_path / "vectors.npy"
    result = encode_file(encoder, source, out, chunk=CHUNK)
    stored = np.load(out)
    assert stored.dtype == np.float32
    assert stored.shape == result.shape == (200, 16)
    assert result.file_bytes == out.stat().st_size
    texts = source.read_text().splitlines()
    for place in (0, 6, 7, 199):
        torch.testing.assert_close(torch.from_numpy(stored[place : place + 1]), encoder.vectors([texts[place]]))
    assert left_over(out) == []
    before = out.stat()
    again = encode_file(encoder, source, out, chunk=CHUNK)
    assert (again.resumed_at, again.rate) == (200, 0)
    assert out.stat().st_mtime_ns == before.st_mtime_ns


@pytest.mark.parametrize("runtime", ["torch", "onnx"])
def test_formats_are_stored_as_they_are_defined(encoder, tiny_folder, source, tmp_path, runtime):
    chosen = encoder if runtime == "onnx" else load_encoder(tiny_folder("bert"))
    texts = source.read_text().splitlines()
    for form in (
        VectorFormat(precision="float16"),
        VectorFormat(precision="int8", dimensions=5, normalize=True),
        VectorFormat(precision="binary", dimensions=9),
    ):
        out = tmp_path / f"{form.precision}.npy"
        encode_file(chosen, source, out, form=form, chunk=200)
        stored = np.load(out)
        assert stored.dtype == form.dtype
        assert np.array_equal(stored, form.store(chosen.vectors(texts)))


def test_killed_at_any_instant_it_ends_with_the_same_bytes(exported_folder, source, tmp_path):
    whole, out = tmp_path / "whole.npy", tmp_path / "killed.npy"
    encode_alone(exported_folder, source, whole)
    file, instants, kills, size = out.with_name(f".{out.name}.part") / "vectors.npy", random.Random(0), 0, 0

    def written():
        return file.stat().st_size if file.exists() else 0

    while kills < 8:
        killed_beyond(size, written, instants.random() * 0.004, encode_alone, exported_folder, source, out)
        if not file.exists():
            break  # it had ended
        size, kills = file.stat().st_size, kills + 1
        assert not out.exists()
    assert kills >= 3
    result = encode_file(OnnxEncoder.load(exported_folder, threads=1), source, out, chunk=CHUNK)
    assert out.read_bytes() == whole.read_bytes()
    assert out.with_name("killed.npy.json").read_bytes() == whole.with_name("whole.npy.json").read_bytes()
    assert result.resumed_at % CHUNK == 0 or result.resumed_at == 200
    assert left_over(out) == []


def test_rows_that_were_damaged_on_the_disk_are_made_again(encoder, source, tmp_path):
    whole, out = tmp_path / "whole.npy", tmp_path / "torn.npy"
    encode_file(encoder, source, whole, chunk=CHUNK)
    interrupted(70, encoder, source, out)
    with (out.with_name(".torn.npy.part") / "vectors.npy").open("r+b") as stream:
        stream.seek(-30 * 16 * 4, os.SEEK_END)  # row 40 is in the sixth chunk of ten
        stream.write(b"\x07")
    assert encode_file(encoder, source, out, chunk=CHUNK).resumed_at == 70 - CHUNK
    assert out.read_bytes() == whole.read_bytes()


def test_a_source_that_changes_while_it_is_read_gives_no_output(encoder, source, tmp_path):
    texts, out = source.read_text().splitlines(), tmp_path / "vectors.npy"

    def change_it(task: str, done: int, total: int) -> None:
        if task == "Counting texts" and done == total:
            source.write_text("\n".join([*texts[:-1], "the dog ran"]) + "\n")

    with pytest.raises(DataError, match="changed while it was read"):
        encode_file(encoder, source, out, chunk=CHUNK, progress=change_it)
    assert not out.exists()
    encode_file(encoder, source, out, chunk=CHUNK)  # nothing of the text that is gone is left
    encode_file(encoder, source, tmp_path / "alone.npy", chunk=CHUNK)
    assert out.read_bytes() == (tmp_path / "alone.npy").read_bytes()


def test_what_is_there_and_is_not_this_output_is_left_alone(encoder, tiny_folder, source, tmp_path):
    """Made from another input, model or option, changed since, or another program's file."""
    out, other = tmp_path / "vectors.npy", tmp_path / "other.txt"
    note = out.with_suffix(".npy.json")
    note.write_text('{"mine": 1}')
    with pytest.raises(UsageError, match=r"vectors\.npy\.json already exists"):
        encode_file(encoder, source, out)
    assert note.read_text() == '{"mine": 1}'
    note.unlink()
    other.write_text(source.read_text() + "one more\n")
    encode_file(encoder, source, out)
    content = out.read_bytes()

    def is_refused(found, model=encoder, texts=source, form=None):
        out.write_bytes(found)
        with pytest.raises(UsageError, match="made from another input, model or option, or was changed since"):
            encode_file(model, texts, out, form=form)
        assert out.read_bytes() == found

    is_refused(content, texts=other)
    is_refused(content, model=load_encoder(tiny_folder("bert")))
    is_refused(content, form=VectorFormat(precision="int8"))
    is_refused(content[:-1000])
    is_refused(content[:-1] + bytes([content[-1] ^ 1]))
    note.unlink()
    is_refused(content)


def test_a_full_disk_is_said_and_the_same_command_continues(encoder, source, tmp_path):
    out, whole = tmp_path / "vectors.npy", tmp_path / "whole.npy"
    encode_file(encoder, source, whole, chunk=CHUNK)
    with small_disk(6000), pytest.raises(FileProblemError, match="Cannot write"):
        encode_file(encoder, source, out, chunk=CHUNK)
    assert not out.exists()
    assert encode_file(encoder, source, out, chunk=CHUNK).resumed_at >= CHUNK
    assert out.read_bytes() == whole.read_bytes()


def test_two_at_once_are_told_so(encoder, source, tmp_path):
    out = tmp_path / "vectors.npy"
    with run_lock(out.with_name(".vectors.npy.part")), pytest.raises(FileProblemError, match="Another process"):
        encode_file(encoder, source, out)


def test_two_processes_continue_with_the_bytes_of_one(encoder, source, tmp_path, two_processes):
    form = VectorFormat(precision="float16", dimensions=9, normalize=True)
    alone, shared = tmp_path / "alone.npy", tmp_path / "shared.npy"
    encode_file(encoder, source, alone, form=form, chunk=CHUNK)
    interrupted(30, encoder, source, shared, form=form)
    assert encode_file(encoder, source, shared, form=form, chunk=CHUNK, engine=two_processes).resumed_at == 35
    assert shared.read_bytes() == alone.read_bytes()


class Backwards(Engine):
    def run(self, work, tasks, send):
        yield from reversed(list(super().run(work, tasks, send)))


def test_chunks_that_finish_in_another_order_stand_in_their_places(encoder, source, tmp_path):
    alone, backwards = tmp_path / "alone.npy", tmp_path / "backwards.npy"
    encode_file(encoder, source, alone, chunk=CHUNK)
    encode_file(encoder, source, backwards, chunk=CHUNK, engine=Backwards())
    assert backwards.read_bytes() == alone.read_bytes()
