"""One row per architecture: where its blocks are, how it ends, and what else hangs on its depth.

Nothing else in the package asks which architecture it has before it. Depth, width and heads need no column: every
configuration of transformers answers to `num_hidden_layers`, `hidden_size` and `num_attention_heads`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transformers import PretrainedConfig

from truncate_kit.errors import LayerNotHeldError, UnknownFamilyError


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How one architecture is read, cut and exported.

    blocks: dotted path of the list of blocks inside the base model; its items are dropped from layer l on.
    num_blocks: field of the configuration that says how long that list is.
    final_norm: dotted path of the norm after the last block, None where there is none. An ordinary reload of a
        truncated model applies it, so a state at any layer has it applied.
    embeddings: module whose parameters the TMFT paper counts beside the blocks.
    pooler: attribute of the head over CLS that no sentence embedding uses, None where there is none.
    decoder: causal attention; positions follow the mask, and inference keeps no key-value cache.
    position_offset: positions that the position table holds but no token can use (RoBERTa counts from padding + 1).
    lowest_layer: smallest layer at which the ordinary classes can hold a truncated model.
    fused_attention: whether ONNX Runtime has a fused kernel for this attention; one node per kept layer is expected.
    float32_scores: whether attention scores have to stay in float32 in a float16 graph.
    cut_config: further changes to the configuration of a model cut at a layer; raises `LayerNotHeldError`.
    """

    name: str
    blocks: str = "encoder.layer"
    num_blocks: str = "num_hidden_layers"
    final_norm: str | None = None
    embeddings: str = "embeddings"
    pooler: str | None = None
    decoder: bool = False
    position_offset: int = 0
    lowest_layer: int = 0
    fused_attention: bool = True
    float32_scores: bool = False
    cut_config: Callable[[PretrainedConfig, int], None] | None = None


def _cut_layer_types(config: PretrainedConfig, layer: int) -> None:
    """Keep the attention types of the kept layers; a list of another length is refused at reload."""
    if getattr(config, "layer_types", None) is not None:
        config.layer_types = config.layer_types[:layer]


def _cut_qwen2(config: PretrainedConfig, layer: int) -> None:
    _cut_layer_types(config, layer)
    config.max_window_layers = min(config.max_window_layers, layer)


def albert_groups(depth: int, groups: int) -> list[int]:
    """Group of each layer, by the arithmetic of ALBERT's own forward pass."""
    return [int(index / (depth / groups)) for index in range(depth)]


def _cut_albert(config: PretrainedConfig, layer: int) -> None:
    """Keep the groups that the kept layers use, where the shallower model maps layers to groups just so.

    `config` still has its full depth here. With one group every parameter is kept at every layer: ALBERT shares.
    """
    depth, groups = config.num_hidden_layers, config.num_hidden_groups
    kept = albert_groups(depth, groups)[:layer]
    used = max(kept, default=-1) + 1
    if layer and albert_groups(layer, used) != kept:
        held = [
            cut
            for cut in range(1, depth + 1)
            if albert_groups(cut, max(albert_groups(depth, groups)[:cut]) + 1) == albert_groups(depth, groups)[:cut]
        ]
        raise LayerNotHeldError(
            f"This ALBERT shares {groups} groups of weights over {depth} layers; cut at layer {layer}, a "
            "reloaded model would give layers other weights.",
            hint=f"Use one of the layers that can be held exactly: 0, {', '.join(map(str, held))}.",
        )
    config.num_hidden_groups = used


_ROWS = (
    Family(name="bert", pooler="pooler"),
    Family(name="electra"),
    Family(name="roberta", pooler="pooler", position_offset=2),
    Family(name="xlm-roberta", pooler="pooler", position_offset=2),
    Family(name="camembert", pooler="pooler", position_offset=2),
    Family(name="distilbert", blocks="transformer.layer"),
    Family(name="mpnet", pooler="pooler", position_offset=2, fused_attention=False),
    Family(
        name="albert",
        blocks="encoder.albert_layer_groups",
        num_blocks="num_hidden_groups",
        pooler="pooler",
        cut_config=_cut_albert,
    ),
    Family(name="deberta", fused_attention=False, float32_scores=True),
    # Layer 0 has no home in two families: DeBERTa-v2's encoder returns an unassigned variable without blocks,
    # ModernBERT's initialisation divides by the depth.
    Family(name="deberta-v2", lowest_layer=1, fused_attention=False, float32_scores=True),
    Family(
        name="modernbert",
        blocks="layers",
        final_norm="final_norm",
        lowest_layer=1,
        fused_attention=False,
        cut_config=_cut_layer_types,
    ),
    Family(name="gpt2", blocks="h", final_norm="ln_f", embeddings="wte,wpe", decoder=True, fused_attention=False),
    Family(
        name="qwen2",
        blocks="layers",
        final_norm="norm",
        embeddings="embed_tokens",
        decoder=True,
        fused_attention=False,
        cut_config=_cut_qwen2,
    ),
    Family(
        name="llama", blocks="layers", final_norm="norm", embeddings="embed_tokens", decoder=True, fused_attention=False
    ),
)

FAMILIES: dict[str, Family] = {row.name: row for row in _ROWS}


def family_of(config: PretrainedConfig | Any) -> Family:
    """The row of a configuration's `model_type`. Raises `UnknownFamilyError` naming what is missing."""
    name = getattr(config, "model_type", "") or ""
    if name not in FAMILIES:
        raise UnknownFamilyError(
            f"The architecture {name!r} has no row in the family table, so nothing says where its blocks are, "
            "whether a final norm follows them and what else in its configuration hangs on the depth.",
            hint=f"Use a model of a known family ({', '.join(FAMILIES)}), or add a row to encoders/families.py.",
        )
    return FAMILIES[name]
