"""Tables of a distillation: what another graph beats is left out, or marked."""

from dataclasses import replace

import pytest

from tests.support.made_results import a_distillation
from truncate_kit.report.training_tables import frontier_table


@pytest.fixture
def frontier():
    """Of three graphs the second one is beaten by the third."""
    found = a_distillation().frontier
    first, second, third = found.points
    return replace(found, points=(first, replace(second, dominated=True), third))


def test_what_another_graph_beats_is_left_out(frontier):
    cells = frontier_table(frontier, "agreement")
    assert [(row[0], row[1]) for row in cells.rows] == [("1, 2, 3, 4", "fp32"), ("1, 3", "int8")]
    assert "result" not in cells.filled().columns
    assert "those of 3 that no other beats" in cells.title


def test_every_graph_is_shown_with_a_mark(frontier):
    cells = frontier_table(frontier, "agreement", every=True)
    assert [(row[0], row[1], row[-1]) for row in cells.rows] == [
        ("1, 2, 3, 4", "fp32", ""),
        ("1, 3", "fp32", "beaten"),
        ("1, 3", "int8", ""),
    ]
    assert cells.columns[-1] == "result"


def test_the_full_models_graph_stands_there_with_its_mark_where_another_one_beats_it(frontier):
    full, *rest = frontier.points
    cells = frontier_table(replace(frontier, points=(replace(full, dominated=True), *rest)), "agreement")
    assert [row[-1] for row in cells.rows] == ["beaten", ""]
