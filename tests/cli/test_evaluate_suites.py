"""`truncate-kit evaluate --suite` in a workspace, and what is refused."""

import json
import os

import pytest

from tests.support.files import kept_in
from truncate_kit.data import complete_splits, find_sts, load_pairs
from truncate_kit.evaluation.graded import evaluate
from truncate_kit.export.exporting import export_onnx
from truncate_kit.models import load_encoder
from truncate_kit.results import FORMAT
from truncate_kit_cli.app import main

SUBJECTS = ["the cat", "a dog", "the small dog", "a red cat", "the big tree", "a mat"]
DEEDS = ["sat", "ran", "sat on the mat", "ran to the tree", "is not red", "is big", "is blue"]
TEXTS = [f"{subject} {deed}" for subject in SUBJECTS for deed in DEEDS]


@pytest.fixture
def run(capfd, tmp_path, monkeypatch):
    """Run the command line in an empty folder; returns exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        capfd.readouterr()
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        assert "Traceback" not in err
        return end.value.code or 0, out, err

    return call


@pytest.fixture
def home(tmp_path):
    """A folder with two similarity sets, one classification set and one file of queries."""
    rows = [f"{text},{TEXTS[(7 * place + 3) % len(TEXTS)]} {place % 4},{place % 6}" for place, text in enumerate(TEXTS)]
    for name, chosen in (("sts13/test.csv", rows), ("stsb/test.csv", rows[:30]), ("stsb/train.csv", rows[20:])):
        file = tmp_path / "data" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("sentence1,sentence2,score\n" + "\n".join(chosen) + "\n")
    labelled = [f"{text},{int('cat' in text)}" for text in TEXTS]
    (tmp_path / "data" / "mr.csv").write_text("text,label\n" + "\n".join(labelled) + "\n")
    queries = [f"{text},{TEXTS[(place + 1) % len(TEXTS)]}" for place, text in enumerate(TEXTS)]
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
    assert {row["name"]: row["spearman"] for row in found["sets"]} == pytest.approx(expected)
    assert found["mean_spearman"] == pytest.approx(sum(expected.values()) / 2)
    assert kept_in(home / "exported/suite-sts.json") | {"format": FORMAT} == found

    export_onnx(encoder, home / "graph")
    _, out, _ = run("evaluate", home / "graph/model.onnx", "--suite", "sts", "--data", "data", "--json")
    again = json.loads(out)
    assert again["runtime"] == "onnx"
    assert again["mean_spearman"] == pytest.approx(found["mean_spearman"], abs=1e-2)


def test_the_table_says_what_was_left_out_and_what_is_not_comparable(run, home, tiny_folder):
    data = ("--suite", "sts", "--data", "data")
    code, out, err = run("evaluate", tiny_folder("bert"), *data, "--seen", "data/stsb")
    assert code == 0, err
    row = next(line for line in out.splitlines() if "STSB" in line)
    assert " 30 " in row
    assert " 20 " in row  # rows 20 to 29 of the test split also stand in train
    assert "STS13 here has 42 of the published 1,500 pairs" in out
    assert "mean of 2" in out
    assert "Spearman unseen" in " ".join(out.split())


def test_the_workspace_knows_what_its_own_model_has_seen(run, home, tiny_folder):
    fast = ("--seeds", 1, "--epochs", 1, "--layer", "1")
    pairs = home / "data/sts13/test.csv"
    code, _, err = run("finetune", tiny_folder("electra"), "--data", pairs, *fast)
    assert code == 0, err
    divided = complete_splits(load_pairs(pairs))
    held_out = len(divided.test)
    code, out, err = run("evaluate", "--suite", "sts", "--data", "data")
    assert code == 0, err
    assert "scored with and without those pairs (not counting test)." in err
    found = json.loads((home / "exported/suite-sts.json").read_text())
    assert {row["name"]: row["unseen_pairs"] for row in found["sets"]}["STS13"] == held_out

    code, out, _ = run("evaluate", tiny_folder("electra"), "--suite", "sts", "--data", "data", "--json")
    assert json.loads(out)["seen"] is None  # a model from elsewhere

    # A pair is known again whatever becomes of the file, and of the last command's data.
    seen = {frozenset((pair.first, pair.second)) for part in (divided.train, divided.dev) for pair in part}
    pairs.write_text(pairs.read_text().replace("the cat sat,", "the cat lay,"))
    run("analyze", tiny_folder("electra"))
    run("evaluate", "--suite", "sts", "--data", "data")
    now = [frozenset((pair.first, pair.second)) for pair in load_pairs(pairs, divide=False).evaluation]
    expected = sum(pair not in seen for pair in now)
    assert expected > held_out
    rows = json.loads((home / "exported/suite-sts.json").read_text())["sets"]
    assert {row["name"]: row["unseen_pairs"] for row in rows}["STS13"] == expected
    (home / "exported/lean/seen.pairs").unlink()
    assert "is not known here: name it with --seen." in run("evaluate", "--suite", "sts", "--data", "data")[2]


def of_suite(place):
    """The texts of a row of the similarity sets in `home`."""
    return TEXTS[place], f"{TEXTS[(7 * place + 3) % len(TEXTS)]} {place % 4}"


def as_triplets(places):
    """The pair of a row as positive, in the other order, or as hard negative."""
    rows = [",".join((*reversed(of_suite(place)), "a star")) for place in places[::2]]
    rows += [",".join((of_suite(place)[0], "the moon", of_suite(place)[1])) for place in places[1::2]]
    return "anchor,positive,negative\n" + "\n".join(rows) + "\n"


def as_nli(places):
    """The pair of a row entailed or contradicted; pairs of the class neutral are not learned from."""
    rows = [",".join((*of_suite(place), "entailment")) for place in places[::2]]
    rows += [f"{of_suite(place)[0]},the moon,entailment" for place in places[1::2]]
    rows += [",".join((*of_suite(place), "contradiction")) for place in places[1::2]]
    rows += [",".join((*of_suite(place), "neutral")) for place in (38, 39, 40)]
    return "premise,hypothesis,label\n" + "\n".join(rows) + "\n"


@pytest.mark.parametrize("written", [as_triplets, as_nli])
def test_triplets_of_contrastive_training_count_as_seen(run, home, tiny_folder, written):
    (home / "pairs").mkdir()
    for place, split in enumerate(("train", "dev", "test")):  # of train, the first three stand in the suite
        rows = [",".join(of_suite(row)) for row in range(place * 14, 3)]
        rows += [f"{TEXTS[row]},{TEXTS[row + 1]}" for row in range(place * 14, place * 14 + 13)]
        lines = [f"{row},{score % 6}" for score, row in enumerate(rows)]
        (home / f"pairs/{split}.csv").write_text("sentence1,sentence2,score\n" + "\n".join(lines) + "\n")
    triplets, data = home / "rows.csv", ("--data", "pairs", "--scale", "0,5", "--seeds", 1, "--epochs", 1, "--layer", 1)
    triplets.write_text(written(range(2, 12)))
    asked = ("--objective", "in-batch", "--pooling", "mean", "--triplets", "rows.csv")
    assert run("contrast", tiny_folder("electra"), *asked, *data)[0] == 0

    def unseen():
        code, out, err = run("evaluate", "--suite", "sts", "--data", "data", "--json")
        assert code == 0, err
        found = json.loads(out)
        return found["seen"], [row["unseen_pairs"] for row in found["sets"]]

    name, counts = unseen()
    assert name == "pairs noted in exported/lean"
    assert counts == [42 - 10, 30 - 10]  # rows 2 to 11 from the triplets; nothing is learned from train beside them
    run("analyze", tiny_folder("bert"))  # the last command's model is another one, the triplets are still known
    triplets.unlink()
    assert unseen()[1] == counts
    assert run("evaluate", "--suite", "sts", "--data", "data")[0] == 0
    (home / "exported/lean/seen.pairs").unlink()
    assert unseen() == (None, [None, None])
    assert run("finetune", tiny_folder("electra"), *data)[0] == 0  # a model that learned from the pairs alone
    assert unseen()[1] == [42 - 3, 30 - 3]


def test_transfer_says_that_a_model_learned_from_its_rows(run, home, tiny_folder):
    """Paraphrases are trained on elsewhere in the product, and the classes of the suite are the same."""
    rows = [",".join((*of_suite(place), str(place % 2))) for place in range(42)]
    for folder, chosen in (("learned", rows[:30]), ("suite", rows[20:])):
        (home / folder).mkdir()
        (home / folder / "mrpc.csv").write_text("sentence1,sentence2,label\n" + "\n".join(chosen) + "\n")
    own = home / "learned/mrpc.csv"
    fast = ("--objective", "paraphrase", "--scale", "0,1", "--columns", "sentence1,sentence2,label", "--layer", 1)
    code, _, err = run("finetune", tiny_folder("bert"), "--data", own, *fast, "--seeds", 1, "--epochs", 1)
    assert code == 0, err
    divided = complete_splits(load_pairs(own, columns=("sentence1", "sentence2", "label"), scale=(0, 1)))
    learned = {(pair.first, pair.second) for part in (divided.train, divided.dev) for pair in part}
    number = sum(of_suite(place) in learned for place in range(20, 42))
    command = ("evaluate", "--suite", "transfer", "--data", "suite", "--quick")
    _, _, err = run(*command)
    assert 0 < number < 10
    said = f"lean was trained on or chosen by {number} of the 22 rows of MRPC: accuracy there says little"
    assert said in " ".join(err.split())
    _, _, err = run(command[0], tiny_folder("bert"), *command[1:])
    assert "trained on" not in err


def test_transfer_writes_table_and_curve(run, home, tiny_folder):
    command = ("evaluate", tiny_folder("bert"), "--suite", "transfer", "--data", "data", "--quick")
    code, out, err = run(*command, "--fractions", "0.7,1")
    assert code == 0, err
    found = json.loads((home / "exported/suite-transfer.json").read_text())
    assert [point["fraction"] for point in found["sets"][0]["curve"]] == [0.7, 1.0]
    assert found["num_subsets"] == 15
    assert "MR" in out
    assert "layers combined" in " ".join(out.split())
    assert "at most 2,000 rows were used: not comparable" in out
    assert (home / "exported/suite-transfer.png").read_bytes().startswith(b"\x89PNG")
    kept = (home / "exported/trials/trials.jsonl").read_bytes()
    assert kept.count(b'"kind": "TransferSplit"') == 6  # of two shares, three divisions each
    assert "CLS pooler" in " ".join(out.split())
    code, _, err = run(*command)  # what was finished is not done again
    assert code == 0, err
    assert (home / "exported/trials/trials.jsonl").read_bytes() == kept
    # It went through fewer shares of the rows: the longer run and its figure stay.
    assert "suite-transfer.json measured more than this run and stays as it is." in err
    assert json.loads((home / "exported/suite-transfer.json").read_text()) == found
    assert (home / "exported/suite-transfer.png").exists()
    beside = home / "exported/suite-transfer-2.json"
    assert [point["fraction"] for point in json.loads(beside.read_text())["sets"][0]["curve"]] == [1.0]
    code, out, err = run(*command, "--head")
    assert code == 0, err
    assert json.loads(beside.read_text())["settings"]["head"]
    assert "goes through the trained pooler" in " ".join(out.split())
    code, _, err = run("evaluate", tiny_folder("electra"), *command[2:], "--head")
    assert (code, "has no trained pooler head" in err, "--head" in err) == (1, True, True)


def test_a_share_that_is_too_small_for_one_set_does_not_end_the_run(run, home, tiny_folder):
    command = ("evaluate", tiny_folder("bert"), "--suite", "transfer", "--data", "data", "--quick")
    code, out, err = run(*command, "--fractions", "0.05,1")
    assert code == 0, err
    assert "MR leaves 2 rows to train on at 0.05 of them: left out." in err
    assert "2, too few" in " ".join(out.split())
    assert "MR, 2 rows: left out, 8 are the fewest to choose layers on." in " ".join(out.split())
    (found,) = json.loads((home / "exported/suite-transfer.json").read_text())["sets"]
    assert [point["fraction"] for point in found["curve"]] == [1.0]
    assert found["too_few"] == [{"fraction": 0.05, "train_rows": 2}]


def test_retrieval_says_that_there_are_fewer_lists(run, home, tiny_folder):
    if os.environ.get("CI") != "true":
        pytest.importorskip("faiss")
    (home / "more.txt").write_text("the sun\na star\nthe moon\n" * 2)
    command = ("evaluate", tiny_folder("bert"), "--suite", "retrieval", "--data", "queries.csv", "--corpus", "more.txt")
    code, out, err = run(*command)
    assert code == 0, err
    assert "1 list instead of 1,024: 45 texts cannot place more" in out
    assert "42 queries" in " ".join(out.split())  # a title is broken where the table ends
    found = json.loads((home / "exported/suite-retrieval.json").read_text())
    assert (found["num_texts"], found["lists"]) == (45, 1)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--suite", "glue", "--data", "data"), "'glue'"),
        (("--suite", "sts"), "needs its data"),
        (("--suite", "sts", "--data", "nowhere"), "nowhere"),
        (("--suite", "sts", "--data", "data/sts13"), "none of the sets"),
        (("--suite", "sts", "--data", "data", "--quick"), "--quick"),
        (("--suite", "sts", "--data", "data", "--seen", "nowhere.csv"), "nowhere.csv"),
        (("--suite", "transfer", "--data", "data", "--seen", "x.csv"), "--seen"),
        (("--suite", "transfer", "--data", "data", "--fractions", "half"), "'half'"),
        (("--suite", "transfer", "--data", "data", "--fractions", "0,1"), "between 0 and 1"),
        (("--suite", "transfer", "--data", "data", "--fractions", "0.05"), "MR leaves 2 rows to train on"),
        (("--suite", "retrieval", "--data", "data/sts13/nothing.csv"), "nothing.csv"),
        (("--suite", "retrieval", "--data", "data/mr.csv"), "Call the columns query and relevant."),
        (("--suite", "transfer", "--data", "odd"), "Call the column of texts text"),
        (("--suite", "sts", "--data", "data", "--split", "dev"), "--split goes with graded pairs only"),
        (("--corpus", "more.txt"), "--corpus goes with --suite retrieval only"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_makes_no_sense_is_one_line_and_a_hint(options, named, run, home, tiny_folder):
    (home / "odd").mkdir()
    (home / "odd/mr.csv").write_text("x,label\na cat,1\n")
    code, out, err = run("evaluate", tiny_folder("bert"), *options)
    assert (code, out) == (1, "")
    error, hint = err.strip().splitlines()[-2:]
    assert error.startswith("Error: ")
    assert named in f"{error} {hint}"
    assert hint.startswith("Hint: ")
    assert not (home / "exported").exists()
