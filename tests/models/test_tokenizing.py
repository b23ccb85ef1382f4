"""Token ids equal those of tokenizer.json, also after saving, even if transformers' class gives others."""

import io
import json
import unicodedata
from pathlib import Path

import pytest
import sentencepiece as spm
import torch
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer
from transformers import AutoModel

from tests.support.families import TINY_CONFIGS
from tests.support.files import edit_json
from tests.support.shared import shared_part
from tests.support.word_pieces import KINDS, make_splitting, sentences
from truncate_kit.core.errors import ModelError
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.pipeline import save_encoder
from truncate_kit.models.store import encoder_digest
from truncate_kit.models.truncation import truncate

TEXTS = [
    *sentences(8, 3), "A man's 1,234 ﬁnches\u00a0sang  in 2026.", "NAÏVE naïve Ｆｕｌｌ ½ œuvre", "日本語 ſtraße ﷺ", "",
]  # fmt: skip


def own_ids(folder: Path, texts: list[str] = TEXTS, length: int = 36) -> list[list[int]]:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(length)
    return [encoding.ids for encoding in tokenizer.encode_batch(texts)]


def check(folder: Path, saved: Path) -> None:
    """Check that encoder, saved cut and sentence-transformers give the ids of the file."""
    encoder = load_encoder(folder, max_length=36)
    assert encoder.token_ids(TEXTS) == own_ids(folder)
    cut = truncate(encoder, 2)
    save_encoder(cut, saved)
    assert (saved / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
    again = load_encoder(saved)
    assert encoder_digest(again) == encoder_digest(cut)
    assert torch.equal(again.vectors(TEXTS), cut.vectors(TEXTS))
    if encoder.family.name == "qwen2":  # transformers 5 reads all of these by Qwen2Tokenizer, whatever a folder says
        return
    others = SentenceTransformer(str(saved), device="cpu")
    assert [others.tokenizer(text, truncation=True)["input_ids"] for text in TEXTS] == own_ids(folder)
    torch.testing.assert_close(others.encode(TEXTS, convert_to_tensor=True), cut.vectors(TEXTS), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("case", ["tokenizer-roberta-wordpiece", "tokenizer-deberta-v2-charsmap"])
def test_shared_cases(case, tmp_path):
    check(shared_part("cases") / case, tmp_path / "saved")


def more_rules(values: dict, _: Path) -> None:
    """Add a normaliser and a split by digits."""
    added = {"type": "NFKC"}, {"type": "Digits", "individual_digits": True}
    parts = ("normalizer", "normalizers"), ("pre_tokenizer", "pretokenizers")
    for (part, members), one in zip(parts, added, strict=True):
        values[part] = {"type": "Sequence", members: [one, *([values[part]] if values[part] else [])]}


def other_model(values: dict, place: Path) -> None:
    """Replace the file by one of another kind."""
    kind = "bert" if values["model"]["type"] != "WordPiece" else "xlm-roberta"
    values |= json.loads((make_splitting(kind, place) / "tokenizer.json").read_text())


@pytest.mark.parametrize("change", [more_rules, other_model])
@pytest.mark.parametrize("family", sorted(KINDS))
def test_a_file_that_the_class_would_rebuild(family, change, tmp_path):
    folder = make_splitting(family, tmp_path / "model")
    values = json.loads((folder / "tokenizer.json").read_text())
    change(values, tmp_path / "other")
    larger = AutoModel.from_pretrained(folder)  # room for the entries of either
    larger.resize_token_embeddings(700)
    larger.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(values))
    check(folder, tmp_path / "saved")


def test_a_class_in_python_gives_way_to_the_file(tmp_path):
    """PhoBERT has both: transformers' class reads bpe.codes, all other runtimes tokenizer.json."""
    folder = make_splitting("roberta", tmp_path / "model")
    (folder / "vocab.txt").write_text("ab@@ 1\nc 1\n")
    (folder / "bpe.codes").write_text("a b 1\n")
    edit_json(folder / "tokenizer_config.json", tokenizer_class="PhobertTokenizer")
    check(folder, tmp_path / "saved")


UNIGRAM = {"vocab_size": 140, "model_type": "unigram"}
BPE = {
    "vocab_size": 420, "model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
}  # fmt: skip
DEBERTA = {
    "pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3, "pad_piece": "[PAD]", "bos_piece": "[CLS]",
    "eos_piece": "[SEP]", "unk_piece": "[UNK]",
}  # fmt: skip
ALBERT = {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1, "control_symbols": "[CLS],[SEP],[MASK]"}
AS_IT_IS = {
    "vocab_size": 420, "byte_fallback": True, "add_dummy_prefix": False, "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
}  # fmt: skip
PIECES: dict[str, tuple[str, dict, int, int, int, int]] = {
    # File, training options, shift of piece ids, and the ids of the unknown, first and last token.
    "deberta-v3": ("spm.model", UNIGRAM | DEBERTA, 0, 3, 1, 2),
    "deberta-v3 as-it-is": ("spm.model", UNIGRAM | DEBERTA | AS_IT_IS, 0, 3, 1, 2),
    "xlm-roberta": ("sentencepiece.bpe.model", UNIGRAM, 1, 3, 0, 2),
    "camembert": ("sentencepiece.bpe.model", UNIGRAM, 4, 3, 5, 6),
    "albert": ("spiece.model", UNIGRAM | ALBERT, 0, 1, 2, 3),
    "llama": ("tokenizer.model", BPE, 0, 0, 1, 0),
    "mistral": ("tokenizer.model", BPE, 0, 0, 1, 0),
}


def without_accents(text: str) -> str:
    """Return the text as ALBERT normalizes it before sentencepiece."""
    return "".join(one for one in unicodedata.normalize("NFKD", text) if not unicodedata.combining(one)).lower()


@pytest.mark.parametrize("name", PIECES)
def test_folders_with_a_sentencepiece_model_alone(name, tmp_path):
    """The ids are sentencepiece's own, shifted as in each family, between its special tokens."""
    file, model, moved, unknown, first, last = PIECES[name]
    folder, written = tmp_path / "model", io.BytesIO()
    texts = [*TEXTS[:-4], "ﬁne\u00a0ﬂow  1,234 ½ ☃", "CAPS  naïve", " a", ""]
    learned = iter([*sentences(400, 0), *texts])
    spm.SentencePieceTrainer.train(sentence_iterator=learned, model_writer=written, minloglevel=2, **model)
    config = TINY_CONFIGS[name.partition(" ")[0]]
    backbone = AutoModel.from_config(type(config)(**config.to_dict() | {"vocab_size": 500}))
    backbone.save_pretrained(folder)
    (folder / file).write_bytes(written.getvalue())
    peer, encoder = spm.SentencePieceProcessor(model_proto=written.getvalue()), load_encoder(folder, max_length=36)
    plain = without_accents if name == "albert" else str
    ids = [[unknown if peer.is_unknown(one) else one + moved for one in peer.encode(plain(text))] for text in texts]
    expected = [[first, *row, *[last] * (last > 0)] for row in ids]
    cut = [[*row[: 36 - (last > 0)], *row[len(row) - (last > 0) :]] if len(row) > 36 else row for row in expected]
    assert encoder.token_ids(texts) == cut
    saved = save_encoder(encoder, tmp_path / "saved")
    assert encoder_digest(load_encoder(saved)) == encoder_digest(encoder)
    others = SentenceTransformer(str(saved), device="cpu").tokenizer
    assert [others(text, truncation=True)["input_ids"] for text in texts] == encoder.token_ids(texts)


@pytest.mark.parametrize(
    ("family", "file"), [("albert", "vocab.txt"), ("bert", "spiece.model"), ("llama", "spm.model")]
)
def test_a_vocabulary_of_another_class_is_refused(family, file, tmp_path):
    """transformers 5 then makes a tokenizer of special tokens, by which all texts of a length are equal."""
    AutoModel.from_config(TINY_CONFIGS[family]).save_pretrained(tmp_path)
    options = {"sentence_iterator": iter(sentences(400, 0)), "model_prefix": tmp_path / "m", "minloglevel": 2}
    spm.SentencePieceTrainer.train(**options, **UNIGRAM)
    (tmp_path / f"m.{file.rpartition('.')[2].replace('txt', 'vocab')}").rename(tmp_path / file)
    with pytest.raises(ModelError, match=r"reads no vocabulary|does not read the kind|cannot be read"):
        load_encoder(tmp_path)


def test_deberta_v3_as_it_is_published():
    """Ids, also of the mask that spm.model lacks, equal those of the same model's tokenizer.json."""
    cases = shared_part("cases")
    texts = [*TEXTS, "a [MASK] b", "Ｆｕｌｌ ﬁ\u00a0x"]
    expected = own_ids(cases / "tokenizer-deberta-v2-charsmap", texts, 512)
    assert load_encoder(cases / "deberta-v3-spm-only").token_ids(texts) == expected
