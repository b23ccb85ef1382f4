"""Memory that runs out for real: an address space with a bound, and allocations that no machine has."""

import json
import logging

import numpy as np
import pytest
import torch

from tests.support.pair_runs import TEXTS, pair_run
from tests.support.processes import Program
from truncate_kit.core.hardware import in_halves, is_out_of_memory, say_halved
from truncate_kit.models.truncation import layer_states

TOO_MUCH = 2**60  # bytes; torch's own allocator refuses them


@pytest.fixture(autouse=True)
def _said_anew():
    say_halved.cache_clear()


def refusing(module, most, monkeypatch):
    """Let the torch allocator refuse whatever this module would compute for more than `most` rows at once."""
    forward, sizes = module.forward, []

    def bounded(*arguments, **named):
        rows = len(named["input_ids"] if "input_ids" in named else arguments[0])
        sizes.append(rows)
        if rows > most:
            torch.empty(TOO_MUCH, dtype=torch.uint8)
        return forward(*arguments, **named)

    monkeypatch.setattr(module, "forward", bounded)
    return sizes


def test_what_allocators_say_is_known():
    with pytest.raises(RuntimeError) as torchs:
        torch.empty(TOO_MUCH, dtype=torch.uint8)
    with pytest.raises(MemoryError) as numpys:
        np.empty(TOO_MUCH, np.uint8)
    assert is_out_of_memory(torchs.value)
    assert is_out_of_memory(numpys.value)
    for said in ("CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED"):
        assert is_out_of_memory(RuntimeError(f"CUDA error: {said} when calling"))
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


@pytest.mark.parametrize("most", [1, 3, 64])
def test_halves_come_in_order_and_none_is_left_out(most):
    asked = []

    def compute(part):
        asked.append(len(part))
        if len(part) > most:
            raise MemoryError
        return list(part)

    found = list(in_halves(compute, range(64)))
    assert [number for part in found for number in part] == list(range(64))
    assert max(map(len, found)) <= most
    assert asked[0] == 64


def test_one_item_that_does_not_fit_and_other_errors_are_raised():
    with pytest.raises(MemoryError):
        list(in_halves(lambda part: np.empty(TOO_MUCH, np.uint8), [1]))
    with pytest.raises(RuntimeError, match="elements"):
        list(in_halves(lambda part: torch.ones(2) @ torch.ones(3), [1, 2]))


def test_encoding_in_halves_gives_the_same_vectors_and_says_so(encoder, monkeypatch, caplog):
    ids = encoder.token_ids(TEXTS)
    expected, states = encoder.encode_ids(ids), layer_states(encoder, TEXTS)
    sizes = refusing(encoder.backbone, 7, monkeypatch)
    with caplog.at_level(logging.WARNING):
        torch.testing.assert_close(encoder.encode_ids(ids), expected)
    assert "Out of memory for a batch of 40: using parts of 20" in caplog.text
    assert max(size for size in sizes if size <= 7) > 1
    torch.testing.assert_close(layer_states(encoder, TEXTS), states)


def test_a_step_in_parts_has_the_gradients_of_the_whole(tiny_folder, monkeypatch, caplog):
    whole, parts = (pair_run(tiny_folder("bert"), batch_size=32) for _ in range(2))
    sizes = refusing(parts.encoder.backbone, 10, monkeypatch)  # both sides of five pairs
    for run in (whole, parts):
        run.trained.eval()  # dropout draws other units where a batch is cut
    batch = whole.batches(0)[0]
    with caplog.at_level(logging.WARNING):
        losses = [float(run.backward(batch)) for run in (whole, parts)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert parts.micro_batch == 4
    assert sizes[:4] == [64, 32, 16, 8]
    assert "a batch of 32: using parts of 16" in caplog.text
    for (name, one), (_, other) in zip(whole.trained.named_parameters(), parts.trained.named_parameters(), strict=True):
        if one.grad is not None:
            torch.testing.assert_close(other.grad, one.grad, atol=1e-7, rtol=1e-4, msg=name)


def test_an_objective_of_the_whole_batch_is_not_cut(tiny_folder, monkeypatch):
    run = pair_run(tiny_folder("bert"), batch_size=32)
    monkeypatch.setattr(run.examples, "separable", False)
    refusing(run.encoder.backbone, 10, monkeypatch)
    with pytest.raises(RuntimeError, match="DefaultCPUAllocator"):
        run.backward(run.batches(0)[0])


_BOUNDED = """
import json, resource, sys, logging
import torch
from truncate_kit.models.loading import load_encoder
torch.set_num_threads(1)
logging.basicConfig(stream=sys.stderr)
encoder = load_encoder(sys.argv[1])
ids = encoder.token_ids(["the cat sat on the mat " * 6] * 8192)
encoder.encode_ids(ids[:256])
expected = encoder.encode_ids(ids[:1])
held = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (held + (150 << 20), resource.RLIM_INFINITY))
found = encoder.encode_ids(ids, batch_size=8192)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(json.dumps([len(found), float((found - expected).abs().max())]))
"""


def test_encoding_with_150_megabytes_left(tiny_folder):
    """A batch of 8,192 texts needs several times that: 8,192 × 38 tokens × 32 numbers are 40 MB for each product."""
    out, err = Program(_BOUNDED, tiny_folder("bert")).communicate()
    assert out, err
    count, apart = json.loads(out)
    assert (count, "Out of memory for a batch of 8192" in err) == (8192, True), err
    assert apart < 1e-5
