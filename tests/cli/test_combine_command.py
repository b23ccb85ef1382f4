"""`truncate-kit combine`: what it prints, writes and refuses."""

import json
import shutil

import pytest
import torch
from sentence_transformers import SentenceTransformer

from tests.cli.test_export import refused, run
from tests.combine.test_combine import make_pairs
from truncate_kit.combine import CombinationReport
from truncate_kit.encoders import load_encoder, save_encoder
from truncate_kit_cli.app import main


@pytest.fixture
def pairs_file(tmp_path):
    rows = [f"{pair.first},{pair.second},{pair.target:g}" for pair in make_pairs(40)]
    path = tmp_path / "pairs.csv"
    path.write_text("sentence1,sentence2,score\n" + "\n".join(rows) + "\n")
    return path


def test_the_winner_is_saved_scored_and_exported(tiny_folder, pairs_file, tmp_path, capsys):
    out = tmp_path / "out"
    shown = run(capsys, "combine", tiny_folder("bert"), "--data", pairs_file, "--splits", "2", "--out", out)
    report = CombinationReport.read(out / "combination/combination.json")
    assert "15 combinations of 4 layers by a mean over layers (every one), chosen on 20 pairs, 2 random splits" in shown
    for row in ("best combination", "last layer", "CLS of the last layer", "last four layers", "random layers"):
        assert row in shown
    layers = ", ".join(map(str, report.chosen))
    assert f"Chosen: layer{'s' * (len(report.chosen) > 1)} {layers} (dev {report.chosen_dev:.2f}" in shown
    assert {path.name for path in (out / "combination").iterdir()} == {"combination.json", "sizes.png", "without.png"}
    assert "BERT-LC" in (out / "combined/README.md").read_text()
    # Its vectors, from the folder as sentence-transformers reads it.
    states = load_encoder(tiny_folder("bert")).hidden_states(load_encoder(tiny_folder("bert")).tokenize(["a red dog"]))
    expected = torch.stack([states[layer].mean(dim=1) for layer in report.chosen]).mean(dim=0)
    found = SentenceTransformer(str(out / "combined"), device="cpu").encode(["a red dog"])
    torch.testing.assert_close(torch.as_tensor(found), expected, atol=1e-5, rtol=1e-4)
    run(capsys, "export", out / "combined", "--onnx", "--data", pairs_file, "--out", out / "graph")
    scores = [
        json.loads(run(capsys, "evaluate", model, "--data", pairs_file, "--out", out, "--json"))["spearman"]
        for model in (out / "combined", out / "graph/lean/model.onnx")
    ]
    assert scores[0] == pytest.approx(scores[1], abs=0.01)
    run(capsys, "combine", tiny_folder("bert"), "--data", pairs_file, "--splits", "1", "--out", out)
    report = CombinationReport.read(out / "combination/combination.json")
    with pytest.raises(SystemExit):
        main(["evaluate", str(out / "combined"), "--data", str(pairs_file), "--out", str(out)])
    said = capsys.readouterr().err
    assert f"chosen on a part of these pairs; on the 20 others it has {report.unseen:.2f}." in said


def test_it_starts_from_what_finetune_left_and_prints_json(tiny_folder, pairs_file, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_encoder(load_encoder(tiny_folder("electra")), tmp_path / "exported/lean")
    options = ["--data", pairs_file, "--splits", "1", "--dev-pairs", "12", "--layers-up-to", "2", "--search", "beam"]
    report = json.loads(run(capsys, "combine", *options, "--json"))
    assert report["model"] == "exported/lean"
    assert report["method"] == "beam"
    assert report["beam_loss"] >= 0
    assert report["splits"][0]["num_dev"] == 12
    assert max(len(row["layers"]) for row in report["splits"][0]["by_size"]) == 2


def test_what_no_folder_can_hold_is_reported_and_not_saved(tiny_folder, pairs_file, tmp_path, capsys):
    told = ["--data", pairs_file, "--splits", "1", "--dev-pairs", "12", "--out", tmp_path / "out"]
    shown = run(capsys, "combine", tiny_folder("gpt2"), *told)
    chosen = CombinationReport.read(tmp_path / "out/combination/combination.json").chosen
    assert (tmp_path / "out/combined").is_dir() == (len(chosen) == 1)
    assert ("ends in a norm" in shown) == (len(chosen) > 1)
    shutil.rmtree(tmp_path / "out")
    shown = run(capsys, "combine", tiny_folder("bert"), "--over", "max", *told)
    chosen = CombinationReport.read(tmp_path / "out/combination/combination.json").chosen
    assert (tmp_path / "out/combined").is_dir() == (len(chosen) == 1)
    assert ("no maximum over layers" in shown) == (len(chosen) > 1)
    # A model that an earlier search left is not taken for this one's.
    save_encoder(load_encoder(tiny_folder("bert")), tmp_path / "out/combined")
    shown = run(capsys, "combine", tiny_folder("bert"), "--over", "max", *told)
    assert ("is that of an earlier search" in shown) == (len(chosen) > 1) is True


def test_bad_values_are_one_sentence_and_a_hint(tiny_folder, pairs_file, tmp_path, capsys):
    start = ["combine", tiny_folder("bert"), "--data", pairs_file, "--out", tmp_path / "out"]
    assert "mean, max" in refused(capsys, *start, "--over", "median")
    assert "auto, exact, beam" in refused(capsys, *start, "--search", "all")
    assert "too small" in refused(capsys, *start, "--layers-up-to", "0")
    assert "mean over layers" in refused(capsys, *start, "--over", "max", "--head")
    assert "no trained pooler head" in refused(
        capsys, "combine", tiny_folder("electra"), "--head", "--data", pairs_file, "--out", tmp_path / "out"
    )
    assert "no split 'dev'" in refused(capsys, *start, "--split", "dev")
    few = tmp_path / "few.csv"
    few.write_text("\n".join(pairs_file.read_text().splitlines()[:6]) + "\n")
    assert "5 pairs: too few" in refused(
        capsys, "combine", tiny_folder("bert"), "--data", few, "--out", tmp_path / "out"
    )
