"""Poolings over layers that sentence-transformers has not: they travel with the folder, weights and code."""

import inspect
from pathlib import Path
from typing import get_args

from safetensors import SafetensorError
from torch import nn

from truncate_kit.errors import ModelError, first_line
from truncate_kit.models.layer_attention import LayerAttentionPooling
from truncate_kit.models.layer_pooling import LayerPooling
from truncate_kit.models.module_files import loaded

# ArithmeticError: of an infinite number as a size.
_DAMAGE = (OSError, LookupError, ValueError, TypeError, AttributeError, RuntimeError, ArithmeticError, SafetensorError)

LayerPooler = LayerAttentionPooling | LayerPooling
LAYER_POOLERS: dict[str, type[LayerPooler]] = {kind.__name__: kind for kind in get_args(LayerPooler)}
"""By the name of the class. Each stands alone in a file of its own, has `settings`, and reads and writes itself."""


def type_of(kind: str) -> str:
    """The class as modules.json names it: sentence-transformers looks for it in the folder itself."""
    return f"{_source(LAYER_POOLERS[kind]).stem}.{kind}"


def write_layer_pooler(folder: Path, place: Path, pooler: LayerPooler) -> None:
    """Write the module into `place`, and its source beside modules.json in `folder`."""
    pooler.save(place)
    source = _source(type(pooler))
    (folder / source.name).write_text(source.read_text(encoding="utf-8"), encoding="utf-8")


def read_layer_pooler(kind: str, place: Path) -> LayerPooler:
    """Read the module in `place` with this package's own code, not the folder's. Raises `ModelError`."""
    try:
        return loaded(lambda: LAYER_POOLERS[kind].load(place))
    except _DAMAGE as error:
        found = f"The {kind} in {place} cannot be read: {first_line(error)}."
        raise ModelError(found, hint="Download or save the model again.") from error


def loading_words(pooler: nn.Module | None) -> str:
    """What a model card says about loading a model that pools so."""
    if not isinstance(pooler, LayerPooler):
        return "Load it with `SentenceTransformer(path)` or `AutoModel.from_pretrained(path)`."
    file = _source(type(pooler)).name
    return (
        "Load it with `SentenceTransformer(path, trust_remote_code=True)`: sentence-transformers has no such pooling\n"
        f"of its own and takes it from `{file}` in this folder, which needs torch and safetensors only."
    )


def _source(kind: type[LayerPooler]) -> Path:
    return Path(inspect.getfile(kind))
