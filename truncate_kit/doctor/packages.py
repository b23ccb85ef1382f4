"""Installed packages against what truncate-kit's own metadata wants."""

import contextlib
from collections.abc import Iterator
from importlib import metadata

from packaging.requirements import Requirement as Wanted

from truncate_kit.doctor.results import EXTRAS, Requirement
from truncate_kit.errors import TruncateKitError

_PACKAGE = "truncate-kit"
# Every one of them installs the module `onnxruntime` into the same folder.
WHEELS = (
    "onnxruntime",
    "onnxruntime-gpu",
    "onnxruntime-directml",
    "onnxruntime-openvino",
    "onnxruntime-rocm",
    "onnxruntime-training",
    "ort-nightly",
    "ort-nightly-gpu",
)


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
    """Each package that truncate-kit names, first what it always needs, then extra by extra.

    onnxruntime-gpu runs on the CPU as well, so it satisfies the extra `cpu`. Raises `TruncateKitError` where this
    package is not installed.
    """
    try:
        wanted = [Wanted(text) for text in metadata.requires(_PACKAGE) or ()]
    except metadata.PackageNotFoundError as error:
        raise TruncateKitError(
            "truncate-kit runs from a folder and is not installed, so what it needs is not known.",
            hint="Install it with: pip install -e .",
        ) from error
    for extra in (None, *EXTRAS):
        for row in wanted:
            if row.name != _PACKAGE and _belongs(row, extra):
                yield _judged(row, extra)


def _belongs(row: Wanted, extra: str | None) -> bool:
    if row.marker is None:
        return extra is None
    without = row.marker.evaluate({"extra": ""})
    return without if extra is None else not without and row.marker.evaluate({"extra": extra})


def _judged(row: Wanted, extra: str | None) -> Requirement:
    version = installed_version(row.name)
    if version is None and row.name == "onnxruntime":
        version = installed_version("onnxruntime-gpu")
    return Requirement(
        name=row.name,
        wanted=str(row.specifier),
        installed=version,
        fits=version is not None and row.specifier.contains(version, prereleases=True),
        extra=extra,
    )
