"""Files of a model folder: none of them may lead out of it, and none of them may bring code that is run.

A model folder comes from outside. What it names (the folders of its modules) and what its links point to is read, and
is copied to workers, so both are resolved and have to lie inside the folder.
"""

from pathlib import Path
from typing import Any

from truncate_kit.errors import ModelError

_READ = {".bin", ".data", ".jinja", ".json", ".model", ".onnx", ".safetensors", ".txt"}


def module_folder(folder: Path, path: Any) -> Path:
    """The folder of a module that `modules.json` of `folder` names.

    Raises `ModelError` where it lies outside `folder`, or where a file in it is a link to somewhere else.
    """
    place = folder / str(path)
    if not isinstance(path, str) or not _inside(folder, place):
        raise ModelError(
            f"modules.json of {folder} names the module folder {path!r}, which is outside the model's own folder.",
            hint="Do not use this folder unless you know who made it; every module has to lie inside it.",
        )
    check_links(folder, place)
    return place


def check_links(folder: Path, place: Path) -> None:
    """Raise `ModelError` where a file to be read from `place` is a link that leads out of the model's `folder`."""
    # Below `folder` itself only its own files count: its other folders are no part of the model, unless they are named.
    for file in place.glob("*") if place == folder else place.rglob("*"):
        if file.exists() and not file.is_file() and not file.is_dir():
            raise ModelError(f"{file} is a pipe or a device.", hint="Do not use this folder: it would wait for ever.")
        if (file.is_symlink() or place != folder) and file.suffix in _READ and not _inside(folder, file):
            raise ModelError(
                f"{file} is a link to {file.resolve()}, outside the model's own folder.",
                hint="Copy the file into the folder if it belongs to the model.",
            )


def _inside(folder: Path, place: Path) -> bool:
    """Whether `place`, its links followed, lies in `folder`, or among the files that the hub's cache keeps for it."""
    roots = [folder.resolve()]
    if roots[0].parent.name == "snapshots":  # the cache's layout: snapshots/REVISION holds links into blobs
        roots.append(roots[0].parent.parent / "blobs")
    resolved = place.resolve()
    return any(resolved.is_relative_to(root) for root in roots)


def check_no_kernel(path: Path, values: dict[str, Any]) -> None:
    """Raise `ModelError` where a configuration asks for attention kernels of the hub: they are code that would run."""
    for key in ("attn_implementation", "_attn_implementation"):
        asked = values.get(key)
        for name in asked.values() if isinstance(asked, dict) else [asked]:
            if isinstance(name, str) and "/" in name:
                raise ModelError(
                    f"{path} asks for the attention kernel {name!r}, which is code from the hub; it is not run.",
                    hint=f"Remove {key} from config.json.",
                )
