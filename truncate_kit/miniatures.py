"""Small pretrained encoders that come with the package, so that every command works without a download."""

from difflib import get_close_matches
from pathlib import Path

DEFAULT_MINIATURE = "mini-electra-discriminator"
DEFAULT_REFERENCE = "mini-bert"

_ALIKE = 0.8  # a slip or two in a name
_FOLDER = Path(__file__).parent / "models/miniatures"


def miniature_names() -> tuple[str, ...]:
    """Names of the bundled encoders."""
    return tuple(sorted(path.parent.name for path in _FOLDER.glob("*/config.json")))


def miniature_path(name: str) -> Path | None:
    """Folder of the bundled encoder called `name`, None where there is none."""
    return _FOLDER / name if name in miniature_names() else None


def is_almost_miniature(name: str) -> bool:
    """Whether a name seems to mean one of the bundled encoders, and is none."""
    return name.lower().startswith("mini") or bool(get_close_matches(name.lower(), miniature_names(), 1, _ALIKE))


def default_reference(name: str) -> str | None:
    """The bundled encoder to compare another bundled one with; None for the reference itself and for all others."""
    return DEFAULT_REFERENCE if name in miniature_names() and name != DEFAULT_REFERENCE else None
