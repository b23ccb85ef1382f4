"""`truncate-kit cut`: a model cut at a layer, to some blocks, or in its vocabulary, and saved, without training."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from truncate_kit.errors import UsageError
from truncate_kit.origin import read_origin
from truncate_kit.workspace import ModelSource

from . import options
from .options import layers_option
from .output import print_json, say
from .pushing import check_push, push
from .workspace import Workspace

if TYPE_CHECKING:
    from truncate_kit.training.cutting import CutResult


def cut(
    model: options.Model = None,
    layer: Annotated[int | None, layers_option("The last layer to keep; 0 keeps the embeddings alone.")] = None,
    blocks: options.Blocks = None,
    vocabulary_from: options.VocabularyFrom = None,
    pooling: options.Pooling = None,
    max_length: options.MaxLength = None,
    folder: options.WorkspaceFolder = options.WORKSPACE,
    push_to: options.Push = None,
    public: options.Public = False,
    as_json: options.Json = False,
) -> None:
    """Cut a model at a layer or to some blocks, in its vocabulary, or both; save it with a card, without training."""
    kept = options.kept(layer, blocks)
    if kept is None and vocabulary_from is None:
        raise UsageError("Nothing says what to cut.", hint="Give --layer 6, --blocks 1,4,6, or --vocabulary-from FILE.")
    check_push(push_to, public)
    workspace = Workspace(folder, quiet=as_json)
    result = save_cut(workspace.starting_model(model, pooling, max_length), kept, vocabulary_from, workspace)
    if as_json:
        print_json(result)
    else:
        say(*result.sentences, f"Saved: {workspace.lean}")
    push(workspace.lean, push_to, public, quiet=as_json)


def save_cut(
    source: ModelSource, kept: int | tuple[int, ...] | None, texts: Path | None, workspace: Workspace
) -> "CutResult":
    """Put the cut into the workspace. kept: a layer or blocks; texts: whose word pieces are kept; None keeps all.

    Raises `UsageError` where a model that is no cut would give way to it.
    """
    from truncate_kit.data import read_texts
    from truncate_kit.training.cutting import cut as run

    _check_replaceable(source, workspace)
    raw = None if texts is None else read_texts(texts)
    # Once more when it is replaced: loading takes a while, in which another process may have put a trained model there.
    check = partial(_check_replaceable, source, workspace)
    result = run(workspace.load(source), kept, out=workspace.folder, texts=raw, check=check)
    workspace.remember(source, None)
    return result


def _check_replaceable(source: ModelSource, workspace: Workspace) -> None:
    lean = workspace.lean
    origin, own = read_origin(lean), Path(source.name).resolve() == lean.resolve()
    if lean.is_dir() and (origin is None or origin.method != "cut" or own):
        also = "" if own else f" To cut what {lean} holds, also name it as MODEL."
        raise UsageError(
            f"{lean} holds {'that model' if own else 'another model'}, which a cut of {source.name} would replace.",
            hint=f"Name another folder with --workspace.{also}",
        )
