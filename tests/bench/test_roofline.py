"""Counted work against torch's own counter."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.support.families import TINY_CONFIGS
from truncate_kit.bench import roofline
from truncate_kit.bench.roofline import ceiling, ceiling_calls, flops, slower_in_bf16
from truncate_kit.models import Encoder, load_encoder, random_encoder, truncate


def _counted(encoder: Encoder, batch_size: int, length: int) -> int:
    batch = encoder.pad([[5] * length] * batch_size)
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        encoder(**batch)
    return counter.get_total_flops()


@pytest.mark.parametrize("name", [name for name in TINY_CONFIGS if not name.startswith("deberta")])
def test_work_equals_what_torch_counts(name):
    encoder = random_encoder(TINY_CONFIGS[name], attention="eager")  # torch does not count the fused kernel
    for batch_size, length in ((1, 7), (3, 20)):
        assert flops(encoder, batch_size, length) == _counted(encoder, batch_size, length)


def test_work_of_a_cut_model_is_that_of_its_layers(tiny_folder):
    full = load_encoder(tiny_folder("electra-generator"), attention="eager")
    for layer in range(full.depth + 1):
        cut = truncate(full, layer)
        assert flops(cut, 2, 9) == _counted(cut, 2, 9)


def test_dense_layers_over_vectors_are_counted_once_a_text(tiny_folder):
    encoder = load_encoder(tiny_folder("bert"), attention="eager")
    before = flops(encoder, 4, 6)
    encoder.tail.append(torch.nn.Linear(16, 5))
    assert flops(encoder, 4, 6) == before + 2 * 4 * 16 * 5 == _counted(encoder, 4, 6)


def test_disentangled_attention_has_no_formula():
    assert flops(random_encoder(TINY_CONFIGS["deberta-v3"]), 1, 8) is None


def test_ceiling_is_the_work_over_the_fastest_product():
    row = ceiling(torch.device("cpu"), "fp32", (0.5, 0.25, 1.0))
    assert row.gflops_per_second == pytest.approx(2 * row.size**3 / 0.25 / 1e9)
    calls = ceiling_calls(torch.device("cpu"), ["bf16", "fp32"])
    assert list(calls) == ["bf16", "fp32"]


def test_bf16_that_multiplies_slower_is_said(monkeypatch):
    seconds = {"fp32": (0.2, 0.1), "bf16": (0.2, 0.4)}
    monkeypatch.setattr(roofline, "interleaved", lambda calls, rounds: {name: seconds[name] for name in calls})
    plain, half = (
        f"{ceiling(torch.device('cpu'), name, seconds[name]).gflops_per_second:.0f}" for name in ("fp32", "bf16")
    )
    said = slower_in_bf16(torch.device("cpu"))
    assert said == f"bf16 is the slower one here: {half} GFLOP/s, fp32 {plain}."
    seconds["bf16"] = (0.05, 0.4)
    assert slower_in_bf16(torch.device("cpu")) == ""
