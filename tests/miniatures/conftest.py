"""Pretraining of models smaller than the miniatures."""

from collections.abc import Iterator

import pytest

from benchmarks.miniatures import pretrain


@pytest.fixture(scope="session", autouse=True)
def _small() -> Iterator[None]:
    """Three narrow blocks in the place of eight."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(pretrain.SHAPES, "mini", pretrain.Shape(3, 32, 4, 16, 2))
        yield
