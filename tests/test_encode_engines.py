"""Files encoded in several processes: the bytes of one process, also after an interruption."""

import pytest

from truncate_kit.core.parallel import Engine
from truncate_kit.core.vectors import VectorFormat
from truncate_kit.export.encode import encode_file
from truncate_kit.export.exporting import export_onnx
from truncate_kit.export.runtime import OnnxEncoder
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.pipeline import save_encoder
from truncate_kit.models.truncation import truncate

WORDS = ["the cat", "a red dog", "a small blue tree", "not", "the big mat sat under a tree and ran"]
CHUNK = 7


@pytest.fixture(scope="module")
def folder(tiny_folder, tmp_path_factory):
    """A model with its graph, as export leaves it."""
    folder = tmp_path_factory.mktemp("serving") / "model"
    encoder = truncate(load_encoder(tiny_folder("bert")), 2)
    save_encoder(encoder, folder)
    export_onnx(encoder, folder)
    return folder


@pytest.fixture
def source(tmp_path):
    texts = [f"{WORDS[n % 5]} {WORDS[n * n % 5]} {'dog ' * (n % 11)}".strip() for n in range(100)]
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
    return tmp_path / "texts.txt"


@pytest.mark.parametrize("runtime", ["torch", "onnx"])
def test_two_processes_write_the_bytes_of_one(folder, source, tmp_path, two_processes, runtime):
    encoder = load_encoder(folder) if runtime == "torch" else OnnxEncoder.load(folder, threads=1)
    form = VectorFormat(precision="float16", dimensions=9, normalize=True)
    alone, shared = tmp_path / "alone.npy", tmp_path / "shared.npy"
    encode_file(encoder, source, alone, form=form, chunk=CHUNK)

    def stop_at(task: str, done: int, total: int) -> None:
        if task == "Encoding" and done >= 30:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encode_file(encoder, source, shared, form=form, chunk=CHUNK, engine=two_processes, progress=stop_at)
    assert encode_file(encoder, source, shared, form=form, chunk=CHUNK, engine=two_processes).resumed_at == 35
    assert shared.read_bytes() == alone.read_bytes()


class Backwards(Engine):
    def run(self, work, tasks, tell):
        yield from reversed(list(super().run(work, tasks, tell)))


def test_chunks_that_finish_in_another_order_stand_in_their_places(folder, source, tmp_path):
    encoder = OnnxEncoder.load(folder, threads=1)
    alone, backwards = tmp_path / "alone.npy", tmp_path / "backwards.npy"
    encode_file(encoder, source, alone, chunk=CHUNK)
    encode_file(encoder, source, backwards, chunk=CHUNK, engine=Backwards())
    assert backwards.read_bytes() == alone.read_bytes()
