"""`truncate-kit finetune` through the command line, and what the commands after it take up."""

import json
from dataclasses import replace

import pytest

from tests.support.commands import scored
from tests.support.files import NOUNS, SENTENCES, pairs_file, words_folder, write_table
from tests.support.retrieval import judged_folder, retrieval_folder
from truncate_kit.data.pairs import complete_splits, load_pairs
from truncate_kit.methods.tmft.settings import SweepResult
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.store import encoder_digest
from truncate_kit.report.page import write_page
from truncate_kit.report.view import overlap_warning
from truncate_kit.training import queries, settings
from truncate_kit.training import settings as configuration

FAST = ("--seeds", 1, "--epochs", 1, "--layer", "1")


@pytest.fixture
def single_file(tmp_path):
    """One file without splits, as most people have."""
    rows = [(text, f"{SENTENCES[(7 * i + 3) % 42]} {i % 4}", i % 6) for i, text in enumerate(SENTENCES * 3)]
    return write_table(tmp_path / "pairs.csv", ("sentence1", "sentence2", "score"), rows)


def test_a_single_file_is_divided_and_only_its_unseen_pairs_are_scored_afterwards(run, tiny_folder, single_file, drawn):
    code, _, err = run("finetune", tiny_folder("bert"), "--data", single_file, *FAST)
    assert code == 0, err
    assert "was split into train " in err
    warning = overlap_warning(complete_splits(load_pairs(single_file)).overlap)
    assert "the test score may be optimistic" in warning
    card = single_file.parent / "exported/lean/README.md"
    assert warning in err
    assert warning in card.read_text()
    sizes = [f"{name} {len(part):,}" for name, part in complete_splits(load_pairs(single_file)).items()]
    assert f"({', '.join(sizes)} pairs)" in card.read_text()
    assert card.read_text().count("![Scores by layer](curve.png)\n\n## Usage") == 1
    assert card.with_name("curve.png").read_bytes() == (single_file.parent / "exported/curve.png").read_bytes()
    held_out = len(complete_splits(load_pairs(single_file)).test)
    assert held_out < len(load_pairs(single_file, divide=False).train) / 5

    code, out, err = run("evaluate", "--json")
    assert (code, err) == (0, "")
    sweep = json.loads((single_file.parent / "exported/sweep.json").read_text())
    assert json.loads(out)["rows"][0]["task"].endswith(", test")
    assert scored(out)["pairs"] == held_out
    assert scored(out)["Spearman"] == pytest.approx(sweep["layers"][0]["test"], abs=0.01)

    code, out, _ = run("evaluate", tiny_folder("bert"), "--json")  # a model from elsewhere has seen none of it
    assert scored(out)["pairs"] == len(load_pairs(single_file, divide=False).train)

    lines = single_file.read_text().splitlines()
    changed = single_file.with_name("changed.csv")
    changed.write_text("\n".join([lines[0], *sorted(lines[1:])]) + "\n")
    for arguments in (["evaluate"], ["evaluate", "exported/lean", "--workspace", "another"]):
        said = " ".join(run(*arguments, "--data", changed)[2].split())  # sorted, it is another file of the same pairs
        assert f"test {held_out} (80/10/10 %" in said
        assert "layer 1 of 3, fine-tuned on" in said or len(arguments) > 1

    code, out, err = run("export", "--onnx", "--json")
    assert json.loads(out)["num_pairs"] == held_out, err
    few = ("--quick", "--backends", "torch-fp32", "--lengths", "4", "--repeats", 1, "--workspace", "another")
    code, out, err = run("bench", tiny_folder("bert"), "--full", "exported/full", "--data", changed, *few, "--json")
    assert json.loads(out)["num_scored"] == held_out, err
    code, out, err = run("bench", "--json", "--quick", "--backends", "torch-fp32", "--lengths", "4", "--repeats", 1)
    assert json.loads(out)["num_scored"] == held_out, err
    different = {frozenset((pair.first, pair.second)) for pair in complete_splits(load_pairs(single_file)).test}
    assert json.loads(out)["quality"]["num_pairs"] == len(different) < held_out


def test_a_teacher_beside_the_labels(run, tiny_folder, single_file):
    teacher = tiny_folder("electra")
    asked = ("finetune", tiny_folder("bert"), "--data", single_file, *FAST, "--json")
    lean = single_file.parent / "exported/lean"
    assert run(*asked)[0] == 0
    plain = encoder_digest(load_encoder(lean))
    code, out, err = run(*asked, "--teacher", teacher, "--teacher-weight", 0.5)
    assert code == 0, err
    result = json.loads(out)
    assert result["before"] == f"Targets besides the labels: vectors of {teacher}, weight 0.5."
    assert result["before"] in (lean / "README.md").read_text().replace("\\", "")
    assert encoder_digest(load_encoder(lean)) != plain


def test_paraphrase_labels_are_scored_by_f1(run, tiny_folder, tmp_path):
    path = pairs_file(tmp_path / "paraphrases.csv", "label", (0, 1, 1))
    code, out, err = run(
        "finetune", tiny_folder("bert"), "--objective", "paraphrase", "--data", path, *FAST, "--layer", "all"
    )
    assert code == 0, err
    assert "F1 × 100; 1 seed, 1 epoch," in out
    assert "cannot be predicted for classes or labels" in out + err
    assert "A drop of two points" not in out + err


def test_entailment_reads_classes_and_leaves_the_remembered_scores_alone(run, tiny_folder, tmp_path):
    path = pairs_file(tmp_path / "nli.csv", "label", ("yes", "no", "maybe"))
    code, out, err = run("finetune", tiny_folder("bert"), "--objective", "entailment", "--data", path, *FAST)
    assert code == 0, err
    assert "Classes: maybe, no, yes." in err
    assert "macro F1 × 100" in out
    code, _, err = run("evaluate")
    assert code == 0, err
    assert "bundled" in err


def test_word_pairs_get_the_papers_batches_and_epochs(run, tiny_folder, tmp_path, monkeypatch):
    usual = settings.word_training()
    assert usual.epochs == 50
    monkeypatch.setattr(settings, "word_training", lambda: replace(usual, epochs=7))
    folder = tmp_path / "words"
    folder.mkdir()
    rows = [f"{a},{b},{(3 * i + 5 * j) % 11}" for i, a in enumerate(NOUNS) for j, b in enumerate(NOUNS) if i < j]
    (folder / "simlex999.csv").write_text("word1,word2,score\n" + "\n".join(rows) + "\n")
    code, out, err = run("finetune", tiny_folder("bert"), "--data", folder, "--layer", 1, "--seeds", 1, "--json")
    assert code == 0, err
    training = json.loads(out)["training"]
    assert (training["epochs"], training["batch_size"]) == (7, 128)
    code, _, err = run("evaluate")
    assert code == 0, err
    assert "only test is scored" in err


def test_priors_are_said_and_change_the_model(run, tiny_folder, single_file, monkeypatch):
    monkeypatch.setattr(configuration, "WORD_EPOCHS", 3)  # the fifty of the paper are looked at elsewhere
    words = words_folder(single_file.parent / "words")
    command = ("finetune", tiny_folder("bert"), "--data", single_file, *FAST, "--learning-rate", 1e-3)
    code, _, err = run(*command, "--prior-words", words, "--prior-texts", single_file, "--prior-epochs", 1)
    assert code == 0, err
    assert "Adapted at layer 3 to" in err
    assert "masked cross entropy on held-out texts" in err
    assert "Before each trial: Word similarity: rg65 28 merged" in err
    code, out, err = run(*command, "--prior-texts", single_file, "--prior-epochs", 1, "--prior-layer", 2)
    assert code == 0, err
    assert "3 (full model)" in out  # the yardstick is not cut with the model that was adapted
    card = (single_file.parent / "exported/lean/README.md").read_text()
    assert "masked words of pairs.csv at layer 2, except the full model" in card


def test_a_retrieval_folder_chooses(run, single_file, tiny_folder, tmp_path, monkeypatch):
    folder = retrieval_folder(tmp_path / "search")
    command = ("finetune", tiny_folder("bert"), "--data", single_file, "--retrieval", folder, *FAST)
    monkeypatch.setattr(queries, "FEWEST_QUERIES", 9)
    code, out, err = run(*command, "--search-metric", "mrr")
    assert code == 0, err
    assert "MRR@10 of half the queries" in out


def test_queries_of_a_retrieval_folder_teach_choose_and_report(run, tiny_folder, tmp_path):
    folder = judged_folder(tmp_path / "search", test=48)
    code, out, err = run("finetune", tiny_folder("bert"), "--data", folder, *FAST)
    assert code == 0, err
    assert "24 queries with 48 answers for training" in " ".join(err.split())
    assert "nDCG@10 of half the queries" in out
    assert SweepResult.read(tmp_path / "exported/sweep.json").training.objective == "search"
    code, _, err = run("evaluate", "exported/lean", "--data", folder)
    assert code == 0, err
    assert "trained or selected on 36 of 48 queries" in " ".join(err.split())
    write_page(tmp_path / "exported")
    page = (tmp_path / "exported/report.html").read_text()
    assert "search/test" in page
    code, out, err = run("export", "--onnx")  # takes up the folder, as after distill
    assert code == 0, err
