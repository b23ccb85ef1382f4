import pytest

from truncate_kit.data.pairs import PairSet, PairSplits, TextPair, load_pairs
from truncate_kit.report.view import data_sentences, overlap_warning

# set, train/test as (same order, either order), test sentences also in train, test sentences:
# the table that comes with the evaluation data.
PUBLISHED = [
    ("stsb/en", (7, 12), 257, 2552),
    ("stsb/de", (10, 16), 272, 2513),
    ("sick", (49, 73), 3743, 5007),
    ("mrpc", (0, 0), 240, 3393),
]


@pytest.mark.parametrize(("name", "train_test", "shared", "sentences"), PUBLISHED)
def test_overlap_equals_the_published_table(shared_data, name, train_test, shared, sentences):
    splits = load_pairs(shared_data / name)
    overlap = splits.overlap
    assert overlap.train_test == train_test
    assert (splits.overlap.test_sentences_in_train, splits.overlap.test_sentences) == (shared, sentences)
    warning = data_sentences(splits)[-1]
    assert warning == overlap_warning(splits.overlap)
    assert f"{train_test[1]} test pairs ({train_test[0]} in the same order)" in warning
    assert f"{shared:,} of the {sentences:,} distinct test sentences" in warning


def test_scores_that_look_like_classes_are_pointed_out():
    def said(*scores: float) -> bool:
        pairs = tuple(TextPair(f"a{place}", "b", score) for place, score in enumerate(scores))
        splits = PairSplits(name="x", train=PairSet(name="x", pairs=pairs, scale=(0, 1), scale_source="given"))
        return any("`objective=paraphrase`" in sentence for sentence in data_sentences(splits))

    assert (said(0, 1, 1), said(0, 0.5, 1), said(1, 1)) == (True, False, False)
