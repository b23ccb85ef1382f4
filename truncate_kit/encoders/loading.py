"""From a name or folder to an `Encoder`; everything that can be wrong with a model is said here."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from huggingface_hub import errors as hub_errors
from huggingface_hub import snapshot_download
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModel, AutoTokenizer, PretrainedConfig, PreTrainedModel
from transformers import PreTrainedTokenizerBase as Tokenizer

from truncate_kit.encoders.encoder import Encoder
from truncate_kit.encoders.families import Family, family_of
from truncate_kit.encoders.layer_heads import LayerHeads
from truncate_kit.encoders.miniatures import miniature_path
from truncate_kit.encoders.pipeline import Pipeline, read_pipeline
from truncate_kit.encoders.pooling import ConcatPooling, check_pooling
from truncate_kit.encoders.quiet import quiet_transformers
from truncate_kit.encoders.reading import TextReader, usable_length
from truncate_kit.errors import DeviceError, ModelError, UnknownFamilyError, UsageError

_TOKENIZER_FILES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "spm.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
)
_CONFIGS = ["*.json", "*.txt", "*.model", "*/config.json"]
_OTHER_RUNTIMES = ["onnx/*", "openvino/*", "coreml/*", "*.h5", "*.msgpack", "*.ot"]


def resolve(name: str | Path) -> Path:
    """The local folder of a model: a folder, a bundled miniature's name, or a hub name (downloaded and cached).

    The hub is asked only when the name is neither a path nor a miniature. Raises `ModelError`.
    """
    text = str(name)
    path = Path(text).expanduser()
    if path.is_dir():
        return path
    if path.exists():
        raise ModelError(f"{path} is a file, not a model folder.", hint="Give the folder that holds config.json.")
    bundled = miniature_path(text)
    if bundled is not None:
        return bundled
    if text.startswith((".", "/", "~")) or text.count("/") > 1:
        raise ModelError(f"There is no model folder {path}.", hint="Check the path; hub names look like owner/name.")
    return _download(text)


def _download(name: str) -> Path:
    try:
        folder = Path(
            snapshot_download(
                name, allow_patterns=[*_CONFIGS, "*.safetensors", "*/*.safetensors"], ignore_patterns=_OTHER_RUNTIMES
            )
        )
        if not any(folder.glob("*.safetensors")) and not any(folder.glob("0_*/*.safetensors")):
            snapshot_download(name, allow_patterns=["*.bin", "*/*.bin"], ignore_patterns=_OTHER_RUNTIMES)
        return folder
    except hub_errors.GatedRepoError as error:
        raise ModelError(
            f"The hub model {name!r} asks for consent first.",
            hint="Accept its terms on its page, then `hf auth login`.",
        ) from error
    except (hub_errors.RepositoryNotFoundError, hub_errors.HFValidationError) as error:
        raise ModelError(
            f"There is no folder and no hub model called {name!r}.",
            hint="Check the spelling; hub names look like owner/name, and private ones need `hf auth login`.",
        ) from error
    except (OSError, hub_errors.HfHubHTTPError, hub_errors.LocalEntryNotFoundError) as error:
        raise ModelError(
            f"There is no folder {name!r}, and the hub cannot be reached to look for a model of that name.",
            hint="Check the path or the connection, or give a folder with a downloaded model.",
        ) from error


def load_config(name: str | Path) -> PretrainedConfig:
    """The configuration in a model folder, in a JSON file, or of a hub name. Raises `ModelError`."""
    path = Path(str(name)).expanduser()
    if not path.is_file():
        path = read_pipeline(resolve(name)).transformer / "config.json"
    if not path.is_file():
        raise ModelError(f"{path.parent} has no config.json.", hint="Give the folder of a saved transformer model.")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        family_of(SimpleNamespace(model_type=values.get("model_type")))
    except UnknownFamilyError:
        raise
    except (ValueError, AttributeError) as error:
        raise ModelError(f"{path} is not a model configuration: {error}.", hint="Download or save it again.") from error
    try:
        return AutoConfig.for_model(**values)
    except Exception as error:  # each configuration class validates in its own way, some beyond ValueError
        raise ModelError(f"{path} is not usable: {_first_line(error)}.", hint="Check its values.") from error


def select_device(name: str | None) -> torch.device:
    """`cpu` or `cuda[:i]`; None is the CPU. Raises `DeviceError` when CUDA was asked for and is not active."""
    try:
        device = torch.device(name or "cpu")
    except RuntimeError as error:
        raise UsageError(f"There is no device {name!r}.", hint="Use --device cpu or --device cuda.") from error
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"The device {name!r} is not supported.", hint="Use --device cpu or --device cuda.")
    if device.type == "cuda" and not torch.cuda.is_available():
        built = torch.version.cuda
        reason = (
            f"torch {torch.__version__} is built for CUDA {built}"
            if built
            else f"torch {torch.__version__} has no CUDA"
        )
        raise DeviceError(
            f"CUDA was asked for but is not active: {reason}, and no GPU answers.",
            hint="Install a torch build that fits the driver, or use --device cpu.",
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise DeviceError(
            f"There is no GPU {device.index}: this machine has {torch.cuda.device_count()}.",
            hint="Use --device cuda:0.",
        )
    return device


def load_encoder(
    name: str | Path,
    *,
    pooling: str | None = None,
    max_length: int | None = None,
    attention: str | None = None,
    device: str | None = None,
) -> Encoder:
    """Load a transformer or sentence-transformers model for reading states, cutting and fine-tuning, in float32.

    name: folder, bundled miniature, or hub name. pooling: None keeps the model's own, or `mean` where it states none.
    max_length: tokens per text; None is the model's own limit. attention: `sdpa` or `eager`; None is the library's
    choice. Raises `ModelError` and its kinds, `DeviceError`, `UsageError`.
    """
    target = select_device(device)
    folder = resolve(name)
    pipeline = read_pipeline(folder)
    config = load_config(pipeline.transformer)
    family = family_of(config)
    tokenizer = load_tokenizer(pipeline.transformer, family)
    backbone = _load_backbone(pipeline.transformer, config, family, attention)
    embedded = int(config.vocab_size)
    if len(tokenizer) > embedded:
        raise ModelError(
            f"The tokenizer in {folder} has {len(tokenizer):,} entries, but the model embeds only {embedded:,}.",
            hint="They belong to different models; save the right tokenizer beside the weights.",
        )
    _check_pooler(pipeline, config, pooling)
    positions = _positions(config, family)
    reader = _reader(pipeline, tokenizer, positions)
    if max_length is not None and not 2 <= max_length <= (positions or max_length):
        raise UsageError(
            f"A maximum length of {max_length} does not fit: this model has {positions} positions.",
            hint=f"Use a number from 2 to {positions}.",
        )
    return (
        Encoder(
            name=str(name),
            backbone=backbone,
            family=family,
            tokenizer=tokenizer,
            pooling=check_pooling(pooling) if pooling else pipeline.pooling or "mean",
            tail=pipeline.tail,
            max_length=max_length or reader.max_length,
            lower_case=pipeline.lower_case,
            settings=pipeline.settings,
            combination=_combination(pipeline, config),
            pooler=pipeline.pooler,
            heads=_heads(pipeline, config, pooling),
        )
        .to(target)
        .eval()
    )


def _combination(pipeline: Pipeline, config: PretrainedConfig) -> tuple[int, ...] | None:
    """The layers that the pipeline averages, as far as sentence-transformers would see them."""
    if pipeline.combination is None:
        return None
    if pipeline.combined_depth != config.num_hidden_layers or not config.output_hidden_states:
        raise ModelError(
            f"{pipeline.transformer} does not hand its layers to the WeightedLayerPooling beside it.",
            hint="Set output_hidden_states in config.json and num_hidden_layers of the pooling, or save it again.",
        )
    return pipeline.combination


def _check_pooler(pipeline: Pipeline, config: PretrainedConfig, told: str | None) -> None:
    """Raise `UsageError` where another pooling was told than the model's own, `ModelError` where it gets no layers."""
    pooler = pipeline.pooler
    if pooler is None:
        return
    if told is not None:
        raise UsageError(
            f"{pipeline.transformer} has a pooling of its own, {pooler.word}; --pooling {told} cannot replace it.",
            hint="Leave --pooling out, or name a model that is pooled by one of them.",
        )
    if isinstance(pooler, ConcatPooling):
        return
    if not config.output_hidden_states or not pooler.fits(config.hidden_size, config.num_hidden_layers):
        raise ModelError(
            f"{pipeline.transformer} does not hand its layers to the {type(pooler).__name__} beside it.",
            hint="Set output_hidden_states in config.json, and check that width and layers of both fit; or save it "
            "again.",
        )


def _heads(pipeline: Pipeline, config: PretrainedConfig, pooling: str | None) -> LayerHeads | None:
    """The heads that make the vectors, as far as they fit the model and how it is read."""
    if pipeline.heads is not None:
        pipeline.heads.check_fits(config.num_hidden_layers, config.hidden_size)
        if pooling not in (None, pipeline.pooling):
            raise UsageError(
                f"The heads of this model were trained on {pipeline.pooling}-pooled states, not {pooling}.",
                hint="Leave out --pooling.",
            )
    return pipeline.heads


def load_reader(folder: Path) -> TextReader:
    """What turns texts into ids in a saved model folder, without its weights. Raises `ModelError`."""
    pipeline = read_pipeline(folder)
    config = load_config(pipeline.transformer)
    family = family_of(config)
    return _reader(pipeline, load_tokenizer(pipeline.transformer, family), _positions(config, family))


def _reader(pipeline: Pipeline, tokenizer: Tokenizer, positions: int | None) -> TextReader:
    return TextReader(
        tokenizer=tokenizer,
        max_length=usable_length(pipeline.max_length, tokenizer.model_max_length, positions),
        lower_case=pipeline.lower_case,
        settings=pipeline.settings,
    )


def _positions(config: PretrainedConfig, family: Family) -> int | None:
    """Tokens that the position table can hold; None where positions are relative only."""
    if getattr(config, "position_biased_input", True) is False:
        return None
    positions = getattr(config, "max_position_embeddings", None)
    return None if positions is None else int(positions) - family.position_offset


def load_tokenizer(folder: Path, family: Family) -> Tokenizer:
    """The tokenizer saved in `folder`, padding on the right. Raises `ModelError` when there is none or it is broken."""
    if not any((folder / file).exists() for file in _TOKENIZER_FILES):
        raise ModelError(
            f"{folder} has no tokenizer (none of {', '.join(_TOKENIZER_FILES)}).",
            hint="Save the tokenizer of the model into the same folder.",
        )
    try:
        with quiet_transformers():
            tokenizer: Tokenizer = AutoTokenizer.from_pretrained(folder)
    except Exception as error:  # tokenizer readers raise anything, from KeyError to bare Exception of the Rust side
        raise ModelError(
            f"The tokenizer in {folder} cannot be read: {_first_line(error)}.", hint="Download or save it again."
        ) from error
    tokenizer.padding_side = "right"
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise ModelError(
                f"The tokenizer in {folder} has neither a padding nor an end token.", hint="Give it a pad_token."
            )
        tokenizer.pad_token = tokenizer.eos_token  # masked out everywhere, so its value never matters
    return tokenizer


def _load_backbone(folder: Path, config: PretrainedConfig, family: Family, attention: str | None) -> PreTrainedModel:
    """The base model without its pooler, every weight present and finite."""
    options: dict[str, Any] = {"attn_implementation": attention} if attention else {}
    try:
        with quiet_transformers():
            backbone, report = AutoModel.from_pretrained(
                folder, config=config, dtype=torch.float32, output_loading_info=True, **options
            )
    except (OSError, SafetensorError, EOFError) as error:
        raise ModelError(
            f"The weights in {folder} are missing or cannot be read: {_first_line(error)}.",
            hint="The file may be cut short; download or save the model again.",
        ) from error
    except (ValueError, RuntimeError, ImportError) as error:
        raise ModelError(
            f"The model in {folder} cannot be loaded: {_first_line(error)}.",
            hint="Check that config.json and the weights belong together.",
        ) from error
    _check_complete(folder, report, family)
    if family.pooler is not None:
        setattr(backbone, family.pooler, None)
    for name, parameter in backbone.named_parameters():
        if not torch.isfinite(parameter).all():
            raise ModelError(
                f"The weight {name} in {folder} holds NaN or infinity.", hint="Use an undamaged checkpoint."
            )
    loaded: PreTrainedModel = backbone.eval()
    return loaded


def _check_complete(folder: Path, report: dict[str, Any], family: Family) -> None:
    missing = sorted(
        key for key in report["missing_keys"] if not (family.pooler and key.startswith(f"{family.pooler}."))
    )
    wrong = sorted(str(item[0] if isinstance(item, tuple) else item) for item in report["mismatched_keys"])
    for names, what in ((missing, "lack"), (wrong, "have another shape than config.json says for")):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise ModelError(
                f"The weights in {folder} {what} {names[0]}{more}.",
                hint="Use a complete checkpoint: a missing weight would be random.",
            )


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def random_encoder(config: PretrainedConfig, *, name: str = "random weights", attention: str | None = None) -> Encoder:
    """An encoder of the given shape with random weights and no tokenizer, to time a shape without its weights."""
    family = family_of(config)
    options: dict[str, Any] = {"attn_implementation": attention} if attention else {}
    backbone = AutoModel.from_config(config, **options)
    if family.pooler is not None:
        setattr(backbone, family.pooler, None)
    return Encoder(
        name=name,
        backbone=backbone,
        family=family,
        tokenizer=None,
        max_length=usable_length(_positions(config, family)),
    ).eval()
