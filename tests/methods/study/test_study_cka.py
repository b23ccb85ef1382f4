"""CKA before and after fine-tuning: equal to models trained alone and compared by the definition."""

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from tests.support.cka import cka
from tests.support.files import pairs_file
from truncate_kit.data.pairs import complete_splits, load_pairs
from truncate_kit.methods.study.plan import read_study
from truncate_kit.methods.study.running import run_study
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.pipeline import save_encoder
from truncate_kit.models.truncation import truncate
from truncate_kit.training.examples import LabelledTask
from truncate_kit.training.loop import TrainingRun

STUDY = """
seeds = 1
{more}
training = {{ epochs = 1, learning_rate = 1e-3 }}
models = [{{ model = "{model}", name = "model" }}, {{ model = "{reference}", name = "reference" }}]
tasks = [{{ data = "graded.csv", name = "graded" }}]
"""


@pytest.fixture(scope="module")
def home(tiny_folder, tmp_path_factory):
    home = tmp_path_factory.mktemp("cka")
    pairs_file(home / "graded.csv", "score", (0, 1, 2, 3, 4, 5))
    models = {"model": tiny_folder("electra"), "reference": tiny_folder("bert")}
    for name, more in (
        ("with", 'cka = "reference"'),
        ("without", ""),
        ("part", 'cka = "reference"\nlayers = "1"'),
    ):
        (home / f"{name}.toml").write_text(STUDY.format(more=more, **models))
    return home


@pytest.fixture(scope="module")
def done(home, tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    return run_study(read_study(home / "with.toml"), out), out


def states(folder, texts: list[str], layer: int) -> torch.Tensor:
    """Mean states of a layer by transformers alone, text by text: no padding at all."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    with torch.inference_mode():
        return torch.stack(
            [
                model(**tokenizer(text, return_tensors="pt"), output_hidden_states=True).hidden_states[layer][0].mean(0)
                for text in texts
            ]
        )


def trained_alone(folder, home, layer: int, place):
    """The model cut at a layer and trained by the loop alone, saved."""
    encoder = truncate(load_encoder(folder), layer)
    task = LabelledTask(encoder, complete_splits(load_pairs(home / "graded.csv")))
    examples, dev, _ = task.trial(encoder, 0)
    TrainingRun(encoder, examples, dev, read_study(home / "with.toml").tasks[0].training, seed=0).train()
    return save_encoder(encoder, place)


def test_stages_equal_models_trained_alone(home, done, tmp_path):
    result, _ = done
    study = read_study(home / "with.toml")
    folders = {model.name: model.model for model in study.models}
    test = complete_splits(load_pairs(home / "graded.csv")).test
    texts = list(dict.fromkeys(text for pair in test for text in (pair.first, pair.second)))
    assert [(row.model, row.reference, row.layer) for row in result.cka] == [
        ("model", "reference", n) for n in range(4)
    ]
    assert {row.num_texts for row in result.cka} == {len(texts)}
    for layer in (1, 3):
        row = result.cka[layer]
        untrained = [states(folders[name], texts, layer) for name in ("model", "reference")]
        own, last = (
            [
                states(trained_alone(folders[name], home, cut, tmp_path / f"{name}{cut}"), texts, layer)
                for name in ("model", "reference")
            ]
            for cut in (layer, 3)
        )
        for stage, pair in (("untrained", untrained), ("own_trained", own), ("last_trained", last)):
            for name, estimator in ((stage, "debiased"), (f"{stage}_biased", "biased")):
                assert getattr(row, name) == pytest.approx(float(cka(*pair, estimator)), abs=1e-4), name
    assert result.cka[1].last_trained != result.cka[1].own_trained
    assert result.cka[3].last_trained == result.cka[3].own_trained


def test_scores_are_the_same_without_it_and_no_weights_stay(home, done, tmp_path):
    result, out = done
    without = run_study(read_study(home / "without.toml"), tmp_path)
    assert {(row.model, row.scores) for row in without.rows} == {(row.model, row.scores) for row in result.rows}
    assert without.cka == ()
    assert [row.model for row in result.rows[:2]] == ["reference"] * 2  # the one that others are compared with is first
    assert not [path for path in out.glob("trials/*/*") if path.is_dir() and not path.name.startswith("states-")]


def test_trials_without_weights_are_run_again_with_one_seed(home, done, tmp_path):
    run_study(read_study(home / "without.toml"), tmp_path)
    before = (tmp_path / "trials" / "trials.jsonl").read_bytes()
    result = run_study(read_study(home / "with.toml"), tmp_path)
    assert (tmp_path / "trials" / "trials.jsonl").read_bytes() == before  # a record is written once
    assert result.cka == done[0].cka


def test_a_study_of_some_layers_compares_all_and_trains_the_last(home, tmp_path, done):
    result = run_study(read_study(home / "part.toml"), tmp_path)
    assert {row.scores.layer for row in result.rows} == {1}
    assert [row.own_trained is None for row in result.cka] == [True, False, True, False]
    assert [row.last_trained for row in result.cka] == [row.last_trained for row in done[0].cka]
