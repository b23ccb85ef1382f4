"""Installed packages against what truncate-kit's own metadata wants."""

import contextlib
from collections.abc import Iterator, Sequence
from importlib import metadata

from packaging.requirements import Requirement as Wanted

from truncate_kit.doctor.facts import Requirement
from truncate_kit.doctor.metadata import PACKAGE, extras, wanted

# Every one of them installs the module `onnxruntime` into the same folder.
WHEELS = (
    "onnxruntime", "onnxruntime-gpu", "onnxruntime-directml", "onnxruntime-openvino", "onnxruntime-rocm",
    "onnxruntime-training", "ort-nightly", "ort-nightly-gpu",
)  # fmt: skip


def installed_version(name: str) -> str | None:
    """The version of a distribution, None where it is not installed."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(name)
    return None


def onnxruntime_wheels() -> dict[str, str]:
    """The distributions that install ONNX Runtime, each with its version; more than one is one too many."""
    found = ((name, installed_version(name)) for name in WHEELS)
    return {name: version for name, version in found if version is not None}


def requirements() -> Iterator[Requirement]:
    """Each package that truncate-kit names, first what it always needs, then extra by extra."""
    rows = wanted()
    for extra in (None, *extras()):
        for row in _named(rows, extra):
            yield _requirement(row, extra)


def _named(rows: Sequence[Wanted], extra: str | None) -> Iterator[Wanted]:
    """The packages of an extra, and of those extras that it takes in."""
    for row in rows:
        if not _belongs(row, extra):
            continue
        if row.name == PACKAGE:
            for other in sorted(row.extras):
                yield from _named(rows, other)
        else:
            yield row


def _belongs(row: Wanted, extra: str | None) -> bool:
    if row.marker is None:
        return extra is None
    without = row.marker.evaluate({"extra": ""})
    return without if extra is None else not without and row.marker.evaluate({"extra": extra})


def _requirement(row: Wanted, extra: str | None) -> Requirement:
    version = installed_version(row.name)
    if version is None and row.name == "onnxruntime":  # the build for GPUs runs on the CPU as well
        version = installed_version("onnxruntime-gpu")
    return Requirement(
        name=row.name,
        wanted=str(row.specifier),
        installed=version,
        fits=version is not None and row.specifier.contains(version, prereleases=True),
        extra=extra,
    )
