"""How much each layer counts in the vectors of given texts."""

from collections.abc import Sequence

import torch

from truncate_kit.errors import DataError, UsageError
from truncate_kit.methods.contrast.contrastive_result import LayerWeights
from truncate_kit.models import Encoder, evaluating
from truncate_kit.models.layer_pooling import LayerAttentionPooling

_BATCH = 32


@torch.inference_mode()
def layer_weights(encoder: Encoder, texts: Sequence[str]) -> LayerWeights:
    """The attention of each text's pooling over the layers, averaged over its queries.

    Raises `UsageError` for an encoder without layer-wise attention, `DataError` without texts.
    """
    if not isinstance(encoder.pooler, LayerAttentionPooling):
        raise UsageError(
            f"{encoder.name} is pooled by {encoder.pooling_name}: no attention says how much a layer counts.",
            hint='Train it with `finetune_contrastive()` and `pooling="layer-attention"`.',
        )
    if not texts:
        raise DataError("There is no text to show the attention of.", hint="Give at least one.")
    rows: list[tuple[float, ...]] = []
    with evaluating(encoder):
        for start in range(0, len(texts), _BATCH):
            batch = encoder.tokenize(texts[start : start + _BATCH])
            states = encoder.hidden_states(batch, raw=True)
            found = encoder.pooler.layer_weights(*encoder.pooler.summaries_and_means(states, batch["attention_mask"]))
            rows += [tuple(row) for row in found.float().cpu().tolist()]
    return LayerWeights(model=encoder.name, texts=tuple(texts), weights=tuple(rows))
