"""Which layer's vectors are learned where none is named, by the bundled models."""

import pytest

from truncate_kit import find_aim
from truncate_kit.data import BUNDLED, load_pairs
from truncate_kit.errors import UsageError
from truncate_kit.methods.distill.settings import LOWEST_TAUGHT, Budget, DistillSettings
from truncate_kit.models import load_encoder


@pytest.fixture(scope="module")
def texts():
    return list(dict.fromkeys(load_pairs(BUNDLED).texts()[:100]))


@pytest.fixture(scope="module")
def electra():
    return load_encoder("mini-electra-discriminator")


def test_the_layer_before_a_predicted_drop_is_learned(electra, texts):
    found = find_aim(electra, iter(texts))
    assert found.layer == max(LOWEST_TAUGHT, found.drop.last_before) < electra.depth
    assert DistillSettings(layer=found.layer)
    deeper = find_aim(electra, texts, Budget(blocks=found.layer + 1))
    assert deeper.layer == found.layer + 1  # as many blocks have to be there
    beyond = find_aim(electra, texts, Budget(blocks=f"1,{electra.depth}"))
    assert (beyond.layer, beyond.drop) == (None, found.drop)


def test_the_last_layer_is_learned_where_no_drop_is_predicted(electra, texts):
    assert find_aim(load_encoder("mini-bert"), texts) == (None, None)
    assert find_aim(electra, texts[:2]) == (None, None)  # too few to be analysed


def test_a_budget_that_cannot_be_met_is_refused_before_texts_are_read(electra):
    with pytest.raises(UsageError, match="No lean model has 8 blocks"):
        find_aim(electra, (pytest.fail("read") for _ in range(1)), Budget(blocks=8))
