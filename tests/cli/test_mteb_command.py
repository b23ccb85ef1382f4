"""`truncate-kit evaluate --mteb`: tables, JSON, the file in the workspace, and what is refused."""

import pytest

from tests.support.commands import run, run_json
from tests.support.files import kept_in
from tests.support.mteb_tasks import mteb_package, sts_task
from tests.support.pairs import make_pairs
from truncate_kit.core.results import FORMAT
from truncate_kit.core.workspace import Workspace
from truncate_kit.evaluation.graded import evaluate
from truncate_kit.export.exporting import export_onnx
from truncate_kit.models.loading import load_encoder
from truncate_kit.report.page import suite_reports
from truncate_kit.report.view import view_of

NAMES = ("STSBenchmark", "SICK-R")
PAIRS = make_pairs(40).pairs


@pytest.fixture
def fed(monkeypatch):
    """The tasks `NAMES` have data without the hub."""
    for name in NAMES:
        local = sts_task("Local", PAIRS)
        monkeypatch.setattr(type(mteb_package().get_task(name)), "load_data", type(local).load_data)


def named(*names):
    return [part for name in names for part in ("--mteb", name)]


def test_scores_of_a_folder_and_of_a_graph(capsys, fed, encoder, tiny_folder, tmp_path):
    expected = evaluate(encoder, PAIRS).spearman
    out = run(capsys, "evaluate", tiny_folder("bert"), *named(*NAMES))
    assert out.count(f"{expected:.2f}") == 3  # two tasks and their mean
    export_onnx(encoder, tmp_path / "graph")
    found = run_json(capsys, "evaluate", "graph/onnx/model.onnx", *named(*NAMES))
    assert found["runtime"] == "onnx"
    assert [row["values"]["score"] for row in found["rows"]] == pytest.approx([expected] * 2, abs=0.01)
    assert kept_in(tmp_path / "exported/suite-mteb.json") | {"format": FORMAT} == found


def test_before_and_after(capsys, fed, tiny_folder, tmp_path):
    full, lean = (tiny_folder(name) for name in ("bert", "electra"))
    arguments = ("evaluate", lean, *named("SICK-R"), "--against", full)
    before, after = (evaluate(load_encoder(folder), PAIRS).spearman for folder in (full, lean))
    out = run(capsys, *arguments)
    assert all(text in out for text in (f"{before:.2f}", f"{after:.2f}", f"{after - before:+.2f}"))
    found = run_json(capsys, *arguments)
    place = tmp_path / "exported/suite-mteb-comparison.json"
    assert kept_in(place) | {"format": FORMAT} == found
    view = view_of(suite_reports(Workspace(place.parent))[place])  # for the page
    assert view.tables[0].columns[-1] == "lean less full"
