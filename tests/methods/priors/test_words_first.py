"""Word similarity before TMFT: the same as training by hand, kept apart in the store."""

import dataclasses

import pytest

from tests.support.pairs import make_pairs, word_splits
from tests.support.training import SHORT, swept, without_dropout
from tests.support.trials import Watcher
from truncate_kit.core.progress import TrialWatcher
from truncate_kit.data.pairs import PairSplits
from truncate_kit.methods.priors import WordPrior
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.truncation import truncate
from truncate_kit.training.examples import LabelledTask
from truncate_kit.training.loop import TrainingRun
from truncate_kit.training.settings import TrainingSettings

WORDS = PairSplits(name="words", train=make_pairs(60, 3), shares=(0.7, 0.15, 0.15))


def kill(event):
    if (event.kind, event.layer, event.done) == ("epoch", 2, 2):
        raise KeyboardInterrupt


def test_a_killed_trial_does_not_learn_its_words_again(tiny_folder, tmp_path):
    encoder = load_encoder(tiny_folder("bert"))  # with dropout: the random numbers must go on as well
    prior = WordPrior(encoder, WORDS, TrainingSettings(epochs=2, batch_size=16, learning_rate=1e-3))
    how = {"layers": "2", "seeds": (1,), "training": dataclasses.replace(SHORT, epochs=3), "prior": prior}
    with pytest.raises(KeyboardInterrupt):
        swept(encoder, tmp_path / "killed", progress=Watcher(kill), **how)
    heard, watcher = [], TrialWatcher()
    watcher.progress = lambda task, done, total: heard.append((task, done))
    again = swept(encoder, tmp_path / "killed", progress=watcher, **how)
    undisturbed = swept(encoder, tmp_path / "undisturbed", **how)
    assert not [task for task, _ in heard if task.startswith("words")]
    assert heard[0] == ("layer 2, seed 1, 3 epochs", -(-64 // SHORT.batch_size) + 1)  # after the first epoch
    assert again.lean == undisturbed.lean


def test_a_trial_learns_words_at_its_own_layer_first(tiny_folder, tmp_path):
    encoder = without_dropout(load_encoder(tiny_folder("bert")))
    short = TrainingSettings(epochs=2, batch_size=16, learning_rate=1e-3)
    prior = WordPrior(encoder, WORDS, short)
    result = swept(encoder, tmp_path, training=SHORT, layers="2", seeds=(1,), prior=prior)
    by_hand = truncate(encoder, 2)
    for pairs, how in ((WORDS, short), (word_splits(), SHORT)):
        task = LabelledTask(encoder, pairs)
        examples, dev, _ = task.trial(by_hand, 1)
        TrainingRun(by_hand, examples, dev, how, seed=1).train()
    _, _, test = LabelledTask(encoder, word_splits()).trial(by_hand, 1)
    assert result.lean.test == pytest.approx(test.score(by_hand)[0], abs=1e-3)
    without = swept(encoder, tmp_path, training=SHORT, layers="2", seeds=(1,))
    assert without.lean.test != result.lean.test  # not taken from the same store
    assert len([path for path in (tmp_path / "trials").iterdir() if path.is_dir()]) == 2
