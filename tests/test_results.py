"""Results come back from their JSON equal to what went out."""

import json

import pytest

from truncate_kit.core.errors import FileProblemError
from truncate_kit.core.results import FORMAT, Result, digest_of_values, sealed


class Inner(Result):
    value: float
    name: str | None = None


class Outer(Result):
    rows: tuple[tuple[float, ...], ...]
    inner: Inner
    several: tuple[Inner, ...]
    by_name: dict[str, Inner]
    perhaps: Inner | None
    limits: tuple[float, float] | None = None


INNER = {"inner": Inner(value=0.1, name="a"), "several": (Inner(value=1e-300), Inner(value=-2.0)), "perhaps": None}
OUTER = Outer(rows=((1.0, 2.0), (3.0,)), by_name={"x": Inner(value=3.0)}, limits=(0.0, 5.0), **INNER)


def test_round_trip_through_text_and_file(tmp_path):
    assert Outer.from_dict(json.loads(OUTER.to_json())) == OUTER
    OUTER.write(tmp_path / "outer.json")
    assert Outer.read(tmp_path / "outer.json") == OUTER


def test_a_printed_result_is_not_called_changed(tmp_path):
    path = tmp_path / "printed.json"
    path.write_text(json.dumps({"format": FORMAT} | OUTER.to_dict()))
    with pytest.raises(ValueError, match="or printed by --json"):
        Outer.read(path)
    assert Outer.from_dict(json.loads(path.read_text())) == OUTER
    OUTER.write(path)
    path.write_text(path.read_text().replace("-2.0", "-3.0"))
    with pytest.raises(ValueError, match="was changed after it was written"):
        Outer.read(path)


def test_defaults_fill_missing_fields_and_unknown_ones_are_ignored():
    assert Inner.from_dict({"value": 2.0, "unit": "s"}) == Inner(value=2.0)
    with pytest.raises(ValueError, match="value: Field required"):
        Inner.from_dict({"name": "a"})


def test_deep_nesting_is_damage(tmp_path):
    (tmp_path / "deep.json").write_text("[" * 100_000)
    assert Inner.read_if_whole(tmp_path / "deep.json") is None


def test_nan_is_refused():
    with pytest.raises(ValueError, match="JSON"):
        Inner(value=float("nan")).to_json()


def test_another_format_is_refused_in_one_sentence(tmp_path):
    values = {"format": (version := FORMAT + 1), "value": 1.0}
    (tmp_path / "inner.json").write_text(json.dumps(values | {"digest": digest_of_values(values)}))
    with pytest.raises(FileProblemError, match=f"another version of truncate-kit .format {version}; this one reads"):
        Inner.read_if_whole(tmp_path / "inner.json")


@pytest.mark.parametrize("change", [{"format": None}, {"digest": None}, {"value": 2.0}])
def test_what_has_no_format_or_another_digest_is_damaged(change, tmp_path):
    values = sealed({"value": 1.0}) | change
    (tmp_path / "inner.json").write_text(json.dumps({name: value for name, value in values.items() if value}))
    assert Inner.read_if_whole(tmp_path / "inner.json") is None
