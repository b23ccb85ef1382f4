"""Pretraining of models smaller than the miniatures, once for each family."""

import functools
import random

import pytest

from benchmarks.miniatures import pretrain
from tests.support.families import WORDS


@pytest.fixture(scope="session", autouse=True)
def _small():
    """Three narrow blocks instead of eight."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(pretrain.SHAPES, "mini", pretrain.Shape(3, 32, 4, 16, 2))
        yield


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    draw = random.Random(0)
    path = tmp_path_factory.mktemp("text") / "text.txt"
    lines = [" ".join(draw.choices(WORDS, k=draw.randint(3, 12))) for _ in range(120)]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def run(text):
    """Pretrain a model for nine steps with a look at every third."""
    options = "--steps", "9", "--batch-size", "40", "--every", "3"
    return lambda out, model, *more: pretrain.main([model, "--text", str(text), "--out", str(out), *options, *more])


@pytest.fixture(scope="session")
def finished(run, tmp_path_factory):
    """Map a model's name to the folder of its whole run, which no test changes."""

    @functools.cache
    def folder(model):
        out = tmp_path_factory.mktemp(model)
        run(out, model, "--keep", "6")
        return out

    return folder
