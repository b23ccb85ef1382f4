"""How often candidates are timed. Nothing here asserts a time."""

import pytest

from truncate_kit.distillation import speed


@pytest.mark.parametrize(("seconds", "rounds"), [(0.0, 3), (1e9, 7)])
def test_all_take_turns_more_often_where_that_takes_little(seconds, rounds, monkeypatch):
    monkeypatch.setattr(speed, "ROUNDS", 3)
    monkeypatch.setattr(speed, "MOST_ROUNDS", 7)
    monkeypatch.setattr(speed, "SECONDS", seconds)
    heard, shown = [], []
    runs = [lambda name=name: heard.append(name) for name in "ab"]
    rates = speed.side_by_side(runs, 12, progress=lambda *step: shown.append(step))
    assert "".join(heard) == "ab" * (1 + rounds)  # the first round warms up
    assert len(rates) == 2
    assert shown[-1] == ("Timing", 3, 3)
