"""Tables of a distillation: what another graph beats is left out, or marked."""

from dataclasses import replace

import pytest

from tests.support.made_results import a_distillation
from truncate_kit.report.training_tables import frontier_table, sizes_table


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
    assert [(row[0], row[1], row[7]) for row in cells.rows] == [
        ("1, 2, 3, 4", "fp32", ""),
        ("1, 3", "fp32", "beaten"),
        ("1, 3", "int8", ""),
    ]
    assert cells.columns[7] == "result"


def test_the_full_models_graph_stands_there_with_its_mark_where_another_one_beats_it(frontier):
    full, *rest = frontier.points
    cells = frontier_table(replace(frontier, points=(replace(full, dominated=True), *rest)), "agreement")
    assert [row[7] for row in cells.rows] == ["beaten", ""]


def test_speeds_are_texts_a_second_as_well(frontier):
    """The full model of four blocks encodes 100 a second, and what it is beside that stands in its own column."""
    sizes = sizes_table(a_distillation())
    at = sizes.columns.index("speed"), sizes.columns.index("texts/s")
    assert [tuple(row[place] for place in at) for row in sizes.rows] == [
        ("4.00 ×", "400"),
        ("2.00 ×", "200"),
        ("1.33 ×", "133"),
        ("1.00 ×", "100"),
    ]
    assert "speed 1 is 100 texts a second in torch" in sizes.title
    first, *rest = frontier.points
    graphs = frontier_table(replace(frontier, points=(replace(first, texts_per_second=1234.4), *rest)), "agreement")
    assert "speed 1 is 1,234 texts a second" in graphs.title
    assert [row[-1] for row in graphs.rows] == ["1,234", "400"]
