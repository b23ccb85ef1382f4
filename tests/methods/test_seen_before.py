"""A model, or its teacher, that had seen the test pairs: every method that trains says so, or scores without them."""

from dataclasses import replace

import numpy as np
import pytest

from tests.support.pairs import WORDS, make_pairs
from tests.support.training import swept
from truncate_kit.data.pairs import PairSplits
from truncate_kit.data.seen import keys_of, pair_keys
from truncate_kit.data.triplets import raw_texts
from truncate_kit.evaluation.graded import evaluate
from truncate_kit.methods.contrast.run import finetune_contrastive
from truncate_kit.methods.contrast.settings import ContrastiveSettings
from truncate_kit.methods.distill.distilling import distill
from truncate_kit.methods.distill.settings import Budget, DistillSettings
from truncate_kit.methods.frozen.run import finetune_frozen
from truncate_kit.methods.frozen.settings import FrozenSettings
from truncate_kit.models.loading import load_encoder
from truncate_kit.report.page import Run, write_page
from truncate_kit.report.view import view_of

TEXTS = [f"{first} {second} {third}" for first in WORDS for second in WORDS for third in WORDS[:3]]


@pytest.fixture
def data():
    pairs = tuple(dict.fromkeys(make_pairs(90).pairs))  # no part has a pair of another
    ends = {"train": (0, 20), "dev": (20, 30), "test": (30, 45)}
    parts = {name: replace(make_pairs(1), name=f"set/{name}", pairs=pairs[slice(*at)]) for name, at in ends.items()}
    return PairSplits(name="set", **parts)


@pytest.fixture
def knowing(data, tiny_folder):
    """A model that had learned from eight of the test pairs."""
    encoder = load_encoder(tiny_folder("bert"))
    encoder.seen = keys_of(data.test.pairs[:8])
    return encoder


def number_seen(data):
    return int(np.isin(pair_keys(data.test), keys_of(data.test.pairs[:8])).sum())


def said_of(data):
    return f"model was trained or selected on {number_seen(data)} of 15 pairs of set/test: "


def test_fine_tuning_says_it_of_the_model_and_of_its_teacher(knowing, data, tiny_folder, tmp_path):
    plain = load_encoder(tiny_folder("bert"))
    found = swept(knowing, tmp_path / "own", data, layers="1")
    assert found.seen_before.startswith(said_of(data))
    assert found.seen_before in (tmp_path / "own/lean/README.md").read_text().replace("\n", " ")
    taught = swept(plain, tmp_path / "taught", data, layers="1", teacher=knowing)
    assert taught.seen_before == found.seen_before
    assert swept(plain, tmp_path / "none", data, layers="1").seen_before == ""
    write_page(tmp_path / "own")
    assert said_of(data) in (tmp_path / "own/report.html").read_text()


def test_contrast_says_it(knowing, data, tmp_path):
    settings = ContrastiveSettings(objective="dropout", pooling="mean", epochs=1, batch_size=8, seeds=(0,), dropout=0.1)
    found = finetune_contrastive(knowing, raw_texts("texts", TEXTS[:40]), data, out=tmp_path, settings=settings)
    assert found.seen_before.startswith(said_of(data))
    assert found.seen_before in view_of(found).notes
    write_page(tmp_path)
    assert said_of(data) in (tmp_path / "report.html").read_text()


def test_frozen_heads_say_it(knowing, data, tmp_path):
    settings = FrozenSettings(steps=("cosine",), epochs=1, seeds=(0,), layers="1")
    found = finetune_frozen(knowing, data, out=tmp_path, settings=settings)
    assert any(note.startswith(said_of(data)) for note in found.notes)
    assert write_page(tmp_path).recommendations[0].startswith("No recommendation")


def test_distillation_is_scored_without_them(knowing, data, tmp_path):
    settings = DistillSettings(batch_size=8, learning_rate=1e-3)
    found = distill(knowing, TEXTS, out=tmp_path / "own", budget=Budget(blocks="1,2"), settings=settings, data=data)
    left = [pair for pair in data.test if pair_keys([pair])[0] not in knowing.seen]
    assert found.scores.num_compared == len(left) == 15 - number_seen(data)
    assert found.scores.full == pytest.approx(evaluate(knowing, left).spearman)
    assert found.num_seen == number_seen(data)
    assert Run(tmp_path / "own").results == [found]
    knowing.seen = keys_of(data.test)
    nothing = distill(knowing, TEXTS, out=tmp_path / "all", budget=Budget(blocks="1,2"), settings=settings, data=data)
    assert nothing.scores is None
    assert nothing.num_seen == 15
