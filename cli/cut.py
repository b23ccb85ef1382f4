"""`truncate-kit cut`: a model cut at a layer and saved, without training."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from truncate_kit.errors import UsageError
from truncate_kit.workspace.sources import ModelSource

from . import options
from .options import layers_option
from .output import print_json, say
from .pushing import check_push, push
from .workspace import Workspace

if TYPE_CHECKING:
    from truncate_kit.runs.cutting import CutResult


def cut(
    layer: Annotated[int, layers_option("The last layer to keep; 0 keeps the embeddings alone.")],
    model: options.Model = None,
    pooling: options.Pooling = None,
    max_length: options.MaxLength = None,
    folder: options.WorkspaceFolder = options.WORKSPACE,
    push_to: options.Push = None,
    public: options.Public = False,
    as_json: options.Json = False,
) -> None:
    """Cut a model at a layer, without training; save it as an ordinary folder with a card."""
    check_push(push_to, public)
    workspace = Workspace(folder, quiet=as_json)
    result = save_cut(workspace.starting_model(model, pooling, max_length), layer, workspace)
    if as_json:
        print_json(result)
    else:
        say(result.sentence)
        say(f"Saved: {workspace.lean}")
    push(workspace.lean, push_to, public, quiet=as_json)


def save_cut(source: ModelSource, layer: int, workspace: Workspace) -> "CutResult":
    """Put the cut into the workspace. Raises `UsageError` where a model that is no cut would give way to it."""
    from truncate_kit.runs.cutting import cut as run

    lean = workspace.lean
    if lean.is_dir() and (workspace.cut() is None or Path(source.name).resolve() == lean.resolve()):
        raise UsageError(
            f"{lean} holds another model, which a cut of {source.name} would replace.",
            hint="Name another folder with --workspace.",
        )
    result = run(workspace.load(source), layer, out=workspace.folder)
    workspace.remember(source, None)
    return result
