"""Tables on terminals of any width."""

import re

import pytest

from tests.support.commands import run_both
from truncate_kit_cli import output
from truncate_kit_cli.manner import Manner
from truncate_kit_cli.output import _side_by_side, _widths, table

COLUMNS = ("layer", "parameters", "CKA without outliers", "Spearman")
ROWS = [("0", "1,065,472", "0.974 ± 0.005", "49.60"), ("8 (full model)", "2,651,648", "0.404 ± 0.039", "37.40")]
WIDTHS = _widths(COLUMNS, ROWS)


def lines_of(capsys):
    """What a table printed, without colours."""
    return re.sub("\x1b[^m]*m", "", capsys.readouterr().out).splitlines()


@pytest.fixture
def terminal(monkeypatch):
    """A terminal of a width; how much is said is as it was afterwards."""
    monkeypatch.setattr("truncate_kit_cli.output.MANNER", Manner())

    def of(width: int, *, verbose: bool = False) -> None:
        monkeypatch.setattr("sys.stdout.isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", str(width))
        output.MANNER.verbose = verbose

    return of


@pytest.mark.parametrize("width", [20, 40, 60, 80, 160])
def test_no_number_is_ever_cut(width, capsys, terminal):
    terminal(width, verbose=True)
    table("Layers", COLUMNS, ROWS)
    lines = lines_of(capsys)
    assert "…" not in "".join(lines)
    if width >= 40:
        assert all(cell in "\n".join(lines) for row in ROWS for cell in row)
        assert max(map(len, lines)) <= width


@pytest.mark.parametrize("width", [60, 80, 160])
def test_a_table_has_its_right_border_and_what_does_not_fit_is_said(width, capsys, terminal):
    terminal(width)
    columns, rows = [*COLUMNS, *map(str, range(9))], [(*row, *["123,456"] * 9) for row in ROWS]
    table("Layers", columns, rows)
    out, err = capsys.readouterr()
    title, *lines = re.sub("\x1b[^m]*m", "", out).splitlines()
    assert title.startswith("Layers")
    assert lines[0][0] + lines[0][-1] == "┏┓"
    assert lines[-1][0] + lines[-1][-1] == "└┘"
    assert sum(line[0] == "┏" for line in lines) == 1  # one table
    assert len({len(line) for line in lines}) == 1 <= width
    assert ("--verbose" in err) == (width < 160)
    table("Details", COLUMNS, ROWS, detail=True)
    assert capsys.readouterr().out == ""


def test_a_hidden_table_is_told_of_once_and_shown_when_asked(capsys, terminal):
    terminal(80)
    for _ in range(2):
        table("Details", COLUMNS, ROWS, detail=True)
    assert capsys.readouterr() == ("", "More columns and tables: --verbose, or the page of truncate-kit report.\n")
    terminal(80, verbose=True)
    table("Details", COLUMNS, ROWS, detail=True)
    assert "Details" in capsys.readouterr().out


def test_quiet_says_results_alone(capfd, tmp_path):
    asked = "cut", "mini-bert", "--layer", "1", "--workspace", str(tmp_path / "w")
    loud = run_both(capfd, *asked)
    assert "Saved" in loud[0]
    assert run_both(capfd, *asked, "--quiet")[1] == ""
    assert run_both(capfd, *asked, "-q")[0] == loud[0]


def test_a_table_that_does_not_fit_is_cut_between_columns_and_repeats_the_first():
    assert _side_by_side(WIDTHS, 160) == [[0, 1, 2, 3]]
    assert _side_by_side(WIDTHS, 50) == [[0, 1, 2], [0, 3]]
    assert _side_by_side(WIDTHS, 10) == [[0, 1], [0, 2], [0, 3]]
