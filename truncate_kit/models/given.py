"""Models that a caller gives: loaded ones where their layers are wanted."""

from truncate_kit.errors import UsageError
from truncate_kit.models.encoder import Encoder


def check_encoder(encoder: object, name: str = "encoder") -> None:
    """Raise `UsageError` where this is no model in torch that was loaded.

    Args:
        encoder: What has to be a model in torch that was loaded.
        name: Of the parameter.
    """
    if not isinstance(encoder, Encoder):
        raise UsageError(
            f"A loaded model is needed as `{name}`, not an object of the type {type(encoder).__name__}.",
            hint="load_encoder(path) gives one, by its folder or name.",
        )
