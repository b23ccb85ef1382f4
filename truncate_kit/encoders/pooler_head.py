"""The pooler head that loading leaves out, for a combination of layers that uses it."""

from pathlib import Path
from typing import Any

from truncate_kit.encoders.families import family_of
from truncate_kit.encoders.model_folder import load_config, resolve
from truncate_kit.encoders.pipeline import read_pipeline
from truncate_kit.encoders.tail import Dense
from truncate_kit.encoders.weights import load_backbone
from truncate_kit.errors import ModelError


def load_pooler_head(name: str | Path) -> Dense:
    """The pooler of a model that was trained with one: the linear layer and tanh over a state, (b, d) to (b, d).

    Raises `ModelError` where the family has none or the checkpoint lacks its weights.
    """
    folder = read_pipeline(resolve(name)).transformer
    config = load_config(folder)
    pooler: Any = getattr(load_backbone(folder, config, keep_pooler=True), family_of(config).pooler or "", None)
    if pooler is None:
        raise ModelError(
            f"{folder} has no trained pooler head.",
            hint="Leave out `head`: truncate-kit and sentence-transformers drop the head when they save a model.",
        )
    linear = getattr(pooler, "dense", pooler)
    head = Dense(linear.in_features, linear.out_features, bias=True, activation="Tanh")
    head.linear.load_state_dict(linear.state_dict())
    return head.eval()
