"""Stored vectors against the definition of each format, and the score of a real model in each."""

import json

import numpy as np
import pytest
import torch

from truncate_kit.core.errors import ModelError, UsageError
from truncate_kit.core.vectors import VectorFormat

VECTORS = torch.randn((50, 20), generator=torch.Generator().manual_seed(0))


def cosines(rows: torch.Tensor) -> np.ndarray:
    values = rows.double().numpy()
    values = values / np.linalg.norm(values, axis=1, keepdims=True)
    return values @ values.T


BYTES = {("float32", None): 80, ("float16", None): 40, ("int8", None): 20, ("binary", None): 3, ("binary", 8): 1,
         ("int8", 5): 5}  # fmt: skip


@pytest.mark.parametrize(("precision", "dimensions"), BYTES)
def test_bytes_are_those_of_the_array(precision, dimensions):
    form = VectorFormat(precision=precision, dimensions=dimensions)
    stored = form.store(VECTORS)
    assert form.bytes_per_vector(20) == stored[0].nbytes == BYTES[precision, dimensions]
    assert stored.shape == (50, form.columns(20))
    assert stored.dtype == form.dtype


@pytest.mark.parametrize(("precision", "allowed"), [("float32", 0), ("float16", 1e-3), ("int8", 0.02)])
@pytest.mark.parametrize("dimensions", [None, 7])
def test_cosines_stay(precision, allowed, dimensions):
    form = VectorFormat(precision=precision, dimensions=dimensions, normalize=True)
    found = form.numbers(form.store(VECTORS), 20)
    assert np.abs(cosines(found) - cosines(VECTORS[:, :dimensions])).max() <= allowed + 1e-6


def test_int8_uses_its_whole_range_for_each_vector():
    stored = VectorFormat(precision="int8").store(VECTORS * torch.logspace(-30, 30, 50)[:, None])
    assert (np.abs(stored.astype(int)).max(axis=1) == 127).all()


def test_binary_is_the_sign_bit_by_bit():
    row = torch.tensor([[1.0, -1.0, 0.5, 0.0, -2.0, 3.0, 1.0, -0.1, 2.0]])
    form = VectorFormat(precision="binary")
    stored = form.store(row)
    assert stored.tolist() == [[0b10100110, 0b10000000]]
    assert form.numbers(stored, 9).tolist() == [[1, -1, 1, -1, -1, 1, 1, -1, 1]]


def test_normalized_after_cutting():
    stored = VectorFormat(dimensions=3, normalize=True).store(VECTORS)
    assert np.allclose(np.linalg.norm(stored, axis=1), 1, atol=1e-6)
    assert VectorFormat(normalize=True).store(torch.zeros(1, 4)).tolist() == [[0, 0, 0, 0]]


def test_a_format_that_is_none_and_vectors_that_do_not_fit_theirs():
    for wrong in ({"precision": "int4"}, {"dimensions": 0}, {"dimensions": 1.5}, {"dimensions": "3"}):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            VectorFormat(**wrong)
    with pytest.raises(UsageError):
        VectorFormat(dimensions=21).store(VECTORS)
    for precision, value in (("float32", float("nan")), ("float16", 1e6)):
        with pytest.raises(ModelError):
            VectorFormat(precision=precision).store(torch.tensor([[value]]))


def test_arrays_are_stored_as_tensors_are():
    form = VectorFormat(precision="int8", dimensions=np.int64(7))
    assert np.array_equal(form.store(VECTORS.numpy()), form.store(VECTORS))
    assert VectorFormat.from_dict(json.loads(form.to_json())) == form
