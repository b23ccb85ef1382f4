"""A sentence-transformers folder around a transformer: which modules it names.

Only what such a folder says is built; no class is imported by a name found in a file.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from truncate_kit.errors import ModelError
from truncate_kit.models.confinement import check_links, check_module_type, module_folder
from truncate_kit.models.layer_heads import LayerHeads, read_layer_heads
from truncate_kit.models.module_files import read_json, read_weights
from truncate_kit.models.pooler_files import LAYER_POOLERS, LayerPooler, read_layer_pooler, type_of
from truncate_kit.models.pooling import POOLING_MODES, ConcatPooling, PoolingMode
from truncate_kit.models.tail import TAIL_MODULES, read_tail_module
from truncate_kit.settings import Bounds, shown

_POOLING_NAMES: dict[str, PoolingMode] = {"mean": "mean", "cls": "cls", "max": "max", "lasttoken": "last"}
POOLING_FLAGS: dict[str, str] = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "last": "pooling_mode_lasttoken",
}
OTHER_FLAGS = {
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
}
# sentence-transformers goes through modules as they are listed, whatever their numbers say.
_STAGES = {"Transformer": 0, "WeightedLayerPooling": 1, "Pooling": 2, **dict.fromkeys(LAYER_POOLERS, 2)}
_STAGES |= {"LayerHeads": 3, **dict.fromkeys(TAIL_MODULES, 4)}
_MOST_MODULES = 100
_MODEL_TYPE = "SentenceTransformer"
# What sentence-transformers puts over configuration, tokenizer and call; the names before and since its version 5.
_OVERRIDES = ("config_args", "config_kwargs", "tokenizer_args", "processor_kwargs", "processing_kwargs")
# sentence-transformers reads the first of these that says anything; older versions named them by architecture.
_READERS = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
_KNOWN = {"Transformer", "WeightedLayerPooling", "Pooling", *LAYER_POOLERS, "LayerHeads", *TAIL_MODULES, "Dropout"}


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
    pooler: LayerPooler | ConcatPooling | None = None  # instead of a single pooling
    heads: LayerHeads | None = None  # over the states of all blocks
    unkept: ModelError | None = None  # why its own pooling cannot be kept; another has to replace it


def read_pipeline(folder: Path) -> Pipeline:
    """Read `modules.json` and what it names; a folder without one is a bare transformer.

    Every path out of a model folder comes from here. Raises `ModelError` for a path or a link that leads out of the
    folder, for modules or settings that would change the vectors and are not known here, and for damaged files.
    A pooling that cannot be kept is noted in `unkept`.
    """
    check_links(folder, folder)
    listing = folder / "modules.json"
    if not listing.exists():
        return Pipeline(transformer=folder, folders=[folder])
    try:
        return _read_modules(folder, listing)
    except ModelError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise ModelError(
            f"modules.json of {folder}, or a config.json that it names, is damaged: {type(error).__name__} {error}.",
            hint="Download or save the model again.",
        ) from error


def _read_modules(folder: Path, listing: Path) -> Pipeline:
    pipeline = Pipeline(transformer=folder)
    settings = folder / "config_sentence_transformers.json"
    if settings.exists():
        pipeline.settings = _checked_settings(settings, read_json(settings))
    for module in _modules(listing):
        kind, place = module["type"].rpartition(".")[2], module_folder(folder, module["path"])
        pipeline.folders.append(place)
        if kind in _KNOWN:
            check_module_type(folder, module["type"], type_of(kind) if kind in LAYER_POOLERS else None)
        if kind == "Transformer":
            pipeline.transformer = place
            _read_transformer(pipeline, place)
        elif kind == "WeightedLayerPooling" and pipeline.pooling is None:
            pipeline.combination, pipeline.combined_depth = _read_combination(place)
        elif kind == "Pooling":
            _read_pooling(pipeline, place / "config.json")
        elif kind in LAYER_POOLERS and pipeline.pooling is None and pipeline.combination is None:
            pooler = read_layer_pooler(kind, place)
            pipeline.pooling, pipeline.pooler = pooler.state_pooling, pooler
        elif kind == "LayerHeads":
            pipeline.heads = read_layer_heads(place)
        elif kind in TAIL_MODULES:
            pipeline.tail.append(read_tail_module(kind, place))
        elif kind != "Dropout":  # does nothing outside training
            raise _unknown_module(listing, kind)
    return pipeline


def _unknown_module(listing: Path, kind: str) -> ModelError:
    return ModelError(
        f"{listing} names a module {kind!r} that cannot be truncated and kept exactly.",
        hint=f"Known modules: Transformer, WeightedLayerPooling (before Pooling), Pooling or one of "
        f"{', '.join(LAYER_POOLERS)}, LayerHeads, {', '.join(TAIL_MODULES)}, Dropout.",
    )


def _modules(listing: Path) -> list[dict[str, Any]]:
    """What `modules.json` lists.

    Raises `ModelError` for a module that is not known, and where it leaves open in which order vectors go through it.
    """
    modules: list[dict[str, Any]] = read_json(listing)
    if len(modules) > _MOST_MODULES:
        raise ModelError(f"{listing} names {len(modules):,} modules.", hint=f"At most {_MOST_MODULES} are read.")
    numbers = [int(module["idx"]) for module in modules]
    kinds = [module["type"].rpartition(".")[2] for module in modules]
    unknown = next((kind for kind in kinds if kind not in _KNOWN), None)
    if unknown is not None:
        raise _unknown_module(listing, unknown)
    stages = [_STAGES[kind] for kind in kinds if kind in _STAGES]
    if numbers != sorted(numbers) or stages != sorted(stages) or kinds.count("Transformer") != 1:
        raise ModelError(
            f"{listing} lists its modules in an order that is not that of their work: {', '.join(kinds)}.",
            hint="A transformer comes first, then its pooling, then what follows; each with a larger idx.",
        )
    return modules


def _checked_settings(path: Path, values: Any) -> dict[str, Any]:
    """What sentence-transformers notes of a model. Raises `ModelError` where its prompts are no texts by name."""
    known: dict[str, Any] = values if isinstance(values, dict) else {"prompts": 0}
    prompts, default = known.get("prompts", {}), known.get("default_prompt_name")
    texts = prompts.values() if isinstance(prompts, dict) else (prompts,)
    if not all(isinstance(text, str | None) for text in texts) or not isinstance(default, str | None):
        raise ModelError(f"{path} holds no prompts by name.", hint="Download or save the model again.")
    kind, dimensions = known.get("model_type", _MODEL_TYPE), known.get("truncate_dim")
    if kind != _MODEL_TYPE:
        raise ModelError(
            f"{path} says model_type {shown(kind)}, which cannot be kept.",
            hint=f"Use a model of the type {_MODEL_TYPE}: it gives one dense vector for each text.",
        )
    if dimensions is not None:
        raise ModelError(
            f"{path} says truncate_dim {shown(dimensions)}, which cannot be kept.",
            hint="Remove it there; `dimensions` of encode and evaluate cuts vectors.",
        )
    return known if isinstance(prompts, dict) else known | {"prompts": {}}


def _read_transformer(pipeline: Pipeline, place: Path) -> None:
    nothing: tuple[Path, dict[str, Any]] = (place, {})
    path, values = next((reading for reading in _readings(place) if reading[1] != {}), nothing)
    over = next((name for name in _OVERRIDES if values.get(name)), None)
    if over is not None:
        raise ModelError(
            f"{path} puts {over} over the model's own settings, which cannot be kept.",
            hint="Write them into config.json or tokenizer_config.json, and leave them out there.",
        )
    pipeline.max_length = values.get("max_seq_length")
    pipeline.lower_case = values.get("do_lower_case") or False
    if not isinstance(pipeline.lower_case, bool) or not (
        pipeline.max_length in (None, 0) or Bounds(2, math.inf).holds(pipeline.max_length)
    ):
        raise ModelError(
            f"{path} has a maximum length of {shown(pipeline.max_length)}, and lower case "
            f"{shown(pipeline.lower_case)}.",
            hint="The first is a whole number or null, the second true or false; save the model again.",
        )


def _readings(place: Path) -> Iterator[tuple[Path, Any]]:
    """What says how a transformer reads texts, of whatever name, the first one first."""
    files = (place / f"sentence_{kind}_config.json" for kind in _READERS)
    return ((file, read_json(file)) for file in files if file.exists())


def _read_pooling(pipeline: Pipeline, path: Path) -> None:
    """How the tokens are pooled, or why that cannot be kept; raises `ModelError` for what no other pooling replaces."""
    values = read_json(path)
    modes = values.get("pooling_mode")
    if modes is None:
        flags = {flag: mode for mode, flag in (POOLING_FLAGS | OTHER_FLAGS).items()}
        modes = [flags[key] for key, on in values.items() if key in flags and on] or ["mean"]
        modes = ["lasttoken" if mode == "last" else mode for mode in modes]
    modes = [modes] if isinstance(modes, str) else list(modes)
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
    """Layers with a weight, and the depth they are counted in."""
    values = read_json(place / "config.json")
    depth, start = int(values["num_hidden_layers"]), int(values["layer_start"])
    weights = read_weights(place).get("layer_weights", torch.empty(0))
    layers = tuple(start + int(index) for index in weights.nonzero()[:, 0]) if weights.dim() == 1 else ()
    if len(weights) != depth + 1 - start or len({float(weights[layer - start]) for layer in layers}) != 1:
        raise ModelError(
            f"{place} weights layers {[round(float(weight), 3) for weight in weights]}, which cannot be kept.",
            hint="A mean over some layers can: one weight for them, 0 for the others.",
        )
    return layers, depth
