"""Find and read model folders without running code or leaving the folder."""

import contextlib
import pickle
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from huggingface_hub import errors as hub_errors
from huggingface_hub import snapshot_download
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers.utils import logging

from truncate_kit.core.errors import ModelError, first_line
from truncate_kit.core.files import is_there, local_path, read_json, real_path, write_json
from truncate_kit.core.origin import miniature_names, miniature_path

Module = TypeVar("Module", bound=nn.Module)
FolderState = tuple[tuple[str, int, int, int], ...]
WEIGHTS_FILE = "model.safetensors"
_AGAIN = "Download or save the model again."
_READ = {".bin", ".data", ".jinja", ".json", ".model", ".onnx", ".safetensors", ".txt"}
_MODEL_FILES = ("*.json", "*.safetensors", "*.bin", "*.txt", "*.model", "*/config.json", "*/*.safetensors", "*/*.bin")
_CONFIGS = ["*.json", "*.txt", "*.model", "*/config.json"]
_OTHER_RUNTIMES = ["onnx/*", "openvino/*", "coreml/*", "*.h5", "*.msgpack", "*.ot"]
_WITHOUT_WEIGHTS = ("Pooling", "Normalize", "Dropout")


def resolve(name: str | Path) -> Path:
    """Return a model's local folder: path, bundled miniature, or hub name (downloaded). Raises `ModelError`."""
    text, path = str(name), local_path(name)
    if is_there(path):
        if not path.is_dir():
            raise ModelError(f"{path} is a file, not a model folder.", hint="Give the folder that holds config.json.")
        return path
    bundled = miniature_path(text)
    if bundled is not None:
        return bundled
    if text.startswith((".", "/", "~")) or text.count("/") > 1:
        raise ModelError(f"There is no model folder {path}.", hint="Check the path; hub names look like owner/name.")
    return _download(text)


def _download(name: str) -> Path:
    """Download configurations and weights, pickled ones as a last resort."""
    hint = f"Hub names look like owner/name; the bundled miniatures are called {', '.join(miniature_names())}."
    try:
        patterns = [*_CONFIGS, "*.safetensors", "*/*.safetensors"]
        folder = Path(snapshot_download(name, allow_patterns=patterns, ignore_patterns=_OTHER_RUNTIMES))
        listing = folder / "modules.json"
        modules = read_json(listing) if listing.is_file() else [{"path": "", "type": "Transformer"}]
        weighted = [Path(module["path"]) for module in modules if not module["type"].endswith(_WITHOUT_WEIGHTS)]
        bins = [path / "pytorch_model*.bin" for path in weighted if not any((folder / path).glob("*.safetensors"))]
        if bins:
            snapshot_download(name, allow_patterns=[*map(str, bins)], ignore_patterns=_OTHER_RUNTIMES)
        return folder
    except hub_errors.GatedRepoError as error:
        hint = "Accept its terms on its page, then `hf auth login`."
        raise ModelError(f"The hub model {name!r} asks for consent first.", hint=hint) from error
    except (hub_errors.RepositoryNotFoundError, hub_errors.HFValidationError) as error:
        hint += " Private models need `hf auth login`."
        raise ModelError(f"There is no folder and no hub model called {name!r}.", hint=hint) from error
    except (OSError, hub_errors.HfHubHTTPError, hub_errors.LocalEntryNotFoundError) as error:
        problem = f"There is no folder {name!r}, and the hub cannot be reached to look for a model of that name."
        raise ModelError(problem, hint=f"Check the path or the connection. {hint}") from error


def check_links(folder: Path, place: Path) -> None:
    """Raise `ModelError` if files or weights of a module lie outside `folder` and the hub's cache of it."""
    root = real_path(folder)
    # Links lead from snapshots/REVISION into blobs.
    blobs = [above.parent.parent / "blobs" for above in (root, *root.parents) if above.parent.name == "snapshots"]
    listed = place.glob("*") if place == folder else place.rglob("*")
    files = [place, *(file for file in listed if file.suffix in _READ)]
    for index in place.glob("*.index.json"):
        files += [place / name for name in read_json(index).get("weight_map", {}).values()]
    for file in files:
        if not any(real_path(file).is_relative_to(allowed) for allowed in (root, *blobs)):
            raise ModelError(
                f"{file} leads to {real_path(file)}, outside the model's own folder.",
                hint="Copy the file into the folder if it belongs to the model and you trust its author.",
            )


def read_weights(place: Path) -> dict[str, Tensor]:
    """Read weights from safetensors or a .bin file, {} without either. Raises `ModelError`."""
    weights: dict[str, Tensor] = {}
    try:
        if (place / WEIGHTS_FILE).exists():
            weights = load_file(place / WEIGHTS_FILE)
        elif (place / "pytorch_model.bin").exists():
            weights = torch.load(place / "pytorch_model.bin", map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, SafetensorError, EOFError, pickle.UnpicklingError) as error:
        raise unreadable(place, error) from error
    return weights


def unreadable(place: Path, error: Exception) -> ModelError:
    """Return the error for an unreadable model."""
    if isinstance(error, pickle.UnpicklingError):
        return ModelError(
            f"The weights in {place} are pickled with more than tensors, which could run code; they are not read.",
            hint="Use a checkpoint in safetensors.",
        )
    problem = f"{error} is missing" if isinstance(error, KeyError) else first_line(error)
    return ModelError(
        f"The model in {place} cannot be read: {problem}.",
        hint="Check that configuration and weights belong together; download or save it again.",
    )


def read_module(place: Path, build: Callable[[dict[str, Any]], Module]) -> Module:
    """Build a module and fill in its weights. Raises `ModelError`.

    On the meta device, so that wrong sizes take no memory.
    """
    values, weights = read_json(place / "config.json"), read_weights(place)
    try:
        with torch.device("meta"):
            module = build(values)
        module.load_state_dict(weights, assign=True)
    except ModelError:
        raise
    except Exception as error:  # each class fails in its own way
        raise unreadable(place, error) from error
    check_finite(module, place)
    return module.float()


def write_module(place: Path, values: dict[str, Any] | None, weights: dict[str, Tensor]) -> None:
    """Write configuration and weights, if any."""
    place.mkdir(parents=True, exist_ok=True)
    if values is not None:
        write_json(place / "config.json", values)
    if weights:
        weights = {name: value.detach().contiguous().cpu() for name, value in weights.items()}
        save_file(weights, place / WEIGHTS_FILE, metadata={"format": "pt"})


def check_finite(module: nn.Module, folder: Path) -> None:
    """Raise `ModelError` if a weight is NaN or infinite."""
    for name, weight in module.state_dict().items():
        if not torch.isfinite(weight).all():
            raise ModelError(
                f"The weight {name} in {folder} holds NaN or infinity.", hint="Use an undamaged checkpoint."
            )


def state_of(folder: Path, more: Sequence[Path] = ()) -> FolderState:
    """Return name, inode, size and time of the model's files and `more`."""
    files = {file for pattern in _MODEL_FILES for file in folder.glob(pattern) if file.name != "export.json"} | {*more}
    found = []
    for file in sorted(files):
        with contextlib.suppress(OSError):  # gone since it was listed
            facts = file.stat()
            found.append((str(file), facts.st_ino, facts.st_size, facts.st_mtime_ns))
    return tuple(found)


def check_unreplaced(folder: Path, before: FolderState, more: Sequence[Path] = ()) -> None:
    """Raise `ModelError` if a model folder has changed."""
    if state_of(folder, more) != before:
        raise ModelError(f"{folder} was changed while it was read.", hint="Wait until nobody writes there; run again.")


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence reports on weights left out on purpose."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
