"""What truncate-kit's own metadata says: the packages and extras of pyproject.toml."""

from importlib import metadata

from packaging.requirements import Requirement as Wanted

from truncate_kit.errors import TruncateKitError

PACKAGE = "truncate-kit"


def wanted() -> list[Wanted]:
    """Every package named, for whatever extra. Raises `TruncateKitError` where this package is not installed."""
    return [Wanted(text) for text in _distribution().requires or ()]


def extras() -> tuple[str, ...]:
    """The extras in the order of pyproject.toml. Raises `TruncateKitError` where this package is not installed."""
    return tuple(_distribution().metadata.get_all("Provides-Extra") or ())


def _distribution() -> metadata.Distribution:
    try:
        return metadata.distribution(PACKAGE)
    except metadata.PackageNotFoundError as error:
        raise TruncateKitError(
            "truncate-kit runs from a folder and is not installed, so what it needs is not known.",
            hint="Install it with: pip install -e .",
        ) from error
