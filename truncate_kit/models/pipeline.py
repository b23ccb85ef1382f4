"""Read and write sentence-transformers folders. Only known modules are read; no class is imported by name.

Damaged files, unsupported modules, and links out of the folder raise `ModelError`.
"""

import contextlib
import inspect
import pickle
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers.utils import logging

from truncate_kit.core.errors import ModelError, TruncateKitError, UsageError, first_line
from truncate_kit.core.files import local_path, read_json, real_path, replacing, write_json
from truncate_kit.core.hardware import EXPORT_RECORD, GRAPH_FILES
from truncate_kit.core.workspace import ORIGIN_FILE, Origin, model_digests
from truncate_kit.data.seen import write_seen
from truncate_kit.models import layer_pooling
from truncate_kit.models.encoder import POOLING_MODES, Encoder, LayerHeads
from truncate_kit.models.layer_pooling import (
    LayerAttentionPooling,
    LayerPooler,
    LayerPooling,
    PoolingMode,
)
from truncate_kit.models.tokenizing import write_tokenizer

Module = TypeVar("Module", bound=nn.Module)
WEIGHTS_FILE = "model.safetensors"
_READ = {".bin", ".data", ".jinja", ".json", ".model", ".onnx", ".safetensors", ".txt"}
_KINDS = ("Transformer", "WeightedLayerPooling", "Pooling", "LayerHeads", "Dense", "Normalize", "LayerNorm", "Dropout")
LAYER_POOLERS: dict[str, type[LayerPooler]] = {kind.__name__: kind for kind in (LayerAttentionPooling, LayerPooling)}
_POINTER, _POINTER_BYTES = b"version https://git-lfs.github.com/spec/", 1024
_POOLER_SOURCE = Path(inspect.getfile(layer_pooling))  # copied into saved folders
_POOLING_NAMES: dict[str, PoolingMode] = {"mean": "mean", "cls": "cls", "max": "max", "lasttoken": "last"}
_POOLING_FLAGS = {  # the older form, readable by every version
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
}
_READING_FILE = "sentence_bert_config.json"
# The first non-empty file counts; older versions named files by architecture.
_READERS = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
# Fields of these files and of their `model_args` that change no vector: with any value, or with the given one. All
# others must be unset, also those that later versions add.
_FREE = {
    "max_seq_length", "do_lower_case", "unpad_inputs", "model_args", "model_kwargs", "add_pooling_layer",
    "attn_implementation", "device_map", "dtype", "torch_dtype", "low_cpu_mem_usage", "trust_remote_code",
}  # fmt: skip
_USUAL = {
    "transformer_task": "feature-extraction", "module_output_name": "token_embeddings", "use_safetensors": True,
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
}  # fmt: skip
_UNSET: tuple[Any, ...] = (None, False, "", {}, [], {"trust_remote_code": True}, {"trust_remote_code": False})
_ON_VECTORS = {  # of modules after pooling
    "module_input_name": ("sentence_embedding",), "module_output_name": (None, "sentence_embedding"),
}  # fmt: skip
_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    name: getattr(nn, name) for name in ("Identity", "Tanh", "ReLU", "GELU", "SiLU", "Sigmoid", "LeakyReLU")
}


def check_links(folder: Path, place: Path) -> None:
    """Raise `ModelError` if files of a module are Git LFS pointers, or lie outside `folder` and the hub's cache."""
    root = real_path(folder)
    listed = place.glob("*") if place == folder else place.rglob("*")
    files = [place, *(file for file in listed if file.suffix in _READ)]
    for index in place.glob("*.index.json"):
        files += [place / name for name in read_json(index).get("weight_map", {}).values()]
    for file in files:
        real = real_path(file)
        # A cache's links lead from models--OWNER--NAME/snapshots/REVISION, or a copy elsewhere, into the cache's blobs.
        cache = real.parents[1] if real.parent.name == "blobs" else None
        cached = cache and (root.is_relative_to(cache) or cache.match("models--*") or (cache / "snapshots").is_dir())
        if not real.is_relative_to(root) and not cached:
            hint = "Copy the file into the folder if it belongs to the model and you trust its author."
            raise ModelError(f"{file} leads to {real}, outside the model's own folder.", hint=hint)
        read = file.is_file() and not (file.suffix == ".bin" and any(place.glob("*.safetensors")))
        if read and file.stat().st_size < _POINTER_BYTES and file.read_bytes().startswith(_POINTER):
            problem = f"{file} is a Git LFS pointer, not the file itself."
            raise ModelError(problem, hint="Run `git lfs pull` in the clone.")


def read_weights(place: Path) -> dict[str, Tensor]:
    """Read weights from safetensors or a .bin file, {} without either."""
    weights: dict[str, Tensor] = {}
    with naming_damage(place):
        if (place / WEIGHTS_FILE).exists():
            weights = load_file(place / WEIGHTS_FILE)
        elif (place / "pytorch_model.bin").exists():
            weights = torch.load(place / "pytorch_model.bin", map_location="cpu", weights_only=True)
    return weights


@contextlib.contextmanager
def naming_damage(place: Path) -> Iterator[None]:
    """Convert any library error to a `ModelError` that names the model's folder, `place`."""
    try:
        yield
    except TruncateKitError:
        raise
    except pickle.UnpicklingError as error:
        problem = f"The pickled weights in {place} hold objects other than tensors, which could run code: not read."
        raise ModelError(problem, hint="Use a checkpoint in safetensors.") from error
    except Exception as error:  # each class checks in its own way
        hint = "Check that configuration and weights belong to the same model; download or save the model again."
        problem = f"The model in {place} cannot be read: {type(error).__name__}, {first_line(error)}."
        raise ModelError(problem, hint=hint) from error


def read_module(place: Path, build: Callable[[dict[str, Any]], Module]) -> Module:
    """Build a module from the values in its config.json, and load its weights."""
    values, weights = read_json(place / "config.json"), read_weights(place)
    with naming_damage(place):
        with torch.device("meta"):  # wrong sizes take no memory
            module = build(values)
        module.load_state_dict(weights, assign=True)
    check_finite(module, place)
    return module.float()


def write_module(place: Path, values: dict[str, Any] | None, weights: dict[str, Tensor]) -> None:
    """Write config.json and weights, if there are any."""
    place.mkdir(parents=True, exist_ok=True)
    if values is not None:
        write_json(place / "config.json", values)
    if weights:
        weights = {name: value.detach().contiguous().cpu() for name, value in weights.items()}
        save_file(weights, place / WEIGHTS_FILE, metadata={"format": "pt"})


def check_finite(module: nn.Module, folder: Path) -> None:
    """Raise `ModelError` if a weight is NaN, infinite or complex."""
    for name, weight in module.state_dict().items():
        if weight.is_complex() or not torch.isfinite(weight).all():
            kind = "complex numbers" if weight.is_complex() else "NaN or infinity"
            raise ModelError(f"The weight {name} in {folder} holds {kind}.", hint="Use an undamaged checkpoint.")


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence transformers' warnings and progress bars."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


class Dense(nn.Module):
    """Apply a linear layer and an activation: (b, d) to (b, out)."""

    def __init__(self, in_features: int, out_features: int, *, bias: bool, activation: str) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features, bias=bias)
        self.activation = _ACTIVATIONS[activation]()
        self.out_features = out_features
        self.settings = {
            "in_features": in_features,
            "out_features": out_features,
            "bias": bias,
            "activation_function": f"{type(self.activation).__module__}.{activation}",
        }

    def forward(self, vectors: Tensor) -> Tensor:
        """Map vectors (b, in) to (b, out)."""
        out: Tensor = self.activation(self.linear(vectors))
        return out


class Normalize(nn.Module):
    """Scale each vector to length 1."""

    def forward(self, vectors: Tensor) -> Tensor:
        """Normalize vectors (b, d)."""
        return nn.functional.normalize(vectors, dim=-1)


def read_modules(folder: Path) -> list[tuple[str, Path]]:
    """Return class name and folder of each module in modules.json; [] without this file."""
    check_links(folder, folder)
    listing, modules = folder / "modules.json", []
    with naming_damage(folder):
        for module in read_json(listing) if listing.exists() else []:
            name, place = module["type"], folder / module["path"]
            check_links(folder, place)
            kind = name.rpartition(".")[2]
            ours = kind in LAYER_POOLERS and name.startswith(f"{_POOLER_SOURCE.stem}.")
            if not ours and not (kind in _KINDS and name.startswith(("sentence_transformers.", "truncate_kit."))):
                raise _unkept(
                    f"{place} needs the module {name}",
                    f"Supported modules of sentence-transformers: {', '.join(_KINDS)}.",
                )
            modules.append((kind, place))
    return modules


def transformer_of(folder: Path) -> Path:
    """Return the folder of the transformer module."""
    return next((place for kind, place in read_modules(folder) if kind == "Transformer"), folder)


def read_text_settings(folder: Path, transformer: Path) -> tuple[int | None, bool, dict[str, Any]]:
    """Read maximum length, lower-casing and settings of a folder with `modules.json`."""
    path, listed = folder / "config_sentence_transformers.json", (folder / "modules.json").exists()
    with naming_damage(folder):
        settings: dict[str, Any] = read_json(path) if listed and path.exists() else {}
        check_kept(path, settings, model_type=("SentenceTransformer",), truncate_dim=(None, False))
        if "prompts" in settings:
            settings["prompts"] = settings["prompts"] or {}
        check_kept(path, settings, default_prompt_name=(None, *settings.get("prompts", {})))
        for kind in _READERS if listed else ():
            path = transformer / f"sentence_{kind}_config.json"
            values = read_json(path) if path.exists() else {}
            for held in (values, values.get("model_args") or {}, values.get("model_kwargs") or {}):
                usual = {name: (_USUAL[name], None) if name in _USUAL else _UNSET for name in held.keys() - _FREE}
                check_kept(path, held, **usual)
            if values:
                limit = values.get("max_seq_length")
                return limit and int(limit), bool(values.get("do_lower_case")), settings
    return None, False, settings


def _unkept(problem: str, hint: str) -> ModelError:
    return ModelError(f"{problem}, which is not supported.", hint=hint)


def check_kept(path: Path, values: dict[str, Any], **allowed: tuple[Any, ...]) -> None:
    """Raise `ModelError` unless each setting has an allowed value; a missing one has the first."""
    for name, known in allowed.items():
        if values.get(name, known[0]) not in known:
            raise _unkept(
                f"{path} has {name} {values[name]!r}",
                "Use a model that is not quantized, pools its whole input into one dense vector per text, and has the "
                "settings of its transformer in config.json and tokenizer_config.json.",
            )


def add_module(encoder: Encoder, kind: str, place: Path, asked: PoolingMode | None) -> bool:
    """Add a saved module to the encoder, and return whether it fits the encoder's width and layers.

    asked: The user's pooling; replaces an unsupported pooling. Raises `UsageError` if it cannot, as over layers.
    """
    path, fits, fixed = place / "config.json", True, ""
    match kind:
        case "WeightedLayerPooling":
            depth, layers = _combined_layers(place)
            fits = depth == encoder.depth
            encoder.combine_layers(layers)
        case "Pooling":
            encoder.pooling = _pooling_of(path, asked)
        case "LayerHeads":
            encoder.heads = heads = read_layer_heads(place)
            fits = (heads.blocks, heads.width) == (encoder.depth, encoder.width)
            fixed = "" if asked == encoder.pooling else "layer heads"
        case "Dense":
            encoder.tail.append(read_module(place, lambda values: _dense(path, values)))
        case "LayerNorm":
            held = read_module(place, lambda values: nn.ModuleDict({"norm": nn.LayerNorm(values["dimension"])}))
            encoder.tail.append(held["norm"])
        case "Normalize":
            check_kept(path, read_json(path) if path.exists() else {}, **_ON_VECTORS)
            encoder.tail.append(Normalize())
        case _ if kind in LAYER_POOLERS:
            pooler = read_module(place, lambda values: LAYER_POOLERS[kind](**values))
            fits, fixed = pooler.fits(encoder.width, encoder.depth), pooler.word
            encoder.pool_with(pooler)
    if asked is not None and fixed:
        raise UsageError(
            f"{place.parent} pools by {fixed}, which {asked} cannot replace.",
            hint="Leave out `pooling`, or use another model.",
        )
    return fits


def _combined_layers(place: Path) -> tuple[int, list[int]]:
    values = read_json(place / "config.json")
    depth, start = int(values["num_hidden_layers"]), int(values["layer_start"])
    weights = read_weights(place)["layer_weights"]
    if len(weights) != depth + 1 - start or len({*weights[weights != 0].tolist()}) != 1:
        raise _unkept(
            f"{place} gives layers different weights",
            "Use a mean over layers: an equal weight for each of them, and 0 for the other layers.",
        )
    return depth, [start + int(index) for index in weights.nonzero()[:, 0]]


def _pooling_of(path: Path, asked: PoolingMode | None) -> PoolingMode:
    values = read_json(path)
    check_kept(path, values, include_prompt=(True,))
    modes = values.get("pooling_mode") or [mode for mode, flag in _POOLING_FLAGS.items() if values.get(flag)] or "mean"
    modes = [modes] if isinstance(modes, str) else modes
    if modes == ["cls", "mean"]:
        return "concat"
    if len(modes) == 1 and modes[0] in _POOLING_NAMES:
        return _POOLING_NAMES[modes[0]]
    if asked is None:
        hint = f"Name one of {', '.join(POOLING_MODES)} as `pooling` to replace it."
        raise _unkept(f"{path} pools by {' + '.join(modes)}", hint)
    return asked


def _dense(path: Path, values: dict[str, Any]) -> Dense:
    check_kept(path, values, **_ON_VECTORS, use_residual=(False,))
    activation = str(values.get("activation_function", "Tanh")).rpartition(".")[2].removesuffix("()")
    if activation not in _ACTIVATIONS:
        hint = f"Known activations: {', '.join(_ACTIVATIONS)}."
        raise _unkept(f"A Dense module has the activation {activation!r}", hint)
    bias = bool(values.get("bias", True))
    return Dense(values["in_features"], values["out_features"], bias=bias, activation=activation)


def read_layer_heads(place: Path) -> LayerHeads:
    """Load layer heads from a folder."""
    return read_module(place, lambda values: LayerHeads(**values))


def write_pipeline(folder: Path, encoder: Encoder) -> None:
    """Write the files of sentence-transformers into the folder of a saved transformer.

    Names follow version 2, which later versions and text-embeddings-inference read. sentence-transformers needs
    `trust_remote_code=True` for `LAYER_POOLERS`, and cannot load `LayerHeads`.
    """
    pooler, theirs = encoder.pooler, "sentence_transformers.models"
    listing = [{"idx": 0, "name": "0", "path": "", "type": f"{theirs}.Transformer"}]

    def add(kind: str, values: dict[str, Any] | None, weights: dict[str, Tensor], package: str = theirs) -> None:
        number = len(listing)
        listing.append({"idx": number, "name": str(number), "path": f"{number}_{kind}", "type": f"{package}.{kind}"})
        write_module(folder / f"{number}_{kind}", values, weights)

    if encoder.combination is not None:  # weight 1 for combined layers, 0 for layers between
        start = min(encoder.combination)
        weights = torch.zeros(encoder.depth + 1 - start)
        weights[[layer - start for layer in encoder.combination]] = 1
        values = {"word_embedding_dimension": encoder.width, "layer_start": start, "num_hidden_layers": encoder.depth}
        add("WeightedLayerPooling", values, {"layer_weights": weights})
    if pooler is not None:
        add(type(pooler).__name__, pooler.settings, pooler.state_dict(), _POOLER_SOURCE.stem)
        (folder / _POOLER_SOURCE.name).write_text(_POOLER_SOURCE.read_text(encoding="utf-8"), encoding="utf-8")
    else:
        modes = ("cls", "mean") if encoder.pooling == "concat" else (encoder.pooling,)
        flags = {flag: _POOLING_NAMES.get(mode) in modes for mode, flag in _POOLING_FLAGS.items()}
        add("Pooling", {"word_embedding_dimension": encoder.width} | flags, {})
    if encoder.heads is not None:
        add("LayerHeads", encoder.heads.settings, encoder.heads.state_dict(), LayerHeads.__module__)
    for module in encoder.tail:
        if isinstance(module, nn.LayerNorm):
            add("LayerNorm", {"dimension": module.normalized_shape[0]}, module.state_dict(prefix="norm."))
        else:
            add(type(module).__name__, getattr(module, "settings", None), module.state_dict())
    write_json(folder / "modules.json", listing)
    reading: dict[str, Any] = {"max_seq_length": encoder.max_length, "do_lower_case": encoder.lower_case}
    write_json(folder / _READING_FILE, reading)
    write_json(folder / "config_sentence_transformers.json", {"similarity_fn_name": "cosine"} | encoder.settings)


def loading_words(pooler: nn.Module | None) -> str:
    """Return the model card's sentence on how to load the model."""
    if pooler is None:
        return "Load it with `SentenceTransformer(path)` or `AutoModel.from_pretrained(path)`."
    return (
        "Load it with `SentenceTransformer(path, trust_remote_code=True)`: the pooling is not part of\n"
        f"sentence-transformers but of `{_POOLER_SOURCE.name}` in this folder, which needs only torch and safetensors."
    )


# Export record, graphs and weight files.
_GRAPHS = "|".join(re.escape(file.removesuffix(".xml")) for file in GRAPH_FILES)
_IS_OF_GRAPHS = re.compile(rf"{re.escape(EXPORT_RECORD)}|({_GRAPHS})(\.\w+\.data|\.xml|\.bin)?")


def save_encoder(
    encoder: Encoder,
    folder: Path,
    *,
    model_card: str | None = None,
    origin: Origin | None = None,
    records: Mapping[str, str] | None = None,
) -> Path:
    """Save a model for `SentenceTransformer` and `AutoModel`; keep graphs exported from the same model.

    folder: Replaced completely, or left unchanged on failure.
    model_card: Text of README.md.
    records: Further text files: content by file name.

    Raises:
        ModelError: There is no tokenizer.
        FileProblemError: `folder` cannot be written.
    """
    folder = local_path(folder)
    with replacing(folder) as target:
        target.mkdir()
        encoder.reader.token_ids(["a"])  # a tokenizer saves the truncation of its last call
        encoder.reader.tokenizer.model_max_length = encoder.max_length
        write_tokenizer(encoder.reader.tokenizer, target)
        with quiet_transformers():
            encoder.backbone.save_pretrained(target, state_dict=encoder.backbone.state_dict() | _no_pooler(encoder))
        write_pipeline(target, encoder)
        write_seen(target, encoder.seen)
        sealed = "" if origin is None else origin.sealed_text()
        for name, text in ({"README.md": model_card, ORIGIN_FILE: sealed} | dict(records or {})).items():
            if text:
                (target / name).write_text(text, encoding="utf-8")
        _keep_graphs(folder, target)
    return folder


def _no_pooler(encoder: Encoder) -> dict[str, Tensor]:
    """Return zeros for the pooler that `AutoModel` adds, which avoid its warning of missing weights."""
    if encoder.family.pooler is None:
        return {}
    with torch.device("meta"):
        pooler = getattr(type(encoder.backbone)(encoder.backbone.config), encoder.family.pooler)
    weights = pooler.state_dict(prefix=f"{encoder.family.pooler}.")
    return {name: torch.zeros_like(weight, device="cpu") for name, weight in weights.items()}


def _keep_graphs(old: Path, new: Path) -> None:
    with contextlib.suppress(OSError, ValueError, LookupError, TruncateKitError):
        if (old / EXPORT_RECORD).is_file() and model_digests(old) == model_digests(new):
            for file in (old / EXPORT_RECORD, *old.glob("*/*")):
                name = file.relative_to(old).as_posix()
                if _IS_OF_GRAPHS.fullmatch(name) and file.is_file():
                    (new / name).parent.mkdir(exist_ok=True)
                    shutil.copy2(file, new / name)
