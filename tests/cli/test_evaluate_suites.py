"""`truncate-kit evaluate --suite` in a workspace, and what is refused."""

import json

import pytest

from tests.support.commands import fails, run_json
from tests.support.files import SENTENCES, kept_in, write_table
from truncate_kit.core.results import FORMAT
from truncate_kit.data.pairs import complete_splits, load_pairs
from truncate_kit.data.suites import find_sts
from truncate_kit.evaluation.graded import evaluate
from truncate_kit.export.exporting import export_onnx


@pytest.fixture
def home(tmp_path):
    """A folder with two similarity sets and one classification set."""
    rows = [(text, f"{SENTENCES[(7 * n + 3) % 42]} {n % 4}", n % 6) for n, text in enumerate(SENTENCES)]
    for name, chosen in (("sts13/test", rows), ("stsb/test", rows[:30]), ("stsb/train", rows[20:])):
        write_table(tmp_path / f"data/{name}.csv", ("sentence1", "sentence2", "score"), chosen)
    write_table(tmp_path / "data/mr.csv", ("text", "label"), [(text, int("cat" in text)) for text in SENTENCES])
    return tmp_path


STS = ("--suite", "sts", "--data", "data")


def test_similarity_of_a_folder_and_of_its_graph(run, home, encoder, tiny_folder, capfd):
    expected = {one.name: evaluate(encoder, one.pairs).spearman for one in find_sts(home / "data")}
    out, err = run("evaluate", tiny_folder("bert"), *STS, "--json")
    assert err == ""
    found = json.loads(out)
    assert {row["task"]: row["values"]["Spearman"] for row in found["rows"]} == pytest.approx(expected)
    assert found["means"]["Spearman"] == pytest.approx(sum(expected.values()) / 2)
    assert kept_in(home / "exported/suite-sts.json") | {"format": FORMAT} == found
    export_onnx(encoder, home / "graph")
    again = run_json(capfd, "evaluate", "graph/onnx/model.onnx", *STS)
    assert again["runtime"] == "onnx"
    assert again["means"]["Spearman"] == pytest.approx(found["means"]["Spearman"], abs=1e-2)


def unseen(report):
    """Number of pairs of STS13 that the model has not seen."""
    return next(row for row in report["rows"] if row["task"] == "STS13")["values"].get("unseen pairs")


def shares(report):
    return [row["labels"]["share"] for row in report["rows"]]


def test_the_workspace_knows_what_its_own_model_has_seen(run, home, tiny_folder, capfd):
    pairs = home / "data/sts13/test.csv"
    run("finetune", tiny_folder("electra"), "--data", pairs, "--seeds", 1, "--epochs", 1, "--layer", "1")
    assert "with and without these pairs." in run("evaluate", *STS)[1]
    found = json.loads((home / "exported/suite-sts.json").read_text())
    assert unseen(found) == len(complete_splits(load_pairs(pairs)).test)
    assert unseen(run_json(capfd, "evaluate", tiny_folder("electra"), *STS)) is None  # a model from elsewhere
    (home / "exported/lean/seen.pairs").unlink()
    assert "are unknown: give the training pairs with --seen." in run("evaluate", *STS)[1]


def test_transfer_writes_table_and_curve(run, home, tiny_folder, capfd):
    command = ("evaluate", tiny_folder("bert"), "--suite", "transfer", "--data", "data", "--quick")
    out, _ = run(*command, "--fractions", "0.7,1")
    found = json.loads((home / "exported/suite-transfer.json").read_text())
    assert shares(found) == ["0.7", "1"]
    assert any("among 15 subsets" in note for note in found["notes"])
    assert "not comparable with other runs" in out
    assert (home / "exported/suite-transfer.png").read_bytes().startswith(b"\x89PNG")
    kept = (home / "exported/trials/trials.jsonl").read_bytes()
    assert kept.count(b'"kind": "Score"') == 6  # of two shares, three divisions each
    assert "CLS pooler" in out
    _, err = run(*command)  # what was finished is not done again
    assert (home / "exported/trials/trials.jsonl").read_bytes() == kept
    # It went through fewer shares of the rows: the longer run and its figure stay.
    assert "suite-transfer.json is kept" in err
    assert json.loads((home / "exported/suite-transfer.json").read_text()) == found
    assert shares(json.loads((home / "exported/suite-transfer-2.json").read_text())) == ["1"]
    assert "has no trained pooler head" in fails(capfd, "evaluate", tiny_folder("electra"), *command[2:], "--head")
