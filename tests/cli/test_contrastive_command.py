"""`truncate-kit contrast`: what it prints, writes and refuses, and the commands after it."""

import pytest
from sentence_transformers import SentenceTransformer

from tests.support.commands import run, run_json, scored
from tests.support.files import graded_file, write_table
from tests.support.pairs import make_pairs, word_triplets
from truncate_kit.methods.contrast.settings import ContrastiveResult, LayerWeights
from truncate_kit.models.loading import load_encoder


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder of graded pairs, triplets, and raw text."""
    home = tmp_path_factory.mktemp("files")
    for seed, split in enumerate(("train", "dev", "test")):
        graded_file(home / f"pairs/{split}.csv", make_pairs(20, seed=seed))
    write_table(home / "triplets.csv", ("anchor", "positive", "negative"), word_triplets().rows)
    (home / "raw.txt").write_text("a red dog\nthe big tree\na cat sat\nnot a mat\n")
    return home


def options(files, out):
    common = ["--scale", "0,5", "--seeds", "1", "--epochs", "1", "--batch-size", "5"]
    return ("--data", files / "pairs", "--workspace", out, *common)


def test_trained_shown_scored_exported_and_encoded(tiny_folder, files, tmp_path, capsys):
    out = tmp_path / "out"
    out.mkdir()
    for name in ("sweep.json", "curve.png"):  # of a model that is no longer there
        (out / name).write_text("{}")
    (tmp_path / "show.txt").write_text("a red dog\nthe $x_1$ tree & <b>\n")
    asked = ("--objective", "hard-negatives", "--pooling", "layer-attention", "--triplets", files / "triplets.csv")
    more = ("--layer", "1", "--chunk-size", "4", "--sentences", tmp_path / "show.txt", *options(files, out))
    shown = run(capsys, "contrast", tiny_folder("bert"), *asked, *more)
    result = ContrastiveResult.read(out / "contrastive.json")
    assert f"{result.test:.2f}" in shown
    assert "trust_remote_code=True" in shown
    assert not (out / "sweep.json").exists()
    assert not (out / "curve.png").exists()
    assert LayerWeights.read(out / "attention.json").texts == ("a red dog", "the $x_1$ tree & <b>")
    assert (out / "attention.png").read_bytes().startswith(b"\x89PNG")
    # The next commands take it up.
    score = scored(run(capsys, "evaluate", "--workspace", out, "--json"))
    assert score["Spearman"] == pytest.approx(result.test, abs=1e-3)
    run(capsys, "export", "--onnx", "--workspace", out)
    graph = scored(run(capsys, "evaluate", "--runtime", "onnx", "--workspace", out, "--json"))
    assert graph["Spearman"] == pytest.approx(result.test, abs=0.01)
    short = ("--quick", "--lengths", "4", "--batch-sizes", "1", "--backends", "torch-fp32")
    bench = run_json(capsys, "bench", out / "lean", "--data", files / "pairs", "--workspace", out, *short)
    assert [row["score"] for row in bench["contestants"]] == [pytest.approx(result.test, abs=0.01)]


def test_raw_text_by_dropout_with_the_pooler_removed(tiny_folder, files, tmp_path, capsys):
    out = tmp_path / "out"
    out.mkdir()
    for name in ("attention.json", "attention.png"):  # of a model that had attention
        (out / name).write_text("{}")
    asked = ("--objective", "dropout", "--texts", files / "raw.txt", "--remove-pooler", "--dropout", "0.1")
    result = run_json(capsys, "contrast", tiny_folder("electra"), *asked, *options(files, out))
    assert result["num_rows"] == 4
    assert result["settings"]["dropout"] == 0.1
    assert load_encoder(out / "lean").pooling_name == "cls"
    assert not list(out.glob("attention.*"))
    SentenceTransformer(str(out / "lean"), device="cpu")
