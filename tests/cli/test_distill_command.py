"""`distill` as a user calls it: what it shows, where the model is, what it refuses."""

import json

import numpy as np
import pytest

from tests.support.commands import refused, run, run_both, run_json
from tests.support.retrieval import DOCUMENTS, QUERIES, judged_folder, retrieval_folder
from truncate_kit.data.retrieval import read_retrieval
from truncate_kit.evaluation.graded import evaluate
from truncate_kit.methods.distill.labels import own_pairs
from truncate_kit.methods.distill.learning import FOLDER, TextStore
from truncate_kit.models.loading import load_encoder
from truncate_kit.training.queries import halves

WORDS = ["the", "cat", "dog", "sat", "ran", "on", "under", "a", "red", "blue", "big", "small", "tree", "mat", "and"]


@pytest.fixture
def texts(tmp_path):
    file = tmp_path / "texts.txt"
    file.write_text("".join(f"{one} {other} mat\n" for one in WORDS for other in WORDS))
    return file


def test_from_raw_text_to_a_model_that_the_next_command_takes(texts, tiny_folder, capfd, drawn):
    model, held_out = tiny_folder("bert"), texts.parent / "held.csv"
    held_out.write_text("sentence1,sentence2,score\nThe cat mat,a dog mat,1\n")
    command = ("distill", model, "--texts", texts, "--blocks", "1,3")
    assert "2 choices of blocks" in run(capfd, *command, "--exclude", held_out, "--verbose")
    assert (texts.parent / "exported/frontier.png").stat().st_size > 10_000
    lean = load_encoder(texts.parent / "exported/lean")
    assert lean.depth == 2
    assert "blocks 1, 3 of 3, distilled" in (texts.parent / "exported/lean/README.md").read_text()
    assert "blocks 1, 3 of 3, distilled" in run_both(capfd, "encode", texts, "--out", "vectors.npy")[1]
    assert f"{model}, blocks 1, 3 of 3, distilled from raw text" in run(capfd, "status")
    assert "were freed" in run(capfd, "status", "--clean")
    assert not (texts.parent / "exported/distillation").exists()


def test_documents_of_a_retrieval_folder_are_learned_beside_other_texts(texts, tiny_folder, capfd):
    folder = retrieval_folder(texts.parent / "searched")
    lines = (folder / "corpus.jsonl").read_text().splitlines()
    lines[0] = json.dumps({"_id": "d0", "title": "", "text": ""})
    (folder / "corpus.jsonl").write_text("\n".join(lines) + "\n")
    command = ("distill", tiny_folder("bert"), "--texts", folder, "--texts", texts, "--blocks", "1,3")
    assert run_json(capfd, *command)["texts"]["num_texts"] == len(DOCUMENTS) - 1 + 225
    store = TextStore(texts.parent / "exported" / FOLDER)
    read = store.read(range(len(store)))
    assert read[: len(DOCUMENTS) - 1] == list(read_retrieval(folder).documents[1:])  # titles belong to them
    assert not set(QUERIES) & set(read)
    unseen = ("distill", tiny_folder("bert"), "--texts", folder, "--exclude", folder, "--blocks", "1,3")
    assert "Only 0 distinct texts" in refused(capfd, *unseen)


def test_json_and_again(texts, tiny_folder, capfd):
    command = ("distill", tiny_folder("bert"), "--texts", texts, "--blocks", "2")
    first = run_json(capfd, *command)
    assert first["frontier"] == []
    assert [row["blocks"] for row in first["candidates"]] == [first["chosen"], [1, 2, 3]]
    assert run_json(capfd, *command) == first


def test_a_retrieval_folder_chooses_by_half_of_its_queries_and_reports_the_other(texts, tiny_folder, capfd):
    folder = judged_folder(texts.parent / "beir", test=24)
    data, full = read_retrieval(folder), load_encoder(tiny_folder("bert"))
    with texts.open("a") as file:
        file.write(f"{data.documents[2]}\n{data.queries[1].upper()}\n")
    found = run_json(capfd, "distill", tiny_folder("bert"), "--texts", texts, "--blocks", "2", "--data", folder)
    assert found["metric"] == "nDCG@10 of half the queries"
    assert (found["texts"]["compared"], found["texts"]["excluded"]) == (len(data.held_out), 2)
    lean = load_encoder(texts.parent / "exported/lean")
    choosing, reporting = halves(full, data)
    assert found["full_score"] == pytest.approx(choosing.score(full)[0], abs=1e-3)
    student = next(row for row in found["candidates"] if row["blocks"] == found["chosen"])
    assert student["score"] == pytest.approx(choosing.score(lean)[0], abs=1e-3)
    scores = found["scores"]
    for name, model in (("lean", lean), ("full", full)):
        assert scores[name] == pytest.approx(reporting.score(model)[0], abs=1e-3)
    assert scores["low"] <= scores["difference"] <= scores["high"]
    assert scores["mixed"] is not None


def test_without_labels_a_graph_is_judged_by_the_full_models_cosines(texts, tiny_folder, capfd):
    model = tiny_folder("bert")
    run(capfd, "distill", model, "--texts", texts, "--blocks", "1,3")
    graph = run_json(capfd, "export", "--onnx", "--precision", "int8")
    assert (graph["scored_on"], graph["num_pairs"]) == ("cosines of model/test", 41)
    full, lean = load_encoder(model), load_encoder("exported/lean")
    store = TextStore(texts.parent / "exported" / FOLDER)
    report = np.random.default_rng(0).permutation(len(store))[:82][41:]
    pairs = own_pairs(full, store.read(report)).pairs
    assert graph["spearman"][0] == pytest.approx(evaluate(lean, pairs).spearman, abs=0.1)
    assert "Without labels, the full model's cosines" in " ".join(run_both(capfd, "export", "--onnx")[1].split())
    run(capfd, "status", "--clean")
    assert "bundled" in run_both(capfd, "export", "--onnx")[1]
    pairs = texts.parent / "pairs.csv"
    pairs.write_text("sentence1,sentence2,score\n" + "".join(f"a {one},the {one} cat,{len(one)}\n" for one in WORDS))
    assert "pairs.csv" in run_both(capfd, "export", "--onnx", "--data", pairs)[1]
    assert "pairs.csv" in run_both(capfd, "export", "--onnx")[1]  # labels that were named say more


def test_the_help_does_not_promise_the_data_used_last(capfd):
    shown = run(capfd, "distill", "--help").partition("--data")[2].partition("--columns")[0]
    assert "last used (compress, distill: none)." in " ".join(shown.split())
