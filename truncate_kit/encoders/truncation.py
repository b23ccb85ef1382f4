"""Cutting an encoder at a layer, exactly; and counting what is kept."""

import copy
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModel, PretrainedConfig, PreTrainedModel

from truncate_kit.encoders.encoder import Encoder, Pooler
from truncate_kit.encoders.families import Family, family_of
from truncate_kit.encoders.pooler_files import LayerPooler
from truncate_kit.encoders.quiet import quiet_transformers
from truncate_kit.errors import LayerNotHeldError, LayerOutOfRangeError


def check_layer(config: PretrainedConfig, layer: int) -> None:
    """Raise `LayerOutOfRangeError` or `LayerNotHeldError` unless a model can be cut at `layer` and reloaded exactly."""
    truncated_config(config, layer)


def layers_held(config: PretrainedConfig) -> tuple[int, ...]:
    """All layers of 0 … L at which a truncated model can be stored and reloaded exactly."""
    held = []
    for layer in range(config.num_hidden_layers + 1):
        try:
            truncated_config(config, layer)
        except LayerNotHeldError:
            continue
        held.append(layer)
    return tuple(held)


def truncated_config(config: PretrainedConfig, layer: int) -> PretrainedConfig:
    """A copy of `config` for the model cut at `layer`: depth rewritten, and whatever hangs on it.

    Raises `LayerOutOfRangeError` outside 0 … L, `LayerNotHeldError` where the family cannot hold the layer.
    """
    family, depth = family_of(config), config.num_hidden_layers
    if not 0 <= layer <= depth:
        raise LayerOutOfRangeError(layer, depth)
    if layer < family.lowest_layer:
        raise LayerNotHeldError(
            f"A {family.name} model cannot be stored at layer {layer}: its class does not run without blocks.",
            hint=f"Use --layer {family.lowest_layer}..{depth}.",
        )
    cut = copy.deepcopy(config)
    if family.cut_config is not None:
        family.cut_config(cut, layer)
    cut.num_hidden_layers = layer
    return cut


def kept_weights(backbone: PreTrainedModel, family: Family, config: PretrainedConfig) -> dict[str, Tensor]:
    """The weights of `backbone` that a model with the truncated `config` has: no upper block, no pooler."""
    limit = getattr(config, family.num_blocks)
    prefix = f"{family.blocks}."
    kept = {}
    for name, value in backbone.state_dict().items():
        if name.startswith(prefix) and int(name[len(prefix) :].split(".", 1)[0]) >= limit:
            continue
        if family.pooler is not None and name.startswith(f"{family.pooler}."):
            continue
        kept[name] = value
    return kept


def truncate(encoder: Encoder, layer: int, *, copy_weights: bool = True) -> Encoder:
    """The encoder cut at `layer`: embeddings and blocks 1 … layer, with pooling, tail, prompts and tokenizer kept.

    Its output equals `hidden_states(batch)[layer]` of `encoder`, bitwise on CPU in float32; a combination of layers and
    poolings or heads over the layers are kept at the last layer only.
    copy_weights: False shares memory with `encoder` (to read states; training either would change both).
    Raises `LayerOutOfRangeError`, `LayerNotHeldError`.
    """
    config = truncated_config(encoder.backbone.config, layer)
    weights = kept_weights(encoder.backbone, encoder.family, config)
    if copy_weights:
        weights = {name: value.detach().clone() for name, value in weights.items()}
    with quiet_transformers():
        backbone = type(encoder.backbone).from_pretrained(
            None,
            config=config,
            state_dict=weights,
            attn_implementation=encoder.backbone.config._attn_implementation,
            dtype=encoder.backbone.dtype,
        )
    if encoder.family.pooler is not None:
        setattr(backbone, encoder.family.pooler, None)
    cut = Encoder(
        name=encoder.name,
        backbone=backbone,
        family=encoder.family,
        tokenizer=encoder.tokenizer,
        pooling=encoder.pooling,
        tail=copy.deepcopy(list(encoder.tail)) if copy_weights else list(encoder.tail),
        max_length=encoder.max_length,
        lower_case=encoder.lower_case,
        settings=copy.deepcopy(encoder.settings),
        combination=encoder.combination if layer == encoder.depth else None,
        pooler=_kept_pooler(encoder, layer, copy_weights),
        heads=copy.deepcopy(encoder.heads) if layer == encoder.depth else None,
    )
    return cut.to(encoder.device).train(encoder.training)


def _kept_pooler(encoder: Encoder, layer: int, copy_weights: bool) -> Pooler | None:
    """The pooler, unless it takes layers that are cut off."""
    if isinstance(encoder.pooler, LayerPooler) and layer != encoder.depth:
        return None
    return copy.deepcopy(encoder.pooler) if copy_weights else encoder.pooler


def parameters_kept(config: PretrainedConfig) -> tuple[int | None, ...]:
    """Parameters of the model cut at each layer 0 … L, pooler excluded; None where the layer cannot be held.

    Computed on the meta device: no weights are made.
    """
    return tuple(
        _count(config, layer) if layer in layers_held(config) else None for layer in range(config.num_hidden_layers + 1)
    )


def _meta_model(config: PretrainedConfig) -> Any:
    with torch.device("meta"):
        return AutoModel.from_config(config)


def _count(config: PretrainedConfig, layer: int) -> int:
    family, model = family_of(config), _meta_model(truncated_config(config, layer))
    if family.pooler is not None:
        setattr(model, family.pooler, None)
    return sum(parameter.numel() for parameter in model.parameters())


def paper_parameters(config: PretrainedConfig, layer: int) -> int:
    """Parameters as the TMFT paper counts them: the embedding module and the first `layer` blocks.

    ELECTRA's `embeddings_project`, DeBERTa's `rel_embeddings` with its norm and convolution, final norms and poolers
    are left out (Tables 1 and 2 of "Are ELECTRA's Sentence Embeddings Beyond Repair?", Findings of EMNLP 2024).
    """
    if not 0 <= layer <= config.num_hidden_layers:
        raise LayerOutOfRangeError(layer, config.num_hidden_layers)
    family, model = family_of(config), _meta_model(config)
    parts = [model.get_submodule(path) for path in family.embeddings.split(",")]
    kept = layer
    if family.num_blocks != "num_hidden_layers":  # blocks that layers share: those the kept layers use
        kept = getattr(truncated_config(config, layer), family.num_blocks)
    parts += list(model.get_submodule(family.blocks))[:kept]
    return sum(parameter.numel() for part in parts for parameter in part.parameters())
