"""Keep some of an encoder's blocks, exactly; and count what is kept."""

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from transformers import AutoModel, PretrainedConfig

from truncate_kit.errors import LayerNotHeldError, LayerOutOfRangeError, ModelError
from truncate_kit.models.encoder import Encoder
from truncate_kit.models.families import family_of
from truncate_kit.models.layer_pooling import LayerPooler
from truncate_kit.models.model_folder import quiet_transformers


def truncate(encoder: Encoder, layer: int, *, copy_weights: bool = True) -> Encoder:
    """Return the encoder cut at `layer`: its embeddings and blocks 1 … layer; see `keep`.

    Its output equals `hidden_states(batch)[layer]` of `encoder`, bitwise on CPU in float32. Raises
    `LayerOutOfRangeError` and `LayerNotHeldError`.
    """
    truncated_config(encoder.backbone.config, layer)
    return keep(encoder, range(1, layer + 1), copy_weights=copy_weights)


def keep(encoder: Encoder, blocks: Sequence[int], *, copy_weights: bool = True) -> Encoder:
    """Return the encoder with its embeddings and these blocks only, with pooling, tail, prompts and tokenizer.

    Its output is that of running the blocks one after the other, bitwise on CPU in float32, then the final norm if
    the family has one. A combination of layers and poolings or heads over layers are kept with all blocks only.

    Args:
        encoder: Whose embeddings and blocks are kept.
        blocks: Different numbers from 1 to L, rising.
        copy_weights: False shares memory with `encoder` (to read states; training either would change both).

    Raises:
        LayerOutOfRangeError: A block does not exist.
        LayerNotHeldError: No ordinary class of the family would compute the same from these blocks.
        ModelError: They do not rise.
    """
    whole, config = len(blocks) == encoder.depth, kept_config(encoder.backbone.config, blocks)
    weights = encoder.backbone.state_dict()
    weights = {new: weights[old] for old, new in _kept_names(encoder.backbone.config, weights, blocks).items()}
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
    pooler = encoder.pooler if whole or not isinstance(encoder.pooler, LayerPooler) else None
    kept = Encoder(
        name=encoder.name,
        backbone=backbone,
        tokenizer=encoder.tokenizer,
        pooling=encoder.pooling,
        tail=copy.deepcopy(list(encoder.tail)) if copy_weights else list(encoder.tail),
        max_length=encoder.max_length,
        lower_case=encoder.lower_case,
        settings=copy.deepcopy(encoder.settings),
        pooler=copy.deepcopy(pooler) if copy_weights else pooler,
        heads=copy.deepcopy(encoder.heads) if whole else None,
    )
    kept.seen, kept.trained = encoder.seen, encoder.trained
    if whole and encoder.combination is not None:
        kept.combine_layers(encoder.combination)
    return kept.to(encoder.device).train(encoder.training)


def layers_held(config: PretrainedConfig) -> tuple[int, ...]:
    """Return the layers of 0 … L at which a truncated model can be stored and reloaded exactly."""
    held = []
    for layer in range(config.num_hidden_layers + 1):
        try:
            truncated_config(config, layer)
        except LayerNotHeldError:
            continue
        held.append(layer)
    return tuple(held)


def truncated_config(config: PretrainedConfig, layer: int) -> PretrainedConfig:
    """Return a copy of `config` for the model cut at `layer`; see `kept_config`."""
    if not 0 <= layer <= config.num_hidden_layers:
        raise LayerOutOfRangeError(layer, config.num_hidden_layers, lowest=family_of(config).lowest_layer)
    return kept_config(config, range(1, layer + 1))


def kept_config(config: PretrainedConfig, blocks: Sequence[int]) -> PretrainedConfig:
    """Return a copy of `config` for the model with these blocks only. Raises as `keep` does."""
    family, depth, blocks = family_of(config), config.num_hidden_layers, list(blocks)
    for block in blocks:
        if not 1 <= block <= depth:
            raise LayerOutOfRangeError(block, depth, block=True)
    if blocks != sorted(set(blocks)):
        raise ModelError(
            f"The blocks {', '.join(map(str, blocks))} do not rise.", hint="Name each block once, the lowest first."
        )
    if len(blocks) < family.lowest_layer:
        raise LayerNotHeldError(
            f"A {family.name} model cannot be stored at layer {len(blocks)}: its class does not work without blocks.",
            hint=f"Use a layer from {family.lowest_layer} to {depth}.",
        )
    kept = copy.deepcopy(config)
    if getattr(config, "layer_types", None) is not None:  # a list of another length is refused at reload
        kept.layer_types = [config.layer_types[block - 1] for block in blocks]
    if 0 < len(blocks) < depth and family.keep_blocks is not None:
        family.keep_blocks(kept, blocks)
    kept.num_hidden_layers = len(blocks)
    setattr(kept, family.num_items, len(set(_items(config, blocks))))
    if not _weights_stay(config, blocks):
        held = [str(layer) for layer in range(depth + 1) if _weights_stay(config, range(1, layer + 1))]
        raise LayerNotHeldError(
            f"This {family.name} model shares {getattr(config, family.num_items)} groups of weights over {depth} "
            f"layers; with the blocks {', '.join(map(str, blocks))} alone, a reloaded model would give them others.",
            hint=f"Keep blocks 1 to l, where l is one of: {', '.join(held)}.",
        )
    return kept


def _items(config: PretrainedConfig, blocks: Sequence[int]) -> list[int]:
    """Return the items of the family's list of blocks that these blocks are."""
    items = family_of(config).items(config)
    return [items[block - 1] for block in blocks]


def _weights_stay(config: PretrainedConfig, blocks: Sequence[int]) -> bool:
    """Return whether a model of these blocks gives each its own weights, which shared weights may prevent."""
    family, items = family_of(config), _items(config, blocks)
    kept = copy.copy(config)
    kept.num_hidden_layers = len(blocks)
    setattr(kept, family.num_items, len(set(items)))
    return family.items(kept) == [sorted(set(items)).index(item) for item in items]


def _kept_names(config: PretrainedConfig, names: Iterable[str], blocks: Sequence[int]) -> dict[str, str]:
    """Return the names of the weights that a model with these blocks has, and their names there."""
    family = family_of(config)
    prefix, places = f"{family.blocks}.", {item: n for n, item in enumerate(sorted(set(_items(config, blocks))))}
    kept = {}
    for name in names:
        if name.startswith(prefix):
            item, _, rest = name.removeprefix(prefix).partition(".")
            if int(item) in places:
                kept[name] = f"{prefix}{places[int(item)]}.{rest}"
        elif family.only_first is None or not name.startswith(f"{family.only_first}.") or 1 in blocks:
            kept[name] = name
    return kept


def parameters_kept(config: PretrainedConfig) -> tuple[int | None, ...]:
    """Count the parameters of the model cut at each layer 0 … L, pooler excluded; None if it cannot be held.

    Computed on the meta device: no weights are made.

    Args:
        config: Of the backbone, such as `encoder.backbone.config`.
    """
    family, model, held = family_of(config), _meta_model(config), layers_held(config)
    if family.pooler is not None:
        setattr(model, family.pooler, None)
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    return tuple(
        sum(sizes[name] for name in _kept_names(config, sizes, range(1, layer + 1))) if layer in held else None
        for layer in range(config.num_hidden_layers + 1)
    )


def _meta_model(config: PretrainedConfig) -> Any:
    with torch.device("meta"):
        return AutoModel.from_config(config)


def paper_parameters(config: PretrainedConfig, layer: int) -> int:
    """Count parameters as the TMFT paper does: the embedding module and the first `layer` blocks.

    ELECTRA's `embeddings_project`, DeBERTa's `rel_embeddings` with its norm and convolution, final norms and poolers
    are left out (Tables 1 and 2 of "Are ELECTRA's Sentence Embeddings Beyond Repair?", Findings of EMNLP 2024).

    Args:
        config: Of the backbone, such as `encoder.backbone.config`.
        layer: Number of first blocks that count.
    """
    if not 0 <= layer <= config.num_hidden_layers:
        raise LayerOutOfRangeError(layer, config.num_hidden_layers)
    family, model = family_of(config), _meta_model(config)
    kept = set(_items(config, range(1, layer + 1)))  # blocks that layers share count once
    parts = [model.get_submodule(path) for path in family.embeddings.split(",")]
    parts += [block for item, block in enumerate(model.get_submodule(family.blocks)) if item in kept]
    return sum(parameter.numel() for part in parts for parameter in part.parameters())
