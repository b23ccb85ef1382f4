"""An encoder as an ordinary sentence-transformers folder that loads without this package."""

from pathlib import Path

from truncate_kit.encoders.encoder import Encoder
from truncate_kit.encoders.pipeline import write_pipeline
from truncate_kit.encoders.quiet import quiet_transformers
from truncate_kit.errors import ModelError
from truncate_kit.files import replacing


def save_encoder(encoder: Encoder, folder: Path, *, model_card: str | None = None) -> Path:
    """Write `folder` (replaced as a whole, or left as it was on failure) and return it.

    `SentenceTransformer(folder)` and `AutoModel.from_pretrained(folder)` load it; no weight above the last layer is in
    it. model_card: text of README.md. Raises `ModelError` without a tokenizer, `CannotWriteError`.
    """
    if encoder.tokenizer is None:
        raise ModelError(f"{encoder.name} has no tokenizer to save.", hint="Use a model folder that has one.")
    folder = Path(folder)
    with replacing(folder) as target:
        target.mkdir()
        with quiet_transformers():
            encoder.backbone.save_pretrained(target)
        encoder.tokenizer.model_max_length = encoder.max_length
        encoder.tokenizer.save_pretrained(target)
        write_pipeline(
            target,
            pooling=encoder.pooling,
            width=encoder.width,
            tail=encoder.tail,
            max_length=encoder.max_length,
            lower_case=encoder.lower_case,
            settings=encoder.settings,
            depth=encoder.depth,
            combination=encoder.combination,
            pooler=encoder.pooler,
            heads=encoder.heads,
        )
        if model_card is not None:
            (target / "README.md").write_text(model_card, encoding="utf-8")
    return folder
