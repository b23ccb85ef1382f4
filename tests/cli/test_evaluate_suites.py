"""`truncate-kit evaluate --suite` in a workspace, and what is refused."""

import json

import pytest

from tests.support.files import SENTENCES, kept_in
from truncate_kit.core.results import FORMAT
from truncate_kit.data.pairs import complete_splits, load_pairs
from truncate_kit.data.suites import find_sts
from truncate_kit.evaluation.graded import evaluate
from truncate_kit.export.exporting import export_onnx
from truncate_kit.models.loading import load_encoder


@pytest.fixture
def home(tmp_path):
    """A folder with two similarity sets, one classification set and one file of queries."""
    rows = [
        f"{text},{SENTENCES[(7 * place + 3) % len(SENTENCES)]} {place % 4},{place % 6}"
        for place, text in enumerate(SENTENCES)
    ]
    for name, chosen in (("sts13/test.csv", rows), ("stsb/test.csv", rows[:30]), ("stsb/train.csv", rows[20:])):
        file = tmp_path / "data" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("sentence1,sentence2,score\n" + "\n".join(chosen) + "\n")
    labelled = [f"{text},{int('cat' in text)}" for text in SENTENCES]
    (tmp_path / "data" / "mr.csv").write_text("text,label\n" + "\n".join(labelled) + "\n")
    queries = [f"{text},{SENTENCES[(place + 1) % len(SENTENCES)]}" for place, text in enumerate(SENTENCES)]
    (tmp_path / "queries.csv").write_text("query,relevant\n" + "\n".join(queries) + "\n")
    return tmp_path


def test_similarity_of_a_folder_and_of_its_graph(run, home, tiny_folder):
    model = tiny_folder("bert")
    encoder = load_encoder(model)
    sets = find_sts(home / "data")
    expected = {one.name: evaluate(encoder, one.pairs).spearman for one in sets}
    code, out, err = run("evaluate", model, "--suite", "sts", "--data", "data", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert {row["task"]: row["values"]["Spearman"] for row in found["rows"]} == pytest.approx(expected)
    assert found["means"]["Spearman"] == pytest.approx(sum(expected.values()) / 2)
    assert kept_in(home / "exported/suite-sts.json") | {"format": FORMAT} == found

    export_onnx(encoder, home / "graph")
    _, out, _ = run("evaluate", home / "graph/model.onnx", "--suite", "sts", "--data", "data", "--json")
    again = json.loads(out)
    assert again["runtime"] == "onnx"
    assert again["means"]["Spearman"] == pytest.approx(found["means"]["Spearman"], abs=1e-2)


def unseen(report):
    """Number of pairs of STS13 that the model has not seen."""
    return next(row for row in report["rows"] if row["task"] == "STS13")["values"].get("unseen pairs")


def shares(report):
    return [row["labels"]["share"] for row in report["rows"]]


def test_the_workspace_knows_what_its_own_model_has_seen(run, home, tiny_folder):
    fast = ("--seeds", 1, "--epochs", 1, "--layer", "1")
    pairs = home / "data/sts13/test.csv"
    code, _, err = run("finetune", tiny_folder("electra"), "--data", pairs, *fast)
    assert code == 0, err
    divided = complete_splits(load_pairs(pairs))
    held_out = len(divided.test)
    code, out, err = run("evaluate", "--suite", "sts", "--data", "data")
    assert code == 0, err
    assert "with and without these pairs." in err
    found = json.loads((home / "exported/suite-sts.json").read_text())
    assert unseen(found) == held_out

    code, out, _ = run("evaluate", tiny_folder("electra"), "--suite", "sts", "--data", "data", "--json")
    assert unseen(json.loads(out)) is None  # a model from elsewhere

    (home / "exported/lean/seen.pairs").unlink()
    assert "are unknown: give the training pairs with --seen." in run("evaluate", "--suite", "sts", "--data", "data")[2]


def test_transfer_writes_table_and_curve(run, home, tiny_folder):
    command = ("evaluate", tiny_folder("bert"), "--suite", "transfer", "--data", "data", "--quick")
    code, out, err = run(*command, "--fractions", "0.7,1")
    assert code == 0, err
    found = json.loads((home / "exported/suite-transfer.json").read_text())
    assert shares(found) == ["0.7", "1"]
    assert any("among 15 subsets" in note for note in found["notes"])
    assert "MR" in out
    assert "combined" in out
    assert "not comparable with other runs" in out
    assert (home / "exported/suite-transfer.png").read_bytes().startswith(b"\x89PNG")
    kept = (home / "exported/trials/trials.jsonl").read_bytes()
    assert kept.count(b'"kind": "Score"') == 6  # of two shares, three divisions each
    assert "CLS pooler" in out
    code, _, err = run(*command)  # what was finished is not done again
    assert code == 0, err
    assert (home / "exported/trials/trials.jsonl").read_bytes() == kept
    # It went through fewer shares of the rows: the longer run and its figure stay.
    assert "suite-transfer.json is kept" in err
    assert json.loads((home / "exported/suite-transfer.json").read_text()) == found
    assert (home / "exported/suite-transfer.png").exists()
    beside = home / "exported/suite-transfer-2.json"
    assert shares(json.loads(beside.read_text())) == ["1"]
    code, _, err = run("evaluate", tiny_folder("electra"), *command[2:], "--head")
    assert (code, "has no trained pooler head" in err, "--head" in err) == (1, True, True)
