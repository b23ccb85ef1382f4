"""A trial whose loss is no number ends alone: all others are run and kept, and an error says which it was."""

import dataclasses
import shutil

import pytest
from safetensors.torch import load_file, save_file

from tests.support.commands import ended
from tests.support.files import pairs_file, write_study
from tests.support.pairs import make_pairs
from truncate_kit.core.errors import DivergedError
from truncate_kit.core.files import is_unfinished
from truncate_kit.data.pairs import PairSplits
from truncate_kit.data.triplets import raw_texts
from truncate_kit.methods.contrast.run import finetune_contrastive
from truncate_kit.methods.contrast.settings import ContrastiveSettings
from truncate_kit.methods.frozen.run import finetune_frozen
from truncate_kit.methods.frozen.settings import FrozenSettings
from truncate_kit.methods.study.plan import read_study
from truncate_kit.methods.study.running import run_study
from truncate_kit.methods.tmft.trials import TrialRunner
from truncate_kit.models.loading import load_encoder
from truncate_kit.training.settings import TrainingSettings, Trial

DATA = PairSplits(name="pairs", train=make_pairs(24), dev=make_pairs(12, 1), test=make_pairs(12, 2))


@pytest.fixture
def bursting(tiny_folder, tmp_path):
    """A model whose last block gives numbers that float32 does not hold; those below it are as they were."""
    folder = tmp_path / "bursting"
    shutil.copytree(tiny_folder("bert"), folder)
    weights = load_file(folder / "model.safetensors")
    weights["encoder.layer.2.output.dense.weight"].fill_(3e38)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def test_a_layer_that_diverges_ends_alone(bursting, tmp_path):
    runner = TrialRunner(load_encoder(bursting), DATA, TrainingSettings(epochs=1), tmp_path)
    places = [(layer, seed) for layer in (1, 3, 2) for seed in (0, 1)]
    said = r"Layer 3, seed 0: Training diverged in epoch 1, step 1,.* Also diverged: Layer 3, seed 1. Finished trials"
    with runner.store.open(), pytest.raises(DivergedError, match=said) as raised:
        runner.run_all(places)
    assert "learning_rate" in raised.value.hint
    assert {(trial.layer, trial.seed) for trial in runner.store.all(Trial).values()} == {(1, 0), (1, 1), (2, 0), (2, 1)}
    assert not list(tmp_path.rglob("*.checkpoint"))


def test_the_other_models_of_a_study_go_on(bursting, tiny_folder, tmp_path):
    pairs_file(tmp_path / "p.csv", "score", range(6))
    models, tasks = [{"model": bursting}, {"model": tiny_folder("bert")}], [{"data": "p.csv", "scale": [0, 5]}]
    file = write_study(tmp_path, seeds=1, layers="2..3", training={"epochs": 1}, models=models, tasks=tasks)
    seen = []
    with pytest.raises(DivergedError, match=r"bursting, .*Layer 3, seed 0: .*Finished trials are kept"):
        run_study(read_study(file), tmp_path / "out", finished=seen.append)
    assert [row.scores.layer for row in seen[-1].rows] == [2, 3]
    assert dataclasses.asdict(seen[-1].rows[0])["model"] != "bursting"


def test_an_adapted_model_waits_for_a_smaller_rate(bursting, tmp_path, capsys):
    """It is cut below the block that bursts, which the full model has: only that one diverges."""
    pairs_file(tmp_path / "p.csv", "score", range(6))
    work = tmp_path / "work"
    command = ("finetune", bursting, "--data", tmp_path / "p.csv", "--scale", "0,5", "--workspace", work)
    prior = ("--prior-texts", tmp_path / "p.csv", "--prior-epochs", 1, "--prior-layer", 2)
    assert ended(capsys, *command, *prior, "--layer", 1, "--seeds", 1, "--epochs", 1)[0] == 1
    assert not any(map(is_unfinished, work.glob("trials/*")))
    assert is_unfinished(work / "adapted")


def test_every_seed_of_contrast_is_run(bursting, tmp_path):
    rows = raw_texts("raw", [f"the cat {place} sat" for place in range(8)])
    settings = ContrastiveSettings(objective="dropout", seeds=(3, 4), epochs=1, batch_size=4)
    with pytest.raises(DivergedError, match=r"Seed 3: Training diverged.* Finished trials are kept"):
        finetune_contrastive(load_encoder(bursting), rows, DATA, out=tmp_path, settings=settings)
    assert not (tmp_path / "lean").exists()


def test_heads_over_other_blocks_go_on(bursting, tmp_path):
    settings = FrozenSettings(steps=("siamese",), layers="2,3", seeds=(0, 1), epochs=1)
    said = r"siamese-blocks03-seed0: Training diverged.* Finished trials are kept"
    with pytest.raises(DivergedError, match=said):
        finetune_frozen(load_encoder(bursting), DATA, out=tmp_path, settings=settings)
    assert {path.stem for path in tmp_path.rglob("siamese-blocks*")} == {
        "siamese-blocks02-seed0",
        "siamese-blocks02-seed1",
    }
