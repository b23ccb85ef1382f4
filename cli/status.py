"""`truncate-kit status`: what a workspace holds."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from truncate_kit.cells import NONE
from truncate_kit.errors import UsageError
from truncate_kit.precisions import GRAPH_FILES
from truncate_kit.wording import counted

from . import options
from .options import results_option
from .output import print_json, say, table
from .workspace import Workspace

if TYPE_CHECKING:
    from truncate_kit.workspace import Contents, RunFolder


def status(
    run: Annotated[
        Path | None, typer.Argument(metavar="RUN", help="Workspace to list, as --workspace.", show_default=False)
    ] = None,
    folder: options.WorkspaceFolder = options.WORKSPACE,
    clean: Annotated[
        bool, results_option("Remove weights and tensors that only a repetition of finished runs reads.", "--clean")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """List the models, runs and exports of a workspace with their sizes; free what nobody needs."""
    from truncate_kit.workspace import clean as remove_spare
    from truncate_kit.workspace import contents

    if run is not None and folder not in (options.WORKSPACE, run):
        raise UsageError(f"{run} and {folder} are two workspaces.", hint="Name one.")
    named = run or folder
    if named != options.WORKSPACE and not named.is_dir():
        raise UsageError(f"There is no folder {named}.", hint="Name a workspace that a command has written.")
    workspace = Workspace(named)
    found = remove_spare(workspace) if clean else contents(workspace)
    if as_json:
        print_json(found)
    else:
        show(found)


def show(found: "Contents") -> None:
    """A table and sentences."""

    def inside(path: str) -> str:
        return path.removeprefix(f"{found.folder}/")

    rows = [
        (inside(model.path), _megabytes(model.file_bytes), _precisions(model.graphs), model.origin or "–")
        for model in found.models
    ]
    rows += [(inside(run.path), _megabytes(run.file_bytes), NONE, _progress(run)) for run in found.runs]
    rows += [(inside(kept.path), _megabytes(kept.file_bytes), NONE, kept.what) for kept in found.kept]
    if rows:
        rows.append(("other files", _megabytes(found.other_bytes), NONE, "results, figures, notes"))
        title = f"Models in {found.folder}, and the runs behind them"
        table(title, ("folder", "MB", "graphs", "what it is"), rows, on_page=False)
    if found.reports:
        say(f"Results: {', '.join(found.reports)}")
    freed = f"; {_megabytes(found.freed_bytes)} MB were freed" if found.freed_bytes else ""
    say(f"{found.folder}: {counted(len(found.models), 'model')}, {_megabytes(found.file_bytes)} MB{freed}.")
    if found.spare_bytes:
        say(f"--clean frees {_megabytes(found.spare_bytes)} MB: what only a repetition would read or make again.")


def _precisions(graphs: Iterable[str]) -> str:
    """What the graphs of a model compute in; the name of one that is not ours."""
    known = {file: precision for precision, file in GRAPH_FILES.items()}
    return ", ".join(known.get(name, name) for name in graphs) or NONE


def _progress(run: "RunFolder") -> str:
    """How far a run is, and what of it can go."""
    stopped = f", {run.waiting:,} stopped" if run.waiting else ""
    spare = f"; {_megabytes(run.spare_bytes)} MB to free" if run.spare_bytes else ""
    return f"run: {run.finished:,} finished{stopped}{spare}"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f}"
