"""A sentence-transformers folder around a transformer: the modules it names, read and written.

Only known modules are built, by this package's own code; no class is imported by a name found in a file.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from truncate_kit.errors import ModelError
from truncate_kit.files import read_json
from truncate_kit.files import write_json as replace_json
from truncate_kit.models import layer_pooling
from truncate_kit.models.encoder import POOLING_MODES, Encoder, Pooler
from truncate_kit.models.layer_heads import LayerHeads, read_layer_heads, write_layer_heads
from truncate_kit.models.layer_pooling import (
    ConcatPooling,
    LayerAttentionPooling,
    LayerPooler,
    LayerPooling,
    PoolingMode,
)
from truncate_kit.models.model_folder import (
    check_links,
    module_folder,
    read_module,
    read_weights,
    write_json,
    write_module,
)

LAYER_POOLERS: dict[str, type[LayerPooler]] = {kind.__name__: kind for kind in (LayerAttentionPooling, LayerPooling)}
_POOLER_SOURCE = Path(inspect.getfile(layer_pooling))  # travels with the folder: sentence-transformers has no such code
_POOLING_NAMES: dict[str, PoolingMode] = {"mean": "mean", "cls": "cls", "max": "max", "lasttoken": "last"}
_POOLING_FLAGS = {  # the older way to state a pooling, which every version reads
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
}
_READING_FILE = "sentence_bert_config.json"
# sentence-transformers reads the first of these that says anything; older versions named them by architecture.
_READERS = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
# What sentence-transformers puts over configuration, tokenizer and call; the names before and since its version 5.
_OVERRIDES = ("config_args", "config_kwargs", "tokenizer_args", "processor_kwargs", "processing_kwargs")
_NO_POOLER = {"model_args": {"add_pooling_layer": False}}
_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    name: getattr(nn, name) for name in ("Identity", "Tanh", "ReLU", "GELU", "SiLU", "Sigmoid", "LeakyReLU")
}


# What may follow the pooling


class Dense(nn.Module):
    """A linear layer and an activation over sentence vectors: (b, d) to (b, out)."""

    def __init__(self, in_features: int, out_features: int, *, bias: bool, activation: str) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features, bias=bias)
        self.activation_name = activation
        self.activation = _ACTIVATIONS[activation]()

    @property
    def out_features(self) -> int:
        """out: the size of a vector behind it."""
        return self.linear.out_features

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


# Reading


@dataclass(slots=True)
class Pipeline:
    """What a sentence-transformers folder says beyond the transformer itself."""

    transformer: Path
    folders: list[Path] = field(default_factory=list)  # of all modules; each lies inside the model's folder
    pooling: PoolingMode | None = None
    tail: list[nn.Module] = field(default_factory=list)
    max_length: int | None = None
    lower_case: bool = False
    settings: dict[str, Any] = field(default_factory=dict)  # config_sentence_transformers.json: prompts, similarity
    combination: tuple[int, ...] | None = None  # layers that are averaged before pooling
    combined_depth: int | None = None  # of the model they were stated for
    pooler: Pooler | None = None  # instead of a single pooling
    heads: LayerHeads | None = None  # over the states of all blocks
    unkept: ModelError | None = None  # why its own pooling cannot be kept; another has to replace it


def read_pipeline(folder: Path) -> Pipeline:
    """Read `modules.json` and what it names; a folder without one is a bare transformer.

    Raises `ModelError` for a path or a link that leads out of the folder, for modules or settings that would change
    the vectors and are not known here, and for damaged files. A pooling that cannot be kept is noted in `unkept`.
    """
    check_links(folder, folder)
    listing = folder / "modules.json"
    if not listing.exists():
        return Pipeline(transformer=folder, folders=[folder])
    pipeline = Pipeline(transformer=folder)
    try:
        _read_settings(pipeline, folder / "config_sentence_transformers.json")
        for module in read_json(listing):
            place = module_folder(folder, module["path"])
            pipeline.folders.append(place)
            _read_module(pipeline, module["type"], place)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(
            f"modules.json of {folder}, or a config.json that it names, is damaged: {type(error).__name__} {error}.",
            hint="Download or save the model again.",
        ) from error
    return pipeline


def _read_module(pipeline: Pipeline, name: str, place: Path) -> None:
    """Add the module of the class `name` in the folder `place` to the pipeline."""
    kind = name.rpartition(".")[2]
    known = (f"{_POOLER_SOURCE.stem}.{kind}",) if kind in LAYER_POOLERS else ("sentence_transformers.", "truncate_kit.")
    if not name.startswith(known):
        raise ModelError(
            f"modules.json names the module class {name}, which is code of its own; it is not run.",
            hint="Use a model whose modules are sentence-transformers' own.",
        )
    match kind:
        case "Transformer":
            pipeline.transformer = place
            _read_transformer(pipeline, place)
        case "WeightedLayerPooling":
            pipeline.combination, pipeline.combined_depth = _read_combination(place)
        case "Pooling":
            _read_pooling(pipeline, place / "config.json")
        case "LayerHeads":
            pipeline.heads = read_layer_heads(place)
        case "Dense":
            pipeline.tail.append(read_module(place, _dense))
        case "LayerNorm":
            pipeline.tail.append(read_module(place, lambda values: LayerNorm(values["dimension"])))
        case "Normalize":
            pipeline.tail.append(Normalize())
        case "Dropout":  # does nothing outside training
            pass
        case _ if kind in LAYER_POOLERS:
            pooler = read_module(place, lambda values: LAYER_POOLERS[kind](**values))
            pipeline.pooling, pipeline.pooler = pooler.state_pooling, pooler
        case _:
            raise ModelError(
                f"{place} holds a module {kind!r} that cannot be truncated and kept exactly.",
                hint="Known modules: Transformer, WeightedLayerPooling, Pooling or one of "
                f"{', '.join(LAYER_POOLERS)}, LayerHeads, Dense, Normalize, LayerNorm, Dropout.",
            )


def _dense(values: dict[str, Any]) -> Dense:
    """Build a Dense module. Raises `ModelError` if it does something else than to replace the vector by another."""
    vector = "sentence_embedding"
    wanted = {"module_input_name": (vector,), "module_output_name": (None, vector), "use_residual": (False,)}
    for name, allowed in wanted.items():
        if values.get(name, allowed[0]) not in allowed:
            raise ModelError(
                f"A Dense module has {name} {values[name]!r}, which cannot be kept.",
                hint="Modules after pooling take the sentence vector and give another one in its place.",
            )
    activation = str(values.get("activation_function", "Tanh")).rpartition(".")[2].removesuffix("()")
    if activation not in _ACTIVATIONS:
        raise ModelError(
            f"A Dense module has the activation {activation!r}, which is not known.",
            hint=f"Known activations: {', '.join(_ACTIVATIONS)}.",
        )
    bias = bool(values.get("bias", True))
    return Dense(values["in_features"], values["out_features"], bias=bias, activation=activation)


def _read_settings(pipeline: Pipeline, path: Path) -> None:
    """Read prompts and similarity. Raises `ModelError` if the model gives other vectors than dense whole ones."""
    values = read_json(path) if path.exists() else {}
    for name, usual in (("model_type", "SentenceTransformer"), ("truncate_dim", None)):
        if values.get(name, usual) != usual:
            raise ModelError(
                f"{path} has {name} {values[name]!r}, which cannot be kept.",
                hint="Use a model that gives one dense vector for each text; `dimensions` of encode cuts vectors.",
            )
    pipeline.settings = values | ({"prompts": values["prompts"] or {}} if "prompts" in values else {})


def _read_transformer(pipeline: Pipeline, place: Path) -> None:
    """Read how texts are cut and cased; the first file that says anything counts."""
    files = [file for kind in _READERS if (file := place / f"sentence_{kind}_config.json").exists()]
    nothing: tuple[Path, dict[str, Any]] = (place, {})
    path, values = next(((file, found) for file in files if (found := read_json(file))), nothing)
    over = next((name for name in _OVERRIDES if values.get(name)), None)
    if over is not None:
        raise ModelError(
            f"{path} puts {over} over the model's own settings, which cannot be kept.",
            hint="Write them into config.json or tokenizer_config.json, and leave them out there.",
        )
    pipeline.max_length = values.get("max_seq_length")
    pipeline.lower_case = bool(values.get("do_lower_case"))


def _read_pooling(pipeline: Pipeline, path: Path) -> None:
    """Read how tokens are pooled, or why that cannot be kept. Raises `ModelError` if no other can replace it."""
    values = read_json(path)
    modes = values.get("pooling_mode")
    if modes is None:
        modes = [mode for mode, flag in _POOLING_FLAGS.items() if values.get(flag)] or ["mean"]
    modes = [modes] if isinstance(modes, str) else modes
    if modes != ["cls", "mean"] and (len(modes) != 1 or modes[0] not in _POOLING_NAMES):
        pipeline.unkept = ModelError(
            f"{path} pools by {' + '.join(modes)}, which cannot be kept.",
            hint=f"Name one of {', '.join(POOLING_MODES)} as `pooling` to replace it.",
        )
    else:
        pipeline.pooling, pipeline.pooler = _POOLING_NAMES[modes[0]], ConcatPooling() if len(modes) > 1 else None
    if values.get("include_prompt", True) is False:
        raise ModelError(
            f"{path} leaves prompts out of pooling, which cannot be kept.",
            hint="Use a model that pools over the whole input.",
        )


def _read_combination(place: Path) -> tuple[tuple[int, ...], int]:
    """Read the layers with a weight, and the depth they are counted in."""
    values = read_json(place / "config.json")
    depth, start = int(values["num_hidden_layers"]), int(values["layer_start"])
    weights = read_weights(place)["layer_weights"]
    layers = tuple(start + int(index) for index in weights.nonzero()[:, 0])
    if len(weights) != depth + 1 - start or len({*weights[weights != 0].tolist()}) != 1:
        raise ModelError(
            f"{place} weights layers {[round(weight, 3) for weight in weights.tolist()]}, which cannot be kept.",
            hint="A mean over some layers can: one weight for them, 0 for the others.",
        )
    return layers, depth


# Writing


def write_pipeline(folder: Path, encoder: Encoder) -> None:
    """Write the files of a sentence-transformers folder around the transformer in it."""
    # The names are those of sentence-transformers 2, which every later version and text-embeddings-inference read. The
    # poolings of `LAYER_POOLERS` it loads from the folder, with `trust_remote_code=True`; folders with `LayerHeads` it
    # refuses: only this package gives their vectors.
    pooler, heads = encoder.pooler, encoder.heads
    theirs = "sentence_transformers.models"
    kinds: list[tuple[str, str, Callable[[Path], None]]] = []
    if encoder.combination is not None:
        kinds.append((theirs, "WeightedLayerPooling", partial(_write_combination, encoder)))
    if isinstance(pooler, LayerPooler):
        kinds.append((_POOLER_SOURCE.stem, type(pooler).__name__, pooler.save))
        (folder / _POOLER_SOURCE.name).write_text(_POOLER_SOURCE.read_text(encoding="utf-8"), encoding="utf-8")
    else:
        kinds.append((theirs, "Pooling", partial(_write_pooling, encoder)))
    if heads is not None:
        kinds.append((LayerHeads.__module__, "LayerHeads", partial(write_layer_heads, heads)))
    kinds += [(theirs, type(module).__name__, partial(_write_tail, module)) for module in encoder.tail]
    listing = [{"idx": 0, "name": "0", "path": "", "type": f"{theirs}.Transformer"}]
    for number, (package, kind, write) in enumerate(kinds, 1):
        path = f"{number}_{kind}"
        listing.append({"idx": number, "name": str(number), "path": path, "type": f"{package}.{kind}"})
        write(folder / path)
    write_json(folder / "modules.json", listing)
    reading: dict[str, Any] = {"max_seq_length": encoder.max_length, "do_lower_case": encoder.lower_case}
    if "add_pooling_layer" in inspect.signature(type(encoder.backbone)).parameters:
        reading |= _NO_POOLER  # else sentence-transformers makes a pooler of random weights, and warns of it
    write_json(folder / _READING_FILE, reading)
    write_json(folder / "config_sentence_transformers.json", {"similarity_fn_name": "cosine"} | encoder.settings)


def load_by_any_runtime(folder: Path) -> None:
    """Take out of a saved folder what only torch understands.

    Optimum's classes, by which sentence-transformers runs graphs, fail on a setting of torch's classes. The price is
    torch's report of a missing pooler, which nothing uses.
    """
    path = folder / _READING_FILE
    values = read_json(path) if path.is_file() else {}
    if all(values.get(key) == value for key, value in _NO_POOLER.items()):  # settings of others stay
        replace_json(path, {key: value for key, value in values.items() if key not in _NO_POOLER})


def _write_combination(encoder: Encoder, place: Path) -> None:
    """Write weight 1 for each combined layer and 0 between them, from the lowest one on."""
    layers = encoder.combination or ()
    start = min(layers)
    values = {"word_embedding_dimension": encoder.width, "layer_start": start, "num_hidden_layers": encoder.depth}
    write_json(place / "config.json", values)
    weights = torch.zeros(encoder.depth + 1 - start)
    weights[[layer - start for layer in layers]] = 1
    save_file({"layer_weights": weights}, place / "model.safetensors", metadata={"format": "pt"})


def _write_pooling(encoder: Encoder, place: Path) -> None:
    modes = ("cls", "mean") if isinstance(encoder.pooler, ConcatPooling) else (encoder.pooling,)
    flags = {flag: _POOLING_NAMES.get(mode) in modes for mode, flag in _POOLING_FLAGS.items()}
    write_json(place / "config.json", {"word_embedding_dimension": encoder.width} | flags)


def _write_tail(module: nn.Module, place: Path) -> None:
    """Write a module that follows the pooling."""
    if isinstance(module, Dense):
        home = type(module.activation).__module__.rpartition(".")[2]
        values: dict[str, Any] = {
            "in_features": module.linear.in_features,
            "out_features": module.out_features,
            "bias": module.linear.bias is not None,
            "activation_function": f"torch.nn.modules.{home}.{module.activation_name}",
        }
        write_module(place, module, values)
    elif isinstance(module, LayerNorm):
        write_module(place, module, {"dimension": module.norm.normalized_shape[0]})
    else:
        place.mkdir()


def loading_words(pooler: nn.Module | None) -> str:
    """Return what a model card says about loading a model that pools so."""
    if not isinstance(pooler, LayerPooler):
        return "Load it with `SentenceTransformer(path)` or `AutoModel.from_pretrained(path)`."
    return (
        "Load it with `SentenceTransformer(path, trust_remote_code=True)`: sentence-transformers has no such pooling\n"
        f"of its own and takes it from `{_POOLER_SOURCE.name}` in this folder, which needs torch and safetensors only."
    )
