"""`truncate-kit status`: what a workspace holds."""

from typing import TYPE_CHECKING, Annotated

from truncate_kit.wording import counted

from . import options
from .options import results_option
from .output import print_json, say, table
from .workspace import Workspace

if TYPE_CHECKING:
    from truncate_kit.workspace.contents import Contents


def status(
    folder: options.WorkspaceFolder = options.WORKSPACE,
    clean: Annotated[
        bool, results_option("Remove weights and tensors that only a repetition of finished runs reads.", "--clean")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """List the models, runs and exports of a workspace with their sizes; free what nobody needs."""
    from truncate_kit.workspace import contents

    workspace = Workspace(folder)
    found = contents.clean(workspace) if clean else contents.contents(workspace)
    if as_json:
        print_json(found)
    else:
        show(found)


def show(found: "Contents") -> None:
    """Tables and sentences."""
    if found.models:
        rows = [
            (model.path, _megabytes(model.file_bytes), ", ".join(model.graphs) or "–", model.origin or "–")
            for model in found.models
        ]
        table("Models", ("folder", "MB", "graphs", "what it is"), rows, prose=3)
    if found.runs:
        runs = [
            (run.path, f"{run.finished:,}", f"{run.waiting:,}", _megabytes(run.file_bytes), _megabytes(run.spare_bytes))
            for run in found.runs
        ]
        table("Runs", ("folder", "finished", "stopped", "MB", "MB to free"), runs)
    if found.reports:
        say(f"Results: {', '.join(found.reports)}")
    freed = f"; {_megabytes(found.freed_bytes)} MB were freed" if found.freed_bytes else ""
    say(f"{found.folder}: {counted(len(found.models), 'model')}, {_megabytes(found.file_bytes)} MB{freed}.")
    if found.spare_bytes:
        say(f"--clean frees {_megabytes(found.spare_bytes)} MB: weights that only a repetition of the runs would read.")


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f}"
