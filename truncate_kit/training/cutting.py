"""Cut models without training."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from truncate_kit.core.files import local_path
from truncate_kit.core.results import Result
from truncate_kit.core.workspace import RESULT_FILES, VocabularyCut

if TYPE_CHECKING:
    from truncate_kit.models.encoder import Encoder


class CutResult(Result):
    """Sizes of a model before and after a cut."""

    model: str
    layer: int  # number of kept blocks
    depth: int  # blocks of the full model
    parameters: int  # of the cut model, pooler excluded
    full_parameters: int  # of the full model, pooler excluded
    vocabulary: VocabularyCut | None = None
    blocks: tuple[int, ...] | None = None  # by default the first `layer` blocks


def cut_vocabulary(encoder: "Encoder", texts: Sequence[str]) -> tuple["Encoder", VocabularyCut]:
    """Copy an encoder with only the word pieces of distinct texts; measure coverage on every tenth text.

    Raises `ModelError` if the vocabulary cannot be cut.
    """
    from truncate_kit.models.truncation import keep_words, kept_pieces, piece_ids

    kept, ids = keep_words(encoder, texts), piece_ids(encoder, texts)
    special = set(encoder.reader.tokenizer.all_special_ids)
    held_out = [[piece for piece in row if piece not in special] for row in ids[9::10]]
    others = (row for place, row in enumerate(ids) if place % 10 != 9)
    known = set(kept_pieces(encoder, set().union(*others))) if held_out else set()
    total = sum(map(len, held_out))
    return kept, VocabularyCut(
        texts=len(texts),
        pieces=int(kept.backbone.config.vocab_size),
        full_pieces=len(encoder.reader.tokenizer),
        model_bytes=4 * kept.num_parameters,
        full_model_bytes=4 * encoder.num_parameters,
        held_out=len(held_out),
        covered_pieces=sum(piece in known for row in held_out for piece in row) / total if total else None,
        covered_texts=sum(known.issuperset(row) for row in held_out) / len(held_out) if held_out else None,
    )


def cut(
    encoder: "Encoder", kept: int | Sequence[int] | None, *, out: Path, texts: Sequence[str] | None = None
) -> CutResult:
    """Save `encoder` with fewer layers, blocks or word pieces as `out`/lean, with a model card.

    Args:
        encoder: The full model.
        kept: The last layer, or the blocks to keep (`keep`); by default all.
        out: Output folder.
        texts: If given, keep only their word pieces.

    Raises:
        LayerOutOfRangeError: A layer does not exist.
        LayerNotHeldError: The cut model could not be reloaded exactly.
        FileProblemError: `out` is locked or unwritable.
        ModelError: Blocks are not in order, or the vocabulary cannot be cut.
        UsageError: `encoder` comes from `out`/lean.
    """
    from truncate_kit.models.pipeline import save_encoder
    from truncate_kit.models.store import origin_of, output_folder
    from truncate_kit.models.truncation import keep, truncate

    out, lean, blocks, vocabulary = local_path(out), encoder, None, None
    if isinstance(kept, int):
        lean = truncate(encoder, kept)
    elif kept is not None:
        lean, blocks = keep(encoder, kept), tuple(kept)
    if texts is not None:
        lean, vocabulary = cut_vocabulary(lean, texts)
    result = CutResult(
        model=encoder.name,
        layer=lean.depth,
        depth=encoder.depth,
        parameters=lean.num_parameters,
        full_parameters=encoder.num_parameters,
        vocabulary=vocabulary,
        blocks=blocks,
    )
    with output_folder(out, encoder, "lean"):
        pieces = None if vocabulary is None else (vocabulary.pieces, vocabulary.full_pieces)
        origin = origin_of("cut", encoder, lean, blocks=blocks, pieces=pieces)
        records = {Path(RESULT_FILES["cut"]).name: result.sealed_text()}
        save_encoder(lean, out / "lean", model_card=result.card(lean, origin), origin=origin, records=records)
    return result
