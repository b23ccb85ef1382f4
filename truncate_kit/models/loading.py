"""Load encoders. All weights must be present and finite; code stored with a model is never run."""

import contextlib
import copy
import dataclasses
import logging
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError
from safetensors import safe_open
from transformers import (
    AutoConfig,
    AutoModel,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from truncate_kit.core.errors import ModelError, UsageError, first_line, known_name
from truncate_kit.core.files import is_there, local_path, read_json
from truncate_kit.core.hardware import select_device
from truncate_kit.core.workspace import miniature_names, miniature_path, settings_of, was_trained
from truncate_kit.data.seen import seen_by
from truncate_kit.models.encoder import Encoder, TextReader, check_pooling
from truncate_kit.models.families import FAMILIES, family_of
from truncate_kit.models.pipeline import (
    Dense,
    add_module,
    check_finite,
    check_kept,
    naming_damage,
    quiet_transformers,
    read_modules,
    read_text_settings,
    transformer_of,
)
from truncate_kit.models.tokenizing import load_tokenizer

# Ignored settings of a call, not of the model.
_CALLING = (
    "attn_implementation", "_attn_implementation", "chunk_size_feed_forward", "output_attentions", "return_dict",
    "torchscript", "use_return_dict",
)  # fmt: skip
# Field names of repositories with their own code, and transformers' names.
_OTHER_NAMES = {
    "n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_layers": "num_hidden_layers",
    "num_layers": "num_hidden_layers", "n_head": "num_attention_heads", "n_heads": "num_attention_heads",
    "num_heads": "num_attention_heads", "n_inner": "intermediate_size", "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps", "activation_function": "hidden_act",
    "resid_pdrop": "hidden_dropout_prob", "attn_pdrop": "attention_probs_dropout_prob",
    "rotary_emb_base": "rope_theta", "rotary_base": "rope_theta", "rope_base": "rope_theta",
    "d_model": "hidden_size", "ffn_dim": "intermediate_size", "n_kv_heads": "num_key_value_heads",
    "num_kv_heads": "num_key_value_heads", "norm_eps": "rms_norm_eps", "rms_norm_epsilon": "rms_norm_eps",
}  # fmt: skip
_GATES = {"swiglu": "silu", "geglu": "gelu", "glu": "sigmoid"}  # the gate's activation, in classes with gates
# Values at which transformers' classes compute the same; other unknown fields must be unset.
_NEUTRAL = {"rotary_emb_fraction": 1, "layer_norm_type": "layer_norm", "scale_attn_weights": True}
_WITHOUT_EFFECT = {
    "dense_seq_output", "emb_pooler", "embd_pdrop", "fused_bias_fc", "fused_dropout_add_ln", "gradient_checkpointing",
    "matryoshka_dimensions", "max_trained_positions", "model_max_length", "n_ctx", "pack_qkv",
    "pad_vocab_size_multiple", "reorder_and_upcast_attn", "rotary_scaling_factor", "tie_word_embeddings",
    "unpad_inputs", "use_flash_attn", "use_memory_efficient_attention", "use_xentropy",
}  # fmt: skip
_WEIGHTS = ("*.safetensors", "*.bin")
# Unused weights: buffers of earlier versions, and cross-attention.
_UNNEEDED = re.compile(
    r"\.(?:attn|attention)\.(?:masked_)?bias$|\.rotary_emb\.(?:original_)?inv_freq$|\.position_ids$|\.crossattention\."
)
_logger = logging.getLogger(__name__)
_MODEL_FILES = ("*.json", "*.safetensors", "*.bin", "*.txt", "*.model", "*/config.json", "*/*.safetensors", "*/*.bin")
_CONFIGS = ["*.json", "*.txt", "*.model", "*/config.json"]
_OTHER_RUNTIMES = ["onnx/*", "openvino/*", "coreml/*", "*.h5", "*.msgpack", "*.ot"]
_WITHOUT_WEIGHTS = ("Pooling", "Normalize", "Dropout")


def load_encoder(
    name: str | Path,
    *,
    pooling: str | None = None,
    max_length: int | None = None,
    attention: str | None = None,
    device: str | None = None,
) -> Encoder:
    """Load a transformer or sentence-transformers model in float32.

    Args:
        name: Folder, bundled miniature, or hub name.
        pooling: One of `POOLING_MODES`; by default as in sentence-transformers.
        max_length: Tokens per text, special tokens included; by default the model's limit.
        attention: `sdpa`, `eager` or another implementation in transformers.
        device: See `select_device`.

    Raises:
        ModelError: The model cannot be used.
        DeviceError: The device is not active.
        UsageError: An option does not fit the model.
    """
    if not isinstance(name, str | Path):
        problem = f"A model is an Encoder, or a name or folder, not a {type(name).__name__}."
        raise UsageError(problem, hint="Give the folder or hub name that it was loaded from.")
    if attention is not None:
        known_name("attention", attention, ("eager", *ALL_ATTENTION_FUNCTIONS))
    asked = None if pooling is None else check_pooling(pooling)
    target, folder = select_device(device), resolve(name)
    modules, transformer = read_modules(folder), transformer_of(folder)
    config = load_config(transformer)
    # As in sentence-transformers, the last token of causal models is pooled.
    made_as = str((config.architectures or [""])[0])
    causal = made_as.endswith("ForCausalLM") and getattr(config, "is_causal", True)
    returns_layers = config.output_hidden_states  # needed by sentence-transformers to read lower layers
    encoder = Encoder(
        name=str(name),
        backbone=load_backbone(transformer, config, attention=attention),
        reader=_reader_of(folder, transformer, config, max_length),
        pooling="last" if causal else "mean",
    )
    with naming_damage(folder):
        fits = all(add_module(encoder, kind, place, asked) for kind, place in modules)
    if not fits or (encoder.pools_over_layers and not returns_layers):
        raise ModelError(
            f"{transformer} does not provide the layers that its pooling module needs.",
            hint="Set output_hidden_states in config.json to true, and check that the pooling module has the width and "
            "number of layers of the model; or save the model again.",
        )
    encoder.pooling = asked or encoder.pooling
    encoder.seen, encoder.trained = seen_by(folder), was_trained(folder)
    return encoder.to(target).eval()


def load_reader(folder: Path) -> TextReader:
    """Load a model's tokenizer and text settings without its weights. Raises `ModelError`."""
    transformer = transformer_of(folder)
    return _reader_of(folder, transformer, load_config(transformer))


def _reader_of(folder: Path, transformer: Path, config: PretrainedConfig, asked: int | None = None) -> TextReader:
    limit, lower_case, settings = read_text_settings(folder, transformer)
    with quiet_transformers():
        tokenizer = load_tokenizer(transformer, config.vocab_size)
        types = "token_type_ids" in tokenizer.model_input_names and (getattr(config, "type_vocab_size", None) or 0) > 1
        if types and any(tokenizer("a").get("token_type_ids", ())):
            problem = (
                f"The tokenizer in {transformer} gives token types other than 0 to a single text, which is not kept."
            )
            hint = "Set type_id 0 in `single` of the post_processor in tokenizer.json if the model was trained so."
            raise ModelError(problem, hint=hint)
    positions = position_limit(config)
    # sentence-transformers' limit replaces the tokenizer's.
    length = usable_length(limit or tokenizer.model_max_length, positions) if asked is None else asked
    if not 2 <= length <= (positions or length):
        most = f" to {positions}, the number of positions in the model" if positions else " upwards"
        problem = f"The model does not support a maximum length of {length}."
        raise UsageError(problem, hint=f"Use a number from 2{most}.")
    return TextReader(tokenizer=tokenizer, max_length=length, lower_case=lower_case, settings=settings)


def random_encoder(config: PretrainedConfig, *, name: str = "random weights") -> Encoder:
    """Make an encoder with random weights and no tokenizer."""
    backbone = AutoModel.from_config(config)
    if (pooler := family_of(config).pooler) is not None:
        setattr(backbone, pooler, None)
    reader = TextReader(tokenizer=None, max_length=usable_length(position_limit(config)))
    return Encoder(name=name, backbone=backbone, reader=reader).eval()


def find_pooler_head(name: str | Path) -> Dense | None:
    """Return the model's trained pooler, if any: a linear layer with tanh from (b, d) to (b, d)."""
    folder = transformer_of(resolve(name))
    config = load_config(folder)
    attribute = family_of(config).pooler
    pooler: Any = attribute and getattr(load_backbone(folder, config, keep_pooler=True), attribute, None)
    if pooler is None or not any(weight.any() for weight in pooler.parameters()):  # zeros are saved for a removed one
        return None
    head = Dense(config.hidden_size, config.hidden_size, bias=True, activation="Tanh")
    head.linear.load_state_dict(getattr(pooler, "dense", pooler).state_dict())
    return head.eval()


def load_config(name: str | Path) -> PretrainedConfig:
    """Load the configuration of a folder, JSON file or hub name. Raises `ModelError`."""
    path = local_path(name)
    if not path.is_file():
        path = transformer_of(resolve(name)) / "config.json"
    if (path.parent / "adapter_config.json").exists():
        raise ModelError(
            f"{path.parent} holds an adapter (adapter_config.json), which truncate-kit does not apply.",
            hint="Merge the adapter into its base model (merge_and_unload in peft). If the weights are merged already, "
            "remove adapter_config.json.",
        )
    if not path.is_file():
        raise ModelError(f"{path.parent} has no config.json.", hint="Give the folder of a saved transformer model.")
    values = read_json(path)
    if not (kind := values.get("model_type") if isinstance(values, dict) else None):
        raise ModelError(f"{path} has no model_type.", hint='Add the field, for a BERT as "model_type": "bert".')
    for place, part in sorted(values.items(), reverse=True) if str(kind) not in FAMILIES else ():  # encoder first
        if isinstance(part, dict) and str(part.get("model_type")) in FAMILIES:
            raise ModelError(
                f"{path}: the architecture {kind!r} is not supported, but its {place} is a {part['model_type']}.",
                hint="Save this part of the model with the tokenizer in a folder of its own, and give this folder: "
                "load the model with transformers, then call `save_pretrained` of its "
                f"{'`encoder`' if place == 'encoder' else '`get_decoder()`'}.",
            )
    family_of(str(kind))
    check_kept(path, values, quantization_config=(None, {}))
    for field in ("attn_implementation", "_attn_implementation"):
        if values.get(field) not in (None, "eager", "sdpa"):
            _logger.warning("%s has %s %r, which needs a compiler or a GPU: sdpa is used.", path, field, values[field])
    if values.get("auto_map"):
        _logger.warning("%s refers to custom code (auto_map). It is not run; transformers' own class is used.", path)
    values = _in_own_words(path, {key: value for key, value in values.items() if key not in _CALLING})
    try:
        config = AutoConfig.for_model(**values)
    except Exception as error:  # each class validates in its own way
        raise ModelError(f"{path} is invalid: {first_line(error)}.", hint="Check the values in this file.") from error
    rotary = ("rope", "rotary") if hasattr(config, "rope_parameters") else ()
    # transformers uses absolute positions for other types.
    check_kept(path, values, position_embedding_type=(None, "absolute", *rotary))
    check_kept(path, getattr(config, "rope_parameters", None) or {}, rope_type=("default", *ROPE_INIT_FUNCTIONS))
    return config


def _in_own_words(path: Path, values: dict[str, Any]) -> dict[str, Any]:
    """Rename the fields of a repository's own code to those of transformers' class.

    Raises `ModelError` for a set field that the class lacks: that code may compute something else.
    """
    own = _fields_of(CONFIG_MAPPING[values["model_type"]])
    renamed = {old: new for old, new in _OTHER_NAMES.items() if old in values and old not in own and new in own}
    if not renamed and not values.get("auto_map"):
        return values  # of transformers, perhaps older
    kept = {new: values[old] for old, new in renamed.items()} | {name: values[name] for name in values if name in own}
    left = settings_of({name: value for name, value in values.items() if name not in own and name not in renamed})
    for name, value in left.items():
        usual = value == _NEUTRAL[name] if name in _NEUTRAL else value in (None, False, 0, "", [], {})
        if not usual and name not in _WITHOUT_EFFECT and not name.endswith("_token_id"):
            problem = f"{path} has {name} {value!r}, a field of code in the model's repository, which is not run."
            hint = "Use a model of transformers' own class, or remove the field if it does not change vectors."
            raise ModelError(problem, hint=hint)
    if left.get("rotary_scaling_factor"):  # longer texts would scale with their batch
        longest = left.get("max_trained_positions") or 2048
        kept["max_position_embeddings"] = min(longest, kept.get("max_position_embeddings", longest))
    if kept.get("hidden_act") in _GATES:
        kept["hidden_act"] = _GATES[kept["hidden_act"]]
    return kept


def _fields_of(kind: type[PretrainedConfig]) -> set[str]:
    own = {field.name for field in dataclasses.fields(kind)} | {
        *kind.attribute_map,
        "model_type",
        "position_embedding_type",
    }
    return own | ({"rope_theta", "rope_scaling", "partial_rotary_factor"} if "rope_parameters" in own else set())


def load_backbone(
    folder: Path, config: PretrainedConfig, *, attention: str | None = None, keep_pooler: bool = False
) -> PreTrainedModel:
    """Load the base model in float32. Raises `ModelError`."""
    pooler = family_of(config).pooler
    with naming_damage(folder), quiet_transformers():
        _check_size(folder, config)
        _check_kinds(folder)
        options: dict[str, Any] = {"attn_implementation": attention} if attention else {}
        options |= {"config": config, "dtype": torch.float32, "output_loading_info": True, "trust_remote_code": False}
        backbone, report = AutoModel.from_pretrained(folder, ignore_mismatched_sizes=True, **options)  # reported below
    headless = {key for key in report["missing_keys"] if key.startswith(f"{pooler}.")}
    if pooler is not None and (headless or not keep_pooler):
        setattr(backbone, pooler, None)
    report["missing_keys"] -= headless
    _check_names(folder, backbone, report)
    check_finite(backbone, folder)
    loaded: PreTrainedModel = backbone.eval()
    return loaded


def _check_names(folder: Path, backbone: PreTrainedModel, report: dict[str, Any]) -> None:
    """Raise `ModelError` for missing weights, other shapes, or weights of extra blocks."""
    prefix, blocks = re.escape(backbone.base_model_prefix), re.escape(family_of(backbone.config).blocks)
    block = re.compile(rf"(?:{prefix}\.)?{blocks}\.\d+\.")  # unused heads and old buffers are allowed
    unused = [name for name in report["unexpected_keys"] if block.match(name) and not _UNNEEDED.search(name)]
    reshaped = [str(item[0] if isinstance(item, tuple) else item) for item in report["mismatched_keys"]]
    problems = {"are missing": report["missing_keys"], "have another shape": reshaped, "are in extra blocks": unused}
    for problem, weights in problems.items():
        if weights:
            found = f"{len(weights)} {problem}, such as {min(weights)}"
            hint = "Use a complete checkpoint with its original config.json. To remove blocks, use `truncate()`."
            raise ModelError(f"The weights in {folder} do not fit config.json: {found}.", hint=hint)


def _check_size(folder: Path, config: PretrainedConfig) -> None:
    """Raise `ModelError` if the configuration describes more weights than the files have bytes.

    Others take at most four times the size of their files in memory.
    """
    stored = sum(file.stat().st_size for kind in _WEIGHTS for file in folder.glob(kind) if file.is_file())
    if not stored:
        problem = f"{folder} has no weights: no model.safetensors and no pytorch_model.bin, as one file or in shards."
        raise ModelError(problem, hint="Download or save the model in one of these formats.")
    with torch.device("meta"):
        described = sum(weight.numel() for weight in AutoModel.from_config(copy.deepcopy(config)).parameters())
    if described > stored:
        problem = (
            f"{folder}/config.json describes {described:,} weights, but the weight files have only {stored:,} bytes."
        )
        hint = "Configuration and weights belong to different models, or a file is damaged: download both again."
        raise ModelError(problem, hint=hint)


def _check_kinds(folder: Path) -> None:
    """Raise `ModelError` if a weight holds integers or complex numbers, which transformers would convert."""
    kinds: dict[str, str] = {}
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as held:
            kinds |= {name: held.get_slice(name).get_dtype() for name in held.keys()}  # noqa: SIM118  # no iterator
    for file in () if kinds else folder.glob("pytorch_model*.bin"):
        weights = torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
        kinds |= {name: str(weight.dtype).removeprefix("torch.") for name, weight in weights.items()}
    for name, kind in kinds.items():
        weight = name.endswith(("weight", "bias", "gamma", "beta")) and not _UNNEEDED.search(name)
        if weight and not kind.lower().startswith(("f", "bf")):
            problem = f"The weight {name} in {folder} has numbers of type {kind}."
            raise ModelError(problem, hint="Use a checkpoint in floating point.")


def resolve(name: str | Path) -> Path:
    """Return a model's local folder: path, bundled miniature, or hub name (downloaded). Raises `ModelError`."""
    text, path = str(name), local_path(name)
    if not is_there(path) and (bundled := miniature_path(text)) is not None:
        return bundled
    if is_there(path) or text.startswith((".", "/", "~")) or text.count("/") > 1:
        if not path.is_dir():
            hint = "Give the folder that holds config.json; hub names look like owner/name."
            raise ModelError(f"There is no model folder {path}.", hint=hint)
        return path
    return _download(text)


def _download(name: str) -> Path:
    try:
        patterns = [*_CONFIGS, "*.safetensors", "*/*.safetensors"]
        folder = Path(snapshot_download(name, allow_patterns=patterns, ignore_patterns=_OTHER_RUNTIMES))
        weighted = [place for kind, place in read_modules(folder) if kind not in _WITHOUT_WEIGHTS] or [folder]
        lacking = [place.relative_to(folder) for place in weighted if not any(place.glob("*.safetensors"))]
        if lacking:
            patterns = [str(place / "pytorch_model*.bin") for place in lacking]
            snapshot_download(name, allow_patterns=patterns, ignore_patterns=_OTHER_RUNTIMES)
        return folder
    except (OSError, HFValidationError) as error:  # includes hub and network errors
        raise ModelError(
            f"There is no folder {name!r}, and the hub returned no such model: {first_line(error)}.",
            hint="Check the path, the connection, and the name: owner/name on the hub (gated and private models need "
            f"`hf auth login`), or one of the bundled {', '.join(miniature_names())}.",
        ) from error


def state_of(folder: Path, more: Sequence[Path]) -> tuple[tuple[str, int, int, int], ...]:
    """Return name, inode, size and modification time of each model file and of `more`."""
    files = {file for pattern in _MODEL_FILES for file in folder.glob(pattern) if file.name != "export.json"} | {*more}
    states = []
    for file in sorted(files):
        with contextlib.suppress(OSError):  # the file was removed since the listing
            stat = file.stat()
            states.append((str(file), stat.st_ino, stat.st_size, stat.st_mtime_ns))
    return tuple(states)


def usable_length(*limits: int | None) -> int:
    """Return the smallest valid maximum length, by default 512."""
    return min((limit for limit in limits if limit is not None and 0 < limit < 1_000_000), default=512)


def position_limit(config: PretrainedConfig) -> int | None:
    """Return the maximum length that the positions allow; None if unlimited."""
    if getattr(config, "position_biased_input", True) is False:
        return None
    positions = getattr(config, "max_position_embeddings", None)
    offset = family_of(config).position_offset
    return None if positions is None else int(positions) - (0 if offset is None else offset(config))
