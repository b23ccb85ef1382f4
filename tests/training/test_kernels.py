"""What is computed in other ways on the CPU: the numbers of float64 and of torch, gradients included."""

import copy

import pytest
import torch
from torch import nn

from truncate_kit.training.loop import LEAST_PRODUCTS, FasterOnCPU, dropout, linear, onednn_pays


def gradients(call, *tensors):
    """What `call` gives, and the gradients of a weighted sum of it."""
    leaves = [tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in tensors]
    result = call(*leaves)
    weights = torch.linspace(-1, 1, result.numel(), dtype=result.dtype).reshape(result.shape)
    (result * weights).sum().backward()
    return [result.detach(), *(leaf.grad for leaf in leaves)]


@pytest.mark.parametrize("shape", [(70, 48), (3, 25, 48), (2, 3, 5, 48)])
@pytest.mark.parametrize("learning", [(True, True, True), (False, True, True), (True, False, False)])
def test_products_and_gradients_are_those_of_float64(shape, learning):
    torch.manual_seed(0)
    tensors = [torch.randn(shape), torch.randn(64, 48), torch.randn(64)]
    for tensor, learns in zip(tensors, learning, strict=True):
        tensor.requires_grad_(learns)
    exact = gradients(
        nn.functional.linear, *(tensor.detach().double().requires_grad_(tensor.requires_grad) for tensor in tensors)
    )
    for found, expected in zip(gradients(linear, *tensors), exact, strict=True):
        if expected is None:
            assert found is None
            continue
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), expected, atol=2e-5 * float(expected.abs().max()), rtol=0)


def test_only_large_layers_in_float32_outside_autocast_are_taken():
    torch.manual_seed(0)
    large, wide = torch.randn(512, 64), nn.Linear(64, 64)
    assert large.numel() * 64 > LEAST_PRODUCTS
    names = []

    class Seen(FasterOnCPU):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            result = super().__torch_function__(func, types, args, kwargs)
            if func is nn.functional.linear:
                names.append(type(result.grad_fn).__name__)
            return result

    with Seen():
        wide(large)
        wide(large[:8])
        copy.deepcopy(wide).double()(large.double())
        with torch.autocast("cpu", torch.bfloat16):
            wide(large)
    assert (names[0] == "_LinearBackward") == onednn_pays()
    assert "_LinearBackward" not in names[1:]


@pytest.mark.parametrize("p", [0.1, 0.5, 0.003])
def test_dropout_keeps_its_share_and_the_sum(p):
    torch.manual_seed(0)
    states = torch.ones(1000, 1001, requires_grad=True)  # not a whole number of words
    dropped = dropout(states, p)
    share = float((dropped == 0).double().mean())
    assert share == pytest.approx(p, abs=4 * (p * (1 - p) / states.numel()) ** 0.5 + 2**-16)
    assert set(dropped.detach().unique().tolist()) == {0.0, float(torch.tensor(1 / (1 - p)))}
    dropped.sum().backward()
    assert torch.equal(states.grad, dropped.detach())
    columns = (dropped == 0).double().mean(dim=0)
    neighbours = torch.corrcoef(
        torch.stack([(dropped[:, 0:-1:4] == 0).double().flatten(), (dropped[:, 1::4] == 0).double().flatten()])
    )
    assert abs(float(neighbours[0, 1])) < 0.01  # elements of one word
    assert float(columns.std()) < 3 * (p * (1 - p) / 1000) ** 0.5


def test_dropout_repeats_with_its_seed_and_is_off_in_evaluation():
    layer, states = nn.Dropout(0.3), torch.randn(33, 7)
    drawn = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        with FasterOnCPU():
            drawn.append(layer(states))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    with FasterOnCPU():
        assert torch.equal(layer.eval()(states), states)


@pytest.mark.parametrize("form", ["none", "bool", "float"])
def test_attention_with_dropout_is_attention_in_the_mean(form):
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 4, 6, 8).unbind(0)
    real = (torch.arange(6) < torch.tensor([6, 3])[:, None])[:, None, None, :].expand(2, 1, 6, 6)
    mask = {"none": None, "bool": real, "float": torch.zeros(real.shape).masked_fill(~real, -1e4)}[form]
    exact = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    with FasterOnCPU():
        draws = [
            nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=0.1)
            for _ in range(4000)
        ]
        still = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=0.0)
    torch.testing.assert_close(still, exact)
    torch.testing.assert_close(torch.stack(draws).mean(dim=0), exact, atol=0.03, rtol=0)
    assert float(torch.stack(draws).std(dim=0).max()) > 0.1
