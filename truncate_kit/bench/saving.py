"""Where the report of a bench goes."""

from pathlib import Path

from truncate_kit.bench.results import BenchReport


def file_for(report: BenchReport, path: Path) -> Path:
    """Where to write a report: to `path`, such as bench.json, or to bench-2.json and so on where that measured more."""
    number, found = 1, path
    while not _may_replace(report, found):
        number += 1
        found = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return found


def _may_replace(report: BenchReport, path: Path) -> bool:
    try:
        return report.covers(BenchReport.read(path))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):  # none is there, or none that can be read
        return True
