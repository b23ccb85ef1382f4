"""`truncate-kit finetune` through the command line, and what the commands after it take up."""

import json
from dataclasses import replace

import pytest

from tests.support.commands import run_json, scored
from tests.support.files import SENTENCES, pairs_file, words_folder, write_table
from tests.support.retrieval import judged_folder, retrieval_folder
from truncate_kit.data.pairs import complete_splits, load_pairs
from truncate_kit.methods.tmft.settings import SweepResult
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.store import encoder_digest
from truncate_kit.report.page import write_page
from truncate_kit.report.view import overlap_warning
from truncate_kit.training import queries, settings

FAST = ("--seeds", 1, "--epochs", 1, "--layer", "1")


@pytest.fixture
def single_file(tmp_path):
    """One file without splits, as most people have."""
    rows = [(text, f"{SENTENCES[(7 * i + 3) % 42]} {i % 4}", i % 6) for i, text in enumerate(SENTENCES * 3)]
    return write_table(tmp_path / "pairs.csv", ("sentence1", "sentence2", "score"), rows)


def test_a_single_file_is_divided_and_only_its_unseen_pairs_are_scored_afterwards(
    run, tiny_folder, single_file, drawn, capfd
):
    _, err = run("finetune", tiny_folder("bert"), "--data", single_file, *FAST)
    splits, whole = complete_splits(load_pairs(single_file)), load_pairs(single_file, divide=False).train
    warning = overlap_warning(splits.overlap)
    card = single_file.parent / "exported/lean/README.md"
    assert warning in err
    assert warning in card.read_text()
    sizes = [f"{name} {len(part):,}" for name, part in splits.items()]
    assert f"({', '.join(sizes)} pairs)" in card.read_text()
    assert card.read_text().count("![Scores by layer](curve.png)\n\n## Usage") == 1
    assert card.with_name("curve.png").read_bytes() == (single_file.parent / "exported/curve.png").read_bytes()
    held_out = len(splits.test)
    assert held_out < len(whole) / 5

    out, err = run("evaluate", "--json")
    assert err == ""
    sweep = json.loads((single_file.parent / "exported/sweep.json").read_text())
    assert json.loads(out)["rows"][0]["task"].endswith(", test")
    assert scored(out)["pairs"] == held_out
    assert scored(out)["Spearman"] == pytest.approx(sweep["layers"][0]["test"], abs=0.01)

    out, _ = run("evaluate", tiny_folder("bert"), "--json")  # a model from elsewhere has seen none of it
    assert scored(out)["pairs"] == len(whole)

    lines = single_file.read_text().splitlines()
    changed = single_file.with_name("changed.csv")
    changed.write_text("\n".join([lines[0], *sorted(lines[1:])]) + "\n")
    for arguments in (["evaluate"], ["evaluate", "exported/lean", "--workspace", "another"]):
        said = " ".join(run(*arguments, "--data", changed)[1].split())  # sorted, it is another file of the same pairs
        assert f"test {held_out} (80/10/10 %" in said

    assert run_json(capfd, "export", "--onnx")["num_pairs"] == held_out
    few = ("--quick", "--backends", "torch-fp32", "--lengths", "4", "--repeats", 1)
    other = (tiny_folder("bert"), "--full", "exported/full", "--data", changed, "--workspace", "another")
    assert run_json(capfd, "bench", *other, *few)["num_scored"] == held_out
    found = run_json(capfd, "bench", *few)
    assert found["num_scored"] == held_out
    different = {frozenset((pair.first, pair.second)) for pair in splits.test}
    assert found["quality"]["num_pairs"] == len(different) < held_out


def test_a_teacher_beside_the_labels(run, tiny_folder, single_file, capfd):
    teacher, lean = tiny_folder("electra"), single_file.parent / "exported/lean"
    asked = ("finetune", tiny_folder("bert"), "--data", single_file, *FAST)
    run(*asked)
    plain = encoder_digest(load_encoder(lean))
    before = run_json(capfd, *asked, "--teacher", teacher, "--teacher-weight", 0.5)["before"]
    assert before == f"Targets besides the labels: vectors of {teacher}, weight 0.5."
    assert before in (lean / "README.md").read_text().replace("\\", "")
    assert encoder_digest(load_encoder(lean)) != plain


def test_paraphrase_labels_are_scored_by_f1(run, tiny_folder, tmp_path):
    path = pairs_file(tmp_path / "paraphrases.csv", "label", (0, 1, 1))
    asked = ("--objective", "paraphrase", "--data", path, *FAST, "--layer", "all")
    out, err = run("finetune", tiny_folder("bert"), *asked)
    assert "F1 × 100; 1 seed, 1 epoch," in out
    assert "cannot be predicted for classes or labels" in out + err


def test_entailment_reads_classes_and_leaves_the_remembered_scores_alone(run, tiny_folder, tmp_path):
    path = pairs_file(tmp_path / "nli.csv", "label", ("yes", "no", "maybe"))
    out, err = run("finetune", tiny_folder("bert"), "--objective", "entailment", "--data", path, *FAST)
    assert "Classes: maybe, no, yes." in err
    assert "macro F1 × 100" in out
    assert "bundled" in run("evaluate")[1]


def test_word_pairs_get_the_papers_batches_and_epochs(run, tiny_folder, tmp_path, monkeypatch, capfd):
    usual = settings.word_training()
    assert usual.epochs == 50
    monkeypatch.setattr(settings, "word_training", lambda: replace(usual, epochs=7))
    asked = ("--data", words_folder(tmp_path / "words"), "--layer", 1, "--seeds", 1)
    training = run_json(capfd, "finetune", tiny_folder("bert"), *asked)["training"]
    assert (training["epochs"], training["batch_size"]) == (7, 128)
    assert "only test is scored" in run("evaluate")[1]


def test_priors_are_said_and_change_the_model(run, tiny_folder, single_file, monkeypatch):
    monkeypatch.setattr(settings, "WORD_EPOCHS", 3)  # fifty epochs, as in the paper, take long
    words = words_folder(single_file.parent / "words")
    command = ("finetune", tiny_folder("bert"), "--data", single_file, *FAST, "--learning-rate", 1e-3)
    _, err = run(*command, "--prior-words", words, "--prior-texts", single_file, "--prior-epochs", 1)
    assert "Adapted at layer 3 to" in err
    assert "Before each trial: Word similarity: rg65 28 merged" in err
    out, _ = run(*command, "--prior-texts", single_file, "--prior-epochs", 1, "--prior-layer", 2)
    assert "3 (full model)" in out  # the yardstick is not cut with the model that was adapted
    card = (single_file.parent / "exported/lean/README.md").read_text()
    assert "masked words of pairs.csv at layer 2, except the full model" in card


def test_a_retrieval_folder_chooses(run, single_file, tiny_folder, tmp_path, monkeypatch):
    folder = retrieval_folder(tmp_path / "search")
    command = ("finetune", tiny_folder("bert"), "--data", single_file, "--retrieval", folder, *FAST)
    monkeypatch.setattr(queries, "FEWEST_QUERIES", 9)
    assert "MRR@10 of half the queries" in run(*command, "--search-metric", "mrr")[0]


def test_queries_of_a_retrieval_folder_teach_choose_and_report(run, tiny_folder, tmp_path):
    folder = judged_folder(tmp_path / "search", test=48)
    out, err = run("finetune", tiny_folder("bert"), "--data", folder, *FAST)
    assert "24 queries with 48 answers for training" in " ".join(err.split())
    assert "nDCG@10 of half the queries" in out
    assert SweepResult.read(tmp_path / "exported/sweep.json").training.objective == "search"
    said = run("evaluate", "exported/lean", "--data", folder)[1]
    assert "trained or selected on 36 of 48 queries" in " ".join(said.split())
    write_page(tmp_path / "exported")
    assert "search/test" in (tmp_path / "exported/report.html").read_text()
    run("export", "--onnx")  # takes up the folder, as after distill
