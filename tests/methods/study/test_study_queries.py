"""Tasks whose queries choose and report, in the place of pairs, and those that queries teach."""

import dataclasses

import pytest

from tests.support.files import pairs_file
from tests.support.retrieval import judged_folder
from truncate_kit.core.errors import DataError, UsageError
from truncate_kit.data.pairs import load_pairs
from truncate_kit.data.retrieval import read_retrieval
from truncate_kit.methods.study.plan import read_study
from truncate_kit.methods.study.running import check_study, run_study
from truncate_kit.methods.tmft.finetune import finetune
from truncate_kit.methods.tmft.settings import SweepSettings
from truncate_kit.models.loading import load_encoder
from truncate_kit.training.queries import read_judged
from truncate_kit.training.settings import TrainingSettings

TASKS = """
    [[tasks]]
    data = "graded.csv"
    name = "by pairs"

    [[tasks]]
    data = "graded.csv"
    name = "by queries"
    retrieval = "search"
    search_metric = "mrr"

    [[tasks]]
    data = "search"
    name = "queries alone"
"""


@pytest.fixture
def home(tiny_folder, tmp_path):
    pairs_file(tmp_path / "graded.csv", "score", (0, 1, 2, 3, 4, 5))
    judged_folder(tmp_path / "search", test=48)
    return tmp_path


def study_of(home, model, tasks):
    head = (
        f'seeds = 1\nlayers = "2"\ntraining = {{ epochs = 1, learning_rate = 1e-3 }}\n[[models]]\nmodel = "{model}"\n'
    )
    (home / "study.toml").write_text(head + tasks)
    return read_study(home / "study.toml")


def test_a_task_is_what_finetune_does_with_the_same_data(tiny_folder, home, tmp_path):
    study = study_of(home, tiny_folder("bert"), TASKS)
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
        expected = finetune(
            encoder,
            data,
            out=tmp_path / name,
            settings=SweepSettings(layers="2", seeds=(0,)),
            training=dataclasses.replace(training, objective=objective),
            retrieval=searched,
        ).lean
        found = rows[name].scores
        assert (found.dev, found.test) == (expected.dev, expected.test)
        assert rows[name].published_test is None


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ('data = "graded.csv"\nretrieval = "search"\nsearch_metric = "map"', "search_metric: "),
        ('data = "search"\nobjective = "cosine"', "objective cosine does not suit"),
        ('data = "graded.csv"\nobjective = "search"', "objective search does not suit"),
        ('data = "graded.csv"\nobjective = "dropout"', "'dropout' is not an objective"),
    ],
)
def test_what_makes_no_sense_is_one_sentence_and_a_hint(tiny_folder, home, task, message):
    with pytest.raises((DataError, UsageError), match=message) as found:
        check_study(study_of(home, tiny_folder("bert"), f"[[tasks]]\n{task}\n"))
    assert found.value.hint
