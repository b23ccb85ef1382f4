"""What the package returns: frozen dataclasses with raw values, JSON out and in."""

import dataclasses
import json
import types
import typing
from pathlib import Path
from typing import Any, Self

from truncate_kit.files import write_json

_NEEDED = dataclasses.MISSING  # the default of a field that every file has to hold


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Base of all results: nests, and comes back from its own JSON equal to what went out."""

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists, numbers, strings and None."""
        return dataclasses.asdict(self)

    def to_json(self) -> str:
        """One indented JSON document. Raises ValueError on NaN or infinity: they are not JSON."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The inverse of `to_dict`. Raises KeyError on a missing field; unknown fields are ignored."""
        hints = typing.get_type_hints(cls)
        return cls(
            **{
                field.name: _restore(hints[field.name], values[field.name])
                for field in dataclasses.fields(cls)
                if field.name in values or (field.default, field.default_factory) == (_NEEDED, _NEEDED)
            }
        )

    def write(self, path: Path) -> None:
        """Write the JSON under a temporary name and rename it. Raises `FileProblemError`."""
        write_json(path, self.to_dict())

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read what `write` wrote."""
        return cls.from_dict(json.loads(Path(path).read_text(encoding="utf-8")))


def _restore(hint: Any, value: Any) -> Any:
    """Turn a JSON value back into the annotated type: nested results and tuples of them."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if value is None:
        return None
    if origin in (typing.Union, types.UnionType):
        inner = [argument for argument in arguments if argument is not type(None)]
        return _restore(inner[0], value) if len(inner) == 1 else value
    if origin is tuple:
        return tuple(_restore(arguments[0], item) for item in value)
    if origin is dict:
        return {key: _restore(arguments[1], item) for key, item in value.items()}
    if isinstance(hint, type) and issubclass(hint, Result):
        return hint.from_dict(value)
    return value
