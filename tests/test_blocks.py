"""Blocks as text."""

import pytest

from truncate_kit.core.errors import UsageError
from truncate_kit.core.settings import blocks_named
from truncate_kit.core.wording import blocks_in_words, place_in_words


@pytest.mark.parametrize(
    ("text", "blocks"),
    [("4", (4,)), ("1,4,6", (1, 4, 6)), ("1..3,6", (1, 2, 3, 6)), (" 1, 3..4 ", (1, 3, 4)), ("2,2,1", (2, 2, 1))],
)
def test_blocks_are_numbers_and_ranges(text, blocks):
    assert blocks_named(text) == blocks


@pytest.mark.parametrize("text", ["", "all", "1,", "1..", "1.5", "3..1", "1..1000000000000"])
def test_what_names_none_is_refused(text):
    with pytest.raises(UsageError):
        blocks_named(text)


def test_they_are_named_with_the_depth_where_it_is_given():
    assert blocks_in_words((1, 4, 6)) == "blocks 1, 4, 6"
    assert blocks_in_words((5,), 6) == "block 5 of 6"
    assert [place_in_words(layer, (1, 4, 6)) for layer in (0, 1, 2)] == ["layer 0", "block 1", "blocks 1, 4"]
    assert place_in_words(3, None) == "layer 3"
