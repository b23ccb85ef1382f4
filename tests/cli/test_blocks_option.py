"""`--blocks`: each command does what `keep` called by hand gives, and says which blocks of how many."""

from dataclasses import replace

import pytest
import torch

from tests.support.commands import run, run_both
from tests.support.files import pairs_file
from truncate_kit.analysis.profile import profile
from truncate_kit.analysis.result import AnalysisSettings, LayerProfile
from truncate_kit.bench.result import BenchReport
from truncate_kit.data.pairs import complete_splits, load_pairs
from truncate_kit.evaluation.graded import evaluate
from truncate_kit.methods.tmft.finetune import finetune
from truncate_kit.methods.tmft.settings import SweepResult, SweepSettings
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.store import encoder_digest
from truncate_kit.models.truncation import keep
from truncate_kit.training.cutting import CutResult
from truncate_kit.training.settings import TrainingSettings

TEXTS = ["the cat sat on the mat", "a dog ran under a tree", "a red cat"]


@pytest.fixture
def model(tiny_folder, tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    pairs_file(tmp_path / "pairs.csv", "score", (0, 1, 2, 3, 4, 5))
    return tiny_folder("bert")


@pytest.fixture
def kept(model):
    return keep(load_encoder(model), (1, 3))


def test_cut_saves_the_blocks_and_says_so_everywhere(model, kept, tmp_path, capsys):
    run(capsys, "cut", model, "--blocks", "1,3")
    assert torch.equal(load_encoder(tmp_path / "exported/lean").vectors(TEXTS), kept.vectors(TEXTS))
    result = CutResult.read(tmp_path / "exported/lean/cut.json")
    assert (result.blocks, result.layer, result.depth) == ((1, 3), 2, 3)
    assert result.parameters == kept.num_parameters
    card = (tmp_path / "exported/lean/README.md").read_text()
    assert "| Blocks | 1, 3 of 3 |" in card
    assert "layer 2" not in card.lower()
    assert "blocks 1, 3 of 3, not trained" in run(capsys, "status").replace("\n", " ")
    assert "blocks 1, 3 of 3, not trained." in run_both(capsys, "encode", "texts.txt", "--out", "v.npy")[1]


def test_analyze_profiles_the_kept_model(model, kept, tmp_path, capsys):
    asked = ("--data", "pairs.csv", "--reference", "none", "--blocks", "1,3")
    out, _ = run_both(capsys, "analyze", model, *asked)
    assert "2 (block 3)" in out or "2 (block 3, drop)" in out
    found = LayerProfile.read(tmp_path / "exported/analysis/profile.json")
    assert (found.kept_blocks, found.full_depth, found.depth) == ((1, 3), 3, 2)
    by_hand = profile(
        kept, pairs=load_pairs("pairs.csv", divide=False).split(None), settings=AnalysisSettings(max_texts=10_000)
    )
    whole = encoder_digest(load_encoder(model))  # of the model that was named
    assert replace(by_hand, kept_blocks=(1, 3), full_depth=3, encoder_digest=whole) == found


def test_bench_compares_the_blocks_with_all_of_the_model(model, kept, tmp_path, capsys):
    fast = ("--backends", "torch-fp32", "--batch-sizes", 1, "--lengths", 4, "--repeats", 1, "--threads", 1)
    run(capsys, "bench", model, "--blocks", "1,3", "--data", "pairs.csv", "--quick", *fast)
    report = BenchReport.read(tmp_path / "exported/bench.json")
    lean, full = report.models
    assert (lean.blocks, lean.layer, lean.parameters) == ((1, 3), 2, kept.num_parameters)
    assert (full.blocks, full.layer) == (None, 3)
    expected = evaluate(kept, load_pairs("pairs.csv", divide=False).evaluation.pairs).spearman
    assert [row.score for row in report.contestants if row.role == "lean"] == [pytest.approx(expected, abs=1e-3)]
    config = model / "config.json"
    run(capsys, "bench", "--random-weights", config, "--blocks", "2..3", "--quick", *fast, "--workspace", "shape")
    assert [row.layer for row in BenchReport.read(tmp_path / "shape/bench.json").models] == [2, 3]


def test_finetune_trains_all_of_the_blocks_and_the_full_model_beside_them(model, kept, tmp_path, capsys):
    asked = ("--data", "pairs.csv", "--seeds", 1, "--epochs", 1, "--blocks", "1,3")
    out, _ = run_both(capsys, "finetune", model, *asked)
    result = SweepResult.read(tmp_path / "exported/sweep.json")
    assert ((result.blocks, result.chosen), result.full.layer) == (((1, 3), 2), 3)
    pairs, training = complete_splits(load_pairs("pairs.csv")), TrainingSettings(epochs=1)
    full, once = load_encoder(model), SweepSettings(seeds=(0,), strategy="rankings")
    alone = finetune(kept, pairs, out=tmp_path / "a", settings=replace(once, layers="2"), training=training)
    assert result.layers == alone.layers
    yardstick = finetune(full, pairs, out=tmp_path / "b", settings=replace(once, layers="3"), training=training)
    assert result.full == yardstick.full
    for name, by_hand in (("lean", "a/lean"), ("full", "b/lean")):
        saved = load_encoder(tmp_path / "exported" / name).vectors(TEXTS)
        assert torch.equal(saved, load_encoder(tmp_path / by_hand).vectors(TEXTS))
    assert "blocks 1, 3 (chosen)" in out
    assert "layer 3 (full model)" in out
    assert "| Blocks | 1, 3 of 3 |" in (tmp_path / "exported/lean/README.md").read_text()
    assert "| Layer | 3 of 3 |" in (tmp_path / "exported/full/README.md").read_text()
