"""One row is all that an objective needs: what a row added here says is trained, scored and shown everywhere."""

import dataclasses

import pytest
import torch

from tests.support.pairs import labelled_splits, word_splits
from tests.support.training import ONCE, swept
from truncate_kit.core.errors import DataError, UsageError
from truncate_kit.data.triplets import TripletSet, raw_texts
from truncate_kit.methods.contrast.run import finetune_contrastive, poolable_encoder
from truncate_kit.methods.contrast.settings import ContrastiveSettings, default_budget
from truncate_kit.methods.tmft.finetune import finetune
from truncate_kit.models.loading import load_encoder
from truncate_kit.training.examples import ContrastiveTexts, LabelledTask, PairEvaluator, Pairs
from truncate_kit.training.loop import TrainingRun
from truncate_kit.training.settings import OBJECTIVES, Objective, TrainingSettings, described, scaled_learning_rate


def absolute(first, second, target):
    return (torch.nn.functional.cosine_similarity(first, second) - target).abs().mean()


@pytest.fixture
def row(monkeypatch):
    """An objective that the package does not have: the absolute difference, on pairs labelled 0 or 1."""
    added = Objective(
        name="absolute",
        data="labels",
        card="TMFT: the absolute difference between cosine and label",
        metric="Spearman × 100, of labels",
        published="rank",
        examples=lambda _, first, second, pairs, seed: Pairs(first, second, pairs.scores01(), absolute),
    )
    monkeypatch.setitem(OBJECTIVES, added.name, added)
    return added


def test_a_test_set_kept_secret_is_said_before_anything_is_trained(tiny_folder, tmp_path):
    """Its scores are all the same number, and no correlation would be there at the end of the first trial."""
    encoder, data = load_encoder(tiny_folder("bert")), word_splits()
    for name in ("dev", "test"):
        pairs = getattr(data, name)
        secret = dataclasses.replace(pairs, pairs=tuple(dataclasses.replace(pair, target=0.0) for pair in pairs))
        hidden = dataclasses.replace(data, **{name: secret})
        with pytest.raises(DataError, match="two different scores"):
            finetune(encoder, hidden, out=tmp_path / name)
        with pytest.raises(DataError, match="two different scores"):
            finetune_contrastive(encoder, raw_texts("texts", data.texts()), hidden, out=tmp_path / name,
                                 settings=ContrastiveSettings(objective="dropout", dropout=0.1))  # fmt: skip
        assert not (tmp_path / name).exists()
        OBJECTIVES["cosine"].check_targets(hidden, scored=False)  # where queries choose and report


def test_a_new_row_is_trained_scored_and_written_on_the_card(row, tiny_folder, tmp_path):
    encoder, data = load_encoder(tiny_folder("bert")), labelled_splits()
    examples, dev, _ = LabelledTask(encoder, data, "absolute").trial(encoder, 0)
    vectors = [encoder.vectors([getattr(pair, side) for pair in data.train]) for side in ("first", "second")]
    encoder.eval()
    loss = examples.loss(encoder, range(len(data.train)))
    torch.testing.assert_close(loss, absolute(*vectors, torch.tensor(data.train.scores())), atol=1e-5, rtol=1e-5)
    result = swept(encoder, tmp_path, data, dataclasses.replace(ONCE, objective="absolute"), layers="1")
    assert result.metric == row.metric
    assert row.card in (tmp_path / "lean/README.md").read_text()
    assert dev.score(load_encoder(tmp_path / "lean"))[0] == pytest.approx(result.lean.dev, abs=1e-3)


class CloseTexts(ContrastiveTexts):
    """The mean of 1 − cosine between a text and its positive: nothing is contrasted."""

    def _loss_of(self, vectors, total):
        first, second = vectors.view(2, total, -1)
        return (1 - torch.nn.functional.cosine_similarity(first, second)).mean()


@pytest.fixture
def contrast_row(monkeypatch):
    """A contrastive objective that neither the package nor Table 4 has."""
    added = Objective(
        name="close",
        method="contrast",
        data="positives",
        card="positives drawn near, with nothing against them",
        epochs=2,
        batch_size=24,
        examples=CloseTexts,
        own=("temperature",),
        without=("mlp",),
    )
    monkeypatch.setitem(OBJECTIVES, added.name, added)
    field = ContrastiveSettings.__dataclass_fields__["objective"]  # a row of the table is there before the field is
    monkeypatch.setattr(field, "metadata", field.metadata | {"choices": [*field.metadata["choices"], added.name]})
    return added


def test_a_new_row_of_contrast_is_trained_and_written_on_the_card(contrast_row, tiny_folder, tmp_path):
    encoder, data = load_encoder(tiny_folder("bert")), word_splits()
    rows = TripletSet(name="near", rows=tuple((pair.first, pair.second) for pair in data.train), note="Near: all.")
    settings = ContrastiveSettings(objective="close", pooling="cls", epochs=1, seeds=(0,), temperature=0.1)
    result = finetune_contrastive(encoder, rows, data, out=tmp_path / "out", settings=settings)
    for width in (16, 768):
        rate = scaled_learning_rate(width)
        assert default_budget("close", "bert", width) == (rate, rate, contrast_row.batch_size)
    rate = scaled_learning_rate(16)
    assert (result.epochs, result.batch_size, result.learning_rate) == (1, contrast_row.batch_size, rate)
    assert contrast_row.card in (tmp_path / "out/lean/README.md").read_text()
    again = poolable_encoder(encoder, settings, seed=0)
    columns = [again.token_ids([getattr(pair, side) for pair in data.train]) for side in ("first", "second")]
    examples, training = CloseTexts(columns), settings.training("bert", 16)
    TrainingRun(again, examples, PairEvaluator(again, data.dev), training, seed=0, evaluate_every=100).train()
    found = load_encoder(tmp_path / "out/lean").vectors(data.texts()[:5])
    torch.testing.assert_close(found, again.vectors(data.texts()[:5]))


def test_help_and_errors_list_the_new_row_and_each_method_takes_its_own(row, contrast_row, tiny_folder):
    assert "absolute (pairs labelled 0 or 1)" in described("tmft")
    assert "absolute" not in described("contrast")
    with pytest.raises(UsageError, match="'squared'") as problem:
        TrainingSettings(objective="squared")
    assert "absolute" in problem.value.hint
    data, dev = labelled_splits(), labelled_splits().dev
    ones = tuple(pair for pair in dev if pair.target == 1)
    for wrong in (dataclasses.replace(dev, scale=(0.0, 5.0)), dataclasses.replace(dev, pairs=ones)):
        with pytest.raises(DataError):
            row.check_targets(dataclasses.replace(data, dev=wrong))
    for given in ({"objective": "dropout", "temperature": 0.1}, {"objective": "close", "mlp": False}):
        with pytest.raises(UsageError, match=f"The objective {given['objective']} does not use"):
            ContrastiveSettings(**given)
    with pytest.raises(UsageError, match="'cosine'"):
        ContrastiveSettings(objective="cosine")
    with pytest.raises(UsageError, match="'in-batch'"):
        LabelledTask(load_encoder(tiny_folder("bert")), data, "in-batch")
