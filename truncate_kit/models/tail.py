"""What follows pooling in a sentence-transformers model: Dense, Normalize and LayerNorm modules, read and written."""

from collections.abc import Callable, Iterable
from pathlib import Path

from torch import Tensor, nn

from truncate_kit.errors import ModelError
from truncate_kit.models.module_files import (
    Module,
    loaded,
    read_json,
    read_weights,
    unreadable_weights,
    write_json,
    write_weights,
)
from truncate_kit.settings import shown

_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    name: getattr(nn, name) for name in ("Identity", "Tanh", "ReLU", "GELU", "SiLU", "Sigmoid", "LeakyReLU")
}


class Dense(nn.Module):
    """A linear layer and an activation over sentence vectors: (b, d) to (b, out)."""

    def __init__(self, in_features: int, out_features: int, *, bias: bool, activation: str) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features, bias=bias)
        self.activation_name = activation
        self.activation = _ACTIVATIONS[activation]()

    def forward(self, vectors: Tensor) -> Tensor:
        """(b, in) to (b, out)."""
        out: Tensor = self.activation(self.linear(vectors))
        return out


class Normalize(nn.Module):
    """Scale each vector to length 1."""

    def forward(self, vectors: Tensor) -> Tensor:
        """(b, d) to (b, d)."""
        return nn.functional.normalize(vectors, dim=-1)


class LayerNorm(nn.Module):
    """A layer norm over sentence vectors."""

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dimension)

    def forward(self, vectors: Tensor) -> Tensor:
        """(b, d) to (b, d)."""
        out: Tensor = self.norm(vectors)
        return out


def tail_width(tail: Iterable[nn.Module], width: int) -> int:
    """Size of what a tail makes of vectors of this width."""
    for module in tail:
        width = module.linear.out_features if isinstance(module, Dense) else width
    return width


_VECTOR = "sentence_embedding"  # what a module works on, in the words of sentence-transformers
TAIL_MODULES = (Dense.__name__, Normalize.__name__, LayerNorm.__name__)


def read_tail_module(kind: str, place: Path) -> nn.Module:
    """The module of a kind of `TAIL_MODULES` in the folder `place`. Raises `ModelError`."""
    _check_way(place / "config.json")
    if kind == "Dense":
        return _read_dense(place)
    if kind == "Normalize":
        return Normalize()
    dimension = int(read_json(place / "config.json")["dimension"])
    return _with_weights(lambda: LayerNorm(dimension), place)


def _check_way(path: Path) -> None:
    """Raise `ModelError` where a module takes or gives something else than the vector, or adds what it took."""
    values = read_json(path) if path.is_file() else {}
    wanted = {"module_input_name": (_VECTOR,), "module_output_name": (None, _VECTOR), "use_residual": (False,)}
    for name, allowed in wanted.items():
        if values.get(name, allowed[0]) not in allowed:
            raise ModelError(
                f"{path} says {name} {shown(values[name])}, which cannot be kept.",
                hint="Modules after pooling take the sentence vector and give another one in its place.",
            )


def _read_dense(place: Path) -> Dense:
    values = read_json(place / "config.json")
    activation = str(values.get("activation_function", "Tanh")).rpartition(".")[2].removesuffix("()")
    if activation not in _ACTIVATIONS:
        raise ModelError(
            f"{place / 'config.json'} names the activation {activation!r}, which is not known.",
            hint=f"Known activations: {', '.join(_ACTIVATIONS)}.",
        )
    bias = bool(values.get("bias", True))
    sizes = int(values["in_features"]), int(values["out_features"])
    return _with_weights(lambda: Dense(*sizes, bias=bias, activation=activation), place)


def _with_weights(build: Callable[[], Module], place: Path) -> Module:
    weights = read_weights(place)

    def load() -> Module:
        module = build()
        module.load_state_dict(weights)
        return module

    try:
        return loaded(load)
    except (RuntimeError, TypeError) as error:  # TypeError for sizes beyond all numbers of torch
        raise unreadable_weights(place, error) from error


def check_widths(tail: Iterable[nn.Module], width: int | None, folder: Path) -> None:
    """Raise `ModelError` where a module takes vectors of another width than it is given.

    Args:
        tail: The modules, in their order.
        width: Of the vectors that the first one is given; None where only they know it.
        folder: For the error.
    """
    for module in tail:
        if isinstance(module, Dense):
            takes, gives = module.linear.in_features, module.linear.out_features
        elif isinstance(module, LayerNorm):
            takes = gives = int(module.norm.normalized_shape[0])
        else:
            continue
        if width not in (None, takes):
            raise ModelError(
                f"A {type(module).__name__} module of {folder} takes vectors of {takes:,} numbers, but is given those "
                f"of {width:,}.",
                hint="Its modules belong to different models: download or save the model again.",
            )
        width = gives


def write_tail_module(place: Path, module: nn.Module) -> None:
    """Write what `read_tail_module` reads."""
    place.mkdir(parents=True, exist_ok=True)
    if isinstance(module, Dense):
        home = type(module.activation).__module__.rpartition(".")[2]
        values = {
            "in_features": module.linear.in_features,
            "out_features": module.linear.out_features,
            "bias": module.linear.bias is not None,
            "activation_function": f"torch.nn.modules.{home}.{module.activation_name}",
        }
        write_json(place / "config.json", values)
    elif isinstance(module, LayerNorm):
        write_json(place / "config.json", {"dimension": module.norm.normalized_shape[0]})
    write_weights(place, module)
