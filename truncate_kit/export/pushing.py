"""Upload a model folder to the hub, private by default."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from huggingface_hub import HfApi, errors, metadata_load
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # public, but not declared so
from yaml import YAMLError

from truncate_kit.core.errors import ModelError, TruncateKitError, UsageError, first_line
from truncate_kit.core.hardware import GRAPH_FILES
from truncate_kit.core.workspace import ORIGIN_FILE, RESULT_FILES
from truncate_kit.data.seen import SEEN_FILE

# Locks, half-written files, records with local paths, and keys of training pairs.
_RECORDS = (Path(RESULT_FILES["cut"]).name, Path(RESULT_FILES["distill"]).name, ORIGIN_FILE, SEEN_FILE)
_LEFT_OUT = [".*", "**/.*", "*.tmp", *_RECORDS]


def check_hub_name(name: str) -> None:
    """Raise `UsageError` unless `name` is a possible hub name."""
    with contextlib.suppress(errors.HFValidationError):
        validate_repo_id(name)
        if "/" in name:
            return
    raise UsageError(
        f"{name!r} is no name for a model on the hub.", hint="Write it like owner/name: letters, digits, - _ and ."
    )


def push_folder(folder: Path, name: str, *, public: bool = False, endpoint: str | None = None) -> tuple[str, str, bool]:
    """Upload a saved model in one commit; return its address, the commit, and whether it is private.

    Raises:
        ModelError: No model, an unchecked graph, or a card with a local base.
        UsageError: An impossible name, or a public repository without `public`.
        TruncateKitError: The hub cannot be reached, or refuses.
    """
    from truncate_kit.export.record import check_record

    check_hub_name(name)
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise ModelError(f"There is no model in {folder} to push.", hint="Make one with `finetune()` first.")
    _check_base(folder / "README.md")
    for graph in GRAPH_FILES.values():
        if (folder / graph).is_file():
            check_record(folder / graph)
    api = HfApi(endpoint=endpoint)
    with _reaching_the_hub(name):
        api.create_repo(name, private=not public, exist_ok=True)
        private = bool(api.model_info(name).private)
        if not private and not public:
            raise UsageError(f"The model {name} on the hub is public.", hint="Use `public=True` to push there anyway.")
        commit = api.upload_folder(
            repo_id=name, folder_path=folder, ignore_patterns=list(_LEFT_OUT), commit_message="Upload by truncate-kit"
        )
    return f"{api.endpoint}/{name}", str(commit.oid), private


def _check_base(card: Path) -> None:
    """Raise `ModelError` if a card's base model is a local folder."""
    try:
        bases = (metadata_load(card) or {}).get("base_model", ())
    except (OSError, ValueError, YAMLError):  # no card, or one that the hub refuses
        return
    for base in map(str, bases if isinstance(bases, (list, tuple)) else (bases,)):
        local = Path(base).exists()
        with contextlib.suppress(errors.HFValidationError):
            validate_repo_id(base)
            if not local:
                continue
        raise ModelError(
            f"{card} names {base!r} as base model, a folder that the hub does not have.",
            hint="Write the name of that model on the hub into base_model, or remove the line.",
        )


@contextlib.contextmanager
def _reaching_the_hub(name: str) -> Iterator[None]:
    try:
        yield
    except (errors.OfflineModeIsEnabled, errors.HfHubHTTPError, errors.HTTPError, OSError) as error:  # type: ignore[attr-defined]  # as above
        raise TruncateKitError(
            f"The hub does not take {name}: {first_line(error)}.",
            hint="The folder is as it was. Check the connection, HF_HUB_OFFLINE, and your login: hf auth login.",
        ) from error
