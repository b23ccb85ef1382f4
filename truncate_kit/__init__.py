"""Find the best layer of a pretrained text encoder, fine-tune it there, strip the rest, export, and measure the gain.

The public names are loaded when first used: importing the package imports no torch.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_PUBLIC: dict[str, str] = {
    "LayerProfile": "truncate_kit.analysis",
    "layer_states": "truncate_kit.representations",
    "profile": "truncate_kit.analysis",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
