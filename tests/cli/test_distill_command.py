"""`distill` as a user calls it: what it shows, where the model is, what it refuses."""

import json
from dataclasses import replace

import numpy as np
import pytest

from tests.support.commands import refused, run, run_both
from tests.support.distributed import assert_same, in_two_processes
from tests.support.files import pairs_file
from tests.support.made_results import a_distillation
from tests.support.retrieval import DOCUMENTS, QUERIES, retrieval_folder
from truncate_kit.data import BUNDLED, load_pairs, read_retrieval
from truncate_kit.evaluation.graded import evaluate
from truncate_kit.methods.distill.distilling import TEXTS, find_aim
from truncate_kit.methods.distill.frontier import own_pairs
from truncate_kit.methods.distill.result import DistillResult, Frontier, FrontierPoint
from truncate_kit.methods.distill.settings import Budget
from truncate_kit.methods.distill.texts import FEWEST_TEXTS, TextStore
from truncate_kit.models import keep, load_encoder
from truncate_kit.training.evaluators import halves
from truncate_kit_cli.console import VERBOSITY, show

WORDS = ["the", "cat", "dog", "sat", "ran", "on", "under", "a", "red", "blue", "big", "small", "tree", "mat", "and"]


@pytest.fixture
def texts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "texts.txt"
    file.write_text("".join(f"{one} {other} mat\n" for one in WORDS for other in WORDS))
    return file


def test_from_raw_text_to_a_model_that_the_next_command_takes(texts, tiny_folder, capfd, drawn):
    (texts.parent / "held.csv").write_text("sentence1,sentence2,score\nThe cat mat,a dog mat,1\n")
    model = tiny_folder("bert")
    out = run(
        capfd,
        "distill",
        model,
        "--texts",
        texts,
        "--blocks",
        "1,3",
        "--exclude",
        texts.parent / "held.csv",
        "--verbose",
    )
    assert "223 distinct texts" in out
    assert "2 texts of evaluation sets compared as whole texts, 2 found and left out." in out
    assert "2 blocks of 3 (1, 3)" in out
    assert "choices of blocks tried" in out
    assert "the ones named, and simpler rules." in out
    assert all(rule in out for rule in ("first", "even", "block influence", "angular", "cka"))
    assert "exported/lean" in out
    assert (texts.parent / "exported/frontier.png").stat().st_size > 10_000
    lean = load_encoder(texts.parent / "exported/lean")
    assert lean.depth == 2
    card = (texts.parent / "exported/lean/README.md").read_text()
    assert "2 of 3 blocks" in card
    assert "1, 3 of 3" in card
    _, err = run_both(capfd, "encode", texts, "--out", "vectors.npy")
    assert f"blocks 1, 3 of {model}, distilled" in err
    assert f"{model}, blocks 1, 3 of 3, distilled from raw text" in run(capfd, "status")
    assert "were freed" in run(capfd, "status", "--clean")
    assert not (texts.parent / "exported/distillation").exists()
    assert "blocks 1, 3 of 3" in run(capfd, "status")


def test_documents_of_a_retrieval_folder_are_learned_beside_other_texts(texts, tiny_folder, capfd):
    folder = retrieval_folder(texts.parent / "searched")
    lines = (folder / "corpus.jsonl").read_text().splitlines()
    lines[0] = json.dumps({"_id": "d0", "title": "", "text": ""})
    (folder / "corpus.jsonl").write_text("\n".join(lines) + "\n")
    command = ("distill", tiny_folder("bert"), "--texts", folder, "--texts", texts, "--blocks", "1,3", "--json")
    assert json.loads(run(capfd, *command))["texts"]["num_texts"] == len(DOCUMENTS) - 1 + 225
    store = TextStore(texts.parent / "exported" / TEXTS)
    read = store.read(range(len(store)))
    assert read[: len(DOCUMENTS) - 1] == list(read_retrieval(folder).documents[1:])  # titles belong to them
    assert not set(QUERIES) & set(read)
    unseen = ("distill", tiny_folder("bert"), "--texts", folder, "--exclude", folder, "--blocks", "1,3")
    assert "left out, because they are to be excluded or stand in the data for evaluation" in refused(capfd, *unseen)


def test_json_and_again(texts, tiny_folder, capfd):
    command = ("distill", tiny_folder("bert"), "--texts", texts, "--speedup", "1.01", "--json")
    first = json.loads(run(capfd, *command))
    assert first["frontier"] is None
    assert len(first["candidates"]) == 3
    assert first["chosen"] in [row["blocks"] for row in first["candidates"][:2]]
    assert json.loads(run(capfd, *command)) == first
    measured = FrontierPoint(
        blocks=(1, 3), precision="int8", dims=8, words=40, score=81.5, texts_per_second=20.0, megabytes=0.1
    )
    result = replace(
        DistillResult.read(texts.parent / "exported/lean/distill.json"),
        frontier=Frontier(points=(measured,), words=None, all_words=40, covered=100.0, seconds=1.0),
    )
    show(result)
    shown = capfd.readouterr().out
    assert "81.50" in shown
    assert shown.count("┏") == 1, "one table; that of the sizes with --verbose"


def test_what_another_graph_beats_is_shown_with_verbose(tmp_path, capfd, monkeypatch):
    made = a_distillation()
    first, second, third = made.frontier.points
    points = (first, replace(second, dominated=True, score=12.34), third)
    result = replace(made, frontier=replace(made.frontier, points=points))
    show(result)
    assert "12.34" not in capfd.readouterr().out
    monkeypatch.setattr(VERBOSITY, "verbose", True)  # as --verbose does, without another distillation
    show(result)
    line = next(line for line in capfd.readouterr().out.splitlines() if "12.34" in line)
    assert "(12.34)" in line


@pytest.mark.parametrize(
    ("options", "said", "hint"),
    [
        ((), "There are no texts to learn from.", "--texts FILE"),
        (("--texts", "nowhere.txt"), "nowhere.txt", ""),
        (("--texts", "few.txt"), "Only 2 distinct texts", "tens of thousands"),
        (("--texts", "texts.txt", "--blocks", "2", "--within", "1"), "two budgets", "Leave out --within or --blocks"),
        (("--texts", "texts.txt", "--blocks", "9"), "No lean model has 9 blocks", "--blocks from 1 to 2"),
        (("--texts", "texts.txt", "--blocks", "1,9"), "Block 9 does not exist", ""),
        (("--texts", "texts.txt", "--layer", "2", "--blocks", "2,3"), "Block 3 lies behind layer 2", "up to 2"),
        (("--texts", "texts.txt", "--blocks", "3,1"), "do not rise", ""),
        (("--texts", "texts.txt", "--megabytes", "0.001"), "takes 0.0 megabytes", "--onnx --precision int8"),
        (("--texts", "texts.txt", "--precision", "fp8"), "no training precision 'fp8'", "fp32"),
        (("--texts", "texts.txt", "--query-weight", "-1"), "--query-weight -1.0 is too small", "from 0"),
        (("--texts", "texts.txt", "--exclude", "nothing.csv"), "nothing.csv", ""),
        (("--texts", "texts.txt", "--exclude", "nothing.csv", "--layer", "high"), "'high' is no layer", "as a number"),
    ],
)
def test_what_it_refuses(texts, tiny_folder, capfd, options, said, hint):
    (texts.parent / "few.txt").write_text("a cat\na dog\n")
    problem = refused(capfd, "distill", tiny_folder("bert"), *options)
    assert said in problem
    assert hint in problem
    assert not (texts.parent / "exported").exists()


def test_the_fewest_blocks_within_points(texts, tiny_folder, capfd):
    command = ("distill", tiny_folder("bert"), "--texts", texts, "--json")
    loose = json.loads(run(capfd, *command, "--within", "60"))
    assert (loose["budget"]["within"], loose["holds"], len(loose["chosen"])) == (60, True, 1)
    assert loose["needed"] == 100 - 3 * 60
    strict = json.loads(run(capfd, *command, "--within", "0.1"))
    assert strict["needed"] == pytest.approx(99.7)
    best = {tuple(row["blocks"]): row["best"] for row in strict["students"]}
    assert strict["holds"] == any(score >= 99.7 for score in best.values())


def test_the_most_blocks_that_fit_into_megabytes(texts, tiny_folder, capfd):
    encoder = load_encoder(tiny_folder("bert"))
    two, three = (keep(encoder, range(1, size + 1)).num_parameters * 4 / 1e6 for size in (2, 3))
    command = ("distill", tiny_folder("bert"), "--texts", texts, "--json", "--megabytes", f"{(two + three) / 2:.6f}")
    found = json.loads(run(capfd, *command))
    assert len(found["chosen"]) == 2
    assert load_encoder(texts.parent / "exported/lean").num_parameters * 4 / 1e6 == pytest.approx(two)


def test_queries_have_their_own_weight(texts, tiny_folder, capfd):
    queries = texts.parent / "queries.txt"
    queries.write_text("".join(f"{one} under {other}\n" for one in WORDS for other in WORDS[:3]))
    command = ("distill", tiny_folder("bert"), "--texts", texts, "--blocks", "1,3", "--queries", queries, "--json")
    plain, heavy = (json.loads(run(capfd, *command, *more)) for more in ((), ("--query-weight", "5")))
    assert plain["texts"]["num_queries"] == heavy["texts"]["num_queries"] == len(WORDS) * 3
    assert heavy["settings"]["query_weight"] == 5
    scores = [found["students"][-1]["scores"] for found in (plain, heavy)]
    assert scores[0] != scores[1]
    limited = json.loads(run(capfd, *command, "--max-texts", "210"))
    assert (limited["texts"]["num_texts"], limited["texts"]["num_queries"]) == (210 + len(WORDS) * 3, len(WORDS) * 3)


def test_a_retrieval_folder_chooses_by_half_of_its_queries_and_reports_the_other(texts, tiny_folder, capfd):
    folder = texts.parent / "beir"
    (folder / "qrels").mkdir(parents=True)
    documents = [f"{one} ran {other} under a red tree" for one in WORDS for other in WORDS[:4]]
    titles = [f"{text} and ran" for text in documents]
    named = zip(titles, documents, strict=True)
    lines = [json.dumps({"_id": f"d{n}", "title": title, "text": text}) for n, (title, text) in enumerate(named)]
    (folder / "corpus.jsonl").write_text("\n".join(lines))
    queries = [f"{WORDS[place % 15]} big {WORDS[place // 15]}" for place in range(24)]
    lines = [json.dumps({"_id": f"q{place}", "text": text}) for place, text in enumerate(queries)]
    (folder / "queries.jsonl").write_text("\n".join(lines))
    rows = [f"q{place}\td{place * 2 + step}\t1" for place in range(24) for step in (0, 1)]
    (folder / "qrels/test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *rows]))
    with texts.open("a") as file:
        file.write(f"{documents[0]}\n{titles[1]}\n{titles[2]} {documents[2]}\n{queries[1].upper()}\n")
    command = ("distill", tiny_folder("bert"), "--texts", texts, "--blocks", "2", "--data", folder, "--json")
    found = json.loads(run(capfd, *command))
    assert found["metric"] == "nDCG@10 of half the queries"
    whole = [f"{title} {text}" for title, text in zip(titles, documents, strict=True)]
    held_out = {*documents, *titles, *whole, *queries}
    shared = sum(text.lower() in held_out for text in texts.read_text().splitlines())
    assert (found["texts"]["compared"], found["texts"]["excluded"]) == (len(held_out), shared)
    assert shared >= 4
    data, full = read_retrieval(folder), load_encoder(tiny_folder("bert"))
    lean = load_encoder(texts.parent / "exported/lean")
    choosing, reporting = halves(full, data)
    assert found["full_score"] == pytest.approx(choosing.score(full)[0], abs=1e-3)
    student = next(row for row in found["students"] if row["blocks"] == found["chosen"])
    assert student["best"] == pytest.approx(choosing.score(lean)[0], abs=1e-3)
    scores = found["scores"]
    assert scores["lean"] == pytest.approx(reporting.score(lean)[0], abs=1e-3)
    assert scores["full"] == pytest.approx(reporting.score(full)[0], abs=1e-3)
    assert scores["low"] <= scores["difference"] <= scores["high"]
    assert scores["mixed"] is not None


def test_pairs_to_choose_by_need_no_train_split(texts, tiny_folder, tmp_path, capfd):
    folder = tmp_path / "pairs"
    folder.mkdir()
    for name in ("dev", "test"):
        pairs_file(folder / f"{name}.csv", "score", (0, 1, 2, 3, 4, 5))
    command = ("distill", tiny_folder("bert"), "--texts", texts, "--blocks", "1,3", "--data", folder, "--json")
    result = DistillResult.from_dict(json.loads(run(capfd, *command)))
    assert result.metric == "Spearman × 100 on dev"
    assert result.scores is not None


def test_a_retrieval_folder_is_excluded_as_a_whole(texts, tiny_folder, capfd):
    folder = retrieval_folder(texts.parent / "beir")
    (folder / "qrels/dev.tsv").write_text("q18\td1\t1\n")
    learned = [*DOCUMENTS[:3], f"big {DOCUMENTS[4]}", QUERIES[0], QUERIES[18]]
    with texts.open("a") as file:
        file.write("".join(f"{text}\n" for text in learned))
    command = ("distill", tiny_folder("bert"), "--texts", texts, "--blocks", "1,3", "--exclude", folder, "--json")
    assert json.loads(run(capfd, *command))["texts"]["excluded"] == len(learned)


def test_a_set_of_longer_texts_than_were_learned_from_is_noted_where_it_is_searched(texts, tiny_folder, capfd):
    folder, model = retrieval_folder(texts.parent / "beir"), tiny_folder("bert")
    run(capfd, "distill", model, "--texts", texts, "--blocks", "1,3", "--json")
    said = "longer than those learned from: 95 of 100 have up to"
    for command in (("evaluate", "exported/lean"), ("compare", model, "exported/lean")):
        assert said in " ".join(run_both(capfd, *command, "--data", folder)[1].split())
    assert said not in " ".join(run_both(capfd, "evaluate", model, "--data", folder)[1].split())
    longer = texts.parent / "longer.txt"
    longer.write_text("".join(f"{one} and {one}\n" for one in DOCUMENTS * 4))
    longer.write_text("".join(f"{line} {word}\n" for line in longer.read_text().splitlines() for word in WORDS[:4]))
    run(capfd, "distill", model, "--texts", longer, "--blocks", "1,3", "--json")
    assert said not in " ".join(run_both(capfd, "evaluate", "exported/lean", "--data", folder)[1].split())


def test_without_labels_a_graph_is_judged_by_the_full_models_cosines(texts, tiny_folder, capfd):
    model = tiny_folder("bert")
    run(capfd, "distill", model, "--texts", texts, "--blocks", "1,3", "--json")
    out = run(capfd, "export", "--onnx", "--precision", "int8", "--json")
    task = json.loads(out)["task"]
    assert (task["data"], task["num_pairs"]) == (f"cosines of {model}/test", 21)
    full, lean, store = load_encoder(model), load_encoder("exported/lean"), TextStore(texts.parent / "exported" / TEXTS)
    report = np.random.default_rng(0).permutation(len(store))[:42][21:]
    pairs = own_pairs(full, store.read(report)).pairs
    assert task["spearman_before"] == pytest.approx(evaluate(lean, pairs).spearman, abs=0.1)
    _, err = run_both(capfd, "export", "--onnx")
    assert "cosines of the full model between texts that were held out stand for them." in " ".join(err.split())
    pairs = texts.parent / "pairs.csv"
    pairs.write_text("sentence1,sentence2,score\n" + "".join(f"a {one},the {one} cat,{len(one)}\n" for one in WORDS))
    assert "pairs.csv" in run_both(capfd, "export", "--onnx", "--data", pairs)[1]
    assert "pairs.csv" in run_both(capfd, "export", "--onnx")[1]  # labels that were named say more
    run(capfd, "distill", model, "--texts", texts, "--blocks", "1,3", "--workspace", "other", "--json")
    run(capfd, "status", "--clean", "--workspace", "other")
    assert "bundled" in run_both(capfd, "export", "--onnx", "--workspace", "other")[1]


def test_several_processes_started_by_torchrun(texts, tiny_folder, tmp_path, capfd):
    options = ["--texts", texts, "--blocks", "1,3", "--similarity", "1", "--states", "0.5", "--epochs", "2"]
    options += ["--max-texts", FEWEST_TEXTS]
    alone = ["distill", tiny_folder("bert"), *options, "--workspace", tmp_path / "alone"]
    together = ["distill", tiny_folder("bert"), *options, "--workspace", tmp_path / "together"]
    code = f"from truncate_kit_cli.app import main; main({list(map(str, together))!r})"
    ended = in_two_processes(code)
    assert [status for status, _, _ in ended] == [0, 0], ended
    assert ["Saved:" in out for _, out, _ in ended] == [True, False]  # only the leading one speaks
    run(capfd, *alone)
    models = [load_encoder(tmp_path / name / "lean") for name in ("alone", "together")]
    weights = [dict(model.named_parameters()) for model in models]
    assert_same(weights[1], weights[0], 1e-3)


def test_where_a_fall_is_predicted_the_layer_before_it_is_learned(tmp_path):
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(dict.fromkeys(load_pairs(BUNDLED).texts()[:100])))
    encoder, learned = load_encoder("mini-electra-discriminator"), texts.read_text().splitlines()
    before, drop = find_aim(encoder, learned, Budget(blocks="2"))
    assert 2 <= before < encoder.depth
    assert drop.from_layer == before + 1
    assert find_aim(encoder, learned, Budget(blocks="1,8"))[0] is None
    assert find_aim(encoder, learned, Budget(blocks=str(before + 1)))[0] == before + 1
    assert find_aim(load_encoder("mini-bert"), learned, Budget())[0] is None
