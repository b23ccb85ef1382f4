"""`truncate-kit freeze`: what it prints, writes and refuses, and what comes after it."""

import json

import pytest
from matplotlib import image

from tests.support.commands import refused, run, scored
from tests.support.files import SENTENCES
from truncate_kit.data.pairs import complete_splits, load_pairs
from truncate_kit.models.loading import load_encoder

MORE = ("", "cat", "and a mat", "not blue")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working folder with one file of pairs and one of raw sentences."""
    monkeypatch.chdir(tmp_path)
    rows = [f"{a},{SENTENCES[(7 * i + 3) % len(SENTENCES)]} {MORE[i % 4]},{i % 6}" for i, a in enumerate(SENTENCES * 3)]
    (tmp_path / "pairs.csv").write_text("sentence1,sentence2,score\n" + "\n".join(rows) + "\n")
    (tmp_path / "raw.txt").write_text("\n".join(f"{text} and the dog" for text in SENTENCES))
    return tmp_path


def frozen(capsys, tiny_folder, folder, *more):
    return run(
        capsys, "freeze", tiny_folder("gpt2"), "--data", folder / "pairs.csv", "--seeds", 1,
        "--epochs", 2, *more,
    )  # fmt: skip


def test_all_steps_tables_and_figures(capsys, tiny_folder, folder, drawn):
    out = frozen(capsys, tiny_folder, folder, "--texts", folder / "raw.txt", "--layer", "all", "--verbose")
    for step in ("cosine", "siamese", "autoencoder"):
        assert step in out
    assert "Largest errors on test" in out
    assert "of the " in out
    assert "distinct test sentences are also in train" in out
    assert "Chosen by dev: " in out
    for figure in ("correlation", "reconstruction", "reconstruction-own-units", "blocks"):
        height, width, _ = image.imread(folder / f"exported/frozen-heads/{figure}.png").shape
        assert (width, height) == (1080, 600)
    report = json.loads((folder / "exported/frozen-heads/frozen.json").read_text())
    assert len(report["trials"]) == 9


def test_scored_on_unseen_pairs_only_by_the_heads_own_score(capsys, tiny_folder, folder):
    heads = folder / "exported/frozen-heads"
    heads.mkdir(parents=True)
    for name in ("reconstruction", "reconstruction-own-units", "blocks"):  # of other autoencoders and numbers of blocks
        (heads / f"{name}.png").touch()
    report = json.loads(frozen(capsys, tiny_folder, folder, "--steps", "siamese", "--layer", 2, "--json"))
    score = scored(run(capsys, "evaluate", folder / "exported/frozen", "--json"))
    assert [file.name for file in heads.glob("*.png")] == ["correlation.png"]
    held_out = complete_splits(load_pairs(folder / "pairs.csv")).test
    assert score["pairs"] == len(held_out)
    assert score["Spearman"] == pytest.approx(report["trials"][0]["test"], abs=0.3)
    assert load_encoder(folder / "exported/frozen").depth == 2
    stored = scored(run(capsys, "evaluate", folder / "exported/frozen", "--vectors", "int8", "--json"))
    assert stored["Spearman"] == pytest.approx(score["Spearman"], abs=5)
    assert "without --dimensions" in refused(capsys, "evaluate", folder / "exported/frozen", "--dimensions", 3)
    quick = ("--quick", "--backends", "torch-fp32", "--lengths", 4, "--repeats", 1, "--json")
    bench = json.loads(run(capsys, "bench", folder / "exported/frozen", *quick))
    assert bench["contestants"][0]["score"] == pytest.approx(score["Spearman"], abs=0.3)
    assert bench["models"][0]["width"] == 4 + 8  # codes, not the width of a state
    # Retrieval reports that it compares codes; `finetune` does not train heads.
    (folder / "queries.csv").write_text("query,relevant\nthe cat sat,a dog ran\na mat,the big tree\n")
    pytest.importorskip("faiss")
    out = run(capsys, "evaluate", folder / "exported/frozen", "--suite", "retrieval", "--data", "queries.csv")
    assert "codes that a trained score compares" in out
    error = refused(capsys, "finetune", folder / "exported/frozen", "--data", folder / "pairs.csv", "--layer", 1)
    assert "is a frozen model with heads" in error
