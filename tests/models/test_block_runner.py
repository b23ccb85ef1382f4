"""Blocks that are run one by one compute what the kept model computes, in every family."""

import pytest
import torch

from tests.support.families import TINY_CONFIGS
from truncate_kit.core.errors import LayerNotHeldError
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.truncation import BlockRunner, keep

TEXTS = ["the cat sat on the mat and the dog ran under a tree", "a red dog", "the small blue tree"]


@pytest.mark.parametrize("name", TINY_CONFIGS)
@torch.inference_mode()
def test_blocks_run_one_by_one_are_the_kept_model(name, tiny_folder):
    encoder = load_encoder(tiny_folder(name))
    batch = encoder.tokenize(TEXTS)
    runner, compared = BlockRunner(encoder, batch), 0
    for blocks in ((1, 2, 3), (1, 3), (2, 3), (3,)):
        try:
            kept = keep(encoder, blocks)
        except LayerNotHeldError:
            continue
        states = runner.embedded
        for block in blocks:
            states = runner.run(block, states)
        assert torch.equal(runner.vectors(states), kept(**batch))
        compared += 1
    assert compared == (2 if name == "modernbert" else 4)
