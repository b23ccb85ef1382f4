"""Measuring without dropout: whatever mode the parts of a model are in, and it is left in its own."""

import pytest
import torch
from torch import nn

from truncate_kit.models import evaluating


@pytest.mark.parametrize(("whole", "part"), [(True, True), (False, False), (False, True), (True, False)])
def test_no_part_drops_anything_inside(whole, part):
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Dropout(0.5)))
    model.train(whole)
    model[1].train(part)
    values = torch.ones(8, 4)
    with evaluating(model):
        assert not any(one.training for one in model.modules())
        assert torch.equal(model(values), model[0](values))
    assert model.training == whole
    if whole:
        assert model[1][0].training
