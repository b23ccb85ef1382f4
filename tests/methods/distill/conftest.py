"""Fixtures of all tests of distillation."""

import pytest

from truncate_kit.methods.distill import learning


@pytest.fixture(scope="module")
def no_graphs():
    """Take vectors to learn from torch, as without ONNX Runtime; test_text_store.py has the graph."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learning, "fastest", lambda encoder, *_: encoder)
        yield
