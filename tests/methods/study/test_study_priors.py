"""Priors and the control of a study: rows of their own, equal to the same done alone."""

import pytest

from tests.support.files import NOUNS, pairs_file, words_folder, write_study
from tests.support.killing import STUDY, killed
from tests.support.training import swept
from tests.support.trials import read_trials, rows_of
from truncate_kit.data.pairs import complete_splits, load_pairs, load_words
from truncate_kit.data.tables import read_texts
from truncate_kit.methods.priors import WordPrior, adapt
from truncate_kit.methods.study.plan import read_study
from truncate_kit.methods.study.result import StudyResult
from truncate_kit.methods.study.running import run_study
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.truncation import truncate
from truncate_kit.training import settings as configuration
from truncate_kit.training.examples import LabelledTask
from truncate_kit.training.loop import TrainingRun
from truncate_kit.training.settings import AdaptationSettings, TrainingSettings

WORD_EPOCHS = 3  # of fifty in the product, and each is stored
ADAPTATION = {"epochs": 1, "batch_size": 16, "learning_rate": 2e-3}


@pytest.fixture(scope="module", autouse=True)
def _few_epochs():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(configuration, "WORD_EPOCHS", WORD_EPOCHS)
        yield


@pytest.fixture(scope="module")
def home(tiny_folder, tmp_path_factory):
    home = tmp_path_factory.mktemp("priors")
    pairs_file(home / "graded.csv", "score", (0, 1, 2, 3, 4, 5))
    words_folder(home / "words")
    pairs_file(home / "other.csv", "score", (5, 1, 0, 3, 2, 4))
    (home / "raw.txt").write_text("\n".join(f"the {a} sat on the {b}" for a in NOUNS for b in NOUNS))
    graded, one = {"data": "graded.csv"}, {"tasks": ["graded"]}
    write_study(
        home,
        seeds=1,
        layers="1..2",
        read_earlier=True,
        published="published.csv",
        cka="bert",
        training={"epochs": 1, "learning_rate": 1e-3},
        models=[
            {"model": tiny_folder("electra"), "name": "other"},
            {"model": tiny_folder("bert"), "name": "bert", "published": "theirs"},
        ],
        priors=[
            {},
            {"words": "words", "learning_rate": 1e-3} | one,
            {"texts": "raw.txt", "layer": 2} | ADAPTATION | one,
            {"name": "again", "tasks": ["compared"]},
        ],
        tasks=[
            graded | {"name": "graded", "published": "set", "models": ["bert"]},
            graded | {"name": "compared", "read_earlier": False},
            {"data": "other.csv", "name": "other alone", "models": ["other"], "read_earlier": False},
        ],
    )
    (home / "published.csv").write_text(
        "name,setting,dataset,layer,split,metric,mean\n"
        "theirs,plain,set,1,test,spearman,0.1\n"
        "theirs,word-similarity,set,1,test,spearman,0.2\n"
        "theirs,dapt,set,1,test,spearman,0.3\n"
    )
    return home


@pytest.fixture(scope="module")
def done(home, tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    return run_study(read_study(home / "study.toml"), out), out


def scores(result, model):
    return {row.scores.layer: row.scores.test for row in rows_of(result, model, "graded")}


def test_every_prior_and_the_control_have_rows_of_their_own(done):
    result, _ = done
    adapted = "bert, masked words at layer 2 first"
    plain = ["bert", "bert, words first", adapted]
    names = [
        name
        for model, depth in zip(plain, (3, 3, 2), strict=True)
        for name in (model, f"{model}, trained at layer {depth}")
    ]
    assert list(dict.fromkeys(row.model for row in result.of("graded"))) == names
    assert all(set(scores(result, model)) == {1, 2} for model in names)
    compared = {(f"{model}{prior}", "compared") for model in ("bert", "other") for prior in ("", ", again first")}
    assert {(row.model, row.task) for row in result.rows if row.task != "graded"} == {
        *compared,
        ("other", "other alone"),
    }


def test_tasks_on_the_same_data_share_their_trials(done):
    result, out = done
    stores = read_trials(out / "trials" / "trials.jsonl")
    assert [trial.layer for trials in stores.values() for trial in trials].count(2) == 5
    graded, compared = ([row.scores for row in rows_of(result, "bert", task)] for task in ("graded", "compared"))
    assert graded == compared


def test_models_are_compared_where_the_reference_is(done):
    assert {(row.model, row.task) for row in done[0].cka} == {("other", "compared"), ("other, again first", "compared")}
    assert not [row for row in done[0].cka if row.own_trained is None and row.layer in (1, 2)]


def test_killed_at_many_instants_it_ends_like_an_undisturbed_one(home, done, tmp_path):
    assert killed(STUDY, tmp_path, home / "study.toml", WORD_EPOCHS, writes=20, most=4) >= 3
    last = StudyResult.read(tmp_path / "study.json")
    assert (last.rows, last.cka) == (done[0].rows, done[0].cka)


def test_published_figures_are_those_of_the_same_prior(done):
    """Adapting at another layer than the last has no published figure; nor has the control."""
    found = {(row.model, row.scores.layer): row.published_test for row in done[0].rows if row.published_test}
    assert found == {("bert", 1): 10.0, ("bert, words first", 1): 20.0}


def test_rows_equal_the_same_done_alone(home, done, tmp_path):
    result, _ = done
    study = read_study(home / "study.toml")
    encoder, data = load_encoder(study.models[1].model), complete_splits(load_pairs(home / "graded.csv"))
    training = study.tasks[0].training
    rates = TrainingSettings(epochs=WORD_EPOCHS, batch_size=128, learning_rate=1e-3)
    prior = WordPrior(encoder, load_words(home / "words"), rates)
    words = swept(encoder, tmp_path / "a", data, training, layers="1,2", prior=prior)
    assert scores(result, "bert, words first") == {row.layer: row.test for row in words.layers if row.layer < 3}
    model, _ = adapt(encoder, read_texts(home / "raw.txt"), AdaptationSettings(**ADAPTATION), layer=2)
    adapted = swept(model, tmp_path / "b", data, training, layers="1,2")
    assert scores(result, "bert, masked words at layer 2 first") == {row.layer: row.test for row in adapted.layers}
    last = truncate(encoder, 3)
    task = LabelledTask(encoder, data)
    examples, dev, test = task.trial(last, 0)
    TrainingRun(last, examples, dev, training, seed=0).train()
    read = {layer: test.score(truncate(last, layer))[0] for layer in (1, 2)}
    assert scores(result, "bert, trained at layer 3") == pytest.approx(read, abs=1e-3)
