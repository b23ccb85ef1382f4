"""Tasks whose queries choose and report, in the place of pairs, and those that queries teach."""

import dataclasses

import pytest

from tests.support.files import pairs_file, write_study
from tests.support.retrieval import judged_folder
from tests.support.training import swept
from truncate_kit.core.errors import DataError, UsageError
from truncate_kit.data.pairs import load_pairs
from truncate_kit.data.retrieval import read_retrieval
from truncate_kit.methods.study.plan import read_study
from truncate_kit.methods.study.running import check_study, run_study
from truncate_kit.models.loading import load_encoder
from truncate_kit.training.queries import read_judged
from truncate_kit.training.settings import TrainingSettings

GRADED = {"data": "graded.csv"}
QUERIES = GRADED | {"name": "by queries", "retrieval": "search", "search_metric": "mrr"}
TASKS = (GRADED | {"name": "by pairs"}, QUERIES, {"data": "search", "name": "queries alone"})


@pytest.fixture
def home(tiny_folder, tmp_path):
    pairs_file(tmp_path / "graded.csv", "score", (0, 1, 2, 3, 4, 5))
    judged_folder(tmp_path / "search", test=48)
    return tmp_path


def study_of(home, model, *tasks):
    training = {"epochs": 1, "learning_rate": 1e-3}
    models = [{"model": model}]
    return read_study(write_study(home, seeds=1, layers="2", training=training, models=models, tasks=[*tasks]))


def test_a_task_is_what_finetune_does_with_the_same_data(tiny_folder, home, tmp_path):
    study = study_of(home, tiny_folder("bert"), *TASKS)
    result = run_study(study, tmp_path / "out")
    rows = {row.task: row for row in result.rows}
    metrics = [rows[task.name].metric for task in study.tasks]
    assert metrics == ["Spearman × 100", "MRR@10 of half the queries", "nDCG@10 of half the queries"]
    encoder, training = load_encoder(tiny_folder("bert")), TrainingSettings(epochs=1, learning_rate=1e-3)
    judged, asked = read_judged(home / "search")
    whole = read_retrieval(home / "search", chooses=True, metric="mrr")
    for name, data, searched, objective in (
        ("by queries", load_pairs(home / "graded.csv"), whole, "cosine"),
        ("queries alone", judged, asked, "search"),
    ):
        taught, out = dataclasses.replace(training, objective=objective), tmp_path / name
        expected = swept(encoder, out, data, taught, layers="2", retrieval=searched).lean
        found = rows[name].scores
        assert (found.dev, found.test) == (expected.dev, expected.test)
        assert rows[name].published_test is None


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (QUERIES | {"search_metric": "map"}, "search_metric: "),
        ({"data": "search", "objective": "cosine"}, "objective cosine does not suit"),
    ],
)
def test_what_makes_no_sense_is_one_sentence_and_a_hint(tiny_folder, home, task, message):
    with pytest.raises((DataError, UsageError), match=message) as found:
        check_study(study_of(home, tiny_folder("bert"), task))
    assert found.value.hint
