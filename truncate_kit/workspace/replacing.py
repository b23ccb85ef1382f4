"""What a model that is about to be made replaces in a workspace."""

from pathlib import Path

from truncate_kit.errors import UsageError
from truncate_kit.training.model_origins import DISTILLED
from truncate_kit.workspace.places import Workspace


def replaced_by(workspace: Workspace, model: str, *, distilled: bool = False) -> str | None:
    """What making the lean model of `model` replaces, in a sentence; None where `lean` was made of it as well.

    Finished trials stay, so the command that made a fine-tuned model brings it back. What a distillation learned lies
    in its model alone: raises `UsageError` where that would be replaced by anything but a distillation of this model.

    Args:
        workspace: That of `lean`.
        model: Whose lean one is made.
        distilled: Whether the lean model is to be distilled.
    """
    method, made = next(workspace.made(workspace.lean), (None, None))
    if made is None or not workspace.lean.is_dir():
        return None
    same = _same(made.model, model)
    if method is DISTILLED and not (same and distilled):
        raise UsageError(
            f"{workspace.lean} holds the model distilled from {made.model}, which would be replaced.",
            hint=f"Name another folder as `out`, or move {workspace.lean} away.",
        )
    if same or any(_same(str(place), model) for place in (workspace.lean, workspace.full)):  # which is refused
        return None
    graphs = sorted(path.name for path in workspace.lean.glob("*.onnx"))
    lost = f", and its graphs go with it: {', '.join(graphs)}" if graphs else ""
    return f"{workspace.lean} holds a model made from {made.model}; that of {model} replaces it{lost}."


def _same(model: str, other: str) -> bool:
    """Whether two names, of a hub or of folders, are those of one model."""
    return model == other or Path(model).resolve() == Path(other).resolve()
