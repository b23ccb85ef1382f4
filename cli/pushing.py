"""`--push-to` and `--public`, for every command that leaves a model."""

from pathlib import Path

from truncate_kit.errors import UsageError

from .output import note


def check_push(name: str | None, public: bool) -> None:
    """Before any work: whether the name can be one. Raises `UsageError`."""
    if name is None:
        if public:
            raise UsageError("--public goes with --push-to only.", hint="Add --push-to OWNER/NAME.")
        return
    from truncate_kit.pushing import check_hub_name

    check_hub_name(name)


def push(folder: Path, name: str | None, public: bool, *, quiet: bool) -> None:
    """Upload the folder where that was asked for, and say where it went."""
    if name is None:
        return
    from truncate_kit.pushing import push_folder

    done = push_folder(folder, name, public=public)
    note(f"Pushed: {done.url} ({'private' if done.private else 'public'}), commit {done.commit}.", quiet=quiet)
