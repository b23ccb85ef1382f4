"""Tables of a distillation: graphs that others beat are left out, and scores that others beat stand in brackets."""

from dataclasses import replace

import pytest

from tests.support.made_results import a_distillation
from truncate_kit.report.training_tables import frontier_table, sizes_table


@pytest.fixture
def frontier():
    """Three graphs, of which the second one is beaten by the third."""
    found = a_distillation().frontier
    first, second, third = found.points
    return replace(found, points=(first, replace(second, dominated=True), third))


def test_what_another_graph_beats_is_left_out(frontier):
    cells = frontier_table(frontier, "agreement")
    assert [(row[0], row[1]) for row in cells.rows] == [("1, 2, 3, 4", "fp32"), ("1, 3", "int8")]
    assert "result" not in cells.filled().columns
    assert cells.title.startswith("2 of 3 graphs, with scores (agreement) by dimensions; speed")


def test_every_graph_is_shown_and_scores_that_another_one_beats_stand_in_brackets(frontier):
    cells = frontier_table(frontier, "agreement", every=True)
    full, beaten, third = frontier.points
    assert [(row[0], row[1], row[3]) for row in cells.rows] == [
        ("1, 2, 3, 4", "fp32", f"{full.score:.2f}"),
        ("1, 3", "fp32", f"({beaten.score:.2f})"),
        ("1, 3", "int8", f"{third.score:.2f}"),
    ]
    assert cells.title.startswith("All 3 graphs")
    assert "in brackets: another one beats it" in cells.title


def test_a_graph_has_one_row_with_its_scores_by_dimensions(frontier):
    full, beaten, third = frontier.points
    half = replace(third, dims=third.dims // 2, score=61.5)
    cells = frontier_table(replace(frontier, points=(full, beaten, third, half)), "agreement", half)
    assert cells.columns[3:5] == (f"{full.dims} dims", f"{half.dims} dims")
    assert [row[3:5] for row in cells.rows] == [(f"{full.score:.2f}", "–"), (f"{third.score:.2f}", "61.50")]
    assert [row[cells.columns.index("result")] for row in cells.rows] == ["", f"chosen at {half.dims}"]


def test_the_full_models_graph_stands_there_where_another_one_beats_it(frontier):
    full, *rest = frontier.points
    cells = frontier_table(replace(frontier, points=(replace(full, dominated=True), *rest)), "agreement")
    assert [row[3].startswith("(") for row in cells.rows] == [True, False]


def test_a_graph_that_the_budget_takes_has_a_row_where_another_one_beats_it(frontier):
    taken = frontier.points[1]
    cells = frontier_table(frontier, "agreement", taken)
    assert [row[cells.columns.index("result")] for row in cells.rows] == ["", f"chosen at {taken.dims}", ""]


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
