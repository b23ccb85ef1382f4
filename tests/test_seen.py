"""What a model has seen: keys of pairs in its folder, and scores on what is left."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.files import pairs_file, words_folder
from tests.support.pairs import WORDS, make_pairs
from tests.support.retrieval import retrieval_folder
from tests.support.training import swept
from truncate_kit.core.errors import DataError
from truncate_kit.core.workspace import Workspace
from truncate_kit.data.pairs import PairSplits, TextPair, load_pairs, split_pairs
from truncate_kit.data.retrieval import read_retrieval, with_queries
from truncate_kit.data.seen import (
    NO_KEYS,
    keys_of,
    pair_key,
    pair_keys,
    seen_among,
    seen_by,
    unseen,
    unseen_queries,
    write_seen,
)
from truncate_kit.export.exporting import export_onnx
from truncate_kit.methods.distill.distilling import distill
from truncate_kit.methods.distill.learning import RawTexts
from truncate_kit.methods.distill.settings import Budget, DistillSettings
from truncate_kit.methods.priors import WordPrior
from truncate_kit.models.loading import load_encoder
from truncate_kit.training.cutting import cut
from truncate_kit.training.queries import choosing_queries
from truncate_kit.training.settings import TrainingSettings, word_training

PAIRS = make_pairs(30)
ONCE = TrainingSettings(epochs=1)


def trained(folder: Path, model: Path, data: PairSplits, seed: int = 0, **more) -> Workspace:
    """A workspace in which a model was trained on `data`."""
    swept(load_encoder(model), folder, data, ONCE, layers="1", seeds=(seed,), **more)
    return Workspace(folder)


def distil(model, out, data):
    """A student of a model, its blocks and epochs chosen by pairs."""
    texts = RawTexts(texts=[f"{one} {two} {three}" for one in WORDS for two in WORDS for three in WORDS[:4]])
    settings = DistillSettings(epochs=1)
    distill(load_encoder(model), texts, out=out, budget=Budget(blocks=2), data=data, settings=settings)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """One file, not divided."""
    file = pairs_file(tmp_path_factory.mktemp("data") / "pairs.csv", "score", (0, 1, 2, 3, 4, 5))
    return load_pairs(file, divide=False)


@pytest.fixture(scope="module")
def divided(whole):
    return split_pairs(whole.train)


@pytest.fixture(scope="module")
def workspace(divided, tiny_folder, tmp_path_factory):
    return trained(tmp_path_factory.mktemp("work"), tiny_folder("bert"), divided)


def texts(pairs):
    return frozenset(frozenset((pair.first, pair.second)) for pair in pairs)


def of_pairs(whole, pairs):
    return replace(whole, train=replace(whole.train, pairs=tuple(pairs)))


def test_a_key_is_of_both_texts_whatever_their_sides_and_score():
    assert pair_key("a b", "c") == pair_key("c", "a b")
    assert len({pair_key(*texts) for texts in (("a b", "c"), ("a", "b c"), ("a", "b"), ("A", "b"), ("a ", "b"))}) == 5
    swapped = [TextPair(pair.second, pair.first, 1.0) for pair in PAIRS]
    assert (pair_keys(swapped) == pair_keys(PAIRS)).all()


def test_a_note_takes_eight_bytes_a_pair_and_damage_says_nothing(tmp_path):
    keys = keys_of(PAIRS, PAIRS, [TextPair("x", "y", 1.0)])
    assert (keys == np.unique([*pair_keys(PAIRS), pair_key("x", "y")])).all()
    write_seen(tmp_path, NO_KEYS)
    assert len(seen_by(tmp_path)) == 0
    write_seen(tmp_path, keys)
    assert (seen_by(tmp_path) == keys).all()
    note = tmp_path / "seen.pairs"
    head, rest = note.read_bytes().split(b"\n", 1)
    assert len(rest) == 8 * len(keys)
    for damaged in (head + b"\n" + rest[:-8], head + b"\n" + rest[:-3], b"", rest):
        note.write_bytes(damaged)
        assert len(seen_by(tmp_path)) == 0


def test_a_set_that_was_divided_is_scored_on_its_test_part(workspace, whole, divided, tmp_path):
    copy = shutil.copytree(workspace.lean, tmp_path / "copy")
    for model in (workspace.lean, workspace.full, workspace.lean / "config.json", copy):
        found = unseen(whole, model)
        assert found.test.pairs == divided.test.pairs
        assert "was split into" in found.notes[-1]
        assert found.notes[-1].endswith("only test is scored.")
    assert unseen(divided, workspace.lean) is divided


@pytest.mark.parametrize("model", ["mini-bert", "nowhere/x"])
def test_a_folder_without_a_note_claims_nothing(model, whole):
    assert unseen(whole, model) is whole
    assert len(seen_by(model)) == 0
    assert seen_among(whole.train, model) is None


def test_other_pairs_stay(workspace, whole):
    other = replace(whole, train=make_pairs(40))
    assert unseen(other, workspace.lean) is other
    few = of_pairs(whole, whole.train.pairs[:3])
    with pytest.raises(DataError, match="3 of 3 pairs"):  # too few to be divided, but they were learned from
        unseen(few, workspace.lean)


def test_a_file_that_changed_is_known_pair_by_pair(workspace, whole, divided):
    """With its rows in another order, one more, sides exchanged or other scores: most of it was trained on."""
    every, new = whole.train.pairs, TextPair("a new text", "another one", 3.0)
    changed = {
        "sorted": sorted(every, key=lambda pair: (pair.target, pair.first)),
        "one more": (*every, new),
        "sides": [TextPair(pair.second, pair.first, pair.target) for pair in every],
        "scores": [replace(pair, target=5 - pair.target) for pair in every],
    }
    for name, pairs in changed.items():
        found = unseen(of_pairs(whole, pairs), workspace.lean)
        expected = texts(divided.test) | ({frozenset((new.first, new.second))} if name == "one more" else set())
        assert texts(found.evaluation) == expected, name
    more = [replace(new, first=f"a new text {number}") for number in range(30)]  # some of which train would get
    found, known = unseen(of_pairs(whole, (*every, *more)), workspace.lean), len(every) - len(divided.test)
    assert texts(found.evaluation) == texts(divided.test) | texts(more)
    assert f"{known} of {len(every) + 30} pairs" in found.notes[-1]
    with pytest.raises(DataError, match="That leaves 2 pairs"):
        unseen(of_pairs(whole, (*divided.train.pairs[:40], new, replace(new, first="b"))), workspace.lean)


@pytest.fixture
def sets():
    """Two sets of pairs without a text in common, each divided."""
    pairs = [replace(pair, target=float(place % 6)) for place, pair in enumerate(make_pairs(120).pairs)]
    others = [replace(pair, first=f"{pair.first} 2", second=f"{pair.second} 2") for pair in pairs[60:]]
    named = {"a": pairs[:60], "b": others}
    return [split_pairs(replace(make_pairs(60), name=name, pairs=tuple(one))) for name, one in named.items()]


def known_of(model, *sets):
    """How many pairs of train and dev of each set a model has seen, by its own folder."""
    return [int(np.isin(keys_of(one.train, one.dev), seen_by(model)).sum()) for one in sets]


def test_what_a_model_has_seen_goes_where_it_goes(sets, tiny_folder, tmp_path):
    """Into cuts, copies, students, models trained further, and from teachers and priors."""
    first, second = sets
    number = [len(keys_of(one.train, one.dev)) for one in sets]
    source = trained(tmp_path / "source", tiny_folder("bert"), first)
    assert known_of(source.lean, *sets) == known_of(source.full, *sets) == [number[0], 0]
    cut(load_encoder(source.lean), 0, out=tmp_path / "cut")
    export_onnx(load_encoder(source.lean), tmp_path / "served")
    distil(source.full, tmp_path / "taught", second)
    for model in (tmp_path / "cut/lean", tmp_path / "served", tmp_path / "served/onnx/model.onnx"):
        assert sorted(seen_by(model)) == sorted(keys_of(first.train, first.dev))
    assert known_of(tmp_path / "taught/lean", *sets) == [number[0], len(keys_of(second.dev))]
    again = trained(tmp_path / "again", source.lean, second)
    assert known_of(again.lean, *sets) == known_of(again.full, *sets) == number
    words, model = load_pairs(words_folder(tmp_path / "words")), load_encoder(tiny_folder("bert"))
    prior = WordPrior(model, words, replace(word_training(), epochs=1))
    before = {"teacher": load_encoder(source.lean), "prior": prior}
    learner = trained(tmp_path / "learner", tiny_folder("bert"), second, **before)
    drawn = split_pairs(words.train, 0, words.shares)
    for folder in (learner.lean, learner.full):
        assert known_of(folder, *sets, drawn) == [*number, len(keys_of(drawn.train, drawn.dev))]


def test_queries_that_chose_are_known_again(divided, tiny_folder, tmp_path):
    searched = read_retrieval(retrieval_folder(tmp_path / "search"), metric="mrr")
    twice = {"query_ids": searched.query_ids * 2, "relevance": searched.relevance * 2}
    asked = replace(searched, queries=(*searched.queries, *(f"{text} 2" for text in searched.queries)), **twice)
    work = trained(tmp_path / "work", tiny_folder("bert"), divided, retrieval=asked)
    chose, elsewhere = {*choosing_queries(asked)}, replace(asked, name="a copy", queries=asked.queries[::-1])
    for model in (work.lean, work.full):
        for data in (asked, elsewhere, searched):
            number = sum(query in chose for query in data.queries)
            part = f"trained or selected on {number} of {len(data.queries)} queries"
            assert part in seen_among(data, model)
            left, said = unseen_queries(data, model)
            assert left.queries == tuple(query for query in data.queries if query not in chose)
            assert f"{number} of {len(data.queries)} queries of {data.name}" in said
    assert unseen_queries(asked, work.lean, work.full)[0].queries == unseen_queries(asked, work.lean)[0].queries
    assert unseen_queries(asked, "mini-bert") == (asked, None)
    some = with_queries(asked, [place for place, query in enumerate(asked.queries) if query in chose])
    with pytest.raises(DataError, match="trained or selected on"):
        unseen_queries(some, work.lean)
