"""From a name or folder to an `Encoder`."""

from pathlib import Path
from typing import Any

from transformers import AutoModel, PretrainedConfig
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from truncate_kit.errors import ModelError, UsageError, known_name
from truncate_kit.hardware import select_device
from truncate_kit.models.encoder import Encoder
from truncate_kit.models.families import family_of
from truncate_kit.models.model_folder import load_config, resolve
from truncate_kit.models.pipeline import Pipeline, read_pipeline
from truncate_kit.models.pooling import ConcatPooling, PoolingMode, check_pooling, pooled_width
from truncate_kit.models.tail import Dense, check_widths
from truncate_kit.models.text_reader import usable_length
from truncate_kit.models.tokenizer import position_limit, reader_of
from truncate_kit.models.unreplaced import unreplaced
from truncate_kit.models.weights import check_finite, load_backbone
from truncate_kit.pair_keys import read_seen


def load_encoder(
    name: str | Path,
    *,
    pooling: str | None = None,
    max_length: int | None = None,
    attention: str | None = None,
    device: str | None = None,
) -> Encoder:
    """Load a transformer or sentence-transformers model for reading states, cutting and fine-tuning, in float32.

    Args:
        name: Folder, bundled miniature, or hub name.
        pooling: One of `POOLING_MODES`; None keeps the model's own, see `usual_pooling` where it states none.
        max_length: Tokens per text, special tokens included; None is the model's own limit.
        attention: `sdpa`, `eager` or another one that transformers has; None is its choice.
        device: See `select_device`.

    Raises:
        ModelError: The model cannot be used; its kinds say why.
        DeviceError: The device is not active.
        UsageError: `pooling` or `max_length` does not suit the model, or there is no such `attention`.
    """
    if attention is not None:
        known_name("attention", attention, ("eager", *ALL_ATTENTION_FUNCTIONS))
    target, folder = select_device(device), resolve(name)
    with unreplaced(folder):
        return _loaded(name, folder, pooling, max_length, attention).to(target).eval()


def _loaded(
    name: str | Path, folder: Path, pooling: str | None, max_length: int | None, attention: str | None
) -> Encoder:
    pipeline = read_pipeline(folder)
    if pipeline.unkept is not None and pooling is None:
        raise pipeline.unkept
    config = load_config(pipeline.transformer)
    reader = reader_of(pipeline, config, max_length)
    backbone = load_backbone(pipeline.transformer, config, attention=attention)
    _check_pooling(pipeline, config, pooling)
    encoder = Encoder(
        name=str(name),
        backbone=backbone,
        tokenizer=reader.tokenizer,
        pooling=check_pooling(pooling) if pooling else pipeline.pooling or usual_pooling(config),
        tail=pipeline.tail,
        max_length=reader.max_length,
        lower_case=reader.lower_case,
        settings=reader.settings,
        pooler=pipeline.pooler,
        heads=pipeline.heads,
    )
    if (seen := read_seen(folder)) is not None:
        encoder.seen = seen
    if pipeline.combination is not None:
        encoder.combine_layers(pipeline.combination)
    check_widths(encoder.tail, _made_width(encoder), folder)
    for part in (encoder.tail, pipeline.pooler, pipeline.heads):
        if part is not None:
            check_finite(part, folder)
    return encoder


def usual_pooling(config: PretrainedConfig) -> PoolingMode:
    """The last token of a model that was made to continue texts, else the mean, as sentence-transformers has it."""
    made_as = (config.architectures or [""])[0]
    return "last" if made_as.endswith("ForCausalLM") and getattr(config, "is_causal", True) else "mean"


def dropped_head(encoder: Encoder) -> str | None:
    """A sentence where the model was made to classify texts, as cross-encoders are, and not to give vectors."""
    made_as = (encoder.backbone.config.architectures or [""])[0]
    if not made_as.endswith("ForSequenceClassification"):
        return None
    return f"{encoder.name} was made to classify texts ({made_as}): its head is left out, and its states are read."


def _made_width(encoder: Encoder) -> int:
    """Width of the vectors before the tail."""
    return pooled_width(encoder.pooler, encoder.width) if encoder.heads is None else encoder.heads.out_width


def random_encoder(config: PretrainedConfig, *, name: str = "random weights", attention: str | None = None) -> Encoder:
    """An encoder of the given shape with random weights and no tokenizer, to time a shape without its weights."""
    options: dict[str, Any] = {"attn_implementation": attention} if attention else {}
    backbone = AutoModel.from_config(config, **options)
    family = family_of(config)
    if family.pooler is not None:
        setattr(backbone, family.pooler, None)
    limit = usable_length(position_limit(config))
    return Encoder(name=name, backbone=backbone, tokenizer=None, max_length=limit).eval()


def load_pooler_head(name: str | Path) -> Dense:
    """`find_pooler_head`; raises `ModelError` where there is none."""
    head = find_pooler_head(name)
    if head is None:
        raise ModelError(
            f"{name} has no trained pooler head.",
            hint="Leave out `head`: truncate-kit and sentence-transformers drop the head when they save a model.",
        )
    return head


def find_pooler_head(name: str | Path) -> Dense | None:
    """The pooler of a model that was trained with one: the linear layer and tanh over a state, (b, d) to (b, d).

    None where the family has none or the checkpoint lacks its weights.
    """
    folder = read_pipeline(resolve(name)).transformer
    config = load_config(folder)
    attribute = family_of(config).pooler
    pooler: Any = attribute and getattr(load_backbone(folder, config, keep_pooler=True), attribute, None)
    if pooler is None:
        return None
    linear = getattr(pooler, "dense", pooler)
    head = Dense(linear.in_features, linear.out_features, bias=True, activation="Tanh")
    head.linear.load_state_dict(linear.state_dict())
    return head.eval()


def _check_pooling(pipeline: Pipeline, config: PretrainedConfig, pooling: str | None) -> None:
    """Check that what makes the vectors fits the model, and that `pooling`, where given, may replace it."""
    pooler, heads = pipeline.pooler, pipeline.heads
    if pooler is not None and pooling is not None:
        raise UsageError(
            f"{pipeline.transformer} has a pooling of its own, {pooler.word}; {pooling} cannot replace it.",
            hint="Leave out `pooling`, or name a model that is pooled by one of them.",
        )
    if heads is not None:
        heads.check_fits(config.num_hidden_layers, config.hidden_size)
        if pooling not in (None, pipeline.pooling):
            raise UsageError(
                f"The heads of this model were trained on {pipeline.pooling}-pooled states, not {pooling}.",
                hint="Leave out `pooling`.",
            )
    # sentence-transformers reads layers below the last only where config.json says so; vectors have to be its own.
    module = None
    if pipeline.combination is not None:
        module = "WeightedLayerPooling"
        fits = pipeline.combined_depth == config.num_hidden_layers
    elif pooler is not None and not isinstance(pooler, ConcatPooling):
        module = type(pooler).__name__
        fits = pooler.fits(config.hidden_size, config.num_hidden_layers)
    if module is not None and not (fits and config.output_hidden_states):
        raise ModelError(
            f"{pipeline.transformer} does not hand its layers to the {module} beside it.",
            hint="Set output_hidden_states in config.json, and check that width and number of layers of both fit; or "
            "save it again.",
        )
