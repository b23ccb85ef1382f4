"""Describe each architecture in one row; other modules do not branch on the architecture."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig
from transformers.models.deberta_v2.modeling_deberta_v2 import DisentangledSelfAttention

from truncate_kit.core.errors import LayerNotHeldError, ModelError


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Properties of one architecture that loading, truncation and export need."""

    name: str  # `model_type` of its configurations
    blocks: str = "encoder.layer"  # path of the list of blocks in the base model
    num_items: str = "num_hidden_layers"  # configuration field with the list's length
    # Returns each block's list index, if blocks share items.
    item_of: Callable[[PretrainedConfig], list[int]] | None = None
    # Path of the norm after the last block, applied at every layer.
    final_norm: str | None = None
    # Comma-separated modules that the TMFT paper counts besides blocks, and that `distill` freezes.
    embeddings: str = "embeddings"
    # Head over CLS, unused by sentence embeddings.
    pooler: str | None = None
    # Decoder: positions follow the mask, no key-value cache.
    decoder: bool = False
    # Returns the number of reserved positions.
    position_offset: Callable[[PretrainedConfig], int] | None = None
    recipe: str = "bert"  # hyperparameters, `bert` or `roberta`: Table 4 of the layer-wise attention pooling paper
    lowest_layer: int = 0  # lowest layer that transformers' class supports
    # Whether ONNX Runtime fuses this attention.
    fused_attention: bool = True
    float32_scores: bool = False  # attention scores stay float32 in a float16 graph
    only_first: str | None = None  # path of a module that runs in block 1 only
    # Adapts the configuration to the kept blocks. Raises `LayerNotHeldError` if a reloaded model would differ.
    keep_blocks: Callable[[PretrainedConfig, Sequence[int]], None] | None = None
    # Speeds up a loaded model in place.
    quicken: Callable[[nn.Module], None] | None = None

    def items(self, config: PretrainedConfig) -> list[int]:
        """Return each block's index in the list of blocks."""
        return list(range(config.num_hidden_layers)) if self.item_of is None else self.item_of(config)


def _albert_groups(config: PretrainedConfig) -> list[int]:
    depth = config.num_hidden_layers
    return [int(index / (depth / config.num_hidden_groups)) for index in range(depth)]


def _after_padding(config: PretrainedConfig) -> int:
    return (config.pad_token_id or 0) + 1


def _keep_window(config: PretrainedConfig, blocks: Sequence[int]) -> None:
    """Update `max_window_layers`, which older classes without `layer_types` rely on."""
    config.max_window_layers = sum(block <= config.max_window_layers for block in blocks)


class NearAttention(DisentangledSelfAttention):
    """DeBERTa-v2's attention, computed only for distances that occur in the batch.

    transformers projects all rows of the position table (512 for DeBERTaV3); t tokens need 2t.
    """

    def disentangled_attention_bias(
        self, query_layer: Tensor, key_layer: Tensor, relative_pos: Tensor, rel_embeddings: Tensor, scale_factor: int
    ) -> Tensor:
        """Return the positional attention scores, (b * heads, t, t); DeBERTa paper, equation 4.

        Args:
            query_layer: (b * heads, t, d).
            key_layer: (b * heads, t, d).
            relative_pos: (1, t, t), offsets from the table's middle.
            rel_embeddings: The table, (2 * span, width).
            scale_factor: Number of score types (c2p, p2c) plus one.
        """
        heads, size = self.num_attention_heads, query_layer.size(-1)
        length, span = query_layer.size(1), self.pos_ebd_size
        # From mid on, distance d has row ceil((mid - 1) log(d / mid) / log((most - 1) / mid)) + mid. This is at most d
        # if the last logarithm is at least (mid - 1) / mid, since log(1 + x) <= x. Otherwise all rows are used.
        mid, most = self.position_buckets // 2, self.max_relative_positions
        within = self.position_buckets < 1 or (most - 1 > mid >= 1 and math.log((most - 1) / mid) >= (mid - 1) / mid)
        reach = torch.sym_min(length, span) if within else span
        # CUDA graphs cannot record adding a CPU number to a GPU tensor.
        near = torch.arange(span - reach, span + reach, device=query_layer.device)
        middle = torch.arange(reach, reach + 1, device=query_layer.device)

        def placed(project: nn.Module, rows: Tensor) -> Tensor:
            projected: Tensor = (project(rows) / (size * scale_factor) ** 0.5).view(-1, heads, size)
            return projected

        def picked(states: Tensor, project: nn.Module, distances: Tensor) -> Tensor:
            if torch.compiler.is_exporting():  # the projection of all rows becomes a constant
                rows = placed(project, rel_embeddings[None, : 2 * span]).index_select(0, near)
            else:
                rows = placed(project, rel_embeddings.index_select(0, near))
            columns = rows.permute(1, 2, 0)  # (heads, d, 2 * reach)
            # Repeated: CUDA broadcasts by address lists, which CUDA graphs cannot record.
            products = torch.bmm(states, columns.repeat(states.size(0) // heads, 1, 1))
            places = torch.clamp(distances, -span, span - 1) + middle
            return torch.gather(products, 2, places.expand(states.size(0), length, length))

        scores, distances = [], relative_pos.view(length, length)
        if "c2p" in self.pos_att_type:
            scores.append(picked(query_layer, self.key_proj if self.share_att_key else self.pos_key_proj, distances))
        if "p2c" in self.pos_att_type:
            project = self.query_proj if self.share_att_key else self.pos_query_proj
            scores.append(picked(key_layer, project, -distances).transpose(1, 2))
        return reduce(torch.add, scores) if scores else query_layer.new_zeros(())


def _near_positions(backbone: nn.Module) -> None:
    for module in backbone.modules():
        if type(module) is DisentangledSelfAttention:
            module.__class__ = NearAttention


def _keep_convolution(config: PretrainedConfig, blocks: Sequence[int]) -> None:
    """Disable the convolution if block 1 is removed: the class would apply it to the new first block."""
    if blocks[0] != 1 and getattr(config, "conv_kernel_size", 0) > 0:
        config.conv_kernel_size = 0


def _keep_first_norm(config: PretrainedConfig, blocks: Sequence[int]) -> None:
    """Require block 1, the only block without a norm before attention."""
    if blocks[0] != 1:
        raise LayerNotHeldError(
            f"A modernbert model cannot be saved without block 1: as the first block, block {blocks[0]} would lose "
            "its attention norm.",
            hint="Keep block 1.",
        )


def _keep_scaling(config: PretrainedConfig, blocks: Sequence[int]) -> None:
    """Require blocks 1 … n without a gap if attention scores are divided by block position."""
    moved = [block for place, block in enumerate(blocks, 1) if block != place]
    if config.scale_attn_by_inverse_layer_idx and moved:
        raise LayerNotHeldError(
            "This gpt2 model divides the attention scores by block position (scale_attn_by_inverse_layer_idx in "
            f"config.json), and the position of block {moved[0]} would change.",
            hint="Keep the first blocks, without a gap.",
        )


_ROBERTA: dict[str, Any] = {"pooler": "pooler", "position_offset": _after_padding, "recipe": "roberta"}
_ROTARY_DECODER: dict[str, Any] = {
    "blocks": "layers",
    "final_norm": "norm",
    "embeddings": "embed_tokens",
    "decoder": True,
    "fused_attention": False,
}

_ROWS = (
    Family(name="bert", pooler="pooler"),
    Family(name="electra"),
    Family(name="roberta", **_ROBERTA),
    Family(name="xlm-roberta", **_ROBERTA),
    Family(name="camembert", **_ROBERTA),
    Family(name="distilbert", blocks="transformer.layer"),
    # The class always uses padding id 1.
    Family(name="mpnet", pooler="pooler", position_offset=lambda _: 2),
    Family(name="albert", blocks="encoder.albert_layer_groups", num_items="num_hidden_groups", item_of=_albert_groups,
           pooler="pooler"),
    Family(name="deberta", fused_attention=False, float32_scores=True),
    # Layer 0 fails in three families: DeBERTa-v2 returns an unassigned variable, ModernBERT divides by the depth, Gemma
    # 3 misreads rotary parameters.
    Family(name="deberta-v2", lowest_layer=1, fused_attention=False, float32_scores=True, only_first="encoder.conv",
           keep_blocks=_keep_convolution, quicken=_near_positions),
    Family(name="modernbert", blocks="layers", final_norm="final_norm", lowest_layer=1, fused_attention=False,
           keep_blocks=_keep_first_norm),
    Family(name="nomic_bert", blocks="layers", fused_attention=False),
    Family(name="gte", blocks="layers", fused_attention=False),
    Family(name="gpt2", blocks="h", final_norm="ln_f", embeddings="wte,wpe", decoder=True, fused_attention=False,
           keep_blocks=_keep_scaling),
    Family(name="qwen2", **_ROTARY_DECODER, keep_blocks=_keep_window),
    Family(name="qwen3", **_ROTARY_DECODER, keep_blocks=_keep_window),
    Family(name="llama", **_ROTARY_DECODER),
    Family(name="mistral", **_ROTARY_DECODER),
    Family(name="gemma3_text", **_ROTARY_DECODER, lowest_layer=1),
)  # fmt: skip

FAMILIES: dict[str, Family] = {row.name: row for row in _ROWS}
_INSTEAD = {
    "new": "There are copies for transformers' own class gte, such as alibaba-nlp-community/gte-multilingual-base. "
}


def family_of(config: PretrainedConfig | str) -> Family:
    """Return the family of a configuration or `model_type`. Raises `ModelError` for an unknown architecture."""
    name = config if isinstance(config, str) else config.model_type
    if name not in FAMILIES:
        hint = f"{_INSTEAD.get(name, '')}Use a model of one of these families: {', '.join(FAMILIES)}. "
        hint += "In Python, `evaluate` and `compare` score any object with `encode`."
        raise ModelError(f"The architecture {name!r} is not supported.", hint=hint)
    return FAMILIES[name]
