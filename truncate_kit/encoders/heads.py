"""The pooler heads that loading leaves out, for a combination of layers that uses one."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel

from truncate_kit.encoders.families import family_of
from truncate_kit.encoders.loading import load_config, resolve
from truncate_kit.encoders.pipeline import Dense, read_pipeline
from truncate_kit.encoders.quiet import quiet_transformers
from truncate_kit.errors import ModelError


def load_pooler_head(name: str | Path) -> Dense:
    """The pooler of a model that was trained with one: the linear layer and tanh over a state, (b, d) to (b, d).

    Raises `ModelError` where the family has none or the checkpoint lacks its weights.
    """
    folder = read_pipeline(resolve(name)).transformer
    config = load_config(folder)
    family = family_of(config)
    if family.pooler is not None:
        with quiet_transformers():
            backbone, report = AutoModel.from_pretrained(
                folder, config=config, dtype=torch.float32, output_loading_info=True
            )
        pooler: Any = getattr(backbone, family.pooler)
        linear = getattr(pooler, "dense", pooler)
        if not any(key.startswith(f"{family.pooler}.") for key in report["missing_keys"]):
            head = Dense(linear.in_features, linear.out_features, bias=True, activation="Tanh")
            head.linear.load_state_dict(linear.state_dict())
            return head.eval()
    raise ModelError(
        f"{folder} has no trained pooler head.",
        hint="Leave --head out: truncate-kit and sentence-transformers drop the head when they save a model.",
    )
