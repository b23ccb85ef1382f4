"""The lines that a page offers for copying run as they stand and give the vectors of the model."""

import json
import shlex
from dataclasses import replace

import numpy
import pytest
from sentence_transformers import SentenceTransformer

from tests.support.made_results import an_export
from truncate_kit import export_onnx
from truncate_kit.errors import ModelError
from truncate_kit.export.record import read_exports
from truncate_kit.models import save_encoder, truncate
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.pipeline import LAYER_POOLERS
from truncate_kit.precisions import GRAPH_FILES
from truncate_kit.report.loading import OWN_POOLINGS, snippets, what_they_give
from truncate_kit_cli.app import main

SENTENCES = ["A dog runs.", "A puppy is running."]


def made(folder, tiny_folder, pooling):
    encoder = truncate(load_encoder(tiny_folder("bert"), pooling=pooling), 2)
    save_encoder(encoder, folder)
    return encoder.vectors(SENTENCES).numpy()


def ran(text):
    names = {}
    exec(text, names)  # what a reader pastes
    return numpy.asarray(names["vectors"])


@pytest.mark.parametrize("pooling", ["mean", "cls", "max", "last"])
def test_lines_of_a_folder_without_a_graph(tiny_folder, tmp_path, pooling):
    expected = made(tmp_path / "it's", tiny_folder, pooling)
    found = {snippet.title: snippet.text for snippet in snippets(tmp_path / "it's", None)}
    assert set(found) == {"Command line", "Python", "sentence-transformers", "transformers"}
    for title in ("Python", "sentence-transformers", "transformers"):
        numpy.testing.assert_allclose(ran(found[title]), expected, atol=1e-5, err_msg=title)


def test_lines_of_an_exported_folder(tiny_folder, tmp_path, monkeypatch):
    expected = made(tmp_path / "lean", tiny_folder, "mean")
    reading = tmp_path / "lean/sentence_bert_config.json"
    assert json.loads(reading.read_text())["model_args"] == {"add_pooling_layer": False}
    assert SentenceTransformer(str(tmp_path / "lean"), device="cpu")[0].auto_model.pooler is None  # none to report
    export_onnx(load_encoder(tmp_path / "lean"), tmp_path / "lean")
    assert "model_args" not in json.loads(reading.read_text())  # which Optimum's classes refuse
    (report,) = read_exports(tmp_path / "lean").graphs
    monkeypatch.chdir(tmp_path)
    found = {snippet.title: snippet.text for snippet in snippets(tmp_path / "lean", report)}
    assert len(found) == 5
    for title in ("Python", "ONNX Runtime, without torch"):
        numpy.testing.assert_allclose(ran(found[title]), expected, atol=1e-4, err_msg=title)
    (tmp_path / "texts.txt").write_text("\n".join(SENTENCES))
    with pytest.raises(SystemExit) as end:
        main(shlex.split(found["Command line"])[1:])
    assert not end.value.code
    numpy.testing.assert_allclose(numpy.load("vectors.npy"), expected, atol=1e-4)


@pytest.mark.parametrize(("change", "said"), [
    ({"precision": "int8"}, "but for the graph: int8, vectors as they come."),
    ({"normalized": True}, "but for the graph: fp32, vectors of length 1."),
    ({}, "each of these gives the same vectors."),
])  # fmt: skip
def test_a_graph_that_gives_other_vectors_is_called_so(tiny_folder, tmp_path, change, said):
    made(tmp_path / "lean", tiny_folder, "mean")
    export_onnx(load_encoder(tmp_path / "lean"), tmp_path / "lean")
    report = replace(read_exports(tmp_path / "lean").graphs[0], **change)
    assert what_they_give(tmp_path / "lean", report).endswith(said)
    titles = [snippet.title for snippet in snippets(tmp_path / "lean", report)]
    assert ("ONNX Runtime, without torch" in titles) == (not change)
    (python,) = [snippet.text for snippet in snippets(tmp_path / "lean", report) if snippet.title == "Python"]
    assert ("OnnxEncoder" in python) == (not change)  # what is left of it loads the model itself


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_where_no_lines_run_the_graph_alone_the_command_line_may_take_it(tiny_folder, tmp_path, precision):
    encoder = load_encoder(tiny_folder("bert"))
    encoder.lower_case = True
    save_encoder(encoder, tmp_path / "lean")
    (tmp_path / "lean" / GRAPH_FILES[precision]).touch()
    said = what_they_give(tmp_path / "lean", replace(an_export(), precision="int8", normalized=False))
    if precision == "int8":
        assert said.endswith("but for the command line, which takes the graph: int8, vectors as they come.")
    else:
        assert said.endswith("each of these gives the same vectors.")


def test_ways_that_would_give_other_vectors_are_left_out(tiny_folder, tmp_path):
    encoder = load_encoder(tiny_folder("bert"))
    encoder.lower_case = True
    save_encoder(encoder, tmp_path / "lean")
    assert [snippet.title for snippet in snippets(tmp_path / "lean", None)] == [
        "Command line",
        "Python",
        "sentence-transformers",
    ]


@pytest.mark.parametrize(
    ("file", "value"),
    [
        ("modules.json", [{"type": "evil.Pooling", "path": "1_Pooling"}]),
        ("modules.json", {"type": "Transformer"}),
        ("sentence_bert_config.json", {"max_seq_length": "8); import os", "do_lower_case": False}),
        ("sentence_bert_config.json", []),
    ],
)
def test_nothing_that_a_changed_folder_says_is_recommended(file, value, tmp_path):
    files = {"modules.json": [], "sentence_bert_config.json": {"max_seq_length": 8, "do_lower_case": False}}
    for name, content in (files | {"config_sentence_transformers.json": {}, file: value}).items():
        (tmp_path / name).write_text(json.dumps(content))
    with pytest.raises(ModelError, match="is damaged"):
        snippets(tmp_path, None)


def test_own_poolings_are_called_as_they_are_saved():
    assert tuple(f"layer_pooling.{name}" for name in LAYER_POOLERS) == OWN_POOLINGS
