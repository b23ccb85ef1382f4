"""What follows pooling in a sentence-transformers model: Dense, Normalize and LayerNorm modules, read and written.

Only what such a folder says is built; no class is imported by a name found in a file.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from truncate_kit.encoders.layer_attention import LayerAttentionPooling
from truncate_kit.encoders.layer_heads import LayerHeads, read_layer_heads, write_layer_heads
from truncate_kit.encoders.pooler_files import (
    LAYER_ATTENTION,
    LAYER_ATTENTION_TYPE,
    read_layer_attention,
    write_layer_attention,
)
from truncate_kit.encoders.pooling import ConcatPooling, PoolingMode
from truncate_kit.errors import ModelError

_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    name: getattr(nn, name) for name in ("Identity", "Tanh", "ReLU", "GELU", "SiLU", "Sigmoid", "LeakyReLU")
}
_POOLING_NAMES: dict[str, PoolingMode] = {"mean": "mean", "cls": "cls", "max": "max", "lasttoken": "last"}
_POOLING_FLAGS: dict[PoolingMode, str] = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "last": "pooling_mode_lasttoken",
}
_OTHER_FLAGS = {
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
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


@dataclass(slots=True)
class Pipeline:
    """What a sentence-transformers folder says beyond the transformer itself."""

    transformer: Path
    pooling: PoolingMode | None = None
    tail: list[nn.Module] = field(default_factory=list)
    max_length: int | None = None
    lower_case: bool = False
    settings: dict[str, Any] = field(default_factory=dict)  # config_sentence_transformers.json: prompts, similarity
    combination: tuple[int, ...] | None = None  # layers that are averaged before pooling
    combined_depth: int | None = None  # of the model they were stated for
    pooler: LayerAttentionPooling | ConcatPooling | None = None  # instead of a single pooling
    heads: LayerHeads | None = None  # over the states of all blocks


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"Cannot read {path}: {error}.", hint="Download or save the model again.") from error


def read_pipeline(folder: Path) -> Pipeline:
    """Read `modules.json` and what it names; a folder without one is a bare transformer.

    Raises `ModelError` for modules or settings that would change the vectors and are not known here, and for damaged
    files.
    """
    listing = folder / "modules.json"
    if not listing.exists():
        return Pipeline(transformer=folder)
    try:
        return _read_modules(folder, listing)
    except ModelError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelError(
            f"modules.json of {folder}, or a config.json that it names, is damaged: {type(error).__name__} {error}.",
            hint="Download or save the model again.",
        ) from error


def _read_modules(folder: Path, listing: Path) -> Pipeline:
    pipeline = Pipeline(transformer=folder)
    settings = folder / "config_sentence_transformers.json"
    if settings.exists():
        pipeline.settings = _read_json(settings)
    for module in sorted(_read_json(listing), key=lambda item: int(item["idx"])):
        kind, place = module["type"].rpartition(".")[2], folder / module["path"]
        if kind == "Transformer":
            pipeline.transformer = place
            _read_transformer(pipeline, place)
        elif kind == "WeightedLayerPooling" and pipeline.pooling is None:
            pipeline.combination, pipeline.combined_depth = _read_combination(place)
        elif kind == "Pooling":
            pipeline.pooling, pipeline.pooler = _read_pooling(place / "config.json")
        elif kind == LAYER_ATTENTION and pipeline.pooling is None and pipeline.combination is None:
            pipeline.pooling, pipeline.pooler = "cls", read_layer_attention(place)
        elif kind == "LayerHeads":
            pipeline.heads = read_layer_heads(place)
        elif kind == "Dense":
            pipeline.tail.append(_read_dense(place))
        elif kind == "Normalize":
            pipeline.tail.append(Normalize())
        elif kind == "LayerNorm":
            norm = LayerNorm(int(_read_json(place / "config.json")["dimension"]))
            _load_weights(norm, place)
            pipeline.tail.append(norm)
        elif kind != "Dropout":  # does nothing outside training
            raise ModelError(
                f"{listing} names a module {kind!r} that cannot be truncated and kept exactly.",
                hint="Known modules: Transformer, WeightedLayerPooling (before Pooling), Pooling or "
                "LayerAttentionPooling, LayerHeads, Dense, Normalize, LayerNorm, Dropout.",
            )
    return pipeline


def _read_transformer(pipeline: Pipeline, place: Path) -> None:
    path = place / "sentence_bert_config.json"
    if path.exists():
        values = _read_json(path)
        pipeline.max_length = values.get("max_seq_length")
        pipeline.lower_case = bool(values.get("do_lower_case", False))


def _read_pooling(path: Path) -> tuple[PoolingMode, ConcatPooling | None]:
    values = _read_json(path)
    modes = values.get("pooling_mode")
    if modes is None:
        flags = {flag: mode for mode, flag in (*_POOLING_FLAGS.items(), *_OTHER_FLAGS.items())}
        modes = [flags[key] for key, on in values.items() if key in flags and on] or ["mean"]
        modes = ["lasttoken" if mode == "last" else mode for mode in modes]
    modes = [modes] if isinstance(modes, str) else list(modes)
    if modes != ["cls", "mean"] and (len(modes) != 1 or modes[0] not in _POOLING_NAMES):
        raise ModelError(
            f"{path} pools by {' + '.join(modes)}, which cannot be kept.",
            hint=f"Known poolings: {', '.join(_POOLING_NAMES)} and cls + mean; name one with --pooling to replace it.",
        )
    if values.get("include_prompt", True) is False:
        raise ModelError(
            f"{path} leaves prompts out of pooling, which cannot be kept.",
            hint="Use a model that pools over the whole input.",
        )
    return _POOLING_NAMES[modes[0]], ConcatPooling() if len(modes) > 1 else None


def _read_combination(place: Path) -> tuple[tuple[int, ...], int]:
    """Layers with a weight, and the depth they are counted in."""
    values = _read_json(place / "config.json")
    depth, start = int(values["num_hidden_layers"]), int(values["layer_start"])
    weights = _read_weights(place).get("layer_weights", torch.empty(0))
    layers = tuple(start + int(index) for index in weights.nonzero()[:, 0]) if weights.dim() == 1 else ()
    if len(weights) != depth + 1 - start or len({float(weights[layer - start]) for layer in layers}) != 1:
        raise ModelError(
            f"{place} weights layers {[round(float(weight), 3) for weight in weights]}, which cannot be kept.",
            hint="A mean over some layers can: one weight for them, 0 for the others.",
        )
    return layers, depth


def _read_dense(place: Path) -> Dense:
    values = _read_json(place / "config.json")
    activation = str(values.get("activation_function", "Tanh")).rpartition(".")[2].removesuffix("()")
    if activation not in _ACTIVATIONS:
        raise ModelError(
            f"{place / 'config.json'} names the activation {activation!r}, which is not known.",
            hint=f"Known activations: {', '.join(_ACTIVATIONS)}.",
        )
    dense = Dense(
        int(values["in_features"]),
        int(values["out_features"]),
        bias=bool(values.get("bias", True)),
        activation=activation,
    )
    _load_weights(dense, place)
    return dense


def _load_weights(module: nn.Module, place: Path) -> None:
    """Fill a tail module from safetensors, or from a .bin file read without unpickling objects."""
    weights = _read_weights(place)
    try:
        module.load_state_dict(weights)
    except RuntimeError as error:
        raise _unreadable(place, error) from error


def _read_weights(place: Path) -> dict[str, Tensor]:
    try:
        if (place / "model.safetensors").exists():
            return load_file(place / "model.safetensors")
        weights: dict[str, Tensor] = torch.load(place / "pytorch_model.bin", map_location="cpu", weights_only=True)
        return weights
    except (OSError, RuntimeError, SafetensorError, EOFError) as error:
        raise _unreadable(place, error) from error


def _unreadable(place: Path, error: Exception) -> ModelError:
    return ModelError(f"The weights in {place} cannot be read: {error}.", hint="Download or save the model again.")


def write_pipeline(
    folder: Path,
    *,
    pooling: PoolingMode,
    width: int,
    tail: nn.ModuleList,
    max_length: int,
    lower_case: bool,
    settings: dict[str, Any],
    depth: int,
    combination: tuple[int, ...] | None = None,
    pooler: LayerAttentionPooling | ConcatPooling | None = None,
    heads: LayerHeads | None = None,
) -> None:
    """Write the files of a sentence-transformers folder around a transformer of `depth` layers saved in `folder`.

    The names are those of sentence-transformers 2, which every later version and text-embeddings-inference read; but
    sentence-transformers has no layer-wise attention and loads that from the folder, with `trust_remote_code=True`. It
    has no module like `heads` either: with them only this package gives the vectors, and others refuse the folder.
    """
    kinds = ["WeightedLayerPooling"] if combination is not None else []
    kinds += [
        LAYER_ATTENTION if isinstance(pooler, LayerAttentionPooling) else "Pooling",
        *(["LayerHeads"] if heads is not None else []),
        *(type(module).__name__ for module in tail),
    ]
    modules = [("Transformer", ""), *((kind, f"{place}_{kind}") for place, kind in enumerate(kinds, 1))]
    listing = [
        {
            "idx": place,
            "name": str(place),
            "path": path,
            "type": LAYER_ATTENTION_TYPE if kind == LAYER_ATTENTION else f"{_package(kind)}.{kind}",
        }
        for place, (kind, path) in enumerate(modules)
    ]
    _write_json(folder / "modules.json", listing)
    _write_json(folder / "sentence_bert_config.json", {"max_seq_length": max_length, "do_lower_case": lower_case})
    _write_json(folder / "config_sentence_transformers.json", {"similarity_fn_name": "cosine"} | settings)
    modes = ("cls", "mean") if isinstance(pooler, ConcatPooling) else (pooling,)
    flags = {flag: mode in modes for mode, flag in _POOLING_FLAGS.items()}
    flags |= dict.fromkeys(_OTHER_FLAGS.values(), False)
    places = [folder / path for _, path in modules[1:]]
    if combination is not None:
        _write_combination(places.pop(0), width, depth, combination)
    if heads is not None:
        write_layer_heads(places.pop(1), heads)
    if isinstance(pooler, LayerAttentionPooling):
        write_layer_attention(folder, places[0], pooler)
    else:
        _write_json(places[0] / "config.json", {"word_embedding_dimension": width} | flags)
    for place, module in zip(places[1:], tail, strict=True):
        _write_module(place, module)


def _package(kind: str) -> str:
    return LayerHeads.__module__ if kind == "LayerHeads" else "sentence_transformers.models"


def _write_combination(place: Path, width: int, depth: int, layers: tuple[int, ...]) -> None:
    """Weight 1 for each of the layers and 0 between them, from the lowest one on."""
    start = min(layers)
    values = {"word_embedding_dimension": width, "layer_start": start, "num_hidden_layers": depth}
    _write_json(place / "config.json", values)
    weights = torch.zeros(depth + 1 - start)
    weights[[layer - start for layer in layers]] = 1
    save_file({"layer_weights": weights}, place / "model.safetensors", metadata={"format": "pt"})


def _write_module(place: Path, module: nn.Module) -> None:
    place.mkdir(parents=True, exist_ok=True)
    if isinstance(module, Dense):
        _write_json(
            place / "config.json",
            {
                "in_features": module.linear.in_features,
                "out_features": module.linear.out_features,
                "bias": module.linear.bias is not None,
                "activation_function": f"torch.nn.modules.{_home(module)}.{module.activation_name}",
            },
        )
    elif isinstance(module, LayerNorm):
        _write_json(place / "config.json", {"dimension": module.norm.normalized_shape[0]})
    weights = {name: value.detach().contiguous().cpu() for name, value in module.state_dict().items()}
    if weights:
        save_file(weights, place / "model.safetensors", metadata={"format": "pt"})


def _home(module: Dense) -> str:
    return type(module.activation).__module__.rpartition(".")[2]


def _write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
