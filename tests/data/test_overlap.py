from dataclasses import replace

import pytest

from truncate_kit.data.pairs import load_pairs
from truncate_kit.data.types import PairSet, PairSplits, TextPair
from truncate_kit.report.view import data_sentences, overlap_warning

# set, train/dev, train/test, dev/test as (same order, either order), test sentences also in train, test sentences:
# the table that comes with the evaluation data.
PUBLISHED = [
    ("stsb/en", (6, 7), (7, 12), (2, 3), 257, 2552),
    ("stsb/de", (13, 14), (10, 16), (5, 7), 272, 2513),
    ("stsb/es", (8, 10), (8, 14), (4, 7), 270, 2523),
    ("korsts", (3, 3), (0, 2), (3, 6), 153, 2514),
    ("sick", (3, 7), (49, 73), (5, 9), 3743, 5007),
    ("mrpc", (0, 0), (0, 0), (0, 0), 240, 3393),
]


@pytest.mark.parametrize(("name", "train_dev", "train_test", "dev_test", "shared", "sentences"), PUBLISHED)
def test_overlap_equals_the_published_table(shared_data, name, train_dev, train_test, dev_test, shared, sentences):
    splits = load_pairs(shared_data / name)
    overlap = splits.overlap
    assert (overlap.train_dev, overlap.train_test, overlap.dev_test) == (train_dev, train_test, dev_test)
    assert (splits.overlap.test_sentences_in_train, splits.overlap.test_sentences) == (shared, sentences)
    warning = data_sentences(splits)[-1]
    assert warning == overlap_warning(splits.overlap)
    assert f"{train_test[1]} test pairs ({train_test[0]} in the same order)" in warning
    assert f"{shared:,} of the {sentences:,} distinct test sentences" in warning


def test_scores_that_look_like_classes_are_pointed_out():
    def said(*scores: float) -> bool:
        pairs = tuple(TextPair(f"a{place}", "b", score) for place, score in enumerate(scores))
        splits = PairSplits(name="x", train=replace(_set(("a", "b")), pairs=pairs, scale=(0, 1)))
        return any("`objective=paraphrase`" in sentence for sentence in data_sentences(splits))

    assert said(0, 1, 1)
    assert not said(0, 0.5, 1)
    assert not said(1, 1)


def _set(*pairs: tuple[str, str]) -> PairSet:
    return PairSet(
        name="x",
        pairs=tuple(TextPair(first, second, 1.0) for first, second in pairs),
        scale=(0, 1),
        scale_source="given",
        path="x.csv",
        columns=("a", "b", "c"),
    )
