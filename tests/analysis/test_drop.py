import csv
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from truncate_kit.analysis.cka import compare_layers
from truncate_kit.analysis.drop import predict_drop
from truncate_kit.analysis.streaming import StateScores
from truncate_kit.core.errors import DataError, UsageError

# CKA to a BERT of the same shape, as published with the miniatures.
DISCRIMINATOR = (0.99, 0.95, 0.92, 0.89, 0.85, 0.81, 0.66, 0.57, 0.50)
GENERATOR = (0.71, 0.76, 0.90, 0.87, 0.87, 0.84, 0.84, 0.84, 0.81)
ALIKE = (1.0,) * 9
SHRINKING, STEADY = (70.0,) * 8 + (18.0,), (70.0,) * 8 + (60.0,)


def test_discriminator_falls_from_layer_six():
    found = predict_drop(DISCRIMINATOR, reference="mini-bert", effective_rank=SHRINKING)
    assert found.from_layer is not None
    assert found.from_layer == 6
    assert found.confidence == 0.8
    assert "from layer 6 on CKA to mini-bert leaves its plateau (0.91 in the lower half, 0.50 at the" in found.sentence
    assert "confidence 0.80, not calibrated" in found.sentence
    assert found.probability is None


def test_a_model_that_parts_from_its_reference_long_before_its_end_falls():
    """CKA of a discriminator of which training got 58.0 points out of layer 2 and 32.1 out of layer 8."""
    found = predict_drop(
        (0.98, 0.91, 0.88, 0.78, 0.71, 0.62, 0.55, 0.51, 0.58), reference="b", effective_rank=SHRINKING
    )
    assert found.from_layer is not None
    assert found.from_layer == 5  # the first below 0.83 − 0.15, the median of layers 1 to 4 less what counts as a fall


@pytest.mark.parametrize("curve", [GENERATOR, ALIKE])
def test_no_fall_is_predicted_without_a_fall_of_cka(curve):
    found = predict_drop(curve, reference="mini-bert")
    assert found.from_layer is None
    assert found.from_layer is None
    assert found.confidence >= 0.7
    assert found.sentence.startswith("Whether scores drop at the end of this model is not known")
    assert "confidence" not in found.sentence


def test_model_whose_cka_keeps_its_level_stays_even_if_its_rank_shrinks():
    found = predict_drop(GENERATOR, reference="mini-bert", effective_rank=SHRINKING)
    assert found.from_layer is None
    assert found.confidence <= 0.6


def test_cka_alone_is_less_sure_than_with_a_corroborating_sign():
    alone = predict_drop(DISCRIMINATOR, reference="mini-bert")
    assert alone.from_layer is not None
    assert alone.confidence < predict_drop(DISCRIMINATOR, reference="b", effective_rank=SHRINKING).confidence


def test_fall_of_cka_that_the_model_itself_does_not_show():
    by_rank = predict_drop(DISCRIMINATOR, reference="mini-bert", effective_rank=STEADY)
    rising = predict_drop(DISCRIMINATOR, reference="b", effective_rank=SHRINKING, untrained_spearman=range(40, 49))
    for found in (by_rank, rising):  # scores outrank the effective rank
        assert found.from_layer is None
        assert found.confidence <= 0.6
        assert "drops" in found.sentence
        assert "says otherwise" in found.sentence


def test_without_reference_it_is_less_sure_and_says_so():
    found = predict_drop(DISCRIMINATOR, effective_rank=SHRINKING)
    assert found.from_layer is not None
    assert found.confidence <= 0.65
    assert "no reference" in found.sentence
    with pytest.raises(UsageError, match="reference"):
        predict_drop(DISCRIMINATOR)


def test_wide_interval_takes_the_confidence():
    sure = predict_drop(DISCRIMINATOR, reference="b", high=DISCRIMINATOR, effective_rank=SHRINKING)
    unsure = predict_drop(DISCRIMINATOR, reference="b", high=(1.0,) * 8 + (0.77,), effective_rank=SHRINKING)
    assert sure.confidence == 0.8
    assert unsure.from_layer is not None
    assert unsure.confidence == 0.5


def test_disagreeing_signs_take_confidence():
    calm = predict_drop(DISCRIMINATOR, reference="b", effective_rank=SHRINKING, anisotropy=(0.5,) * 9)
    crowded = predict_drop(DISCRIMINATOR, reference="b", effective_rank=SHRINKING, anisotropy=(0.5,) * 8 + (0.96,))
    busy = predict_drop(ALIKE, reference="b", effective_rank=STEADY, block_influence=(0.1,) * 7 + (0.4,))
    assert calm.confidence < crowded.confidence
    assert busy.confidence < predict_drop(ALIKE, reference="b", effective_rank=STEADY).confidence
    assert [*crowded.signs.values()] == pytest.approx([0.405, 18 / 70, 0.96])


def test_undefined_layers_and_models_without_a_middle():
    assert predict_drop((None, *DISCRIMINATOR[1:]), reference="b").from_layer == 6
    with pytest.raises(DataError, match="CKA is not defined"):
        predict_drop((*DISCRIMINATOR[:-1], None), reference="b")
    with pytest.raises(DataError, match="layer 1, 2, 3, 4 of the model: there is nothing to compare"):
        predict_drop((0.9, None, None, None, None, 0.9, 0.9, 0.9, 0.9), reference="b")
    with pytest.raises(UsageError, match="no middle"):
        predict_drop((1.0, 0.4), reference="b")


def _states(folder: Path, texts: list[str]) -> torch.Tensor:
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    parts = []
    with torch.inference_mode():
        for start in range(0, len(texts), 100):
            batch = tokenizer(texts[start : start + 100], padding=True, return_tensors="pt")
            mask = batch["attention_mask"][..., None]
            layers = model(**batch, output_hidden_states=True).hidden_states
            parts.append(torch.stack([(layer * mask).sum(1) / mask.sum(1) for layer in layers]))
    return torch.cat(parts, 1)


def test_real_models_fall_where_training_showed_it(shared_models, shared_data):
    """The discriminator's TMFT scores fall at its end, those of the BERT and the generator do not; 600 sentences."""
    with (shared_data / "stsb/en/test.csv").open(encoding="utf-8") as handle:
        texts = list(dict.fromkeys(row["sentence1"] for row in csv.DictReader(handle)))[:600]
    texts.sort(key=len)  # little padding
    names = ("bert", "electra-discriminator", "electra-generator")
    states = {name: _states(shared_models / f"mini-{name}", texts) for name in names}
    for name, falls in zip(names, (False, True, False), strict=True):
        scores = StateScores()
        scores.update(states[name])
        rank = scores.result()["effective_rank"]
        curve, _ = compare_layers(states[name], states["bert"])
        found = predict_drop(curve.values, reference="bert", low=curve.low, high=curve.high, effective_rank=rank)
        alone = predict_drop(compare_layers(states[name], blocks=0)[1][4], effective_rank=rank)
        assert (found.from_layer is not None) == (alone.from_layer is not None) == falls
        assert alone.confidence <= 0.65
        if falls:
            assert alone.confidence < found.confidence
            assert found.from_layer in (5, 6, 7)


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (4.0, "by sweeps of four small models, however, the probability"),
        (-9.0, "by sweeps of four small models the probability"),
    ],
)
def test_a_probability_that_speaks_against_the_prediction_is_said_as_such(loss, said):
    found = predict_drop(
        ALIKE, reference="mini-bert", effective_rank=STEADY, untrained_spearman=(60.0,) * 8 + (60.0 - loss,)
    )
    assert found.from_layer is None
    assert found.probability is not None
    assert (found.probability > 0.5) == ("however" in said)
    assert found.sure == found.probability != found.confidence
    assert replace(found, probability=0.999).sureness == "probability more than 0.99"  # as in the sentence
    assert replace(found, probability=None).sure == found.confidence
    assert said in found.sentence
