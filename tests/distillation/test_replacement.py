"""Words of the vocabulary in place of words of a text."""

import math

import numpy as np
import pytest

from truncate_kit.distillation.choosing import Distillation
from truncate_kit.distillation.replacement import FEWEST, WordReplacement, whole_words
from truncate_kit.distillation.settings import DistillSettings
from truncate_kit.distillation.texts import RawTexts, store_texts
from truncate_kit.encoders import load_encoder
from truncate_kit.errors import DataError, UsageError
from truncate_kit.progress import silent
from truncate_kit.runs.store import RunStore
from truncate_kit.training.distributed import ALONE

TEXTS = [f"number {one} comes before number {one + 1} and a {two}" for one in range(110) for two in ("cat", "dog")]


@pytest.fixture(scope="module")
def encoder():
    return load_encoder("mini-bert", max_length=32)


def test_whole_words_are_those_that_stand_alone_in_the_vocabulary(encoder):
    words = whole_words(encoder.tokenizer)
    vocabulary = set(encoder.tokenizer.get_vocab())
    assert words
    assert set(words) == {piece for piece in vocabulary if len(piece) >= 3 and piece.isalpha()}


def test_words_of_byte_pairs_stand_after_a_space():
    words = whole_words(load_encoder("mini-gpt2").tokenizer)
    assert len(words) > FEWEST
    assert all(word == word.strip() and word.isalpha() for word in words)


@pytest.mark.parametrize("share", [0.2, 1.0])
def test_every_second_text_has_its_share_of_other_words(encoder, share):
    replacement = WordReplacement(encoder.tokenizer, share, seed=3)
    found = list(replacement.of(TEXTS[:101])) + list(replacement.of(TEXTS[101:]))  # the count goes on
    assert found[::2] == TEXTS[::2]
    assert replacement.altered == len(TEXTS) // 2
    pairs = [
        (new, old)
        for some, given in zip(found[1::2], TEXTS[1::2], strict=True)
        for new, old in zip(some.split(), given.split(), strict=True)
    ]
    changed = np.mean([new != old for new, old in pairs])
    assert abs(changed - share) < 4 * math.sqrt(share * (1 - share) / len(pairs)) + 0.01  # a word may meet itself
    assert {new for new, old in pairs if new != old} <= set(whole_words(encoder.tokenizer))
    assert list(WordReplacement(encoder.tokenizer, share, seed=3).of(TEXTS)) == found
    assert list(WordReplacement(encoder.tokenizer, share, seed=4).of(TEXTS)) != found


def test_the_store_holds_what_was_replaced_and_says_how_many(encoder, tmp_path):
    plain = store_texts(encoder, RawTexts(texts=TEXTS), tmp_path / "plain")
    replacement = WordReplacement(encoder.tokenizer, 0.5, seed=0)
    store = store_texts(encoder, RawTexts(texts=TEXTS), tmp_path / "texts", replacement=replacement)
    assert plain.as_given().all()
    assert plain.counts.altered == 0
    assert store.counts.altered == len(TEXTS) // 2
    assert "in 110 of them words were replaced" in store.counts.sentence
    assert store.digest != plain.digest
    assert [place for place in range(len(store)) if not store.as_given()[place]] == list(range(1, len(TEXTS), 2))
    for place in range(0, len(TEXTS), 2):
        assert store.ids(place) == plain.ids(place)
    assert store.ids(1) == encoder.token_ids(store.read([1]))[0]


def test_what_is_held_out_stays_as_it_was_given(encoder, tmp_path):
    settings = DistillSettings(replace_words=0.5)
    replacement = WordReplacement(encoder.tokenizer, settings.replace_words, settings.seed)
    store = store_texts(encoder, RawTexts(texts=TEXTS), tmp_path / "texts", replacement=replacement)
    vectors = encoder.encode_ids([store.ids(place) for place in range(len(store))]).numpy().astype(np.float16)
    work = Distillation(
        encoder, encoder, store, vectors, settings, None, RunStore(tmp_path / "trials", "key", {}), ALONE, silent
    )
    held, learned = set(work._held_out.tolist()), set(work._learned_from.tolist())
    assert held
    assert not held & learned
    assert held | learned == set(range(len(store)))
    assert all(store.as_given()[place] for place in held)


def test_a_vocabulary_without_words_and_a_share_beyond_one(tiny_folder):
    with pytest.raises(DataError, match="whole words") as caught:
        WordReplacement(load_encoder(tiny_folder("bert")).tokenizer, 0.2, seed=0)
    assert "replace_words" in caught.value.hint
    with pytest.raises(UsageError):
        DistillSettings(replace_words=1.1)
