"""DeBERTa's scores by relative position, computed for the distances that occur in a text.

transformers multiplies every query and key by all positions of the table, 512 for DeBERTaV3, and then picks for each
pair of tokens the one at their distance. A text of t tokens has no distance of t or more: it needs 2t rows.
"""

import math
from functools import reduce

import torch
from torch import Tensor, nn
from transformers.models.deberta_v2.modeling_deberta_v2 import DisentangledSelfAttention


class NearAttention(DisentangledSelfAttention):
    """The attention of DeBERTa-v2 and DeBERTaV3; only what it multiplies differs, its parameters are the same."""

    def _exceeds_distances(self) -> bool:
        """Whether a distance may have a row further from the middle than itself, as in tables made for short texts.

        From mid = buckets / 2 on, distance d has row ceil((mid - 1) log(d / mid) / log((most - 1) / mid)) + mid. That
        is at most d where the last logarithm is at least (mid - 1) / mid, since log(1 + x) <= x.
        """
        mid, most = self.position_buckets // 2, self.max_relative_positions
        if self.position_buckets < 1:
            return False
        return mid < 1 or most - 1 <= mid or math.log((most - 1) / mid) < (mid - 1) / mid

    def disentangled_attention_bias(
        self, query_layer: Tensor, key_layer: Tensor, relative_pos: Tensor, rel_embeddings: Tensor, scale_factor: int
    ) -> Tensor:
        """What distances add to the attention scores, (b * heads, t, t); the DeBERTa paper's equation 4.

        Args:
            query_layer: (b * heads, t, d).
            key_layer: the same.
            relative_pos: (1, t, t), row of the table for a query at i and a key at j, counted from its middle.
            rel_embeddings: the table, (2 * span, width).
            scale_factor: one more than there are kinds of scores.
        """
        heads, size = self.num_attention_heads, query_layer.size(-1)
        length, span = query_layer.size(1), self.pos_ebd_size
        reach = span
        if not self._exceeds_distances():
            reach = torch.sym_min(length, span)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        # Sizes enter as ranges: a number that the CPU adds to a GPU's tensor is a copy, which no CUDA graph records.
        near = torch.arange(span - reach, span + reach, device=query_layer.device)
        middle = torch.arange(reach, reach + 1, device=query_layer.device)
        scale = (size * scale_factor) ** 0.5

        def positions(project: nn.Module) -> Tensor:
            """Rows of the table that occur, as queries or keys, (2 * reach, heads, d)."""
            if torch.compiler.is_exporting():  # the product of all rows is a constant of the graph: rows of that
                return placed(project, rel_embeddings[None, : 2 * span]).index_select(0, near)
            return placed(project, rel_embeddings.index_select(0, near))

        def placed(project: nn.Module, rows: Tensor) -> Tensor:
            found: Tensor = (project(rows) / scale).view(-1, heads, size)
            return found

        def picked(states: Tensor, project: nn.Module, distances: Tensor) -> Tensor:
            columns = positions(project).permute(1, 2, 0)  # (heads, d, 2 * reach)
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


def compute_near_positions(backbone: nn.Module) -> None:
    """Let every attention of a DeBERTa-v2 compute its scores by position so, in place."""
    for module in backbone.modules():
        if type(module) is DisentangledSelfAttention:
            module.__class__ = NearAttention
