"""An encoder as an ordinary sentence-transformers folder that loads without this package."""

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from truncate_kit.errors import TruncateKitError
from truncate_kit.files import local_path, replacing
from truncate_kit.models.digest import encoder_digest
from truncate_kit.models.encoder import Encoder
from truncate_kit.models.model_folder import quiet_transformers
from truncate_kit.models.pipeline import load_by_any_runtime, write_pipeline
from truncate_kit.origin import ORIGIN_FILE, Method, Origin, model_digests, versions
from truncate_kit.precisions import EXPORT_RECORD, GRAPH_FILES
from truncate_kit.seen import write_seen

# The record, the graphs, and weights beside them, which have their names with an ending.
_GRAPHS = "|".join(map(re.escape, GRAPH_FILES.values()))
_IS_OF_GRAPHS = re.compile(rf"{re.escape(EXPORT_RECORD)}|({_GRAPHS})(\.\w+\.data)?")
# The last call of a tokenizer as its file has it: names there, and those of the settings that are read back from it.
_READ_BACK = {
    "max_length": "max_length",
    "direction": "truncation_side",
    "stride": "stride",
    "strategy": "truncation_strategy",
}


def origin_of(
    method: Method,
    source: Encoder,
    lean: Encoder,
    *,
    depth: int | None = None,
    blocks: Sequence[int] | None = None,
    data: Any = None,
    seed: int | None = None,
    pieces: tuple[int, int] | None = None,
    long: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Origin:
    """Return how a model was made of another one; see `Origin`.

    Args:
        method: That made it.
        source: What it was made from.
        lean: What was made.
        depth: Of the full model; None for that of `source`.
        blocks: Of the full model that are kept; None for the first ones.
        data: The pairs that taught or chose it, as they were given (a `PairSplits` or `PairSet`).
        seed: That divided them.
        pieces: Word pieces kept and all of them.
        long: Tokens that 95 of 100 of the raw texts have at most.
        settings: Of the method.
    """
    return Origin(
        method=method,
        model=source.name,
        source_digest=encoder_digest(source),
        layer=lean.depth,
        depth=source.depth if depth is None else depth,
        blocks=None if blocks is None else tuple(blocks),
        parameters=lean.num_parameters,
        trained=source.trained if method in ("cut", "combine", "copy") else True,
        data="" if data is None else data.name,
        fingerprint="" if data is None else data.fingerprint(),
        seed=seed,
        pieces=pieces,
        long=long,
        settings=dict(settings or {}),
        versions=versions(),
    )


def save_encoder(
    encoder: Encoder,
    folder: Path,
    *,
    model_card: str | None = None,
    origin: Origin | None = None,
    records: Mapping[str, str] | None = None,
) -> Path:
    """Write `folder` (replaced as a whole, or left as it was on failure) and return it.

    `SentenceTransformer(folder)` and `AutoModel.from_pretrained(folder)` load it; no weight above the last layer is in
    it. Graphs that were exported from this very model stay in it.

    Args:
        encoder: The model to save.
        folder: Replaced as a whole, or left as it was on failure.
        model_card: Text of README.md.
        origin: How the model was made, for origin.json.
        records: Texts of further files by name, such as what the model was made from.

    Raises:
        ModelError: There is no tokenizer.
        FileProblemError: `folder` cannot be written.
    """
    folder = local_path(folder)
    with replacing(folder) as target:
        target.mkdir()
        _save_tokenizer(target, encoder)
        with quiet_transformers():
            encoder.backbone.save_pretrained(target)
        write_pipeline(target, encoder)
        write_seen(target, encoder.seen)
        texts = {} if model_card is None else {"README.md": model_card}
        texts |= {} if origin is None else {ORIGIN_FILE: origin.sealed_text()}
        for name, text in (texts | dict(records or {})).items():
            (target / name).write_text(text, encoding="utf-8")
        _keep_graphs(folder, target)
    return folder


def _keep_graphs(old: Path, new: Path) -> None:
    """Keep the graphs that were exported from the very model that is saved again, if they can be read."""
    try:
        if not (old / EXPORT_RECORD).is_file() or model_digests(old) != model_digests(new):
            return
        for file in old.iterdir():
            if _IS_OF_GRAPHS.fullmatch(file.name) and file.is_file():
                shutil.copy2(file, new / file.name)
    except (OSError, ValueError, LookupError, TruncateKitError):
        return
    load_by_any_runtime(new)


def _save_tokenizer(folder: Path, encoder: Encoder) -> None:
    """Write the files of the encoder's tokenizer: the same each time, also after reading them back."""
    tokenizer = encoder.reader.tokenizer
    tokenizer.model_max_length = encoder.max_length
    encoder.reader.token_ids(["a"])  # it writes down how it was called last
    cut = getattr(getattr(tokenizer, "backend_tokenizer", None), "truncation", None)
    if cut is not None:
        for name, setting in _READ_BACK.items():
            tokenizer.init_kwargs.setdefault(setting, cut[name])
    tokenizer.save_pretrained(folder)
