"""Load, truncate, pool and save encoders of every known family."""

from truncate_kit.miniatures import DEFAULT_MINIATURE, default_reference
from truncate_kit.models.digest import encoder_digest
from truncate_kit.models.encoder import Batch, Encoder
from truncate_kit.models.evaluating import evaluating, length_batches, original_order
from truncate_kit.models.given import check_encoder
from truncate_kit.models.layer_heads import LayerHeads
from truncate_kit.models.loading import (
    dropped_head,
    find_pooler_head,
    load_encoder,
    load_pooler_head,
    random_encoder,
)
from truncate_kit.models.model_folder import load_config, resolve
from truncate_kit.models.pooling import PoolingMode, check_pooling, pool
from truncate_kit.models.saving import save_encoder
from truncate_kit.models.truncation import (
    check_layer,
    keep,
    kept_config,
    layers_held,
    paper_parameters,
    parameters_kept,
    truncate,
    truncated_config,
)
from truncate_kit.models.word_pieces import keep_words

__all__ = [
    "DEFAULT_MINIATURE",
    "Batch",
    "Encoder",
    "LayerHeads",
    "PoolingMode",
    "check_encoder",
    "check_layer",
    "check_pooling",
    "default_reference",
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
    "load_pooler_head",
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
