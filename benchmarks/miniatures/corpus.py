"""Raw text for pretraining: files to token ids, with a vocabulary learned from the same text."""

import hashlib
import lzma
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
FEWEST_TOKENS = 3  # beside the special ones: a shorter line has nothing to predict a word from


def read_lines(paths: Iterable[Path]) -> list[str]:
    """Read all distinct lines of plain or xz-packed UTF-8 files, in their order."""
    lines: dict[str, None] = {}
    for path in paths:
        with lzma.open(path, "rt", encoding="utf-8") if path.suffix == ".xz" else path.open(encoding="utf-8") as file:
            lines.update(dict.fromkeys(line.strip() for line in file))
    lines.pop("", None)
    return list(lines)


def digest(lines: Iterable[str]) -> str:
    """Return the SHA-256 of the lines."""
    found = hashlib.sha256()
    for line in lines:
        found.update(line.encode() + b"\n")
    return found.hexdigest()


def learn_vocabulary(lines: Sequence[str], size: int, max_length: int) -> PreTrainedTokenizerFast:
    """Learn a lower-cased WordPiece vocabulary (Devlin et al. 2019) of `size` pieces."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=list(SPECIAL), show_progress=False)
    tokenizer.train_from_iterator(lines, trainer, length=len(lines))
    ends = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=max_length,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )


def pieces(
    tokenizer: PreTrainedTokenizerFast, lines: Sequence[str], max_length: int, *, packed: bool
) -> list[list[int]]:
    """Return token ids between [CLS] and [SEP], at most `max_length` each.

    packed: lines one after another, [SEP] between them, in pieces of exactly `max_length` (the last one is dropped):
    all batches of one shape and none with padding, as a compiled model on a GPU wants them.
    """
    first, last = tokenizer.cls_token_id, tokenizer.sep_token_id
    room = max_length - 2
    found: list[list[int]] = []
    rest: list[int] = []
    for start in range(0, len(lines), 10_000):
        part = list(lines[start : start + 10_000])
        for ids in tokenizer(part, add_special_tokens=False, verbose=False)["input_ids"]:
            if len(ids) < FEWEST_TOKENS:
                continue
            if packed:
                rest += [*ids, last]
                while len(rest) >= room:
                    found.append([first, *rest[:room], last])
                    rest = rest[room:]
            else:
                cut = [ids[at : at + room] for at in range(0, len(ids), room)]
                found += [[first, *some, last] for some in cut if len(some) >= FEWEST_TOKENS]
    return found
