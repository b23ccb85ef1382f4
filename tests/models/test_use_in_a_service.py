"""An encoder in a process that does other things: threads, default types, gradients, names of places."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
import torch

from tests.support.pairs import pairs_of, word_splits
from tests.support.training import SHORT
from truncate_kit.analysis.profiling import profile
from truncate_kit.encode import encode_file
from truncate_kit.errors import UsageError
from truncate_kit.export.exporting import export_onnx
from truncate_kit.export.runtime import OnnxEncoder
from truncate_kit.methods.bert_lc.combine import combine
from truncate_kit.methods.tmft.finetune import finetune
from truncate_kit.methods.tmft.settings import SweepSettings
from truncate_kit.models import load_encoder, save_encoder
from truncate_kit.models.states import layer_states
from truncate_kit.report.writing import write_page
from truncate_kit.training.settings import TrainingSettings
from truncate_kit.vectors import VectorFormat
from truncate_kit.workspace import ModelSource, Workspace
from truncate_kit_cli.app import main

TEXTS = ["the cat sat", "a red dog ran under the tree", "not a mat"]
MORE = [f"{text} {end}" for text in TEXTS for end in ("", "and a cat", "on the mat", "under a tree", "not red")]


def test_threads_read_states_before_the_last_norm(tiny_folder):
    """Each its own: all are in the model at the same time."""
    encoder = load_encoder(tiny_folder("gpt2"))
    batches = [encoder.tokenize([text]) for text in TEXTS]
    alone = [encoder.hidden_states(batch, raw="all") for batch in batches]
    together = Barrier(len(batches))

    def wait(*_):
        together.wait(30)

    hook = encoder.backbone.wte.register_forward_pre_hook(wait)
    with torch.no_grad(), ThreadPoolExecutor(len(batches)) as pool:
        found = list(pool.map(lambda batch: encoder.hidden_states(batch, raw="all"), batches))
    hook.remove()
    for one, other in zip(alone, found, strict=True):
        assert [state.shape for state in other] == [state.shape for state in one]
        assert all(torch.equal(state, expected) for state, expected in zip(other, one, strict=True))


def test_vectors_are_ordinary_tensors(tiny_folder):
    encoder = load_encoder(tiny_folder("bert"))
    vectors = encoder.vectors(TEXTS)
    assert not vectors.requires_grad
    torch.nn.Linear(encoder.vector_width, 2)(vectors.add_(1)).sum().backward()
    encoder.similarities(vectors, vectors).add_(1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_default_type_is_another(tiny_folder, dtype):
    encoder = load_encoder(tiny_folder("bert"))
    expected, states = encoder.vectors(TEXTS), layer_states(encoder, TEXTS)
    looked_at = profile(encoder, MORE, pairs=pairs_of(MORE))
    torch.set_default_dtype(dtype)
    try:
        encoder = load_encoder(tiny_folder("bert"))
        assert torch.equal(encoder.vectors(TEXTS), expected)
        assert encoder.vectors([]).dtype == torch.float32
        assert torch.equal(layer_states(encoder, TEXTS), states)
        assert profile(encoder, MORE, pairs=pairs_of(MORE)).spearman == looked_at.spearman
    finally:
        torch.set_default_dtype(torch.float32)


def test_the_home_folder(tiny_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    encoder = load_encoder(tiny_folder("bert"))
    assert save_encoder(encoder, "~/saved") == tmp_path / "home/saved"
    assert load_encoder("~/saved").depth == encoder.depth
    export_onnx(encoder, "~/graph")
    (tmp_path / "home/texts.txt").write_text("a cat\n")
    encode_file(encoder, "~/texts.txt", "~/vectors.npy")
    assert (tmp_path / "home/graph/model.onnx").is_file()
    assert (tmp_path / "home/vectors.npy").is_file()
    home = Workspace("~/place")
    home.remember(ModelSource("mini-bert"), None)
    assert home.remembered().model.name == "mini-bert"
    assert Workspace(tmp_path / "home/place").remembered() == home.remembered()
    format = VectorFormat(dimensions=3)
    format.write("~/form.json")
    assert VectorFormat.read("~/form.json") == format
    finetune(encoder, word_splits(), out="~/swept", settings=SweepSettings(layers="1", seeds=(0,)), training=SHORT)
    assert Workspace("~/swept").sweep().chosen == 1
    write_page(Path("~/swept"), out=Path("~/page.html"))
    assert (tmp_path / "home/page.html").is_file()
    with pytest.raises(SystemExit, match="0"):
        main(["cut", "mini-bert", "--layer", "1", "--workspace", "~/made"])
    assert load_encoder("~/made/lean").depth == 1
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


@pytest.mark.parametrize("chunk", [0, -5, 1.5, 10**30, True, "3"])
def test_chunks_that_are_none(tiny_folder, tmp_path, chunk):
    (tmp_path / "texts.txt").write_text("a cat\n")
    with pytest.raises(UsageError, match="chunk"):
        encode_file(load_encoder(tiny_folder("bert")), tmp_path / "texts.txt", tmp_path / "out.npy", chunk=chunk)
    assert [path.name for path in tmp_path.iterdir()] == ["texts.txt"]


def test_settings_of_another_kind(tiny_folder, tmp_path):
    encoder, data = load_encoder(tiny_folder("bert")), word_splits()
    wrong = {
        "`settings` TrainingSettings": lambda: finetune(encoder, data, out=tmp_path, settings=TrainingSettings()),
        "`training` {'epochs': 1} is no TrainingSettings": lambda: finetune(
            encoder, data, out=tmp_path, training={"epochs": 1}
        ),
        "is no ExportSettings": lambda: export_onnx(encoder, tmp_path / "model", TrainingSettings()),
        "`settings` 5 is no AnalysisSettings": lambda: profile(encoder, TEXTS, settings=5),
        "`threads` 0": lambda: combine(encoder, data.test, threads=0),
        "`threads` 1.5": lambda: combine(encoder, data.test, threads=1.5),
        "no attention 'flash'": lambda: load_encoder(tiny_folder("bert"), attention="flash"),
        "no attention 3": lambda: load_encoder(tiny_folder("bert"), attention=3),
    }
    for said, call in wrong.items():
        with pytest.raises(UsageError, match=re.escape(said)):
            call()
    assert list(tmp_path.iterdir()) == []
    export_onnx(encoder, tmp_path / "model", None)  # the usual ones


@pytest.mark.parametrize("name", ["config.json", "../evil.txt", "1_Pooling", ""])
def test_a_record_is_no_part_of_the_model(tiny_folder, tmp_path, name):
    with pytest.raises(UsageError, match="cannot be named"):
        save_encoder(load_encoder(tiny_folder("bert")), tmp_path / "saved", records={name: "x"})
    assert list(tmp_path.iterdir()) == []


def test_a_graph_that_is_made_within_autocast(tiny_folder, tmp_path):
    encoder = load_encoder(tiny_folder("bert"))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        export_onnx(encoder, tmp_path / "model")
    assert torch.allclose(OnnxEncoder.load(tmp_path / "model").vectors(TEXTS), encoder.vectors(TEXTS), atol=1e-5)
