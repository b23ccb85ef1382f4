"""`truncate-kit freeze`: what it prints, writes and refuses, and what comes after it."""

import json

import pytest
from matplotlib import image

from tests.support.commands import refused, run, run_json, scored
from tests.support.files import SENTENCES, write_table
from truncate_kit.data.pairs import complete_splits, load_pairs
from truncate_kit.models.loading import load_encoder

MORE = ("", "cat", "and a mat", "not blue")


@pytest.fixture
def folder(tmp_path):
    """A working folder with one file of pairs and one of raw sentences."""
    rows = [(a, f"{SENTENCES[(7 * i + 3) % 42]} {MORE[i % 4]}", i % 6) for i, a in enumerate(SENTENCES * 3)]
    write_table(tmp_path / "pairs.csv", ("sentence1", "sentence2", "score"), rows)
    (tmp_path / "raw.txt").write_text("\n".join(f"{text} and the dog" for text in SENTENCES))
    return tmp_path


FREEZE = ("--data", "pairs.csv", "--seeds", 1, "--epochs", 2)


def test_all_steps_tables_and_figures(capsys, tiny_folder, folder, drawn):
    asked = ("--texts", "raw.txt", "--layer", "all", "--verbose")
    out = run(capsys, "freeze", tiny_folder("gpt2"), *FREEZE, *asked)
    assert all(step in out for step in ("cosine", "siamese", "autoencoder", "Largest errors on test", "Chosen by dev"))
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
    report = run_json(capsys, "freeze", tiny_folder("gpt2"), *FREEZE, "--steps", "siamese", "--layer", 2)
    score = scored(run(capsys, "evaluate", folder / "exported/frozen", "--json"))
    assert [file.name for file in heads.glob("*.png")] == ["correlation.png"]
    held_out = complete_splits(load_pairs(folder / "pairs.csv")).test
    assert score["pairs"] == len(held_out)
    assert score["Spearman"] == pytest.approx(report["trials"][0]["test"], abs=0.3)
    assert load_encoder(folder / "exported/frozen").depth == 2
    stored = scored(run(capsys, "evaluate", folder / "exported/frozen", "--vectors", "int8", "--json"))
    assert stored["Spearman"] == pytest.approx(score["Spearman"], abs=5)
    assert "without --dimensions" in refused(capsys, "evaluate", folder / "exported/frozen", "--dimensions", 3)
    quick = ("--quick", "--backends", "torch-fp32", "--lengths", 4, "--repeats", 1)
    bench = run_json(capsys, "bench", folder / "exported/frozen", *quick)
    assert bench["contestants"][0]["score"] == pytest.approx(score["Spearman"], abs=0.3)
    assert bench["models"][0]["width"] == 4 + 8  # codes, not the width of a state
    # Retrieval reports that it compares codes; `finetune` does not train heads.
    (folder / "queries.csv").write_text("query,relevant\nthe cat sat,a dog ran\na mat,the big tree\n")
    pytest.importorskip("faiss")
    out = run(capsys, "evaluate", folder / "exported/frozen", "--suite", "retrieval", "--data", "queries.csv")
    assert "codes that a trained score compares" in out
    error = refused(capsys, "finetune", folder / "exported/frozen", "--data", folder / "pairs.csv", "--layer", 1)
    assert "is a frozen model with heads" in error
