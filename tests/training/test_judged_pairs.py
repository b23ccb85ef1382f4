"""A retrieval folder to learn from: who teaches, what the loss is, and what is known of it afterwards."""

import dataclasses
import math

import pytest
import torch

from tests.support.retrieval import judged_folder, write_lines
from tests.support.training import SHORT, swept, without_dropout
from truncate_kit.core.errors import DataError, UsageError
from truncate_kit.data.retrieval import read_retrieval, with_queries
from truncate_kit.data.seen import unseen_queries
from truncate_kit.evaluation.retrieval import evaluate_retrieval
from truncate_kit.methods.tmft.finetune import finetune
from truncate_kit.models.loading import load_encoder
from truncate_kit.training.examples import TEMPERATURE, LabelledTask
from truncate_kit.training.queries import choosing_queries, halves, read_judged

SEARCH = dataclasses.replace(SHORT, objective="search")


def queries_of(pairs):
    return {pair.first for pair in pairs}


def check_apart(data, asked):
    """No query is on two sides, and those that choose and report are the two halves of the set."""
    train, dev, test = (queries_of(pairs) for _, pairs in data.items())
    assert len(train | dev | test) == len(train) + len(dev) + len(test)
    assert dev == set(choosing_queries(asked))
    assert dev | test == set(asked.queries)
    assert not train & asked.asked


def test_queries_of_one_split_are_divided(tmp_path):
    folder = judged_folder(tmp_path / "one", test=48)
    data, asked = read_judged(folder, metric="mrr")
    whole = read_retrieval(folder)
    check_apart(data, asked)
    sizes = [len(queries_of(pairs)) for _, pairs in data.items()]
    assert sizes == [24, 12, 12]
    assert queries_of(data.train) | set(asked.queries) == set(whole.queries)
    assert (asked.documents, asked.metric) == (whole.documents, "mrr")
    # The half that teaches is the one that would choose: the other one reports where the set is only chosen by.
    assert queries_of(data.train) == set(choosing_queries(whole))
    answers = {
        (query, whole.documents[place], grade)
        for query, grades in zip(whole.queries, whole.relevance, strict=True)
        for place, grade in grades.items()
    }
    assert {(pair.first, pair.second, pair.target) for _, pairs in data.items() for pair in pairs} == answers
    counts = "24 queries with 48 answers for training, 12 for selection and 12 for reporting."
    assert f"{whole.name}: {counts}" in data.notes


def test_a_train_split_teaches_and_other_splits_never_do(tmp_path):
    folder = judged_folder(tmp_path / "three", train=30, dev=24, test=8)
    rows = [("q30", "d1"), ("q60", "d2")]  # queries of dev and test that train judges as well
    with (folder / "qrels/train.tsv").open("a") as lines:
        lines.writelines(f"{query}\t{document}\t1\n" for query, document in rows)
    data, asked = read_judged(folder)
    assert asked.name.endswith("three/dev")
    check_apart(data, asked)
    assert [len(queries_of(pairs)) for _, pairs in data.items()] == [30, 12, 12]
    assert asked.name in data.notes[0]
    assert not queries_of(data.train) & set(read_retrieval(folder, split="test").queries)
    assert set(asked.queries) == set(read_retrieval(folder, split="dev").queries)


def test_a_query_that_reports_teaches_as_a_document_neither(tmp_path):
    folder = judged_folder(tmp_path / "own", train=30, dev=24)
    dev = read_retrieval(folder, split="dev").queries[0]
    documents = [{"_id": f"d{n}", "text": dev if n == 3 else f"text {n}"} for n in range(56)]
    write_lines(folder / "corpus.jsonl", documents)
    data, _ = read_judged(folder)
    assert dev not in data.train.texts()
    assert len(data.train) == 58  # two queries had it as an answer


@pytest.mark.parametrize(
    ("splits", "problem"),
    [
        ({"test": 39}, "39 judged queries: too few to train on"),
        ({"train": 9, "test": 20}, "9 judged queries: too few to train on"),
        ({"train": 30, "test": 19}, "19 judged queries: too few to select on one half"),
        ({"train": 39}, "39 judged queries: too few to train on"),
    ],
)
def test_too_few_queries_are_one_sentence_and_a_hint(tmp_path, splits, problem):
    with pytest.raises(DataError, match=problem) as found:
        read_judged(judged_folder(tmp_path / "few", **splits))
    assert found.value.hint


def alike(measure, one, other):
    """How alike two vectors are, by its formula."""
    if measure == "dot":
        return float((one * other).sum())
    if measure == "euclidean":
        return -float((one - other).square().sum().sqrt())
    return float((one * other).sum() / (one.square().sum() * other.square().sum()).sqrt())


@pytest.mark.parametrize("measure", ["cosine", "dot", "euclidean"])
def test_the_loss_is_that_of_a_loop_without_other_answers(tiny_folder, tmp_path, measure):
    """By the measure that the model is searched by: cosines over the temperature, others as they are."""
    encoder = without_dropout(load_encoder(tiny_folder("bert")))
    encoder.settings["similarity_fn_name"] = measure
    data, asked = read_judged(judged_folder(tmp_path / "set", test=48))
    examples, _, _ = LabelledTask(encoder, data, "search", queries=halves(encoder, asked)).trial(encoder, 0)
    batch = [0, 1, 2, 3, 7, 9, 10, 11]
    rows = [data.train.pairs[place] for place in batch]
    answers = {(pair.first, pair.second) for pair in data.train}
    sides = [encoder.vectors([getattr(row, side) for row in rows]).double() for side in ("first", "second")]
    temperature = TEMPERATURE if measure == "cosine" else 1
    losses, left_out = [], 0
    for at, row in enumerate(rows):
        total = 0.0
        for other, document in enumerate(rows):
            if other != at and (row.first, document.second) in answers:
                left_out += 1
                continue
            total += math.exp(alike(measure, sides[0][at], sides[1][other]) / temperature)
        losses.append(math.log(total) - alike(measure, sides[0][at], sides[1][at]) / temperature)
    assert left_out > 4
    expected = pytest.approx(sum(losses) / len(losses), rel=1e-4)
    assert float(examples.loss(encoder.train(), batch).detach()) == expected
    assert not examples.separable  # parts of a batch have other negatives
    unread = examples.loss_of(torch.empty(16, 16, device="meta"), batch)  # has no values: a GPU is not waited for
    assert unread.shape == ()


def test_a_teachers_vectors_are_those_of_its_searches(tiny_folder, tmp_path):
    encoder, teacher = (load_encoder(tiny_folder("bert")) for _ in range(2))
    teacher.settings |= {"prompts": {"query": "the red ", "passage": "not "}}
    data, asked = read_judged(judged_folder(tmp_path / "set", test=48))
    tasks = [LabelledTask(encoder, data, "search", one, 2.0, halves(encoder, asked)) for one in (None, teacher)]
    plain, taught = (task.trial(encoder, 0)[0].loss(encoder.eval(), range(6)) for task in tasks)
    pairs = data.train.pairs[:6]
    own = encoder.vectors([text for pair in pairs for text in (pair.first, pair.second)])
    texts = [text for pair in pairs for text in (f"the red {pair.first}", f"not {pair.second}")]
    beside = 1 - torch.nn.functional.cosine_similarity(own, teacher.vectors(texts, prompt=False))
    assert float(taught - plain) == pytest.approx(2 * float(beside.mean()), rel=1e-3)


def test_who_taught_and_chose_is_known_afterwards(tiny_folder, tmp_path):
    encoder, folder = load_encoder(tiny_folder("bert")), judged_folder(tmp_path / "set", test=48)
    data, asked = read_judged(folder)
    result = swept(encoder, tmp_path / "out", data, SEARCH, layers="2", retrieval=asked)
    assert (result.metric, result.retrieval) == ("nDCG@10 of half the queries", asked.name)
    lean, chose = tmp_path / "out/lean", choosing_queries(asked)
    reports = with_queries(asked, [place for place, query in enumerate(asked.queries) if query not in chose])
    expected = evaluate_retrieval(load_encoder(lean), reports, model="lean").means["nDCG@10"]
    assert result.lean.test == pytest.approx(expected, abs=1e-3)
    with pytest.raises(UsageError, match="The objective search needs queries for evaluation"):
        finetune(encoder, data, out=tmp_path / "without", training=SEARCH)
    assert set(unseen_queries(read_retrieval(folder), lean)[0].queries) == set(reports.queries)
