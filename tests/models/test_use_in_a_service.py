"""An encoder in a process that does other things: threads, default types, gradients, names of places."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch

from truncate_kit.core.errors import UsageError
from truncate_kit.export.exporting import export_onnx
from truncate_kit.export.runtime import OnnxEncoder
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.truncation import layer_states

TEXTS = ["the cat sat", "a red dog ran under the tree", "not a mat"]


def test_threads_read_states_before_the_last_norm(tiny_folder):
    """Each thread has its own texts; all run the model at the same time."""
    encoder = load_encoder(tiny_folder("gpt2"))
    batches = [encoder.tokenize([text]) for text in TEXTS]
    alone = [encoder.hidden_states(batch, raw="all") for batch in batches]
    together = Barrier(len(batches))

    def wait(*_):
        together.wait(30)

    hook = encoder.backbone.wte.register_forward_pre_hook(wait)
    with torch.no_grad(), ThreadPoolExecutor(len(batches)) as pool:
        found = list(pool.map(lambda batch: encoder.hidden_states(batch, raw="all"), batches))
    hook.remove()
    for one, other in zip(alone, found, strict=True):
        assert [state.shape for state in other] == [state.shape for state in one]
        assert all(torch.equal(state, expected) for state, expected in zip(other, one, strict=True))


def test_vectors_are_ordinary_tensors(encoder):
    vectors = encoder.vectors(TEXTS)
    assert not vectors.requires_grad
    torch.nn.Linear(encoder.vector_width, 2)(vectors.add_(1)).sum().backward()
    encoder.similarities(vectors, vectors).add_(1)


def test_the_default_type_is_another(tiny_folder):
    expected = load_encoder(tiny_folder("bert")).vectors(TEXTS)
    torch.set_default_dtype(torch.bfloat16)
    try:
        encoder = load_encoder(tiny_folder("bert"))
        assert torch.equal(encoder.vectors(TEXTS), expected)
        assert encoder.vectors([]).dtype == layer_states(encoder, TEXTS).dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_graph_that_is_made_within_autocast(encoder, tmp_path):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        export_onnx(encoder, tmp_path / "model")
    assert torch.allclose(OnnxEncoder.load(tmp_path / "model").vectors(TEXTS), encoder.vectors(TEXTS), atol=1e-5)


@pytest.mark.parametrize(
    "texts", [{"query": "a red dog"}, {"a red dog"}, "a red dog", ["a dog", None], ["a \ud83d dog"]]
)
def test_texts_that_have_no_order_or_are_no_characters_are_refused(tiny_folder, texts):
    with pytest.raises(UsageError, match=r"Texts must be a list of str|Text 1 has half of a surrogate pair"):
        load_encoder(tiny_folder("bert")).vectors(texts)
