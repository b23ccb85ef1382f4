"""Read and write sentence-transformers folders: known modules only, no class imported by name."""

import contextlib
import functools
import hashlib
import inspect
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from truncate_kit.core.errors import ModelError, TruncateKitError
from truncate_kit.core.files import local_path, read_json, replacing, write_json
from truncate_kit.core.origin import ORIGIN_FILE, Method, Origin, model_digests, settings_of, versions
from truncate_kit.core.precisions import EXPORT_RECORD, GRAPH_FILES
from truncate_kit.data.seen import write_seen
from truncate_kit.models import layer_pooling
from truncate_kit.models.encoder import POOLING_MODES, Encoder, Pooler, TextReader
from truncate_kit.models.layer_heads import LayerHeads, read_layer_heads
from truncate_kit.models.layer_pooling import (
    ConcatPooling,
    LayerAttentionPooling,
    LayerPooler,
    LayerPooling,
    PoolingMode,
)
from truncate_kit.models.model_folder import (
    check_links,
    quiet_transformers,
    read_module,
    read_weights,
    unreadable,
    write_module,
)

LAYER_POOLERS: dict[str, type[LayerPooler]] = {kind.__name__: kind for kind in (LayerAttentionPooling, LayerPooling)}
_POOLER_SOURCE = Path(inspect.getfile(layer_pooling))  # travels with the folder
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
# The first non-empty one counts; older versions named them by architecture.
_READERS = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
# These override other settings; names before and since sentence-transformers 5.
_OVERRIDES = ("config_args", "config_kwargs", "tokenizer_args", "processor_kwargs", "processing_kwargs")
_NO_POOLER = {"model_args": {"add_pooling_layer": False}}
_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    name: getattr(nn, name) for name in ("Identity", "Tanh", "ReLU", "GELU", "SiLU", "Sigmoid", "LeakyReLU")
}


class Dense(nn.Module):
    """Apply a linear layer and an activation: (b, d) to (b, out)."""

    def __init__(self, in_features: int, out_features: int, *, bias: bool, activation: str) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features, bias=bias)
        self.activation_name = activation
        self.activation = _ACTIVATIONS[activation]()

    @property
    def out_features(self) -> int:
        """Return the size of its vectors."""
        return self.linear.out_features

    @property
    def settings(self) -> dict[str, Any]:
        """Return the values of its config.json."""
        return {
            "in_features": self.linear.in_features,
            "out_features": self.linear.out_features,
            "bias": self.linear.bias is not None,
            "activation_function": f"{type(self.activation).__module__}.{self.activation_name}",
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


class LayerNorm(nn.Module):
    """Normalize sentence vectors as torch's layer norm."""

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dimension)

    @property
    def settings(self) -> dict[str, Any]:
        """Return the values of its config.json."""
        return {"dimension": self.norm.normalized_shape[0]}

    def forward(self, vectors: Tensor) -> Tensor:
        """Normalize vectors (b, d)."""
        out: Tensor = self.norm(vectors)
        return out


@dataclass(slots=True)
class Pipeline:
    """The settings and modules around a transformer."""

    transformer: Path
    folders: list[Path] = field(default_factory=list)  # of all modules
    pooling: PoolingMode | None = None
    tail: list[nn.Module] = field(default_factory=list)
    max_length: int | None = None
    lower_case: bool = False
    settings: dict[str, Any] = field(default_factory=dict)  # config_sentence_transformers.json
    combination: tuple[int, ...] | None = None  # layers averaged before pooling
    combined_depth: int | None = None  # depth they were stated for
    pooler: Pooler | None = None  # replaces `pooling`
    heads: LayerHeads | None = None  # over all blocks
    unkept: ModelError | None = None  # why its own pooling has to be replaced


def read_pipeline(folder: Path) -> Pipeline:
    """Read `modules.json` and what it names; without one the folder is a bare transformer.

    Raises `ModelError` for links out of the folder, damage, and unknown parts that would change vectors; `unkept`
    notes an unsupported pooling.
    """
    check_links(folder, folder)
    listing, pipeline = folder / "modules.json", Pipeline(transformer=folder)
    if not listing.exists():
        pipeline.folders.append(folder)
        return pipeline
    try:
        path = folder / "config_sentence_transformers.json"
        pipeline.settings = read_json(path) if path.exists() else {}
        _check_kept(path, pipeline.settings, model_type=("SentenceTransformer",), truncate_dim=(None,))
        if "prompts" in pipeline.settings:
            pipeline.settings["prompts"] = pipeline.settings["prompts"] or {}
        for module in read_json(listing):
            place = folder / module["path"]
            check_links(folder, place)
            pipeline.folders.append(place)
            _read_module(pipeline, module["type"], place)
    except ModelError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise unreadable(folder, error) from error
    return pipeline


def _unkept(problem: str, hint: str) -> ModelError:
    return ModelError(f"{problem}, which cannot be kept.", hint=hint)


def _check_kept(path: Path, values: dict[str, Any], **allowed: tuple[Any, ...]) -> None:
    """Raise `ModelError` unless each setting has an allowed value, the first by default."""
    for name, known in allowed.items():
        if values.get(name, known[0]) not in known:
            raise _unkept(
                f"{path} has {name} {values[name]!r}",
                "Use a model that gives one dense vector per text by pooling its whole input, with the settings of "
                "its transformer in config.json and tokenizer_config.json.",
            )


def _read_module(pipeline: Pipeline, name: str, place: Path) -> None:
    kind, path = name.rpartition(".")[2], place / "config.json"
    known = (f"{_POOLER_SOURCE.stem}.{kind}",) if kind in LAYER_POOLERS else ("sentence_transformers.", "truncate_kit.")
    if not name.startswith(known):
        raise ModelError(
            f"modules.json names the module class {name}, which is code of its own; it is not run.",
            hint="Use a model whose modules are sentence-transformers' own.",
        )
    match kind:
        case "Transformer":
            pipeline.transformer = place
            _read_transformer(pipeline, place)
        case "WeightedLayerPooling":
            _read_combination(pipeline, place)
        case "Pooling":
            _read_pooling(pipeline, path)
        case "LayerHeads":
            pipeline.heads = read_layer_heads(place)
        case "Dense":
            pipeline.tail.append(read_module(place, lambda values: _dense(path, values)))
        case "LayerNorm":
            pipeline.tail.append(read_module(place, lambda values: LayerNorm(values["dimension"])))
        case "Normalize":
            pipeline.tail.append(Normalize())
        case "Dropout":  # acts in training only
            pass
        case _ if kind in LAYER_POOLERS:
            pooler = read_module(place, lambda values: LAYER_POOLERS[kind](**values))
            pipeline.pooling, pipeline.pooler = pooler.state_pooling, pooler
        case _:
            raise ModelError(
                f"{place} holds a module {kind!r} that cannot be truncated and kept exactly.",
                hint="Known modules: Transformer, WeightedLayerPooling, Pooling or one of "
                f"{', '.join(LAYER_POOLERS)}, LayerHeads, Dense, Normalize, LayerNorm, Dropout.",
            )


def _read_transformer(pipeline: Pipeline, place: Path) -> None:
    """Read maximum length and casing."""
    for kind in _READERS:
        path = place / f"sentence_{kind}_config.json"
        values = read_json(path) if path.exists() else {}
        _check_kept(path, values, **dict.fromkeys(_OVERRIDES, (None, {})))
        if values:
            pipeline.max_length, pipeline.lower_case = values.get("max_seq_length"), bool(values.get("do_lower_case"))
            return


def _read_combination(pipeline: Pipeline, place: Path) -> None:
    values = read_json(place / "config.json")
    depth, start = int(values["num_hidden_layers"]), int(values["layer_start"])
    weights = read_weights(place)["layer_weights"]
    if len(weights) != depth + 1 - start or len({*weights[weights != 0].tolist()}) != 1:
        raise _unkept(
            f"{place} weights layers differently", "Use a mean over some layers: one weight, and 0 elsewhere."
        )
    pipeline.combination = tuple(start + int(index) for index in weights.nonzero()[:, 0])
    pipeline.combined_depth = depth


def _read_pooling(pipeline: Pipeline, path: Path) -> None:
    """Raise `ModelError` if the pooling cannot be kept or replaced."""
    values = read_json(path)
    modes = values.get("pooling_mode") or [mode for mode, flag in _POOLING_FLAGS.items() if values.get(flag)] or "mean"
    modes = [modes] if isinstance(modes, str) else modes
    if modes != ["cls", "mean"] and (len(modes) != 1 or modes[0] not in _POOLING_NAMES):
        hint = f"Name one of {', '.join(POOLING_MODES)} as `pooling` to replace it."
        pipeline.unkept = _unkept(f"{path} pools by {' + '.join(modes)}", hint)
    else:
        pipeline.pooling, pipeline.pooler = _POOLING_NAMES[modes[0]], ConcatPooling() if len(modes) > 1 else None
    _check_kept(path, values, include_prompt=(True,))


def _dense(path: Path, values: dict[str, Any]) -> Dense:
    """Raise `ModelError` unless the module replaces the vector."""
    vector = "sentence_embedding"
    _check_kept(path, values, module_input_name=(vector,), module_output_name=(None, vector), use_residual=(False,))
    activation = str(values.get("activation_function", "Tanh")).rpartition(".")[2].removesuffix("()")
    if activation not in _ACTIVATIONS:
        hint = f"Known activations: {', '.join(_ACTIVATIONS)}."
        raise _unkept(f"A Dense module has the activation {activation!r}", hint)
    bias = bool(values.get("bias", True))
    return Dense(values["in_features"], values["out_features"], bias=bias, activation=activation)


def write_pipeline(folder: Path, encoder: Encoder) -> None:
    """Write the files of a sentence-transformers folder around its transformer.

    Names are of version 2, which later ones and text-embeddings-inference read. `LAYER_POOLERS` need
    `trust_remote_code=True`; `LayerHeads` cannot be loaded there.
    """
    pooler, theirs = encoder.pooler, "sentence_transformers.models"
    listing = [{"idx": 0, "name": "0", "path": "", "type": f"{theirs}.Transformer"}]

    def add(kind: str, values: dict[str, Any] | None, weights: dict[str, Tensor], package: str = theirs) -> None:
        number = len(listing)
        listing.append({"idx": number, "name": str(number), "path": f"{number}_{kind}", "type": f"{package}.{kind}"})
        write_module(folder / f"{number}_{kind}", values, weights)

    if encoder.combination is not None:  # weight 1 for each layer, 0 between them
        start = min(encoder.combination)
        weights = torch.zeros(encoder.depth + 1 - start)
        weights[[layer - start for layer in encoder.combination]] = 1
        values = {"word_embedding_dimension": encoder.width, "layer_start": start, "num_hidden_layers": encoder.depth}
        add("WeightedLayerPooling", values, {"layer_weights": weights})
    if isinstance(pooler, LayerPooler):
        add(type(pooler).__name__, pooler.settings, pooler.state_dict(), _POOLER_SOURCE.stem)
        (folder / _POOLER_SOURCE.name).write_text(_POOLER_SOURCE.read_text(encoding="utf-8"), encoding="utf-8")
    else:
        modes = ("cls", "mean") if isinstance(pooler, ConcatPooling) else (encoder.pooling,)
        flags = {flag: _POOLING_NAMES.get(mode) in modes for mode, flag in _POOLING_FLAGS.items()}
        add("Pooling", {"word_embedding_dimension": encoder.width} | flags, {})
    if encoder.heads is not None:
        add("LayerHeads", encoder.heads.settings, encoder.heads.state_dict(), LayerHeads.__module__)
    for module in encoder.tail:
        add(type(module).__name__, getattr(module, "settings", None), module.state_dict())
    write_json(folder / "modules.json", listing)
    reading: dict[str, Any] = {"max_seq_length": encoder.max_length, "do_lower_case": encoder.lower_case}
    if "add_pooling_layer" in inspect.signature(type(encoder.backbone)).parameters:
        reading |= _NO_POOLER  # else it makes a random pooler
    write_json(folder / _READING_FILE, reading)
    write_json(folder / "config_sentence_transformers.json", {"similarity_fn_name": "cosine"} | encoder.settings)


def load_by_any_runtime(folder: Path) -> None:
    """Remove a setting of torch's classes that Optimum's refuse."""
    path = folder / _READING_FILE
    values = read_json(path) if path.is_file() else {}
    if all(values.get(key) == value for key, value in _NO_POOLER.items()):  # others' settings stay
        write_json(path, {key: value for key, value in values.items() if key not in _NO_POOLER})


def loading_words(pooler: nn.Module | None) -> str:
    """Return the model card's sentence on loading."""
    if not isinstance(pooler, LayerPooler):
        return "Load it with `SentenceTransformer(path)` or `AutoModel.from_pretrained(path)`."
    return (
        "Load it with `SentenceTransformer(path, trust_remote_code=True)`: sentence-transformers has no such pooling\n"
        f"of its own and takes it from `{_POOLER_SOURCE.name}` in this folder, which needs torch and safetensors only."
    )


# Record, graphs and files of their weights.
_GRAPHS = "|".join(map(re.escape, GRAPH_FILES.values()))
_IS_OF_GRAPHS = re.compile(rf"{re.escape(EXPORT_RECORD)}|({_GRAPHS})(\.\w+\.data)?")


def origin_of(method: Method, source: Encoder, lean: Encoder, *, data: Any = None, **values: Any) -> Origin:
    """Return how a model was made; data: the undivided pairs; values: further fields of `Origin`."""
    facts: dict[str, Any] = {
        "method": method,
        "model": source.name,
        "source_digest": encoder_digest(source),
        "layer": lean.depth,
        "depth": source.depth,
        "parameters": lean.num_parameters,
        "trained": source.trained if method in ("cut", "combine", "copy") else True,
        "data": "" if data is None else data.name,
        "fingerprint": "" if data is None else data.fingerprint(),
        "settings": {},
        "versions": versions(),
    }
    return Origin(**facts | values)


def save_encoder(
    encoder: Encoder,
    folder: Path,
    *,
    model_card: str | None = None,
    origin: Origin | None = None,
    records: Mapping[str, str] | None = None,
) -> Path:
    """Write a model folder for `SentenceTransformer` and `AutoModel`; graphs exported from the same model stay.

    Args:
        encoder: The model.
        folder: Replaced as a whole, or unchanged on failure.
        model_card: Text of README.md.
        origin: Content of origin.json.
        records: Texts of further files by name.

    Raises:
        ModelError: There is no tokenizer.
        FileProblemError: `folder` cannot be written.
    """
    folder = local_path(folder)
    with replacing(folder) as target:
        target.mkdir()
        encoder.reader.token_ids(["a"])  # a tokenizer saves its last call
        encoder.reader.tokenizer.model_max_length = encoder.max_length
        encoder.reader.tokenizer.save_pretrained(target)
        with quiet_transformers():
            encoder.backbone.save_pretrained(target)
        write_pipeline(target, encoder)
        write_seen(target, encoder.seen)
        sealed = "" if origin is None else origin.sealed_text()
        for name, text in ({"README.md": model_card, ORIGIN_FILE: sealed} | dict(records or {})).items():
            if text:
                (target / name).write_text(text, encoding="utf-8")
        _keep_graphs(folder, target)
    return folder


def _keep_graphs(old: Path, new: Path) -> None:
    with contextlib.suppress(OSError, ValueError, LookupError, TruncateKitError):
        if (old / EXPORT_RECORD).is_file() and model_digests(old) == model_digests(new):
            for file in old.iterdir():
                if _IS_OF_GRAPHS.fullmatch(file.name) and file.is_file():
                    shutil.copy2(file, new / file.name)
            load_by_any_runtime(new)


# Tokenizer fields that change neither vectors nor training.
_TOKENIZER_BOOKKEEPING = {
    "auto_map", "backend", "chat_template", "clean_up_tokenization_spaces", "is_local", "local_files_only",
    "model_max_length", "name_or_path", "processor_class", "tokenizer_class",
}  # fmt: skip


class Digest:
    """Hash parts with SHA-256, each after its size."""

    def __init__(self) -> None:
        self._sha = hashlib.sha256()

    def add(self, *parts: str | bytes | memoryview) -> None:
        """Add texts or bytes."""
        for part in parts:
            data = part.encode() if isinstance(part, str) else part
            self._sha.update(f"{len(data)} ".encode())
            self._sha.update(data)

    def add_values(self, values: Any) -> None:
        """Add JSON values without key order and kind of sequence."""
        self.add(_in_order(values))

    def add_file(self, file: Path) -> None:
        """Add a file's content."""
        with file.open("rb") as stream:
            self.add(hashlib.file_digest(stream, "sha256").digest())

    def add_weights(self, weights: dict[str, Tensor]) -> None:
        """Add names, types, shapes and bytes, by name."""
        for name, weight in sorted(weights.items()):
            self.add(name, str(weight.dtype), repr(tuple(weight.shape)))
            self.add(weight.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)

    def add_reader(self, reader: TextReader) -> None:
        """Add all that token ids depend on, and prompts."""
        self.add_values([reader.max_length, reader.lower_case])
        prompts = {name: prompt for name, prompt in (reader.settings.get("prompts") or {}).items() if prompt}
        default = reader.settings.get("default_prompt_name")
        self.add_values([prompts, default if default in prompts else None])
        tokenizer = reader.tokenizer
        self.add_values([tokenizer.special_tokens_map, tokenizer.truncation_side])
        self.add_values(bool(getattr(tokenizer, "split_special_tokens", False)))
        if tokenizer.is_fast:
            self.add(_serialised(cast(Any, tokenizer).backend_tokenizer.to_str()))
            return
        settings = {
            name: value
            for name, value in tokenizer.init_kwargs.items()
            if name not in _TOKENIZER_BOOKKEEPING and not name.endswith(("_file", "_token"))
        }
        self.add_values([type(tokenizer).__name__, settings, tokenizer.added_tokens_decoder])
        with tempfile.TemporaryDirectory() as folder:  # writes every kind of vocabulary
            for file in sorted(tokenizer.save_vocabulary(folder)):
                self.add_file(Path(file))

    def hexdigest(self) -> str:
        """Return 64 hexadecimal digits."""
        return self._sha.hexdigest()


def _in_order(values: Any) -> str:
    return json.dumps(values, sort_keys=True, default=repr)


# Vocabularies take longer than small weights.
@functools.lru_cache(maxsize=8)
def _serialised(tokenizer: str) -> bytes:
    state = json.loads(tokenizer)
    kept = {name: part for name, part in state.items() if name not in ("truncation", "padding")}  # set by each call
    return _in_order(kept).encode()


def encoder_digest(encoder: Encoder) -> str:
    """Return the SHA-256 over all that vectors and training depend on, also after a reload."""
    digest = Digest()
    digest.add_values(settings_of(encoder.backbone.config.to_dict()))
    digest.add_values([encoder.pooling, encoder.combination])
    for part in (encoder.tail, encoder.pooler, encoder.heads):
        # Kinds and plain public values of all modules.
        inside = [] if part is None else part.named_modules()
        kinds = [(name, type(inner).__name__, _public(inner)) for name, inner in inside]
        digest.add_values(None if part is None else kinds)
    digest.add_weights(encoder.state_dict())
    if encoder.tokenizer is not None:
        digest.add_reader(encoder.reader)
    return digest.hexdigest()


def _public(module: nn.Module) -> dict[str, Any]:
    return {key: value for key, value in vars(module).items() if key[0] != "_" and key != "training"}


def folder_digest(folder: Path) -> str:
    """Return the SHA-256 of all files in a folder, with their names."""
    digest = Digest()
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.add(str(file.relative_to(folder)))
        digest.add_file(file)
    return digest.hexdigest()
