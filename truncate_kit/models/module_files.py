"""The files of one module in a sentence-transformers folder: config.json and weights."""

import json
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from truncate_kit.errors import ModelError, first_line
from truncate_kit.files import read_text, without_repeats

Module = TypeVar("Module", bound=nn.Module)
WEIGHTS_FILE = "model.safetensors"


def read_json(path: Path) -> Any:
    """The JSON in a file. Raises `ModelError`, also for a key that is there twice."""
    try:
        return json.loads(read_text(path), object_pairs_hook=without_repeats)
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
        if (place / WEIGHTS_FILE).exists():
            return load_file(place / WEIGHTS_FILE)
        weights: dict[str, Tensor] = torch.load(place / "pytorch_model.bin", map_location="cpu", weights_only=True)
        return weights
    except pickle.UnpicklingError as error:
        raise pickled(place) from error
    except (OSError, RuntimeError, SafetensorError, EOFError) as error:
        raise unreadable_weights(place, error) from error


def write_weights(place: Path, module: nn.Module) -> None:
    """Write the weights of a module, where it has some, into a folder that is there."""
    weights = {name: value.detach().contiguous().cpu() for name, value in module.state_dict().items()}
    if weights:
        save_file(weights, place / WEIGHTS_FILE, metadata={"format": "pt"})


def unreadable_weights(place: Path, error: Exception) -> ModelError:
    """The error for weights that cannot be read."""
    found = f"The weights in {place} cannot be read: {first_line(error)}."
    return ModelError(found, hint="Download or save the model again.")


def pickled(place: Path) -> ModelError:
    """The error for weights that are pickled with more than tensors."""
    return ModelError(
        f"The weights in {place} are pickled with more than tensors, which could run code; they are not read.",
        hint="Use a checkpoint in safetensors.",
    )


def loaded(load: Callable[[], Module]) -> Module:
    """The module that `load` builds and fills with its weights, tried without memory first.

    What its configuration claims is so held against the shapes of its weights before memory is asked for.
    """
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")  # that nothing is copied
        load()
    return load()
