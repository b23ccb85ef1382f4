"""Paraphrase and entailment: objectives, thresholds and F1 against plain computations and scikit-learn."""

import dataclasses

import pytest
import torch
from sklearn.metrics import f1_score

from tests.support.pairs import labelled_splits
from tests.support.training import SETTINGS
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.truncation import truncate
from truncate_kit.training.examples import LabelledTask, best_threshold, cosine_entropy, f1, pair_logits
from truncate_kit.training.loop import TrainingRun


def test_cross_entropy_has_the_cosine_as_logit():
    first, second, target = torch.randn(6, 5), torch.randn(6, 5), torch.tensor([0, 1, 1, 0, 1, 0.0])
    logits = (first * second).sum(1) / first.norm(dim=1) / second.norm(dim=1)
    chance = 1 / (1 + torch.exp(-logits))
    expected = -(target * chance.log() + (1 - target) * (1 - chance).log()).mean()
    torch.testing.assert_close(cosine_entropy(first, second, target), expected)


def test_the_classifier_sees_both_vectors_and_their_distance():
    head, u, v = torch.nn.Linear(12, 3), torch.randn(2, 4), torch.randn(2, 4)
    plain = torch.stack(
        [
            head.weight @ torch.cat([a, b, torch.tensor([abs(x - y) for x, y in zip(a, b, strict=True)])])
            for a, b in zip(u, v, strict=True)
        ]
    )
    torch.testing.assert_close(pair_logits(head, u, v), plain + head.bias)


def test_f1_equals_scikit_learn():
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        predicted, true = (torch.randint(3, (30,), generator=generator).float().tolist() for _ in range(2))
        for place in range(3):
            expected = f1_score([y == place for y in true], [y == place for y in predicted])
            assert f1(predicted, true, place) == pytest.approx(expected)
    assert f1([0.0], [0.0], 1.0) == 0.0


def test_the_threshold_is_the_best_of_all():
    generator = torch.Generator().manual_seed(1)
    for _ in range(30):
        scores = (torch.randint(12, (25,), generator=generator) / 10).tolist()  # many equal scores
        targets = torch.randint(2, (25,), generator=generator).float().tolist()
        found = best_threshold(scores, targets)
        quality = {cut: f1([float(s >= cut) for s in scores], targets, 1.0) for cut in [found, *scores]}
        assert quality[found] == pytest.approx(max(quality.values()))


def test_the_test_set_gets_the_threshold_of_dev(tiny_folder):
    encoder, data = load_encoder(tiny_folder("bert")), labelled_splits()
    _, dev, test = LabelledTask(encoder, data, "paraphrase").trial(encoder, 0)
    threshold = best_threshold(dev.outcomes(encoder.encode_ids(dev.texts())), data.dev.scores())

    def cosines(pairs):
        first, second = encoder.vectors([p.first for p in pairs]), encoder.vectors([p.second for p in pairs])
        return torch.nn.functional.cosine_similarity(first.double(), second.double())

    for evaluator, pairs in ((dev, data.dev), (test, data.test)):
        expected = f1_score(pairs.scores(), (cosines(pairs) >= threshold).double().tolist())
        assert evaluator.score(encoder)[0] == pytest.approx(100 * expected)


def test_the_classifier_belongs_to_the_checkpoint(tiny_folder, tmp_path):
    """A run that is stopped between epochs ends with the same encoder and classifier."""
    full, data = load_encoder(tiny_folder("bert")), labelled_splits((0.2, 0.6))
    settings = dataclasses.replace(SETTINGS, objective="entailment", epochs=3, compact_vocabulary=False)

    def start():
        encoder = truncate(full, 1)
        examples, dev, _ = LabelledTask(full, data, "entailment").trial(encoder, 0)
        torch.manual_seed(0)
        return TrainingRun(encoder, examples, dev, settings, seed=0)

    whole, rest = start(), start()
    whole.train()
    start().train(checkpoint=tmp_path / "c", stop_after=1)
    rest.train(checkpoint=tmp_path / "c")
    assert rest.scores == whole.scores
    for name, value in whole.best.items():
        assert torch.equal(value, rest.best[name])
