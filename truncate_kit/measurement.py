"""Reports of measurements, of which a shorter one never takes the place of a longer one."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from truncate_kit.results import Result, read_or_pass_over

Amounts = tuple[tuple[object, ...], tuple[int, ...]]
"""What was measured, such as a set, and how much of it, such as its rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement(Result, ABC):
    """A report that says how much it measured."""

    @abstractmethod
    def amounts(self) -> Iterator[Amounts]:
        """Everything that was measured, each part once."""

    def covers(self, other: Self) -> bool:
        """Whether all that another report measured was measured here at least as often.

        Of whatever models, unless `amounts` names them.
        """
        ours = dict(self.amounts())
        return all(
            key in ours and all(mine >= theirs for mine, theirs in zip(ours[key], amounts, strict=True))
            for key, amounts in other.amounts()
        )


def file_for(report: Measurement, path: Path) -> Path:
    """Where to write a report: to `path`, such as bench.json, or to bench-2.json and so on where that stays.

    What is there stays where `report` does not cover it.
    """
    return first_free(path, lambda file: _may_replace(report, file))


def first_free(path: Path, is_free: Callable[[Path], bool]) -> Path:
    """The path, or the first with a number after it, that may be written to."""
    number, found = 1, path
    while not is_free(found):
        number += 1
        found = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return found


def files_at(path: Path) -> list[Path]:
    """What `file_for` has given for this path, as far as it is there; the path itself first."""
    beside = [file for file in path.parent.glob("*") if _number(file, path)]
    return [*([path] if path.is_file() else []), *sorted(beside, key=lambda file: _number(file, path))]


def _number(file: Path, path: Path) -> int:
    """The number in the name of a file beside `path`, 0 for any other file."""
    stem, _, number = file.stem.rpartition("-")
    ours = (stem, file.suffix) == (path.stem, path.suffix) and number.isascii() and number.isdecimal()
    return int(number) if ours and len(number) < len("1000000") else 0


def _may_replace(report: Measurement, path: Path) -> bool:
    before = read_or_pass_over(type(report).read, path)
    return before is None or report.covers(before)
