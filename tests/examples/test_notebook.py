"""The notebook runs in a kernel as Jupyter runs it: no cell fails, and results are shown as plots and tables."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "examples" / "miniatures.ipynb"

# Pairs and texts are fewer than those that a reader waits for.
SMALLER = {"pairs.first(100)": "pairs.first(40)", "layers=[1, 2]": "layers=[1]"}
SMALLER |= {'mini-bert"), 4)': 'mini-bert"), 2)', "blocks=2": "blocks=1"}
SMALLER |= {".texts()[:400]": ".texts()[:240]", "held_out=100": "held_out=42"}

# What all tests do without (tests/support/economy.py), and, as in tests/conftest.py, most looking for garbage.
ECONOMY = """
import gc
gc.set_threshold(50_000, 20, 20)
from contextlib import ExitStack
from pathlib import Path
from tests.support.economy import economical
economy = ExitStack()
economy.enter_context(economical(Path({folder!r})))
gc.freeze()
"""


def test_every_cell_runs_and_shows_what_it_found(monkeypatch, session_folder, tmp_path):
    try:
        import nbformat
        from nbclient import NotebookClient
    except ImportError:
        if os.environ.get("CI") == "true":
            pytest.fail("nbclient is not installed, and CI must run this test")
        pytest.skip("nbclient is not installed: pip install 'truncate-kit[test]'")
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "TMPDIR"):  # nothing outside is written
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]))
    startup = tmp_path / "profile_default/startup"
    startup.mkdir(parents=True)
    (startup / "economy.py").write_text(ECONOMY.format(folder=str(session_folder)))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert 8 <= len(cells) <= 10
    assert not any(cell.outputs for cell in cells)  # what it gives is not in the repository
    for words, fewer in SMALLER.items():
        (cell,) = (cell for cell in cells if words in cell.source)
        cell.source = cell.source.replace(words, fewer)

    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output.data for cell in cells for output in cell.outputs if output.output_type == "execute_result"]
    pages = [data["text/html"] for data in shown if "text/html" in data]
    assert len(pages) == 5
    assert sum(page.count("<svg") for page in pages) >= 5
    assert all("<table" in page for page in pages)
