"""One row per architecture: its blocks, its end, and what else depends on its depth.

No other module branches on the architecture. Depth, width and heads need no column: every configuration of transformers
has `num_hidden_layers`, `hidden_size` and `num_attention_heads`.
"""

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
    """How one architecture is read, cut and exported."""

    name: str  # `model_type` of its configurations
    blocks: str = "encoder.layer"  # dotted path of the list of blocks inside the base model
    num_items: str = "num_hidden_layers"  # field of the configuration with the length of that list
    # Returns the item of that list for each block; by default each block has its own.
    item_of: Callable[[PretrainedConfig], list[int]] | None = None
    # Dotted path of the norm after the last block. An ordinary reload of a truncated model applies it, so a state at
    # any layer has it applied.
    final_norm: str | None = None
    # Modules, separated by commas, that the TMFT paper counts beside the blocks.
    embeddings: str = "embeddings"
    # Attribute of the head over CLS, which no sentence embedding uses.
    pooler: str | None = None
    # Positions follow the mask, and inference keeps no key-value cache; most attend to the left only.
    decoder: bool = False
    # Returns the number of positions in the table that no token can use.
    position_offset: Callable[[PretrainedConfig], int] | None = None
    recipe: str = "bert"  # its row in Table 4 of the layer-wise attention pooling paper: also `roberta`
    lowest_layer: int = 0  # smallest layer at which the ordinary classes can hold a truncated model
    # Whether ONNX Runtime has a fused kernel for this attention; one node per layer is expected.
    fused_attention: bool = True
    float32_scores: bool = False  # whether attention scores have to stay in float32 in a float16 graph
    only_first: str | None = None  # dotted path of a module that runs in block 1 only, and is dropped with it
    # Changes the configuration further when only the given blocks (from 1 on, rising) are kept. Raises
    # `LayerNotHeldError` if they would compute something else.
    keep_blocks: Callable[[PretrainedConfig, Sequence[int]], None] | None = None
    # Lets a loaded model compute the same with less work, in place.
    quicken: Callable[[nn.Module], None] | None = None

    def items(self, config: PretrainedConfig) -> list[int]:
        """Return the item of the list of blocks for each block, L numbers from 0 on."""
        return list(range(config.num_hidden_layers)) if self.item_of is None else self.item_of(config)


def _albert_groups(config: PretrainedConfig) -> list[int]:
    """Return the group of each layer, by the arithmetic of ALBERT's own forward pass."""
    depth = config.num_hidden_layers
    return [int(index / (depth / config.num_hidden_groups)) for index in range(depth)]


def _after_padding(config: PretrainedConfig) -> int:
    """Return where RoBERTa and its kin begin to count positions: at the padding id + 1."""
    return (config.pad_token_id or 0) + 1


def _keep_window(config: PretrainedConfig, blocks: Sequence[int]) -> None:
    """Count the blocks before the first one with a sliding window anew: older classes read no `layer_types`."""
    config.max_window_layers = sum(block <= config.max_window_layers for block in blocks)


class NearAttention(DisentangledSelfAttention):
    """The attention of DeBERTa-v2 and DeBERTaV3, computed for the distances that occur in a text.

    Its parameters are the same. transformers multiplies every query and key by all positions of the table, 512 for
    DeBERTaV3, and then picks for each pair of tokens the one at their distance. A text of t tokens has no distance of t
    or more: it needs 2t rows.
    """

    def disentangled_attention_bias(
        self, query_layer: Tensor, key_layer: Tensor, relative_pos: Tensor, rel_embeddings: Tensor, scale_factor: int
    ) -> Tensor:
        """Return what distances add to the attention scores, (b * heads, t, t); the DeBERTa paper's equation 4.

        Args:
            query_layer: (b * heads, t, d).
            key_layer: Likewise.
            relative_pos: (1, t, t), row of the table for a query at i and a key at j, counted from its middle.
            rel_embeddings: The table, (2 * span, width).
            scale_factor: One more than there are kinds of scores.
        """
        heads, size = self.num_attention_heads, query_layer.size(-1)
        length, span = query_layer.size(1), self.pos_ebd_size
        # From mid on, distance d has row ceil((mid - 1) log(d / mid) / log((most - 1) / mid)) + mid. That is at most d
        # if the last logarithm is at least (mid - 1) / mid, since log(1 + x) <= x; tables for short texts have others.
        mid, most = self.position_buckets // 2, self.max_relative_positions
        within = self.position_buckets < 1 or (most - 1 > mid >= 1 and math.log((most - 1) / mid) >= (mid - 1) / mid)
        reach = torch.sym_min(length, span) if within else span  # type: ignore[no-untyped-call]  # torch leaves it untyped
        # Sizes enter as ranges: a number that the CPU adds to a GPU's tensor is a copy, which no CUDA graph records.
        near = torch.arange(span - reach, span + reach, device=query_layer.device)
        middle = torch.arange(reach, reach + 1, device=query_layer.device)

        def placed(project: nn.Module, rows: Tensor) -> Tensor:
            """Project rows of the table, (rows, width) to (rows, heads, d)."""
            projected: Tensor = (project(rows) / (size * scale_factor) ** 0.5).view(-1, heads, size)
            return projected

        def picked(states: Tensor, project: nn.Module, distances: Tensor) -> Tensor:
            if torch.compiler.is_exporting():  # the product of all rows is a constant of the graph: rows of that
                rows = placed(project, rel_embeddings[None, : 2 * span]).index_select(0, near)
            else:
                rows = placed(project, rel_embeddings.index_select(0, near))
            columns = rows.permute(1, 2, 0)  # (heads, d, 2 * reach)
            # Repeated for each text: of unlike shapes CUDA's product takes addresses in lists, which no graph keeps.
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
    """Let every attention of a DeBERTa-v2 be a `NearAttention`, in place."""
    for module in backbone.modules():
        if type(module) is DisentangledSelfAttention:
            module.__class__ = NearAttention


def _keep_convolution(config: PretrainedConfig, blocks: Sequence[int]) -> None:
    """Switch the convolution off without block 1: the class would convolve whatever block comes first."""
    if blocks[0] != 1 and getattr(config, "conv_kernel_size", 0) > 0:
        config.conv_kernel_size = 0


def _keep_first_norm(config: PretrainedConfig, blocks: Sequence[int]) -> None:
    """Require block 1: it alone has no norm before its attention."""
    if blocks[0] != 1:
        raise LayerNotHeldError(
            f"A modernbert model cannot be stored without block 1: its class drops the norm of block {blocks[0]} if "
            "that comes first.",
            hint="Keep block 1.",
        )


def _keep_scaling(config: PretrainedConfig, blocks: Sequence[int]) -> None:
    """Require the first blocks if attention scores of block l are divided by l: no field holds the former place."""
    moved = [block for place, block in enumerate(blocks, 1) if block != place]
    if config.scale_attn_by_inverse_layer_idx and moved:
        raise LayerNotHeldError(
            f"This gpt2 model divides the attention scores of each block by its place, and block {moved[0]} would "
            "move to another one (scale_attn_by_inverse_layer_idx in config.json).",
            hint="Keep the first blocks, without a gap.",
        )


_ROBERTA: dict[str, Any] = {"pooler": "pooler", "position_offset": _after_padding, "recipe": "roberta"}
# What the decoders with rotary positions have in common.
_ROTARY: dict[str, Any] = {
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
    # Its class takes 1 for the padding id and ignores the configuration.
    Family(name="mpnet", pooler="pooler", position_offset=lambda _: 2, fused_attention=False),
    Family(name="albert", blocks="encoder.albert_layer_groups", num_items="num_hidden_groups", item_of=_albert_groups,
           pooler="pooler"),
    Family(name="deberta", fused_attention=False, float32_scores=True),
    # Layer 0 has no home in three families: DeBERTa-v2's encoder returns an unassigned variable without blocks,
    # ModernBERT's initialisation divides by the depth, and Gemma 3 reads its rotary parameters, one set for each type
    # of attention, as one set if no layer has a type.
    Family(name="deberta-v2", lowest_layer=1, fused_attention=False, float32_scores=True, only_first="encoder.conv",
           keep_blocks=_keep_convolution, quicken=_near_positions),
    Family(name="modernbert", blocks="layers", final_norm="final_norm", lowest_layer=1, fused_attention=False,
           keep_blocks=_keep_first_norm),
    Family(name="nomic_bert", blocks="layers", fused_attention=False),
    Family(name="gte", blocks="layers", fused_attention=False),
    Family(name="gpt2", blocks="h", final_norm="ln_f", embeddings="wte,wpe", decoder=True, fused_attention=False,
           keep_blocks=_keep_scaling),
    Family(name="qwen2", **_ROTARY, keep_blocks=_keep_window),
    Family(name="qwen3", **_ROTARY, keep_blocks=_keep_window),
    Family(name="llama", **_ROTARY),
    Family(name="mistral", **_ROTARY),
    Family(name="gemma3_text", **_ROTARY, lowest_layer=1),
)  # fmt: skip

FAMILIES: dict[str, Family] = {row.name: row for row in _ROWS}


def family_of(config: PretrainedConfig | str) -> Family:
    """Return the row of a configuration or of its `model_type`. Raises `ModelError` naming what is missing."""
    name = config if isinstance(config, str) else config.model_type
    if name not in FAMILIES:
        raise ModelError(
            f"The architecture {name!r} has no row in the family table, so its blocks, its final norm and what "
            "else depends on its depth are unknown.",
            hint=f"Use a model of a known family ({', '.join(FAMILIES)}), or add a row to models/families.py.",
        )
    return FAMILIES[name]
