"""Layer-wise attention pooling inside a sentence-transformers folder: its weights, and the code that runs it there."""

from pathlib import Path

from safetensors import SafetensorError

from truncate_kit.encoders import layer_attention
from truncate_kit.encoders.layer_attention import LayerAttentionPooling
from truncate_kit.errors import ModelError

LAYER_ATTENTION = LayerAttentionPooling.__name__
LAYER_ATTENTION_TYPE = f"{Path(layer_attention.__file__).stem}.{LAYER_ATTENTION}"
"""The class as modules.json names it: sentence-transformers looks for it in the folder itself."""


def write_layer_attention(folder: Path, place: Path, pooler: LayerAttentionPooling) -> None:
    """Write the module into `place`, and its source beside modules.json in `folder`."""
    pooler.save(place)
    source = Path(layer_attention.__file__)
    (folder / source.name).write_text(source.read_text(encoding="utf-8"), encoding="utf-8")


def read_layer_attention(place: Path) -> LayerAttentionPooling:
    """Read the module in `place` with this package's own code; the code in the folder is not run.

    Raises `ModelError`.
    """
    try:
        return LayerAttentionPooling.load(place)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise ModelError(
            f"The layer-wise attention pooling in {place} cannot be read: {reason}.",
            hint="Download or save the model again.",
        ) from error
