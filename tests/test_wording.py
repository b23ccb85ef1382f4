"""Numbers with their nouns."""

from truncate_kit.wording import in_points


def test_one_point_is_not_many():
    assert [in_points(number) for number in (0, 0.5, 1, 1.0, 2.5, 4)] == [
        "0 points",
        "0.5 points",
        "1 point",
        "1 point",
        "2.5 points",
        "4 points",
    ]
