"""CKA before and after fine-tuning: equal to models trained alone and compared by the definition."""

import functools
from pathlib import Path

import pytest
import torch

from tests.support.cka import cka
from tests.support.families import plain_states
from tests.support.files import pairs_file, write_study
from truncate_kit.data.pairs import complete_splits, load_pairs
from truncate_kit.methods.study.plan import read_study
from truncate_kit.methods.study.running import run_study
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.pipeline import save_encoder
from truncate_kit.models.truncation import truncate
from truncate_kit.training.examples import LabelledTask
from truncate_kit.training.loop import TrainingRun


@pytest.fixture(scope="module")
def home(tiny_folder, tmp_path_factory):
    home = tmp_path_factory.mktemp("cka")
    pairs_file(home / "graded.csv", "score", (0, 1, 2, 3, 4, 5))
    folders = {"model": tiny_folder("electra"), "reference": tiny_folder("bert")}
    models = [{"model": folder, "name": name} for name, folder in folders.items()]
    tasks, training = [{"data": "graded.csv", "name": "graded"}], {"epochs": 1, "learning_rate": 1e-3}
    compared = {"cka": "reference"}
    for name, more in (("with", compared), ("without", {}), ("part", compared | {"layers": "1"})):
        write_study(home, seeds=1, **more, training=training, models=models, tasks=tasks).rename(home / f"{name}.toml")
    return home


@pytest.fixture(scope="module")
def done(home, tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    return run_study(read_study(home / "with.toml"), out), out


def states(folder, texts: list[str], layer: int) -> torch.Tensor:
    """Mean states of a layer by transformers alone, text by text: no padding at all."""
    return torch.stack([plain_states(Path(folder), text)[layer].mean(0) for text in texts])


def test_stages_equal_models_trained_alone(home, done, tmp_path):
    result, _ = done
    study = read_study(home / "with.toml")
    folders = {model.name: model.model for model in study.models}

    data = complete_splits(load_pairs(home / "graded.csv"))

    @functools.cache
    def trained(name, layer):
        """The model cut at a layer and trained by the loop alone, saved."""
        encoder = truncate(load_encoder(folders[name]), layer)
        examples, dev, _ = LabelledTask(encoder, data).trial(encoder, 0)
        TrainingRun(encoder, examples, dev, study.tasks[0].training, seed=0).train()
        return save_encoder(encoder, tmp_path / f"{name}{layer}")

    texts = data.test.texts()
    assert [(row.model, row.reference, row.layer) for row in result.cka] == [(*folders, n) for n in range(4)]
    assert {row.num_texts for row in result.cka} == {len(texts)}
    for layer in (1, 3):
        row = result.cka[layer]
        untrained = [states(folder, texts, layer) for folder in folders.values()]
        own, last = ([states(trained(name, cut), texts, layer) for name in folders] for cut in (layer, 3))
        for stage, pair in (("untrained", untrained), ("own_trained", own), ("last_trained", last)):
            for name, estimator in ((stage, "debiased"), (f"{stage}_biased", "biased")):
                assert getattr(row, name) == pytest.approx(float(cka(*pair, estimator)), abs=1e-4), name
    assert result.cka[1].last_trained != result.cka[1].own_trained
    assert result.cka[3].last_trained == result.cka[3].own_trained


def test_without_it_scores_are_the_same_and_it_runs_trials_again_for_their_weights(home, done, tmp_path):
    result, out = done
    without = run_study(read_study(home / "without.toml"), tmp_path)
    assert {(row.model, row.scores) for row in without.rows} == {(row.model, row.scores) for row in result.rows}
    assert without.cka == ()
    assert [row.model for row in result.rows[:2]] == ["reference"] * 2  # the one that others are compared with is first
    assert not [path for path in out.glob("trials/*/*") if path.is_dir() and not path.name.startswith("states-")]
    before = (tmp_path / "trials" / "trials.jsonl").read_bytes()
    assert run_study(read_study(home / "with.toml"), tmp_path).cka == result.cka
    assert (tmp_path / "trials" / "trials.jsonl").read_bytes() == before  # a record is written once


def test_a_study_of_some_layers_compares_all_and_trains_the_last(home, tmp_path, done):
    result = run_study(read_study(home / "part.toml"), tmp_path)
    assert {row.scores.layer for row in result.rows} == {1}
    assert [row.own_trained is None for row in result.cka] == [True, False, True, False]
    assert [row.last_trained for row in result.cka] == [row.last_trained for row in done[0].cka]
