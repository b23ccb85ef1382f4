"""Export writes a checked graph, or refuses and leaves everything unchanged."""

import copy
import shutil
import sys

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from sentence_transformers import SentenceTransformer

from tests.support.commands import refused
from tests.support.traces import traced_anew
from truncate_kit.core.errors import DataError, ModelError
from truncate_kit.data.pairs import PairSet, TextPair
from truncate_kit.export import graph as tracing
from truncate_kit.export.exporting import check_graph, check_score, export_onnx
from truncate_kit.export.graph import build_graph, save_graph
from truncate_kit.export.record import ExportSettings, check_record, read_exports
from truncate_kit.export.runtime import OnnxEncoder
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.pipeline import Normalize, save_encoder
from truncate_kit.models.truncation import truncate

TEXTS = ["the cat sat on the mat", "a red dog ran", "the big tree", "a small blue dog sat under the tree", "not a cat"]


def pair_set(targets):
    pairs = tuple(TextPair(TEXTS[i], TEXTS[i - 1], float(target)) for i, target in enumerate(targets))
    return PairSet(name="tiny", pairs=pairs, scale=(0.0, 5.0))


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def encoder(tiny_folder):
    return truncate(load_encoder(tiny_folder("bert")), 1)


@pytest.fixture(scope="module")
def exported(encoder, tmp_path_factory):
    """A folder with a graph, its encoder and the report; tests copy it before they change it."""
    folder = tmp_path_factory.mktemp("exported") / "model"
    report = export_onnx(encoder, folder, ExportSettings(normalize=True), pairs=pair_set([1, 2, 5, 0, 3]))
    return folder, report


@pytest.fixture
def folder(exported, tmp_path):
    return shutil.copytree(exported[0], tmp_path / "model")


def test_folder_is_an_ordinary_model_with_a_graph_beside_it(exported, encoder):
    folder, report = exported
    theirs = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(theirs, encoder.vectors(TEXTS).numpy(), rtol=1e-4, atol=1e-5)
    assert report.file_bytes == (folder / "onnx/model.onnx").stat().st_size
    assert read_exports(folder) == (report,)
    assert report.versions["onnxruntime"]
    assert b"site-packages" not in (folder / "onnx/model.onnx").read_bytes()  # as in the tracer's notes


@pytest.mark.parametrize(("shift", "moved"), [(0.05, "Pearson"), (0.5, "Spearman")])
def test_a_score_that_moves_is_refused(shift, moved, exported, encoder):
    """A small shift of all states leaves the ranks, and a larger one does not; without a shift nothing moves."""
    graph, pairs, other = OnnxEncoder.load(exported[0]), pair_set([1, 2, 5, 0, 3]), copy.deepcopy(encoder)
    assert check_score(other, graph, pairs)["scored_on"] == "tiny"
    with torch.no_grad():
        other.backbone.encoder.layer[-1].output.LayerNorm.bias += shift
    with pytest.raises(ModelError, match=rf"{moved} on tiny is .*, but .* in torch"):
        check_score(other, graph, pairs)


def test_the_end_of_the_graph_is_normalized_or_not(exported, encoder, tmp_path):
    vectors = OnnxEncoder.load(exported[0]).vectors(TEXTS)
    torch.testing.assert_close(vectors, torch.nn.functional.normalize(encoder.vectors(TEXTS)), atol=1e-5, rtol=1e-4)
    assert not len(encoder.tail)  # the encoder itself is as it was
    ended = copy.deepcopy(encoder)
    ended.tail.append(Normalize())
    report = export_onnx(ended, tmp_path / "out", ExportSettings(normalize=False))
    assert not report.normalized
    found = OnnxEncoder.load(tmp_path / "out").vectors(TEXTS)
    torch.testing.assert_close(found, encoder.vectors(TEXTS), atol=1e-5, rtol=1e-4)


def test_exporting_a_folder_in_place_adds_the_graph_and_keeps_the_rest(encoder, tmp_path):
    folder = save_encoder(encoder, tmp_path / "model", model_card="how it was made")
    before = contents(folder)
    export_onnx(load_encoder(folder), folder)
    after = contents(folder)
    assert set(after) - set(before) == {"onnx/model.onnx", "export.json"}
    assert after["README.md"].startswith(before.pop("README.md"))
    assert {name: after[name] for name in before} == before


def test_a_model_that_is_replaced_while_its_graph_is_made_does_not_get_that_graph(encoder, tmp_path):
    folder = save_encoder(encoder, tmp_path / "model")
    other = copy.deepcopy(encoder)
    next(other.backbone.parameters()).data.add_(1e-3)

    def replace_model(task, done, total):
        if (task, done) == ("Checking the graph", 1):
            other.backbone.save_pretrained(folder)

    export_onnx(load_encoder(folder), folder, progress=replace_model)
    with pytest.raises(ModelError, match=r"model\.safetensors has changed since"):
        check_record(folder / "onnx/model.onnx")


def test_weights_that_are_not_numbers_leave_nothing_behind(encoder, folder, tmp_path):
    broken = copy.deepcopy(encoder)
    next(broken.backbone.encoder.parameters()).data.fill_(float("nan"))
    with pytest.raises(ModelError, match="NaN"):
        export_onnx(broken, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    before = contents(folder)
    with pytest.raises(ModelError, match="NaN"):
        export_onnx(broken, folder)  # another model than the one that is there
    with pytest.raises(DataError):
        export_onnx(load_encoder(folder), folder, pairs=pair_set([2, 2, 2, 2, 2]))  # the very one
    assert contents(folder) == before
    assert {path.name for path in tmp_path.iterdir()} == {"model"}


def test_one_other_weight_fails_the_check(encoder, exported):
    ended = copy.deepcopy(encoder)
    ended.tail.append(Normalize())
    assert max(check_graph(exported[0] / "onnx/model.onnx", ended).values()) < 1e-5
    with torch.no_grad():
        ended.backbone.embeddings.word_embeddings.weight[-5, 0] += 0.5
    with pytest.raises(ModelError, match=r"exceeds the limit of 0.0001"):
        check_graph(exported[0] / "onnx/model.onnx", ended)


def test_large_weights_go_to_a_file_of_their_own(encoder, tmp_path, monkeypatch):
    graph = tmp_path / "model.onnx"
    monkeypatch.setattr(tracing, "EMBED_LIMIT", 100)
    save_graph(build_graph(encoder), graph)
    (data,) = tmp_path.glob("model.onnx.*.data")
    assert data.stat().st_size > graph.stat().st_size / 10
    found = OnnxEncoder(graph, encoder.reader).vectors(TEXTS)
    torch.testing.assert_close(found, encoder.vectors(TEXTS), atol=1e-5, rtol=1e-4)
    data.unlink()
    with pytest.raises(ModelError, match="cannot load") as problem:
        OnnxEncoder(graph, encoder.reader)
    assert "export_onnx()" in problem.value.hint


@pytest.mark.parametrize("missing", ["onnxruntime", "onnxscript"])
def test_a_missing_library_names_the_extra(missing, folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, missing, None)  # as if it were not installed
    problem = refused(capsys, "export", folder, "--onnx", "--workspace", tmp_path / "out")
    assert f"needs the module '{missing}'" in problem
    assert "pip install 'truncate-kit[cpu]'" in problem
    assert not list((tmp_path / "out").rglob("model.onnx"))


def described(model):
    """A graph without the names of its values."""
    nodes = [
        (node.domain, node.op_type, [attribute.SerializeToString() for attribute in node.attribute])
        for node in model.graph.node
    ]
    return nodes, sorted(numpy_helper.to_array(item).tobytes() for item in model.graph.initializer)


def test_two_traces_give_the_same_graph(encoder, tmp_path, monkeypatch):
    """Traces may then be shared between tests; the second trace is as a user makes it."""
    made = []
    for trace in (tracing._trace, traced_anew):
        monkeypatch.setattr(tracing, "_trace", trace)
        save_graph(build_graph(encoder), tmp_path / "model.onnx")
        made.append(described(onnx.load(tmp_path / "model.onnx")))
    assert made[0] == made[1]
