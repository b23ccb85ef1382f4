"""An encoder as an ordinary sentence-transformers folder that loads without this package."""

import inspect
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import PreTrainedTokenizerBase

from truncate_kit.errors import ModelError, TruncateKitError, UsageError
from truncate_kit.files import local_path, replacing
from truncate_kit.files import write_json as replace_json
from truncate_kit.model_digests import model_digests
from truncate_kit.models.encoder import Encoder
from truncate_kit.models.given import check_encoder
from truncate_kit.models.layer_heads import LayerHeads, write_layer_heads
from truncate_kit.models.module_files import read_json, write_json
from truncate_kit.models.pipeline import OTHER_FLAGS, POOLING_FLAGS
from truncate_kit.models.pooler_files import LAYER_POOLERS, LayerPooler, type_of, write_layer_pooler
from truncate_kit.models.pooling import ConcatPooling
from truncate_kit.models.tail import write_tail_module
from truncate_kit.models.transformers_logging import quiet_transformers
from truncate_kit.pair_keys import write_seen
from truncate_kit.precisions import EXPORT_RECORD, GRAPH_FILES

# The record, the graphs, and weights beside them, which have their names with an ending.
_GRAPHS = "|".join(map(re.escape, GRAPH_FILES.values()))
_IS_OF_GRAPHS = re.compile(rf"{re.escape(EXPORT_RECORD)}|({_GRAPHS})(\.\w+\.data)?")
_READING_FILE = "sentence_bert_config.json"
_NO_POOLER = {"model_args": {"add_pooling_layer": False}}
# Of how a tokenizer cut texts last, what transformers makes settings of when it reads the file back, by their names.
_READ_BACK = {
    "max_length": "max_length",
    "direction": "truncation_side",
    "stride": "stride",
    "strategy": "truncation_strategy",
}


def save_encoder(
    encoder: Encoder, folder: Path, *, model_card: str | None = None, records: Mapping[str, str] | None = None
) -> Path:
    """Write `folder` (replaced as a whole, or left as it was on failure) and return it.

    `SentenceTransformer(folder)` and `AutoModel.from_pretrained(folder)` load it; no weight above the last layer is in
    it. Of what else was there, graphs exported from this very model stay.

    Args:
        encoder: What is saved.
        folder: Replaced as a whole, or left as it was on failure.
        model_card: Text of README.md.
        records: Texts of further files by name, such as what the model was made from; it never stands there without
            them.

    Raises:
        ModelError: There is no tokenizer.
        UsageError: A record is in a folder, or named as a file that is there.
        FileProblemError: `folder` cannot be written.
    """
    check_encoder(encoder)
    if encoder.tokenizer is None:
        raise ModelError(f"{encoder.name} has no tokenizer to save.", hint="Use a model folder that has one.")
    folder = local_path(folder)
    with replacing(folder) as target:
        target.mkdir()
        with quiet_transformers():
            encoder.backbone.save_pretrained(target)
        _save_tokenizer(target, encoder.tokenizer, encoder)
        _write_pipeline(target, encoder)
        write_seen(target, encoder.seen)
        card = {} if model_card is None else {"README.md": model_card}
        for name, text in (card | dict(records or {})).items():
            if Path(name).name != name or (target / name).exists():
                raise UsageError(
                    f"A record cannot be named {name!r}.", hint="Name it unlike what a model is read from."
                )
            (target / name).write_text(text, encoding="utf-8")
        _keep_graphs(folder, target)
    return folder


def _keep_graphs(old: Path, new: Path) -> None:
    """Keep what was exported from the very model that is saved again: a command given twice takes no graph away.

    Where the old folder cannot be read, or there is no room for its graphs, the new one has none, as another model has.
    """
    copied = []
    try:
        if not (old / EXPORT_RECORD).is_file() or model_digests(old) != model_digests(new):
            return
        for file in old.iterdir():
            if _IS_OF_GRAPHS.fullmatch(file.name) and file.is_file() and not file.is_symlink():
                copied.append(new / file.name)
                shutil.copy2(file, copied[-1])
    except (OSError, ValueError, TruncateKitError):
        for file in copied:
            file.unlink(missing_ok=True)
        return
    load_by_any_runtime(new)


def load_by_any_runtime(folder: Path) -> None:
    """Take out of a saved folder what only torch understands.

    Optimum's classes, by which sentence-transformers runs graphs, end with an error where a setting of torch's classes
    is handed to them. The price is torch's report of a missing pooler, which nothing uses.
    """
    path = folder / _READING_FILE
    if not path.is_file():
        return
    values = read_json(path)
    if all(values.get(key) == value for key, value in _NO_POOLER.items()):  # what others asked for stays
        replace_json(path, {key: value for key, value in values.items() if key not in _NO_POOLER})


def _save_tokenizer(folder: Path, tokenizer: PreTrainedTokenizerBase, encoder: Encoder) -> None:
    """Write the files of the encoder's tokenizer: the same each time, also after reading them back."""
    tokenizer.model_max_length = encoder.max_length
    encoder.reader.token_ids(["a"])  # it writes down how it was called last
    cut = getattr(getattr(tokenizer, "backend_tokenizer", None), "truncation", None)
    if cut is not None:
        for name, setting in _READ_BACK.items():
            tokenizer.init_kwargs.setdefault(setting, cut[name])
    tokenizer.save_pretrained(folder)


def _write_pipeline(folder: Path, encoder: Encoder) -> None:
    """Write the files of a sentence-transformers folder around the transformer in it."""
    # The names are those of sentence-transformers 2, which every later version and text-embeddings-inference read. The
    # poolings of `LAYER_POOLERS` it loads from the folder, with `trust_remote_code=True`; folders with `LayerHeads` it
    # refuses: only this package gives their vectors.
    pooler, heads = encoder.pooler, encoder.heads
    kinds = [
        *(["WeightedLayerPooling"] if encoder.combination is not None else []),
        type(pooler).__name__ if isinstance(pooler, LayerPooler) else "Pooling",
        *(["LayerHeads"] if heads is not None else []),
        *(type(module).__name__ for module in encoder.tail),
    ]
    modules = [("Transformer", ""), *((kind, f"{place}_{kind}") for place, kind in enumerate(kinds, 1))]
    listing = [
        {"idx": place, "name": str(place), "path": path, "type": _type_of(kind)}
        for place, (kind, path) in enumerate(modules)
    ]
    write_json(folder / "modules.json", listing)
    reading: dict[str, Any] = {"max_seq_length": encoder.max_length, "do_lower_case": encoder.lower_case}
    if "add_pooling_layer" in inspect.signature(type(encoder.backbone)).parameters:
        reading |= _NO_POOLER  # else sentence-transformers makes a pooler of random weights, and warns of it
    write_json(folder / _READING_FILE, reading)
    write_json(folder / "config_sentence_transformers.json", {"similarity_fn_name": "cosine"} | encoder.settings)
    places = [folder / path for _, path in modules[1:]]
    if encoder.combination is not None:
        _write_combination(places.pop(0), encoder, encoder.combination)
    if heads is not None:
        write_layer_heads(places.pop(1), heads)
    if isinstance(pooler, LayerPooler):
        write_layer_pooler(folder, places[0], pooler)
    else:
        modes = ("cls", "mean") if isinstance(pooler, ConcatPooling) else (encoder.pooling,)
        flags = {flag: mode in modes for mode, flag in (POOLING_FLAGS | OTHER_FLAGS).items()}
        write_json(places[0] / "config.json", {"word_embedding_dimension": encoder.width} | flags)
    for place, module in zip(places[1:], encoder.tail, strict=True):
        write_tail_module(place, module)


def _type_of(kind: str) -> str:
    if kind in LAYER_POOLERS:
        return type_of(kind)
    package = LayerHeads.__module__ if kind == "LayerHeads" else "sentence_transformers.models"
    return f"{package}.{kind}"


def _write_combination(place: Path, encoder: Encoder, layers: tuple[int, ...]) -> None:
    """Weight 1 for each of the layers and 0 between them, from the lowest one on."""
    start = min(layers)
    values = {"word_embedding_dimension": encoder.width, "layer_start": start, "num_hidden_layers": encoder.depth}
    write_json(place / "config.json", values)
    weights = torch.zeros(encoder.depth + 1 - start)
    weights[[layer - start for layer in layers]] = 1
    save_file({"layer_weights": weights}, place / "model.safetensors", metadata={"format": "pt"})
