"""Files of a model folder: none of them may lead out of it, and none of them may bring code that is run.

A model folder comes from outside. What it names (the folders of its modules) and what its links point to is read, and
is copied to workers, so both are resolved and have to lie inside the folder.
"""

import json
from pathlib import Path
from typing import Any

from truncate_kit.errors import ModelError, first_line
from truncate_kit.files import all_below, read_text, real_path, without_repeats
from truncate_kit.settings import shown

_READ = {".bin", ".data", ".jinja", ".json", ".model", ".onnx", ".safetensors", ".txt"}
_TEMPLATES = "additional_chat_templates"  # a folder that tokenizers read, and write, without anybody naming it
_OWN_CODE = ("sentence_transformers.", "truncate_kit.")


def module_folder(folder: Path, path: Any) -> Path:
    """The folder of a module that `modules.json` of `folder` names.

    Raises `ModelError` where it lies outside `folder`, or where a file in it is a link to somewhere else.
    """
    place = folder / str(path)
    if not isinstance(path, str) or not _inside(folder, place):
        raise ModelError(
            f"modules.json of {folder} names the module folder {shown(path)}, which is outside the model's own folder.",
            hint="Do not use this folder unless you know who made it; every module has to lie inside it.",
        )
    check_links(folder, place)
    return place


def check_links(folder: Path, place: Path) -> None:
    """Raise `ModelError` where a file to be read from `place` is a link that leads out of the model's `folder`."""
    # Below `folder` itself only its own files count: its other folders are no part of the model, unless they are named.
    files = [*place.glob("*"), *place.glob(f"{_TEMPLATES}/*")] if place == folder else all_below(place)
    for file in files:
        if file.exists() and not file.is_file() and not file.is_dir():
            raise ModelError(f"{file} is a pipe or a device.", hint="Do not use this folder: it would wait for ever.")
        if (file.is_symlink() or file.parent != folder) and file.suffix in _READ and not _inside(folder, file):
            raise ModelError(
                f"{file} is a link to {real_path(file)}, outside the model's own folder.",
                hint="Copy the file into the folder if it belongs to the model.",
            )


def _inside(folder: Path, place: Path) -> bool:
    """Whether `place`, its links followed, lies in `folder`, or among the files that the hub's cache keeps for it."""
    root = real_path(folder)
    roots = [root]
    # The cache's layout: snapshots/REVISION holds links into blobs, and so does the folder of a module in it.
    snapshot = next((above for above in (root, *root.parents) if above.parent.name == "snapshots"), None)
    if snapshot is not None:
        roots.append(snapshot.parent.parent / "blobs")
    try:
        resolved = real_path(place)
        place.exists()
    except OSError:  # a name that no file can have
        return False
    return any(resolved.is_relative_to(root) for root in roots)


def check_shards(folder: Path) -> None:
    """Raise `ModelError` where the weights of a transformer are in several files and one is not in its `folder`."""
    for index in folder.glob("*.index.json"):
        try:
            values = json.loads(read_text(index), object_pairs_hook=without_repeats)
            names = {str(name) for name in values["weight_map"].values()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ModelError(
                f"{index} cannot be read: {first_line(error)}.", hint="Download the model again."
            ) from error
        for name in sorted(names):
            if not _inside(folder, folder / name):
                raise ModelError(
                    f"{index} names the file {shown(name)}, which is outside the model's own folder.",
                    hint="Do not use this folder unless you know who made it; all weights have to lie inside it.",
                )


def check_no_adapter(folder: Path) -> None:
    """Raise `ModelError` where an adapter lies in the folder, which counts where peft is installed only."""
    if (folder / "adapter_config.json").exists():
        raise ModelError(
            f"{folder} holds an adapter (adapter_config.json), which is not applied here.",
            hint="Merge it into its base model (merge_and_unload of peft), or remove it where the weights are whole.",
        )


def check_module_type(folder: Path, kind: Any, own: str | None) -> None:
    """Raise `ModelError` for a module class that is neither sentence-transformers' nor `own`, as it is written here.

    What this package builds it builds itself; but sentence-transformers, which `bench` runs, imports what is named.
    """
    if not isinstance(kind, str) or not (kind.startswith(_OWN_CODE) or kind == own):
        raise ModelError(
            f"modules.json of {folder} names the module class {shown(kind)}, which is code of its own; it is not run.",
            hint="Use a model whose modules are sentence-transformers' own.",
        )


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
