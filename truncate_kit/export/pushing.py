"""A model folder to the hub, when it was asked for: private unless public is asked for."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import HfApi, errors, metadata_load
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # public, but not declared so
from yaml import YAMLError

from truncate_kit.core.errors import ModelError, TruncateKitError, UsageError
from truncate_kit.core.origin import ORIGIN_FILE, RESULT_FILES
from truncate_kit.core.precisions import GRAPH_FILES
from truncate_kit.core.results import Result
from truncate_kit.data.seen import SEEN_FILE

# Locks, half-written files, records for the workspace, which name files of this machine, and what was learned from.
_RECORDS = (Path(RESULT_FILES["cut"]).name, Path(RESULT_FILES["distill"]).name, ORIGIN_FILE, SEEN_FILE)
_LEFT_OUT = [".*", "**/.*", "*.tmp", *_RECORDS]


@dataclass(frozen=True, slots=True, kw_only=True)
class Push(Result):
    """Where a folder went. commit: its identifier on the hub. private: whether only its owner sees it."""

    name: str
    url: str
    commit: str
    private: bool


def check_hub_name(name: str) -> None:
    """Raise `UsageError` unless `name` can be that of a model on the hub; asks nobody."""
    try:
        validate_repo_id(name)
    except errors.HFValidationError as error:
        raise UsageError(
            f"{name!r} is no name for a model on the hub.", hint="Write it like owner/name: letters, digits, - _ and ."
        ) from error
    if "/" not in name:
        raise UsageError(f"{name!r} does not say whose model it is.", hint=f"Write it like owner/{name}.")


def push_folder(folder: Path, name: str, *, public: bool = False, endpoint: str | None = None) -> Push:
    """Upload a saved model as one commit to the hub, into a new private repository or into the one that is there.

    Args:
        folder: That of the saved model.
        name: Of the repository.
        public: Let everyone see it; a repository that is public already is refused without it, a private one stays so.
        endpoint: Address of the hub, None for the usual one (HF_ENDPOINT).

    Raises:
        ModelError: There is no model, or a graph is not the one that export.json describes, or the card names a local
            base.
        UsageError: The name cannot be one of the hub, or the repository is public.
        TruncateKitError: The hub cannot be reached, or does not take it.
    """
    from truncate_kit.export.record import check_record  # loads torch, for which a wrong name must not wait

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
    return Push(name=name, url=f"{api.endpoint}/{name}", commit=str(commit.oid), private=private)


def _check_base(card: Path) -> None:
    """Raise `ModelError` where a card names a folder of this machine as the model that this one was made from."""
    try:
        named = (metadata_load(card) or {}).get("base_model", ())
    except (OSError, ValueError, YAMLError):  # no card, or one that the hub itself refuses
        return
    for base in map(str, named if isinstance(named, (list, tuple)) else (named,)):
        try:
            validate_repo_id(base)
            local = Path(base).exists()
        except errors.HFValidationError:
            local = True
        if local:
            raise ModelError(
                f"{card} says that the model was made from {base!r}, a folder that the hub does not have.",
                hint="Write the name of that model on the hub into base_model, or remove the line.",
            )


@contextlib.contextmanager
def _reaching_the_hub(name: str) -> Iterator[None]:
    hint = "The folder is as it was: push it again, or use hf upload."
    try:
        yield
    except errors.OfflineModeIsEnabled as error:
        raise TruncateKitError(
            "The hub is switched off by HF_HUB_OFFLINE.", hint="Unset HF_HUB_OFFLINE to push."
        ) from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403):
            reason, hint = "you are not logged in, or may not write there", "Log in with: hf auth login"
        else:
            reason = f"it answers {status}: {(error.server_message or str(error)).strip().splitlines()[0]}"
        raise TruncateKitError(f"The hub does not take {name}: {reason}.", hint=hint) from error
    except (errors.HTTPError, OSError) as error:  # type: ignore[attr-defined]  # as above
        raise TruncateKitError(f"The hub cannot be reached to push {name}: {error}.", hint=hint) from error
