"""`truncate-kit evaluate` and `compare` on queries and documents."""

import json
from pathlib import Path

import pytest
import torch

from tests.support.commands import fails, run, run_both, run_json
from tests.support.files import pairs_file
from tests.support.retrieval import retrieval_folder
from truncate_kit.bench.result import BenchReport
from truncate_kit.core.results import FORMAT
from truncate_kit.core.workspace import Workspace
from truncate_kit.data.retrieval import read_retrieval
from truncate_kit.evaluation.retrieval import compare, evaluate_retrieval
from truncate_kit.export.exporting import export_onnx
from truncate_kit.methods.distill.labels import text_pairs_of
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.pipeline import save_encoder
from truncate_kit.models.truncation import truncate
from truncate_kit.report.page import write_page


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return retrieval_folder(tmp_path_factory.mktemp("set") / "tiny")


@pytest.fixture(scope="module")
def lean(tiny_folder, tmp_path_factory):
    home = tmp_path_factory.mktemp("models") / "lean"
    save_encoder(truncate(load_encoder(tiny_folder("bert")), 2), home)
    return home


def test_evaluate_in_torch_and_as_a_graph(capfd, tiny_folder, folder, tmp_path):
    model, data = tiny_folder("bert"), ("--data", folder, "--workspace", tmp_path)
    expected = evaluate_retrieval(load_encoder(model), read_retrieval(folder), model=str(model))
    wanted = {"format": FORMAT} | json.loads(expected.to_json())
    assert run_json(capfd, "evaluate", model, *data) == wanted
    assert f"{expected.means['nDCG@10']:.2f} " in run(capfd, "evaluate", model, *data)
    export_onnx(load_encoder(model), tmp_path / "graph")
    found = run_json(capfd, "evaluate", tmp_path / "graph/onnx/model.onnx", *data)
    assert found["runtime"] == "onnx"
    assert found["means"]["nDCG@10"] == pytest.approx(expected.means["nDCG@10"], abs=1e-3)
    (row,) = run_json(capfd, "evaluate", model, *data, "--vectors", "int8", "--dimensions", 8)["rows"]
    assert (row["labels"]["vectors"], row["values"]["bytes per vector"]) == ("int8", 8)


def test_compare(capfd, tiny_folder, lean, folder):
    full = tiny_folder("bert")
    expected = compare(load_encoder(full), load_encoder(lean), read_retrieval(folder), names=(str(full), str(lean)))
    found = run_json(capfd, "compare", full, lean, "--data", folder)
    assert found == {"format": FORMAT} | json.loads(expected.to_json())
    out, err = run_both(capfd, "compare", full, lean, "--data", folder, "--top", 3)
    assert ("overlap@3" in out, err.count("\n")) == (True, 1)  # the next step


def test_a_graph_is_checked_and_quantized_by_cosines_of_the_model_itself(capfd, tiny_folder, folder, tmp_path):
    command = ("export", tiny_folder("bert"), "--onnx", "--data", folder, "--workspace", tmp_path / "made")
    assert "has no graded pairs" in run_both(capfd, *command, "--precision", "int8")[1]
    found = run_json(capfd, *command)
    assert found["scored_on"].endswith("/test")
    assert found["spearman"] == pytest.approx([100.0, 100.0], abs=0.1)
    data = read_retrieval(folder)
    pairs = text_pairs_of(load_encoder(tiny_folder("bert")), data.name, [*data.queries, *data.documents])
    assert not {*pairs.dev.texts()} & {*pairs.test.texts()}
    for split in (pairs.dev, pairs.test):
        first, second = zip(*((pair.first, pair.second) for pair in split.pairs), strict=True)
        encoder = load_encoder(tiny_folder("bert"))
        cosines = torch.cosine_similarity(encoder.vectors(first), encoder.vectors(second))
        assert split.scores() == pytest.approx(cosines.tolist(), abs=1e-5)


def test_bench_and_its_page_score_by_queries(capfd, tiny_folder, folder, tmp_path, drawn):
    full, home = tmp_path / "full", tmp_path / "home"
    save_encoder(load_encoder(tiny_folder("bert")), full)
    run(capfd, "cut", full, "--layer", 2, "--workspace", home)
    lean = home / "lean"
    fast = ("--backends", "torch-fp32,onnx-fp32", "--batch-sizes", 1, "--lengths", 4, "--repeats", 1, "--quick")
    command = ("bench", lean, "--full", full, "--data", folder, "--workspace", home, *fast)
    assert "(exact sign test, p = " in " ".join(run(capfd, *command).split())
    found = BenchReport.read(home / "bench.json")
    assert (found.metric, found.num_scored) == ("nDCG@10", 19)
    data = read_retrieval(folder)
    models = {role: load_encoder(model) for role, model in (("lean", lean), ("full", full))}
    expected = {role: evaluate_retrieval(one, data, model=role).means["nDCG@10"] for role, one in models.items()}
    for row in found.contestants:
        assert row.score == pytest.approx(expected[row.role], abs=1e-3)
    row = compare(models["full"], models["lean"], data).rows[1]
    quality = found.quality
    assert (quality["lean"], quality["full"], quality["num_pairs"]) == pytest.approx((*expected.values(), 19))
    assert quality["difference"] == pytest.approx(row.values["nDCG less full"])
    assert quality["low"] <= quality["difference"] <= quality["high"]
    assert found.num_texts == len({*data.queries, *data.documents})
    page = Path(write_page(home).page).read_text(encoding="utf-8")
    assert "nDCG@10 × 100" in page
    assert "Spearman" not in page


def test_the_next_command_takes_the_last_queries_until_pairs_come(capfd, tiny_folder, folder, tmp_path):
    model, here = tiny_folder("bert"), ("--workspace", tmp_path / "home")
    run(capfd, "analyze", model, "--data", folder, *here)
    assert Workspace(tmp_path / "home").remembered().queries == str(folder.resolve())
    expected = evaluate_retrieval(load_encoder(model), read_retrieval(folder), model="model").means["nDCG@10"]
    assert run_json(capfd, "evaluate", model, *here)["means"]["nDCG@10"] == pytest.approx(expected)
    run(capfd, "cut", model, "--layer", 2, *here)
    fast = ("--backends", "torch-fp32", "--batch-sizes", 1, "--lengths", 4, "--repeats", 1, "--quick")
    run(capfd, "bench", *here, *fast)
    assert BenchReport.read(tmp_path / "home/bench.json").metric == "nDCG@10"
    run(capfd, "export", "--onnx", *here)  # checked by cosines between these queries and documents
    assert Workspace(tmp_path / "home").remembered().queries == str(folder.resolve())
    assert run_json(capfd, "analyze", *here)["num_queries"] == 19
    moved = folder.rename(tmp_path / "moved")
    for command in (("evaluate",), ("analyze",), ("bench",), ("export", "--onnx")):
        assert f"{folder.resolve()}, the data of the last command, does not exist." in fails(capfd, *command, *here)
    moved.rename(folder)
    pairs = pairs_file(tmp_path / "pairs.csv", "score", (0, 1, 2, 3, 4, 5))
    run(capfd, "analyze", model, "--data", pairs, *here)
    assert run_json(capfd, "evaluate", model, *here)["suite"] == "pairs"


def test_what_does_not_fit_is_said(capfd, tiny_folder, folder, lean, tmp_path):
    compared = ("compare", tiny_folder("bert"), lean, "--data")
    assert "no dev.tsv" in fails(capfd, *compared, folder, "--split", "dev")
    assert "is not a retrieval folder" in fails(capfd, *compared, tmp_path)
    assert "does not exist" in fails(capfd, *compared, "nowhere")
