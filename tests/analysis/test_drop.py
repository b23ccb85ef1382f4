"""The prediction of a drop on curves of known models, and its sentence."""

from dataclasses import replace

import pytest

from benchmarks.drop import foresight
from truncate_kit.analysis.result import Curve, drop_probability, in_words, predict_drop
from truncate_kit.core.errors import DataError

# CKA to a BERT of the same shape, as published with the miniatures.
DISCRIMINATOR = (0.99, 0.95, 0.92, 0.89, 0.85, 0.81, 0.66, 0.57, 0.50)
GENERATOR = (0.71, 0.76, 0.90, 0.87, 0.87, 0.84, 0.84, 0.84, 0.81)
# CKA of a discriminator of which training got 58.0 points out of layer 2 and 32.1 out of layer 8.
EARLY = (0.98, 0.91, 0.88, 0.78, 0.71, 0.62, 0.55, 0.51, 0.58)
ALIKE = (1.0,) * 9
SHRINKING, STEADY = {"effective_rank": (70.0,) * 8 + (18.0,)}, {"effective_rank": (70.0,) * 8 + (60.0,)}
BERT = {"reference": "mini-bert"}


def predicted(cka, reference=None, high=None, **measures):
    return predict_drop(Curve(values=cka, reference_layers=(), high=high), measures, reference=reference)


@pytest.mark.parametrize(
    ("cka", "signs", "from_layer", "confidence"),
    [
        (DISCRIMINATOR, BERT | SHRINKING, 6, 0.8),
        (EARLY, BERT | SHRINKING, 5, None),  # 5 is the first below 0.83 − 0.15
        (GENERATOR, BERT | STEADY, None, None),
        (GENERATOR, BERT | SHRINKING, None, 0.5),
        (DISCRIMINATOR, BERT | STEADY, None, None),  # the ranks disagree
        (DISCRIMINATOR, BERT | SHRINKING | {"spearman": range(40, 49)}, None, 0.55),  # these do, too
        (DISCRIMINATOR, SHRINKING, 6, None),
        (DISCRIMINATOR, BERT | SHRINKING | {"high": DISCRIMINATOR}, 6, 0.8),
        (DISCRIMINATOR, BERT | SHRINKING | {"high": (1.0,) * 8 + (0.77,)}, 6, 0.5),  # a wide interval
        (DISCRIMINATOR, BERT | SHRINKING | {"anisotropy": (0.5,) * 9}, 6, 0.65),  # disagrees
        (DISCRIMINATOR, BERT | SHRINKING | {"anisotropy": (0.5,) * 8 + (0.96,)}, 6, 0.8),
        (ALIKE, BERT | STEADY, None, 0.9),
        (ALIKE, BERT | STEADY | {"block_influence": (0.1,) * 7 + (0.4,)}, None, 0.7),
        ((None, *DISCRIMINATOR[1:]), BERT | SHRINKING, 6, 0.8),
    ],
)
def test_the_rule(cka, signs, from_layer, confidence):
    found = predicted(cka, **signs)
    assert found.from_layer == from_layer
    assert confidence is None or found.confidence == confidence
    assert ("confidence" in found.sentence) == (from_layer is not None)
    assert found.last_before == (None if from_layer is None else from_layer - 1)
    assert found.signs["CKA lost at the end"] > 0.15 or not from_layer


@pytest.mark.parametrize(
    ("match", "cka"),
    [
        ("CKA is not defined", (*DISCRIMINATOR[:-1], None)),
        ("layer 1, 2, 3, 4 of the model: there is nothing", (0.9, *[None] * 4, 0.9, 0.9, 0.9, 0.9)),
    ],
)
def test_curves_that_predict_nothing(match, cka):
    with pytest.raises(DataError, match=match):
        predicted(cka, **BERT | STEADY)


@pytest.mark.parametrize(
    ("loss", "word"),
    [(0.0, "unlikely"), (-5.0, "unlikely"), (4.0, "possible"), (14.0, "likely"), (400.0, "likely")],
)
def test_a_probability_is_told_in_words_instead_of_the_confidence(loss, word):
    found = predicted(ALIKE, reference="mini-bert", **STEADY, spearman=(60.0,) * 8 + (60.0 - loss,))
    assert found.from_layer is None
    assert found.sureness == word
    assert 0.01 <= found.probability <= 0.99
    assert found.sure == found.probability != found.confidence
    assert f" {word}: " in found.sentence
    assert replace(found, probability=None).sure == found.confidence
    assert replace(found, probability=None).sureness == f"confidence {found.confidence:.2f}"


def test_an_unlikely_drop_has_no_first_layer():
    signs = BERT | {"effective_rank": (70.0,) * 9}
    unlikely, possible = (
        predicted(DISCRIMINATOR, **signs, spearman=(60.0,) * 8 + (60.0 - loss,)) for loss in (3.0, 5.0)
    )
    assert (unlikely.sureness, unlikely.from_layer) == ("unlikely", None)
    assert (possible.sureness, possible.from_layer) == ("possible", 6)


def test_a_better_last_layer_is_unlikely_to_drop_whatever_its_rank():
    """No sweep had a rank below a fifth of the middle's: the fit is not extended to it."""
    rank = (70.0,) * 8 + (0.01,)
    found = predicted(ALIKE, reference="mini-bert", effective_rank=rank, spearman=(60.0,) * 8 + (65.0,))
    assert found.sureness == "unlikely"


def test_no_published_model_but_discriminators_drops_and_the_words_say_so():
    sweeps = [(signs * foresight.UNITS[1:], falls) for signs, falls in foresight.published()]
    assert [sum(falls == wanted for _, falls in sweeps) for wanted in (True, False)] == [6, 15]
    for (lost, halved), falls in sweeps:
        chance = drop_probability((0.0,) * 4 + (-lost,), (1.0,) * 4 + (0.5**halved,))
        assert in_words(chance) == ("likely" if falls else "unlikely")
