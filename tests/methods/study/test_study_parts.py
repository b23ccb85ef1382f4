"""Tasks that some models meet: what is run, what is compared, and what several tasks on the same data share."""

import pytest

from tests.support.files import pairs_file
from tests.support.trials import read_trials, rows_of
from truncate_kit.methods.study.plan import read_study
from truncate_kit.methods.study.running import run_study


@pytest.fixture(scope="module")
def done(tiny_folder, tmp_path_factory):
    home = tmp_path_factory.mktemp("parts")
    pairs_file(home / "graded.csv", "score", (0, 1, 2, 3, 4, 5))
    pairs_file(home / "other.csv", "score", (5, 1, 0, 3, 2, 4))
    (home / "study.toml").write_text(
        f"""
        seeds = 1
        layers = "2..3"
        cka = "bert"
        training = {{ epochs = 1, learning_rate = 1e-3 }}
        models = [
            {{ model = "{tiny_folder("electra")}", name = "electra" }},
            {{ model = "{tiny_folder("bert")}", name = "bert" }},
        ]
        priors = [{{}}, {{ name = "again", tasks = ["all"] }}]
        tasks = [
            {{ data = "graded.csv", name = "control", models = ["bert"], read_earlier = true }},
            {{ data = "graded.csv", name = "all" }},
            {{ data = "other.csv", name = "electra alone", models = ["electra"] }},
        ]
        """
    )
    out = tmp_path_factory.mktemp("out")
    return run_study(read_study(home / "study.toml"), out), out


def test_models_and_priors_meet_their_tasks_alone(done):
    result, _ = done
    assert {(row.model, row.task) for row in result.rows} == {
        ("bert", "control"),
        ("bert, trained at layer 3", "control"),
        ("bert", "all"),
        ("bert, again first", "all"),
        ("electra", "all"),
        ("electra, again first", "all"),
        ("electra", "electra alone"),
    }


def test_tasks_on_the_same_data_share_their_trials(done):
    result, out = done
    stores = read_trials(out / "trials" / "trials.jsonl")
    assert [trial.layer for trials in stores.values() for trial in trials].count(2) == 3
    assert [row.scores for row in rows_of(result, "bert", "control")] == [
        row.scores for row in rows_of(result, "bert", "all")
    ]


def test_models_are_compared_where_the_reference_is(done):
    result, _ = done
    assert {(row.model, row.task) for row in result.cka} == {("electra", "all"), ("electra, again first", "all")}
    assert not [row for row in result.cka if row.own_trained is None and row.layer in (2, 3)]
