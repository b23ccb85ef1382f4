"""Fewer word pieces: texts without a dropped one keep their ids, renamed, and their vectors; others stay readable."""

import random

import pytest
import torch
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import AutoModel, AutoTokenizer, BertJapaneseTokenizer, PreTrainedTokenizerFast

from tests.support.families import SPECIAL
from tests.support.word_pieces import KINDS, make_splitting, sentences
from truncate_kit.core.errors import ModelError
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.pipeline import save_encoder
from truncate_kit.models.store import encoder_digest
from truncate_kit.models.truncation import keep_words, kept_pieces, piece_ids

TEXTS = sentences(12, 1)
ODD = ["ƿ ☃ emoji 🙂", "x" * 120, "", "<added> <mask> [UNK] <unk>", "CAPSCAPS ka", "\t日本\u3000語 naïveß"]


@pytest.fixture(scope="session", params=sorted(KINDS))
def splitting(request, tmp_path_factory):
    return load_encoder(make_splitting(request.param, tmp_path_factory.mktemp(request.param) / "model"))


def contents(encoder, row):
    """Return the text that the pieces spell, without continuation marks."""
    tokens = encoder.tokenizer.convert_ids_to_tokens(row)
    return "".join(token.removeprefix("##") if len(token) > 2 else token for token in tokens)


def check(before, after, texts):
    """Texts of kept pieces have the same ids, renumbered; other texts get kept pieces that spell the same."""
    pieces = kept_pieces(before, set().union(*piece_ids(before, TEXTS)))
    new = {piece: place for place, piece in enumerate(pieces)}
    unknown = before.tokenizer.unk_token_id
    same = []
    for text, old_row, row in zip(texts, piece_ids(before, texts), piece_ids(after, texts), strict=True):
        if new.keys() >= set(old_row):
            assert row == [new[piece] for piece in old_row], text
            same.append(text)
        else:
            assert contents(before, old_row) == contents(after, row), text
            assert unknown is None or old_row.count(unknown) == row.count(new[unknown]), text
    return same


def test_texts_keep_their_vectors_bitwise_also_after_saving(splitting, tmp_path):
    after = keep_words(splitting, TEXTS)
    config = after.backbone.config
    assert len(after.tokenizer) == config.vocab_size == len(after.backbone.get_input_embeddings().weight)
    assert config.vocab_size < 0.9 * len(splitting.tokenizer)
    assert after.num_parameters < splitting.num_parameters
    folder = save_encoder(after, tmp_path / "cut")
    loaded = load_encoder(folder)
    assert encoder_digest(loaded) == encoder_digest(after)
    texts = TEXTS + check(splitting, after, ODD)
    assert "<added> <mask> [UNK] <unk>" in texts
    for fewer in (after, loaded):
        assert torch.equal(fewer.vectors(texts), splitting.vectors(texts))
    others = SentenceTransformer(str(folder), device="cpu").encode(TEXTS, convert_to_tensor=True)
    torch.testing.assert_close(others, splitting.vectors(TEXTS), atol=1e-5, rtol=1e-4)
    batch = AutoTokenizer.from_pretrained(folder)(TEXTS, return_tensors="pt", padding=True, truncation=True)
    batch = {name: batch[name] for name in ("input_ids", "attention_mask")}
    states = AutoModel.from_pretrained(folder).eval()(**batch).last_hidden_state
    mask = batch["attention_mask"][..., None]
    torch.testing.assert_close((states * mask).sum(1) / mask.sum(1), others, atol=1e-5, rtol=1e-4)


def test_random_texts_of_kept_pieces_and_others(splitting):
    after, draw = keep_words(splitting, TEXTS), random.Random(2)
    for tokenizer in (after.tokenizer, splitting.tokenizer):
        pieces, special = sorted(tokenizer.get_vocab()), set(tokenizer.all_special_tokens)
        bare = [piece.removeprefix("##") for piece in pieces if piece not in special]
        words = [tokenizer.convert_tokens_to_string([piece]) for piece in bare]
        texts = ["".join(draw.choice(words) + draw.choice(["", " "]) for _ in range(1 + n % 5)) for n in range(400)]
        same = check(splitting, after, [*texts, *sentences(50, 3), *ODD])
        assert 20 < len(same) < 440


def test_settings_follow_the_ids(splitting):
    after = keep_words(splitting, TEXTS[:1])
    for name in ("pad", "cls", "sep", "mask", "unk", "eos", "bos"):
        token = getattr(splitting.tokenizer, f"{name}_token")
        assert getattr(after.tokenizer, f"{name}_token") == token
        if token is not None:
            assert after.tokenizer.convert_tokens_to_ids(token) == getattr(after.tokenizer, f"{name}_token_id")
    assert after.backbone.config.pad_token_id == after.tokenizer.pad_token_id == 1
    assert sorted(after.tokenizer.get_vocab().values()) == list(range(len(after.tokenizer)))


def test_the_prompts_of_a_model_are_kept(tmp_path):
    encoder = load_encoder(make_splitting("bert", tmp_path))
    encoder.settings = {"prompts": {"query": "shiru", "passage": ""}, "default_prompt_name": None}
    ids = piece_ids(encoder, ["shiru"])[0]
    assert set(ids) <= set(kept_pieces(encoder, ()))
    encoder.settings = {}
    assert not set(ids) <= set(kept_pieces(encoder, ()))


def test_words_that_could_become_unknown_are_refused(tmp_path):
    pieces = ["<unk>", "a", "##a", "b", "##b", "ab", "##bz", "[", "[x]"]
    model = models.WordPiece({piece: place for place, piece in enumerate(pieces)}, unk_token="<unk>")
    encoder = load_encoder(make_splitting("albert", tmp_path))
    encoder.tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(model), unk_token="<unk>", pad_token="<unk>", model_max_length=36
    )
    assert encoder.token_ids(["abz", "aabz"]) == [[0], [1, 2, 6]]  # without "ab", abz would be a and ##bz
    with pytest.raises(ModelError, match=r"##bz contains z"):
        keep_words(encoder, ["aabz"])
    encoder.tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    encoder.tokenizer.backend_tokenizer.normalizer = normalizers.Replace("z", "b")
    assert len(keep_words(encoder, ["a"]).tokenizer) == 6  # no text has ##bz or [x]


def test_tokenizers_that_cannot_be_cut_are_refused(encoder, tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL, "猫"]) + "\n")
    with pytest.raises(ModelError, match="WordLevel"):
        keep_words(encoder, ["the cat"])
    encoder.tokenizer = BertJapaneseTokenizer(tmp_path / "vocab.txt", word_tokenizer_type="basic")
    with pytest.raises(ModelError, match="not a fast one"):
        keep_words(encoder, ["猫"])
