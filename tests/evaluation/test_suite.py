"""A new row in `SUITES` is a new suite: it is read, run, saved, shown and put on the page."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.commands import fails, run_both
from tests.support.made_results import write_run
from truncate_kit.core.workspace import Workspace
from truncate_kit.evaluation import Score, SuiteReport, means_of
from truncate_kit.evaluation.suites import SUITES
from truncate_kit.report.page import suite_reports
from truncate_kit.report.view import view_of
from truncate_kit_cli import measure
from truncate_kit_cli.app import command_of
from truncate_kit_cli.options import Command


def score_words(encoder, data, *, corpus, model, **_):
    """Report the width of the first text's vector."""
    text = Path(data).read_text().splitlines()[0]
    row = Score(task="first", values={"width": len(encoder.encode([text])[0])}, remark=corpus)
    return SuiteReport(suite="widths", model=model, runtime="torch", title="Widths", rows=(row,))


@pytest.fixture
def widths(monkeypatch):
    monkeypatch.setitem(sys.modules, "truncate_kit.evaluation.words", SimpleNamespace(score=score_words))
    monkeypatch.delitem(SUITES, "retrieval")  # whose option it takes
    monkeypatch.setitem(SUITES, "widths", ("words:score", ("corpus",)))
    monkeypatch.setattr(measure, "evaluate", Command(measure.evaluate.function, (), measure.evaluate.result))
    command_of.cache_clear()


def test_one_more_row_is_one_more_suite(widths, tiny_folder, tmp_path, capfd):
    home = write_run(tmp_path / "w", tiny_folder("bert"))
    (tmp_path / "texts.txt").write_text("the cat\n")
    command = ("evaluate", tiny_folder("bert"), "--suite", "widths", "--data", tmp_path / "texts.txt")
    out, _ = run_both(capfd, *command, "--corpus", "more", "--workspace", home)
    assert "more" in out
    assert json.loads((home / "suite-widths.json").read_text())["rows"][0]["values"] == {"width": 16}
    (report,) = suite_reports(Workspace(home)).values()
    assert view_of(report).tables[0].rows == [("first", "16", "more")]
    assert "needs its data" in fails(capfd, *command[:4])


def test_scores_of_other_weights_are_replaced_whatever_they_measured():
    row = Score(task="first", values={}, size=(1,))
    once = SuiteReport(suite="sts", model="m", runtime="torch", title="", rows=(row,), sha256="a")
    more = replace(once, rows=(replace(row, size=(2,)),))
    assert not once.may_replace(more)
    assert not replace(once, model="another", sha256="b").may_replace(more)
    assert replace(once, sha256="b").may_replace(more)


def test_means_are_those_of_scores_that_every_task_has():
    values = ({"pairs": 3, "x": 2.0, "y": 5.0, "z": 1.0}, {"pairs": 4, "x": 4.0, "y": None})
    assert means_of(Score(task="a", values=row) for row in values) == {"x": 3.0}


@pytest.mark.parametrize("name", SUITES)
def test_each_row_is_named_by_the_command_with_options_of_its_own(name):
    options = {option.name: option for option in command_of("evaluate").params}
    assert f"'{name}'" in str(measure.evaluate.__signature__.parameters["suite"].annotation)
    for option in SUITES[name][1]:
        assert f"--suite {name}" in options[option].help
        assert all(option not in others for other, (_, others) in SUITES.items() if other != name)
