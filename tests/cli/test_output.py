"""Tables on terminals of any width."""

import re

import pytest

from truncate_kit_cli.output import _side_by_side, _widths, table

COLUMNS = ("layer", "parameters", "CKA without outliers", "Spearman")
ROWS = [("0", "1,065,472", "0.974 ± 0.005", "49.60"), ("8 (full model)", "2,651,648", "0.404 ± 0.039", "37.40")]
WIDTHS = _widths(COLUMNS, ROWS)


@pytest.mark.parametrize("width", [20, 40, 60, 80, 160])
def test_no_number_is_ever_cut(width, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))
    table("Layers", COLUMNS, ROWS)
    out = capsys.readouterr().out
    assert "…" not in out
    if width >= 40:
        assert all(cell in out for row in ROWS for cell in row)
        assert max(len(re.sub("\x1b[^m]*m", "", line)) for line in out.splitlines()) <= width


def test_a_table_that_does_not_fit_is_cut_between_columns_and_repeats_the_first():
    assert _side_by_side(WIDTHS, 160) == [[0, 1, 2, 3]]
    assert _side_by_side(WIDTHS, 50) == [[0, 1, 2], [0, 3]]
    assert _side_by_side(WIDTHS, 10) == [[0, 1], [0, 2], [0, 3]]
