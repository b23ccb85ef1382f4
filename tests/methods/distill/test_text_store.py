"""Texts to learn from: each once, none of the evaluation's, ids as the encoder gives them; and vectors of them."""

import json
import shutil

import numpy as np
import pytest
import torch

from tests.support.families import WORDS
from truncate_kit.core.errors import DataError
from truncate_kit.methods.distill import learning
from truncate_kit.methods.distill.learning import RawTexts, TextStore, add_vectors, fastest, store_texts
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.truncation import truncate

TEXTS = [f"{one} {other} {third}" for one in WORDS for other in WORDS for third in ("", "mat")]
QUERIES = [f"{one} sat on {other}" for one in WORDS for other in WORDS[:4]]


def texts_of(store):
    return [json.loads(line)["text"] for line in store.file.read_text().splitlines()]


def test_each_text_once_and_in_order(encoder, tmp_path):
    store = store_texts(encoder, RawTexts(texts=[*TEXTS, *TEXTS[:7]]), tmp_path / "texts")
    assert texts_of(store) == TEXTS
    assert (store.counts["num_texts"], store.counts["repeated"]) == (len(TEXTS), 7)
    ids = encoder.token_ids(TEXTS)
    assert [store.ids(place) for place in range(len(store))] == ids
    assert store.lengths().tolist() == [len(row) for row in ids]
    assert store.counts["tokens"] == sum(map(len, ids))
    assert TextStore(tmp_path / "texts").digest == store.digest
    assert store_texts(encoder, RawTexts(texts=TEXTS[1:]), tmp_path / "others").digest != store.digest


def test_sentences_of_evaluation_sets_are_left_out_and_counted(encoder, tmp_path):
    store = store_texts(encoder, RawTexts(texts=TEXTS, exclude=["The  CAT mat!", "no such text"]), tmp_path / "texts")
    assert store.counts["excluded"] == 1
    assert texts_of(store) == [text for text in TEXTS if text != "the cat mat"]
    twice = RawTexts(texts=["the cat mat", *TEXTS], exclude=["the cat mat"])
    assert store_texts(encoder, twice, tmp_path / "others").counts["excluded"] == 2
    assert store.counts["compared"] == 2


def test_queries_come_first_with_their_own_prompt(encoder, tmp_path):
    encoder.settings = {"prompts": {"query": "a red cat ", "passage": "a tree "}, "default_prompt_name": "query"}
    store = store_texts(encoder, RawTexts(texts=iter(TEXTS), queries=QUERIES), tmp_path / "texts", limit=150)
    assert texts_of(store) == [*QUERIES, *TEXTS[:150]]  # the limit is of texts, and all queries are read
    assert (store.counts["num_queries"], store.counts["num_texts"]) == (len(QUERIES), 150 + len(QUERIES))
    assert store.ids(0) == encoder.token_ids([f"a red cat {QUERIES[0]}"], prompt=False)[0]
    assert store.ids(len(QUERIES)) == encoder.token_ids([f"a tree {TEXTS[0]}"], prompt=False)[0]


@pytest.mark.parametrize(
    ("raw", "limit", "said"),
    [
        ({"texts": TEXTS[:3]}, 150, "Only 3 distinct texts"),
        ({"texts": TEXTS}, 150, "Only 150 distinct texts"),
        ({"texts": TEXTS, "exclude": TEXTS[1:]}, None, f"Only 1 distinct text .* 0 queries .* {len(TEXTS) - 1} texts"),
        ({"texts": TEXTS[:5], "queries": TEXTS}, None, f"Only 0 distinct texts and {len(TEXTS)} queries"),
    ],
)
def test_too_few_texts_are_refused(encoder, tmp_path, raw, limit, said):
    with pytest.raises(DataError, match=said):
        store_texts(encoder, RawTexts(**raw), tmp_path / "distillation/few", limit=limit)
    assert not (tmp_path / "distillation").exists()


def test_texts_beyond_the_models_length_are_counted(encoder, tmp_path):
    whole = [len(row) for row in encoder.token_ids(TEXTS)]
    encoder.max_length = sorted(set(whole))[-2]
    store = store_texts(encoder, RawTexts(texts=TEXTS), tmp_path / "texts")
    assert (encoder.max_length, max(store.lengths())) == (sorted(set(whole))[-2],) * 2
    assert store.counts["cut"] == whole.count(max(whole)) < sum(length >= encoder.max_length for length in whole)


@pytest.fixture(scope="module")
def vectors(tiny_folder, tmp_path_factory):
    """Return an encoder and a store with its vectors, in chunks of 100."""
    made, encoder = tmp_path_factory.mktemp("vectors"), load_encoder(tiny_folder("bert"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learning, "CHUNK", 100)
        store = store_texts(encoder, RawTexts(texts=TEXTS), made / "texts")
        add_vectors(encoder, store)
        yield encoder, store


def test_vectors_are_those_of_the_encoder_and_survive_damage(vectors, tmp_path):
    encoder, store = vectors
    torch.testing.assert_close(store.vectors_at([*range(len(TEXTS))]), encoder.vectors(TEXTS), atol=2e-3, rtol=2e-3)
    copied = shutil.copytree(store.folder.parent, tmp_path / "copied")
    damaged, seen = TextStore(copied / "texts"), []
    raw = bytearray((damaged.vectors_folder / "vectors.bin").read_bytes())
    raw[40] ^= 0xFF
    (damaged.vectors_folder / "vectors.bin").write_bytes(raw)
    for steps in ([len(TEXTS)], []):  # the damaged chunk; then nothing is missing
        add_vectors(encoder, damaged, progress=lambda *step: seen.append(step[1]))
        assert seen == steps
        seen.clear()
    assert np.array_equal(damaged.vectors, store.vectors)
    assert fastest(encoder, damaged.vectors_folder / "full").threads == torch.get_num_threads()
    other = fastest(truncate(encoder, 1), damaged.vectors_folder / "full")  # whose graph is there is known
    torch.testing.assert_close(other.vectors(TEXTS[:3]), truncate(encoder, 1).vectors(TEXTS[:3]))


def test_workers_give_the_same_vectors(vectors, tmp_path, two_processes):
    encoder, store = vectors
    shutil.copytree(store.folder.parent, tmp_path / "there", ignore=shutil.ignore_patterns("vectors.*"))
    there = TextStore(tmp_path / "there/texts")  # with the graph
    add_vectors(encoder, there, engine=two_processes)
    assert np.array_equal(store.vectors, there.vectors)
    narrow = TextStore(there.folder, "bf16")
    add_vectors(encoder, narrow, engine=two_processes)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(narrow.vectors_at([*range(len(TEXTS))]), encoder.vectors(TEXTS), atol=2e-2, rtol=0)
    assert not np.array_equal(store.vectors, narrow.vectors)
