"""What Python callers give by mistake: one sentence that says what is wrong, and a hint."""

import hashlib
import re
from functools import partial

import numpy as np
import pytest

from truncate_kit.analysis.cka import cka_matrix
from truncate_kit.data import RetrievalSet, TextPair
from truncate_kit.errors import UsageError
from truncate_kit.models import load_encoder, save_encoder, truncate
from truncate_kit.vectors import similarities

TEXTS = ["one cat", "two dogs", "three birds"]
PAIRS = (TextPair("one", "two", 0.0), TextPair("one", "three", 0.5), TextPair("one", "four", 1.0))
SEARCH = RetrievalSet(
    name="set",
    document_ids=("a", "b"),
    documents=("one cat", "two dogs"),
    query_ids=("p",),
    queries=("cat",),
    relevance=({0: 1.0},),
)
FRAME = np.array([["one cat", "two dogs"]])  # as the frames of pandas have two dimensions


@pytest.fixture(scope="module")
def encoder(tiny_folder):
    return load_encoder(tiny_folder("bert"))


@pytest.mark.parametrize(("first", "second"), [((3, 8), (1, 8)), ((3, 8), (2, 8)), ((8,), (8,))])
def test_similarities_are_of_pairs(encoder, first, second):
    rows = np.ones(first, np.float32), np.ones(second, np.float32)
    for measure in (encoder.similarities, partial(similarities, object())):
        with pytest.raises(UsageError, match=re.escape(f"shapes {first} and {second} are no pairs")):
            measure(*rows)


def test_states_are_tensors():
    with pytest.raises(UsageError, match="states_x must be a tensor, found ndarray"):
        cka_matrix(np.ones((2, 8, 4), np.float32))


@pytest.mark.parametrize("layer", ["2", None, [1, 2], 1.0, True])
def test_a_layer_is_a_whole_number(encoder, layer):
    with pytest.raises(UsageError, match=r"`layer` .+ is no whole number") as refused:
        truncate(encoder, layer)
    assert refused.value.hint


@pytest.mark.parametrize("texts", [3, {"a": "one cat"}, {"one cat"}, FRAME], ids=lambda value: type(value).__name__)
def test_texts_are_a_list(encoder, texts):
    with pytest.raises(UsageError, match="Several texts are needed") as refused:
        encoder.encode(texts)
    assert "list of texts" in refused.value.hint


def test_a_model_that_is_saved_again_has_the_same_files(tiny_folder, tmp_path):
    first = save_encoder(load_encoder(tiny_folder("bert")), tmp_path / "first")
    second = save_encoder(load_encoder(first), tmp_path / "second")

    def digests(folder):
        return {
            file.relative_to(folder): hashlib.sha256(file.read_bytes()).hexdigest()
            for file in folder.rglob("*")
            if file.is_file()
        }

    assert digests(first) == digests(second)
