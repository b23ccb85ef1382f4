"""The cells of the notebook run one after the other, and results are shown as plots and tables."""

import ast
import json
from pathlib import Path

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples/miniatures.ipynb"

# Pairs and texts are fewer than those that a reader waits for.
SMALLER = {"pairs.first(100)": "pairs.first(40)", "layers=[1, 2]": "layers=[1]"}
SMALLER |= {'mini-bert"), 4)': 'mini-bert"), 2)', "blocks=2": "blocks=1"}
SMALLER |= {".texts()[:400]": ".texts()[:240]", "held_out=100": "held_out=42"}


def shown(source, names):
    """Run a cell; return its last expression, as Jupyter shows it."""
    *body, last = ast.parse(source).body
    exec(compile(ast.Module(body, []), "cell", "exec"), names)
    if isinstance(last, ast.Expr):
        return eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    return exec(compile(ast.Module([last], []), "cell", "exec"), names)


def test_every_cell_runs_and_shows_what_it_found(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    assert 8 <= len(cells) <= 10
    assert not any(cell["outputs"] for cell in cells)  # what it gives is not in the repository
    sources = ["".join(cell["source"]) for cell in cells]
    for words, fewer in SMALLER.items():
        assert sum(words in source for source in sources) == 1
        sources = [source.replace(words, fewer) for source in sources]
    names = {}
    values = [shown(source, names) for source in sources]
    pages = [value._repr_html_() for value in values if hasattr(value, "_repr_html_")]
    assert len(pages) == 5
    assert sum(page.count("<svg") for page in pages) >= 5
    assert all("<table" in page for page in pages)
