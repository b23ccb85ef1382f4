"""Budgets and settings: what makes no sense is said at once; which candidate a budget takes."""

from dataclasses import replace

import pytest

from truncate_kit.core.errors import UsageError
from truncate_kit.methods.distill.settings import (
    Budget,
    DistillSettings,
    LeanModel,
    graph_within,
    mark_dominated,
    within_limit,
)

ROWS = [
    LeanModel(blocks=blocks, score=50.0 + size, pace=600 / size, megabytes=4.0 * size)
    for size in (1, 2, 3, 4)
    for blocks in [tuple(range(1, size + 1))]
]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"within": 1, "blocks": "3"}, "`within` and `blocks` are two budgets"),
        ({"within": -1}, "`within` -1 is out of range"),
        ({"within": float("nan")}, "`within` nan is out of range"),
        ({"speedup": 1}, "`speedup` 1 is out of range"),
        ({"megabytes": 0}, "`megabytes` 0 is out of range"),
    ],
)
def test_a_budget_that_makes_no_sense(values, said):
    with pytest.raises(UsageError, match=said):
        Budget(**values)


def test_a_list_of_one_block_names_it_and_a_number_does_not():
    assert {Budget(blocks=blocks).named_blocks for blocks in ([5], (5,), range(5, 6), "5..5")} == {(5,)}
    assert Budget(blocks=5).named_blocks is Budget(blocks="5").named_blocks is None
    assert Budget(blocks="1, 4,6").named_blocks == (1, 4, 6)
    assert Budget(blocks="1..3,6").named_blocks == (1, 2, 3, 6)
    assert (Budget().kind, Budget().within, Budget(within=0.5).within) == ("within", 1.0, 0.5)


@pytest.mark.parametrize(
    ("width", "left_out", "rate"),
    [(384, 1.0, 5e-4), (384, 2 / 6, 5e-4), (384, 1 / 6, 5e-4 / 3), (768, 1 / 4, 2.5e-4), (768, 2 / 12, 2.5e-4 / 3)],
)
def test_the_rate_depends_on_the_width_and_on_what_is_left_out(width, left_out, rate):
    assert DistillSettings().rate(width, left_out) == pytest.approx(rate)
    assert DistillSettings(learning_rate=3e-4).rate(width, left_out) == 3e-4


def learned(row, score):
    return replace(row, score=score, scores=(score,))


def test_scores_before_learning_are_no_match_for_those_behind_it():
    one, two, three, full = ROWS
    rows = [learned(one, 90.0), two, replace(three, score=40.0), replace(full, score=100.0)]
    assert [row.dominated for row in mark_dominated(rows)] == [False, False, True, False]  # by two blocks
    rows[2] = learned(three, 89.0)
    assert [row.dominated for row in mark_dominated(rows)] == [False, False, True, False]  # by one block
    rows[3] = replace(full, score=88.0)
    assert [row.dominated for row in mark_dominated(rows)] == [False, False, True, True]
    assert not any(row.dominated for row in mark_dominated([*rows[1:2], replace(full, score=100.0)]))


@pytest.mark.parametrize(
    ("values", "size"),
    [
        ({"blocks": "2"}, 2),
        ({"speedup": 2}, 2),
        ({"megabytes": 8}, 2),
    ],
)
def test_the_most_blocks_that_a_budget_allows(values, size):
    assert within_limit(ROWS, Budget(**values)) is ROWS[size - 1]


@pytest.mark.parametrize("values", [{"blocks": "4"}, {"blocks": "0"}, {"speedup": 5}, {"megabytes": 3}])
def test_a_budget_that_nothing_meets(values):
    with pytest.raises(UsageError, match=r"1 to 3 blocks, are up to 4.0 times .* 4.0 megabytes or more"):
        within_limit(ROWS, Budget(**values))


def a_graph(blocks, precision, dims, score, speed, megabytes):
    sizes = {"dims": dims, "words": 9, "pace": speed, "megabytes": megabytes}
    return LeanModel(blocks=blocks, precision=precision, score=score, **sizes)


FULL, SHORT = a_graph((1, 2), "fp32", 8, 100.0, 100.0, 40.0), a_graph((1, 2), "fp32", 4, 99.0, 100.0, 40.0)
EIGHT, BOTH = a_graph((1, 2), "int8", 8, 99.5, 240.0, 11.0), a_graph((1, 2), "int8", 4, 98.0, 240.0, 11.0)
ONE, LEAST = a_graph((2,), "fp32", 8, 97.0, 190.0, 30.0), a_graph((2,), "int8", 8, 96.0, 400.0, 8.0)
GRAPHS = (FULL, SHORT, EIGHT, BOTH, ONE, LEAST)


@pytest.mark.parametrize(
    ("budget", "needed", "taken"),
    [
        ({"within": 1}, 97.0, BOTH),  # as fast as EIGHT, and shorter
        ({"within": 0.2}, 99.4, EIGHT),
        ({"within": 2}, 94.0, LEAST),
        ({"within": 0}, 100.0, FULL),
        ({"within": 0}, 100.5, None),  # of labels: no graph has what the full model has in torch
        ({"speedup": 2}, None, EIGHT),
        ({"speedup": 3}, None, LEAST),
        ({"speedup": 5}, None, None),
        ({"megabytes": 40}, None, FULL),
        ({"megabytes": 39}, None, EIGHT),
        ({"megabytes": 10}, None, LEAST),
        ({"megabytes": 1}, None, None),
        ({"blocks": 2}, None, None),  # nothing is left to choose by
    ],
)
def test_which_graph_a_budget_takes(budget, needed, taken):
    assert graph_within(GRAPHS, Budget(**budget), needed) == taken
