"""The files of one module in a sentence-transformers folder: config.json and weights."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from truncate_kit.errors import ModelError, first_line
from truncate_kit.files import read_text


def read_json(path: Path) -> Any:
    """The JSON in a file. Raises `ModelError`."""
    try:
        return json.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(
            f"Cannot read {path}: {first_line(error)}.", hint="Download or save the model again."
        ) from error


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file, and the folder it is in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def read_weights(place: Path) -> dict[str, Tensor]:
    """The weights of a module, from safetensors or a .bin file, nothing unpickled. Raises `ModelError`."""
    try:
        if (place / "model.safetensors").exists():
            return load_file(place / "model.safetensors")
        weights: dict[str, Tensor] = torch.load(place / "pytorch_model.bin", map_location="cpu", weights_only=True)
        return weights
    except (OSError, RuntimeError, SafetensorError, EOFError) as error:
        raise unreadable_weights(place, error) from error


def unreadable_weights(place: Path, error: Exception) -> ModelError:
    """The error for weights that cannot be read."""
    return ModelError(f"The weights in {place} cannot be read: {error}.", hint="Download or save the model again.")
