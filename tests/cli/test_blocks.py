"""`--blocks`: each command does what `keep` called by hand gives, and says which blocks of how many."""

import json

import pytest
import torch

from tests.support.commands import fails, run, run_both
from truncate_kit.encoders import load_encoder
from truncate_kit.encoders.truncation import keep
from truncate_kit.export.runtime import OnnxEncoder
from truncate_kit.runs.cutting import CutResult

TEXTS = ["the cat sat on the mat", "a dog ran under a tree", "a red cat"]
BAD = [
    ("4", "Block 4 does not exist: this encoder has blocks 1 to 3."),
    ("0,1", "Block 0 does not exist"),
    ("3,1", "The blocks 3, 1 do not rise."),
    ("2,2", "The blocks 2, 2 do not rise."),
    ("first", "'first' names no blocks."),
    ("3..1", "'3..1' names no blocks."),
]


@pytest.fixture
def model(tiny_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    rows = "".join(f"the cat sat {'on ' * (n % 4)}the mat,a dog {'ran ' * (n % 3)},{n % 6}\n" for n in range(30))
    (tmp_path / "pairs.csv").write_text(f"sentence1,sentence2,score\n{rows}")
    return tiny_folder("bert")


@pytest.fixture
def kept(model):
    return keep(load_encoder(model), (1, 3))


def test_cut_saves_the_blocks_and_says_so_everywhere(model, kept, tmp_path, capsys):
    out = run(capsys, "cut", model, "--blocks", "1,3")
    assert "Blocks 1, 3 of 3, not trained" in out
    assert torch.equal(load_encoder(tmp_path / "exported/lean").encode(TEXTS), kept.encode(TEXTS))
    result = CutResult.read(tmp_path / "exported/lean/cut.json")
    assert (result.blocks, result.layer, result.depth) == ((1, 3), 2, 3)
    assert result.parameters == kept.num_parameters
    card = (tmp_path / "exported/lean/README.md").read_text()
    assert "model, cut to blocks 1, 3\n" in card
    assert "keeps blocks 1, 3 of 3, as they were trained" in card
    assert "| Blocks | 1, 3 of 3 |" in card
    assert "layer 2" not in card.lower()
    assert "blocks 1, 3 of 3, not trained" in run(capsys, "status").replace("\n", " ")
    assert "cut to blocks 1, 3, not trained." in run_both(capsys, "encode", "texts.txt", "--out", "v.npy")[1]


def test_export_writes_the_graph_of_the_blocks(model, kept, tmp_path, capsys):
    _, err = run_both(capsys, "export", model, "--onnx", "--blocks", "1,3", "--data", "pairs.csv")
    assert "Blocks 1, 3 of 3, not trained" in err
    found = OnnxEncoder.load(tmp_path / "exported/lean").encode(TEXTS)
    torch.testing.assert_close(found, kept.encode(TEXTS), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("command", [("cut",), ("export", "--onnx")])
def test_what_names_no_blocks_of_the_model_is_said(command, model, tmp_path, capsys):
    for blocks, message in BAD:
        assert message in fails(capsys, *command, model, "--blocks", blocks)
    assert "both say what to keep" in fails(capsys, *command, model, "--blocks", "1,3", "--layer", 2)
    assert not (tmp_path / "exported").exists()


def test_a_vocabulary_is_cut_beside_the_blocks(tmp_path, monkeypatch, capsys):
    from tests.support.word_pieces import make_splitting, sentences

    monkeypatch.chdir(tmp_path)
    texts = list(dict.fromkeys(sentences(30, 1)))
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    model = make_splitting("bert", tmp_path / "model")
    result = json.loads(run(capsys, "cut", model, "--vocabulary-from", "texts.txt", "--blocks", "2..3", "--json"))
    assert (result["blocks"], result["vocabulary"]["texts"]) == ([2, 3], 30)
    lean = load_encoder(tmp_path / "exported/lean")
    assert torch.equal(lean.encode(texts), keep(load_encoder(model), (2, 3)).encode(texts))
    pieces = f"to blocks 2, 3 and to {result['vocabulary']['pieces']} word pieces"
    assert pieces in CutResult.read(tmp_path / "exported/lean/cut.json").how
