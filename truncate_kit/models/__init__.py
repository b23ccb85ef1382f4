"""Load, truncate, pool and save encoders of every known family."""

from truncate_kit.models.digest import encoder_digest
from truncate_kit.models.encoder import Batch, Encoder, check_pooling, evaluating, length_batches, original_order
from truncate_kit.models.layer_heads import LayerHeads
from truncate_kit.models.layer_pooling import PoolingMode, pool
from truncate_kit.models.loading import (
    dropped_head,
    find_pooler_head,
    load_config,
    load_encoder,
    random_encoder,
)
from truncate_kit.models.model_folder import resolve
from truncate_kit.models.pipeline import save_encoder
from truncate_kit.models.truncation import (
    keep,
    keep_words,
    kept_config,
    layers_held,
    paper_parameters,
    parameters_kept,
    truncate,
    truncated_config,
)

__all__ = [
    "Batch",
    "Encoder",
    "LayerHeads",
    "PoolingMode",
    "check_pooling",
    "dropped_head",
    "encoder_digest",
    "evaluating",
    "find_pooler_head",
    "keep",
    "keep_words",
    "kept_config",
    "layers_held",
    "length_batches",
    "load_config",
    "load_encoder",
    "original_order",
    "paper_parameters",
    "parameters_kept",
    "pool",
    "random_encoder",
    "resolve",
    "save_encoder",
    "truncate",
    "truncated_config",
]
