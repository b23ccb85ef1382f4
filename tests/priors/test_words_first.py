"""Word similarity before TMFT: the same as training by hand, kept apart in the store."""

import dataclasses

import pytest

from tests.sweep.test_strategies import data
from tests.training.test_training import SETTINGS, make_pairs, without_dropout
from truncate_kit.data import PairSplits
from truncate_kit.encoders import load_encoder, truncate
from truncate_kit.priors import WordPrior
from truncate_kit.progress import TrialWatcher
from truncate_kit.sweep import SweepSettings, finetune
from truncate_kit.sweep.tasks import LabelledTask
from truncate_kit.training import TrainingSettings, train

WORDS = PairSplits(name="words", train=make_pairs(80, 3), shares=(0.7, 0.15, 0.15))


def test_the_defaults_are_the_papers(tiny_folder):
    prior = WordPrior(load_encoder(tiny_folder("bert")), WORDS)
    assert (prior.settings.epochs, prior.settings.batch_size) == (50, 128)


class Killed(TrialWatcher):
    """Kills the run after the second epoch of a trial at layer 2."""

    def epoch(self, layer, seed, epochs, done, loss, dev):
        if (layer, done) == (2, 2):
            raise KeyboardInterrupt


def test_a_killed_trial_does_not_learn_its_words_again(tiny_folder, tmp_path):
    encoder = load_encoder(tiny_folder("bert"))  # with dropout: the random numbers must go on as well
    prior = WordPrior(encoder, WORDS, TrainingSettings(epochs=2, batch_size=16, learning_rate=1e-3))
    how = {
        "settings": SweepSettings(layers="2", seeds=(1,)),
        "training": dataclasses.replace(SETTINGS, epochs=3),
        "prior": prior,
    }
    with pytest.raises(KeyboardInterrupt):
        finetune(encoder, data(), out=tmp_path / "killed", watcher=Killed(), **how)
    heard = []
    again = finetune(
        encoder, data(), out=tmp_path / "killed", progress=lambda task, done, total: heard.append((task, done)), **how
    )
    undisturbed = finetune(encoder, data(), out=tmp_path / "undisturbed", **how)
    assert not [task for task, _ in heard if task.startswith("words")]
    assert heard[0] == ("layer 2, seed 1, 3 epochs", -(-64 // SETTINGS.batch_size) + 1)  # after the first epoch
    assert again.lean == undisturbed.lean


def test_what_a_kill_left_beside_a_finished_trial_is_tidied_up(tiny_folder, tmp_path):
    how = {
        "settings": SweepSettings(layers="2", seeds=(1,)),
        "training": dataclasses.replace(SETTINGS, epochs=1),
        "prior": WordPrior(load_encoder(tiny_folder("bert")), WORDS, TrainingSettings(epochs=1, batch_size=16)),
    }
    first = finetune(load_encoder(tiny_folder("bert")), data(), out=tmp_path, **how)
    (store,) = (tmp_path / "trials").iterdir()
    for epochs in (0, 1):
        (store / f"layer02-seed1-epochs{epochs}.checkpoint").write_bytes(b"whatever")
    again = finetune(load_encoder(tiny_folder("bert")), data(), out=tmp_path, **how)
    assert again.lean == first.lean
    assert not list(tmp_path.rglob("*.checkpoint"))


def test_a_trial_learns_words_at_its_own_layer_first(tiny_folder, tmp_path):
    encoder = without_dropout(load_encoder(tiny_folder("bert")))
    short = TrainingSettings(epochs=2, batch_size=16, learning_rate=1e-3)
    prior = WordPrior(encoder, WORDS, short)
    training = dataclasses.replace(SETTINGS, epochs=2)
    settings = SweepSettings(layers="2", seeds=(1,))
    result = finetune(encoder, data(), out=tmp_path, settings=settings, training=training, prior=prior)
    by_hand = truncate(encoder, 2)
    for pairs, how in ((WORDS, short), (data(), training)):
        task = LabelledTask(encoder, pairs)
        examples, dev, _ = task.trial(by_hand, 1)
        train(by_hand, examples, dev, how, seed=1)
    _, _, test = LabelledTask(encoder, data()).trial(by_hand, 1)
    assert result.lean.test == pytest.approx(test.score(by_hand)[0], abs=1e-3)
    without = finetune(encoder, data(), out=tmp_path, settings=settings, training=training)
    assert without.lean.test != result.lean.test  # not taken from the same store
    assert len(list((tmp_path / "trials").iterdir())) == 2
