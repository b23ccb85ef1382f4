"""Evaluation suites are rows: one more row is read, run, written, shown and put on the page by what is there."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer.main

from tests.support.commands import fails, run_both
from tests.support.made_results import write_run
from truncate_kit.evaluation.registry import SUITES, Suite
from truncate_kit.evaluation.suite import SuiteReport
from truncate_kit.report.page import read_run, sections
from truncate_kit_cli import measure  # noqa: F401  # before a test changes its suites
from truncate_kit_cli.app import app, schema_text


@dataclass(frozen=True, slots=True, kw_only=True)
class WordsReport(SuiteReport):
    """How long the first vector is."""

    width: int
    corpus: str | None

    def amounts(self):
        yield ("first",), (1,)


def score_words(run):
    text = Path(run.data).read_text().splitlines()[0]
    width = len(run.encoder.encode([text])[0])
    return WordsReport(model=run.model, width=width, corpus=run.options["corpus"])


@pytest.fixture
def widths(monkeypatch):
    row = Suite(data="a file of texts", options=("corpus",), report_class="words:WordsReport", function="words:score")
    own = SimpleNamespace(WordsReport=WordsReport, score=score_words)
    monkeypatch.setitem(sys.modules, "truncate_kit.evaluation.words", own)
    monkeypatch.delitem(SUITES, "retrieval")  # whose option it takes
    monkeypatch.setitem(SUITES, "widths", row)


def test_one_more_row_is_one_more_suite(widths, tiny_folder, tmp_path, capfd):
    home = write_run(tmp_path / "w", tiny_folder("bert"))
    (tmp_path / "texts.txt").write_text("the cat\n")
    command = ("evaluate", tiny_folder("bert"), "--suite", "widths", "--data", tmp_path / "texts.txt")
    out, err = run_both(capfd, *command, "--corpus", "more", "--workspace", home)
    assert "more" in out + err
    assert json.loads((home / "suite-widths.json").read_text())["width"] == 16
    views = [section.view for section in sections(read_run(home))]
    (view,) = [view for view in views if view.title == "WordsReport"]
    assert ("width", "16") in view.tables[0].rows
    assert "needs its data" in fails(capfd, *command[:4])
    assert "There is no suite 'retrieval'" in fails(capfd, *command[:3], "retrieval")


def test_scores_of_other_weights_are_replaced_whatever_they_measured():
    class More(WordsReport):
        def amounts(self):
            yield ("first",), (2,)

    def report(model, sha256, kind=WordsReport):
        return kind(model=model, width=1, corpus=None, sha256=sha256)

    more = report("m", "a", More)
    assert not report("m", "a").covers(more)
    assert not report("another", "b").covers(more)
    assert report("m", "b").covers(more)


@pytest.mark.parametrize("name", SUITES)
def test_each_row_is_named_by_the_command_with_options_of_its_own(name, capfd):
    report = SUITES[name].report()
    assert issubclass(report, SuiteReport)
    assert f'"{report.__name__}"' in schema_text("evaluate")
    options = {one.name: one for one in typer.main.get_command(app).commands["evaluate"].params}
    assert name in options["suite"].help
    for option in SUITES[name].options:
        assert f"--suite {name}" in options[option].help
        others = [row.options for other, row in SUITES.items() if other != name]
        assert all(option not in row for row in others)
