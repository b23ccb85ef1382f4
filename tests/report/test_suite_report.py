"""Tables and figures of the suites."""

from dataclasses import replace

import pytest

from truncate_kit.evaluation import Score, SuiteReport, means_of
from truncate_kit.report.chart import write_figures
from truncate_kit.report.view import view_of

SCORES = {"as it is": 81.0, "last layer": 80.0, "layers combined": 85.0, "fewer errors %": 25.0}


def point(task, share):
    values = {"rows to train on": int(100 * share), **SCORES}
    return Score(task=task, labels={"share": f"{share:g}"}, values=values, remark="layers 3 chosen most often")


@pytest.fixture
def transfer():
    few = Score(task="TREC", labels={"share": "0.5"}, values={"rows to train on": 2}, remark="too few rows")
    rows = (point("MPQA", 0.5), point("MPQA", 1.0), few, point("TREC", 1.0))
    means = means_of([rows[1], rows[3]])
    return SuiteReport(
        suite="transfer", model="m", runtime="torch", title="T", rows=rows, means=means, notes=("Took 3 s.",)
    )


def test_rows_and_means(transfer):
    (table,) = view_of(transfer).tables
    assert table.columns == ["task", "share", "rows to train on", *SCORES, "remark"]
    assert [row[:3] for row in table.rows] == [
        ("MPQA", "0.5", "50"),
        ("MPQA", "1", "100"),
        ("TREC", "0.5", "2"),
        ("TREC", "1", "100"),
        ("mean of 2", "", ""),
    ]
    assert table.rows[1][3:] == ("81.00", "80.00", "85.00", "+25.0", "layers 3 chosen most often")
    assert table.rows[-1][3:] == ("81.00", "80.00", "85.00", "+25.0", "")
    assert view_of(transfer).sentences == ["Took 3 s."]
    assert len(view_of(replace(transfer, rows=transfer.rows[-1:])).tables[0].rows) == 1  # a mean of one is no row


def test_a_curve_needs_two_shares(transfer, tmp_path):
    assert [plot.title for plot in view_of(transfer).plots] == ["MPQA", "TREC"]
    (path,) = write_figures(view_of(transfer), tmp_path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert view_of(replace(transfer, rows=transfer.rows[1:2])).plots == []
