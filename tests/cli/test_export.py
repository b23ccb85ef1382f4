"""`truncate-kit export` and `truncate-kit evaluate` on real weights and in a workspace."""

import numpy as np
import pytest
from scipy import stats
from scipy.spatial import distance
from sentence_transformers import SentenceTransformer

from tests.support.commands import refused, run, run_both, run_json
from tests.support.files import pairs_file
from tests.support.pairs import made_texts
from truncate_kit.bench.result import BenchReport
from truncate_kit.data.pairs import read_pairs
from truncate_kit.export.runtime import OnnxEncoder
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.pipeline import save_encoder
from truncate_kit.models.truncation import truncate


def test_a_real_model_scores_alike_by_others_in_torch_and_as_a_graph(
    minilm, minilm_export, minilm_graph, session_folder, tmp_path, capsys
):
    """On all of the test set it has the published score: as a graph, in tests/evaluation."""
    out, data = tmp_path / "out", session_folder / "minilm.csv"
    pairs = read_pairs(data).pairs
    report = minilm_export
    assert report["spearman"][1] == pytest.approx(report["spearman"][0], abs=0.01)
    assert report["fused_nodes"]["Attention"] == 6
    assert {"batch 17, length 16", "batch 1, length 256", "batch 1, length 2", "padding"} <= set(report["checks"])

    before, after = (
        run_json(capsys, "evaluate", model, "--data", data, "--workspace", out)
        for model in (minilm, minilm_graph / "onnx/model.onnx")
    )
    assert (before["runtime"], after["runtime"]) == ("torch", "onnx")
    before, after = (score["rows"][0]["values"] for score in (before, after))
    assert before["pairs"] == after["pairs"] == 24
    first, second = (
        SentenceTransformer(str(minilm), device="cpu").encode([getattr(pair, part) for pair in pairs])
        for part in ("first", "second")
    )
    expected = 100 * stats.spearmanr((first * second).sum(axis=1), [pair.target for pair in pairs]).statistic
    assert before["Spearman"] == pytest.approx(expected, abs=1e-3)
    assert after["Spearman"] == pytest.approx(expected, abs=0.01)


@pytest.fixture
def workspace(tiny_folder, tmp_path):
    """A workspace as finetune leaves it: a lean model that is not what it started from."""
    save_encoder(truncate(load_encoder(tiny_folder("bert")), 1), tmp_path / "exported/lean", model_card="tuned")
    return tmp_path / "exported"


def test_export_takes_up_what_finetune_left_and_evaluate_too(workspace, tmp_path, capsys):
    data = pairs_file(tmp_path / "pairs.csv", "score", range(6))
    shown = run(capsys, "export", "--onnx", "--normalize", "--data", data)
    assert "Attention is fused: 1 node, one per layer." in shown
    assert (workspace / "lean/onnx/model.onnx").is_file()
    assert (
        (workspace / "lean/README.md")
        .read_text()
        .startswith("tuned\n\n## The graph onnx/model.onnx\n\nonnx/model.onnx: fp32")
    )
    torch_score, graph_score = (
        run_json(capsys, "evaluate", "--data", data, *more)["rows"][0]["values"] for more in ((), ("--runtime", "onnx"))
    )
    assert torch_score["pairs"] == graph_score["pairs"] == 64
    assert graph_score["Pearson"] == pytest.approx(torch_score["Pearson"], abs=0.01)
    assert f"{torch_score['Spearman']:.2f}" in run(capsys, "evaluate", "exported/lean", "--data", data)


def test_compress_compares_an_int8_graph_with_torch(workspace, tiny_folder, tmp_path, capsys):
    (tmp_path / "raw.txt").write_text("\n".join(made_texts(60)))
    whole, raw = tiny_folder("bert"), tmp_path / "raw.txt"
    _, notes = run_both(capsys, "compress", whole, "--texts", raw, "--workspace", "other")
    assert "held-out texts are the reference" in notes
    assert "\nWith 1 of 3 blocks: about 3.0 times as fast as with all, after about " in notes
    assert f"Next: truncate-kit distill {whole} --blocks 1 --texts {raw} --workspace other " in notes
    (tmp_path / "pairs").mkdir()
    for name, scores in (("dev", range(6)), ("test", (0, 1, 2, 3, 5, 4))):
        pairs_file(tmp_path / f"pairs/{name}.csv", "score", scores)
    found = BenchReport.from_dict(run_json(capsys, "compress", "--data", tmp_path / "pairs"))
    assert (workspace / "lean/README.md").read_text().count("\n| torch fp32 |") == 1  # of the second run
    assert (found.quality_of, len(found.models)) == (("onnx-int8", "torch-fp32"), 1)
    pairs = read_pairs(tmp_path / "pairs/test.csv").pairs
    models = {"lean": OnnxEncoder.load(workspace / "lean", precision="int8"), "full": load_encoder(workspace / "lean")}
    for name, model in models.items():
        first, second = (model.encode([getattr(pair, part) for pair in pairs]) for part in ("first", "second"))
        cosines = [1 - distance.cosine(*both) for both in zip(first, second, strict=True)]
        expected = stats.spearmanr(np.round(cosines, 6), [pair.target for pair in pairs]).statistic
        assert found.quality[name] == pytest.approx(100 * expected, abs=0.05)


def test_compress_needs_enough_texts(workspace, tmp_path, capsys):
    (tmp_path / "raw.txt").write_text("one text\nanother\n")
    assert "2 distinct texts, too few" in refused(capsys, "compress", "--texts", tmp_path / "raw.txt")
    both = refused(capsys, "compress", "--texts", tmp_path / "raw.txt", "--data", "bundled")
    assert "--texts and --data are both given" in both
    assert not list(workspace.glob("lean/*.onnx"))


def test_export_does_not_replace_a_model_that_something_else_left(workspace, tiny_folder, tmp_path, capsys):
    before = {path: path.read_bytes() for path in (workspace / "lean").glob("*.*")}
    pairs_file(tmp_path / "pairs.csv", "score", range(6))
    problem = refused(capsys, "export", tiny_folder("electra"), "--onnx", "--data", "pairs.csv")
    assert "holds a model; exporting " in problem
    assert {path: path.read_bytes() for path in (workspace / "lean").glob("*.*")} == before


def test_evaluate_chooses_split_columns_and_scale(tiny_folder, tmp_path, capsys):
    folder = tmp_path / "splits"
    pairs_file(folder / "train.csv", "score", range(6))
    rows = pairs_file(folder / "dev.csv", "score", range(6)).read_text().splitlines()
    (folder / "test.csv").write_text("\n".join(rows[:6]) + "\n")
    model = tiny_folder("bert")
    found = {
        split: run_json(capsys, "evaluate", model, "--data", folder, *arguments)
        for split, arguments in {"test": [], "dev": ["--split", "dev"]}.items()
    }
    assert {split: score["rows"][0]["values"]["pairs"] for split, score in found.items()} == {"test": 5, "dev": 64}
    other = tmp_path / "other.tsv"
    other.write_text("x\ty\tz\n" + "\n".join(row.replace(",", "\t") for row in rows[1:]) + "\n")
    options = ["--columns", "x,y,z", "--scale", "0..5"]
    score = run_json(capsys, "evaluate", model, "--data", other, *options)
    assert score["rows"][0]["values"]["Spearman"] == pytest.approx(found["dev"]["rows"][0]["values"]["Spearman"])
    assert "0..5" not in refused(capsys, "evaluate", model, "--data", other, "--columns", "x,y")
