"""Small pretrained encoders that come with the package, so that every command works without a download."""

from pathlib import Path

DEFAULT_MINIATURE = "mini-electra-discriminator"
DEFAULT_REFERENCE = "mini-bert"

_FOLDER = Path(__file__).parent / "encoders/miniatures"


def miniature_names() -> tuple[str, ...]:
    """Names of the bundled encoders."""
    return tuple(sorted(path.parent.name for path in _FOLDER.glob("*/config.json")))


def miniature_path(name: str) -> Path | None:
    """Folder of the bundled encoder called `name`, None where there is none."""
    return _FOLDER / name if name in miniature_names() else None


def default_reference(name: str) -> str | None:
    """The bundled encoder to compare another bundled one with; None for the reference itself and for all others."""
    return DEFAULT_REFERENCE if name in miniature_names() and name != DEFAULT_REFERENCE else None
