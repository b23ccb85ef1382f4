"""Contrastive training with layer-wise attention pooling, and with the poolings it is compared with."""

from truncate_kit.contrastive.model import poolable_encoder, remove_pooler
from truncate_kit.contrastive.results import ContrastiveResult, LayerWeights
from truncate_kit.contrastive.running import finetune_contrastive
from truncate_kit.contrastive.settings import OBJECTIVES, POOLINGS, ContrastiveSettings
from truncate_kit.contrastive.weights import layer_weights

__all__ = [
    "OBJECTIVES",
    "POOLINGS",
    "ContrastiveResult",
    "ContrastiveSettings",
    "LayerWeights",
    "finetune_contrastive",
    "layer_weights",
    "poolable_encoder",
    "remove_pooler",
]
