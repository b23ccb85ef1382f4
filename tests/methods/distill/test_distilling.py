"""Distillation of a real miniature: it learns, keeps to its budget, and survives being killed."""

import itertools
import random
import shutil
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from tests.support.files import words_folder
from tests.support.pairs import made_texts, word_splits
from tests.support.retrieval import judged_set
from truncate_kit.core.errors import DataError, LayerOutOfRangeError, ModelError, UsageError
from truncate_kit.data.pairs import BUNDLED, load_pairs, split_pairs
from truncate_kit.data.seen import keys_of, seen_by, unseen
from truncate_kit.evaluation.graded import evaluate
from truncate_kit.methods.distill.distilling import distill
from truncate_kit.methods.distill.labels import PairLabels
from truncate_kit.methods.distill.learning import (
    FEWEST_TEXTS,
    AgreementEvaluator,
    TextStore,
    held_out_places,
)
from truncate_kit.methods.distill.settings import (
    PER_POINT,
    Budget,
    DistillResult,
    DistillSettings,
    HeldOutScores,
    expected_loss,
    more_texts,
)
from truncate_kit.methods.distill.subsets import announce_sizes
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.store import encoder_digest
from truncate_kit.models.truncation import keep, operations, truncate
from truncate_kit.report.distillation import view_distill_result
from truncate_kit.training.examples import PairEvaluator
from truncate_kit.training.queries import RetrievalEvaluator

pytestmark = pytest.mark.usefixtures("no_graphs")
SHORT = DistillSettings(batch_size=8, learning_rate=1e-3, held_out=200)
FEW = replace(SHORT, held_out=42)
TINY_TEXTS = made_texts(FEWEST_TEXTS + 10)  # some are held out by their pairs
SOME = ["a dog runs over the grass", "two people sit at a table"]


@pytest.fixture(scope="module")
def texts():
    return list(dict.fromkeys(load_pairs(BUNDLED).texts()))[:260]


@pytest.fixture(scope="module")
def full():
    return truncate(load_encoder("mini-bert", max_length=32), 4)


@pytest.fixture(scope="module")
def learned(full, texts, tmp_path_factory, no_graphs):
    out = tmp_path_factory.mktemp("distilled")
    return out, lean_of(full, texts, out, blocks="2")


def lean_of(encoder, texts, out, settings=SHORT, data=None, progress=False, **budget):
    return distill(encoder, texts, out=out, budget=Budget(**budget), settings=settings, data=data, progress=progress)


def notes_of(result):
    return " ".join(view_distill_result(result).notes)


def is_nearer(lean, cut, wanted):
    near, far = (torch.cosine_similarity(model.vectors(SOME), wanted.vectors(SOME)).mean() for model in (lean, cut))
    return near > far


def test_the_student_comes_closer_to_the_full_model(full, texts, learned):
    out, result = learned
    lean, untrained = load_encoder(out / "lean"), keep(full, result.chosen)
    assert lean.depth == 2
    assert result.student.score > result.student.untrained + 1
    store = TextStore(out / "distillation" / "texts")
    choosing, *others = held_out_places(len(store), SHORT)
    judge = AgreementEvaluator(store.ids_at(choosing), store.vectors_at(choosing.tolist()))
    assert result.student.untrained == pytest.approx(judge.score(untrained)[0], abs=1e-3)  # the search had fewer
    places = np.concatenate([choosing, *others])  # 41 texts alone are too few for such a difference
    every = AgreementEvaluator(store.ids_at(places), store.vectors_at(places.tolist()))
    assert every.agreement(lean).correlation > every.agreement(untrained).correlation + 1
    assert DistillResult.read(out / "lean" / "distill.json") == result
    assert result.holds
    assert result.needed is result.holds_unseen is None, "nothing was asked for but two blocks"
    assert torch.equal(*(one.backbone.embeddings.word_embeddings.weight for one in (lean, untrained)))  # frozen
    assert is_nearer(lean, untrained, full)
    assert encoder_digest(load_encoder(out / "full")) == encoder_digest(full)
    seen = []
    assert lean_of(full, texts, out, blocks="2", progress=lambda *step: seen.append(step[0])) == result
    assert set(seen) == {"Reading texts"}, "the same call again learns nothing"


def test_a_busy_machine_changes_no_choice(encoder, tmp_path, monkeypatch):
    quiet = lean_of(encoder, TINY_TEXTS, tmp_path / "quiet", FEW, speedup=1.5)
    ticks, draw = itertools.count(), random.Random(0)
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks) + draw.random())  # a second or two between calls
    busy = lean_of(encoder, TINY_TEXTS, tmp_path / "busy", FEW, speedup=1.5)
    assert (len(busy.chosen), busy.chosen, busy.search.leading) == (2, quiet.chosen, quiet.search.leading)
    assert busy.student.pace == quiet.student.pace
    assert busy.student.texts_per_second != quiet.student.texts_per_second
    assert encoder_digest(load_encoder(tmp_path / "busy/lean")) == encoder_digest(load_encoder(tmp_path / "quiet/lean"))


def test_another_rate_searches_and_times_nothing_again(encoder, tmp_path):
    def run(settings):
        seen = []
        found = lean_of(
            encoder, TINY_TEXTS, tmp_path, settings, blocks="2", progress=lambda *step: seen.append(step[0])
        )
        return found, {"Searching subsets", "Timing"} & set(seen)

    first, begun = run(FEW)
    again, repeated = run(replace(FEW, learning_rate=5e-4, batch_size=8, similarity=1.0))
    assert begun
    assert not repeated
    assert again.search == first.search
    assert again.student.scores != first.student.scores
    speeds = [[row.texts_per_second for row in result.candidates] for result in (first, again)]
    assert speeds[0] == speeds[1]
    assert [len(row.blocks) for row in first.candidates] == [2, 3], "one block was not asked for"
    assert all(speeds[0])
    lean, full = first.candidates
    store = TextStore(tmp_path / "distillation/texts")
    length = store.lengths()[held_out_places(len(store), FEW)[0]].mean()
    assert lean.pace / full.pace == pytest.approx(operations(encoder, 3, length) / operations(encoder, 2, length))


def test_sizes_are_announced_with_what_they_cost_and_lose(full):
    class Heard(list):
        say, __call__ = list.append, lambda *step: None

    heard = Heard()
    announce_sizes(full, 3000, 1, heard)
    for size in (1, 2, 3):
        speed, lost = operations(full, 4, 32) / operations(full, size, 32), expected_loss(size / 4, 3000)
        megabytes = 4e-6 * keep(full, range(1, size + 1)).num_parameters
        assert f"{speed:.1f} × the speed, {megabytes:.1f} MB, {lost:.1f} points lost" in heard[0]
    assert heard[1] == more_texts(4, 3, 3000, 1)


def test_a_test_part_that_repeats_pairs_is_no_more_sure(full):
    data = load_pairs(BUNDLED)
    some = replace(data.test, pairs=data.test.pairs[:25])
    once, thrice = (
        PairLabels(replace(data, test=replace(some, pairs=n * some.pairs)), 0, full).report(full, keep(full, (1, 2)))
        for n in (1, 3)
    )
    assert (thrice.low, thrice.high) == pytest.approx((once.low, once.high))
    assert thrice.num_compared == once.num_compared == len({frozenset((p.first, p.second)) for p in some.pairs})


def test_labels_give_an_interval_of_their_own(full, texts):
    dev = replace(load_pairs(BUNDLED).dev, pairs=load_pairs(BUNDLED).dev.pairs[:60])
    evaluator = PairEvaluator(full, dev)
    vectors = full.encode_ids(evaluator.texts())
    said, true = np.array(evaluator.outcomes(vectors)), np.array(dev.scores())
    drawn = np.random.default_rng(1).integers(0, 60, (2000, 60))
    wanted = np.quantile([100 * spearmanr(said[row], true[row]).statistic for row in drawn], (0.025, 0.975))
    assert evaluator.interval_of(vectors) == pytest.approx(wanted, abs=4)  # 200 draws there
    each_its_own = judged_set(texts[:24], texts[:24], ({place: 1.0} for place in range(24)))
    searched = RetrievalEvaluator(full, each_its_own, np.arange(24))
    vectors = torch.randn(48, 8, generator=torch.Generator().manual_seed(0))
    each = searched.scores(vectors, vectors)
    means = each[np.random.default_rng(1).integers(0, 24, (4000, 24))].mean(1)
    assert searched.interval_of(vectors) == pytest.approx(np.percentile(means, (2.5, 97.5)), abs=3)


def test_a_choice_that_misses_on_unseen_texts_says_so(learned):
    _, result = learned

    def holds(correlation=97.01, **changes):
        student = replace(result.student, agreement=replace(result.student.agreement, correlation=correlation))
        options = {"candidates": (student, result.candidates[-1]), "needed": 97.0, "budget": Budget(within=1)}
        return replace(result, **(options | changes)).holds_unseen

    assert holds()
    assert holds(96.26) is False
    scores = HeldOutScores(
        data="set", metric="nDCG@10", lean=38.5, full=40.0, mixed=None, difference=-1.5, low=-2, high=-1
    )
    labelled = {"metric": "nDCG@10 of half the queries", "scores": scores}
    assert holds(**labelled) is False
    assert holds(**(labelled | {"scores": replace(scores, difference=-0.9)}))
    # Points are asked for of the layer that is learned, scores are against the whole model; and four pairs say nothing.
    assert holds(**labelled, settings=replace(result.settings, layer=3)) is None
    assert holds(**(labelled | {"scores": replace(scores, num_compared=4)})) is None


def test_a_size_shows_what_learned_best_in_earlier_runs(encoder, tmp_path):
    """Also where blocks lead it that did not learn; those that are chosen now stand for their size nevertheless."""
    data = replace(word_splits(), test=None)

    def run(*blocks):
        return lean_of(encoder, TINY_TEXTS, tmp_path, FEW, data, blocks=blocks or "1")

    first = run()
    (leading,) = (blocks for blocks, _ in first.search.best if len(blocks) == 2)
    assert first.candidates[1].blocks == leading
    others = [blocks for blocks in ((1, 2), (1, 3), (2, 3)) if blocks != leading]
    named = [run(*blocks) for blocks in others]
    assert [found.student.blocks for found in named] == others
    again = run()
    assert again.chosen == first.chosen
    row, before = again.candidates[1], max((found.student for found in named), key=lambda one: one.score)
    assert (row.blocks, row.scores, row.agreement) == (before.blocks, before.scores, before.agreement)
    assert row.untrained == pytest.approx(before.untrained, abs=1e-9)
    assert row.interval == before.interval is not None


def test_of_the_leading_choices_the_one_that_learns_best_goes_on(learned):
    folder, result = learned
    leading = [blocks for blocks, _ in result.search.leading if len(blocks) == 2]
    assert leading[0] == next(blocks for blocks, _ in result.search.best if len(blocks) == 2)
    assert len(leading) == 4
    first, then = (
        sorted((one for one in result.tryouts if len(one.scores) == stage), key=lambda one: -one.score)
        for stage in (2, 4)
    )
    assert {one.blocks for one in first} == {*leading}
    assert {one.blocks for one in then} == {one.blocks for one in first[:2]}
    assert result.chosen == then[0].blocks
    assert result.student.scores[:4] == then[0].scores
    assert then[0].scores[:2] == next(one.scores for one in first if one.blocks == result.chosen)
    assert [*folder.rglob("*.checkpoint")] == []


@pytest.mark.parametrize("stop", [5, 14])  # while subsets are tried out, and after that
def test_a_killed_run_ends_with_the_same_model(full, texts, learned, tmp_path, stop):
    out, result = learned
    steps = 0

    def dying(task, done, total):
        nonlocal steps
        steps += "blocks (" in task
        if steps == stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lean_of(full, texts, tmp_path, blocks="2", progress=dying)
    assert not (tmp_path / "lean").exists()
    again = lean_of(full, texts, tmp_path, blocks="2")
    assert again.student.scores == result.student.scores
    assert encoder_digest(load_encoder(tmp_path / "lean")) == encoder_digest(load_encoder(out / "lean"))


def test_the_fewest_blocks_within_a_loss(full, texts, learned, tmp_path):
    out, result = learned
    out = shutil.copytree(out, tmp_path / "out")
    points = (95 - result.student.score + 0.03) / PER_POINT
    close = lean_of(full, texts, out, within=points)
    assert close.holds
    assert close.student.score >= close.needed == pytest.approx(result.student.score - 0.03)
    assert len(close.chosen) <= 2
    assert close.student.scores
    strict = lean_of(full, texts, out, within=0)
    assert strict.holds == (strict.student.score >= 95)


def test_labelled_pairs_choose_where_they_are_given(full, texts, tmp_path):
    pairs = load_pairs(BUNDLED)
    dev, test = (replace(part, pairs=part.pairs[:30]) for part in (pairs.dev, pairs.test))
    pairs = replace(pairs, dev=dev, test=test)
    result = lean_of(full, [*texts[:220], *dev.texts()[:30]], tmp_path, data=pairs, blocks="2,4")
    assert result.metric == "Spearman × 100 on dev"
    assert result.chosen == (2, 4)
    for row in (result.student, result.candidates[-1]):  # where agreement chooses, that has an interval of its own
        assert row.interval[0] <= row.untrained <= row.interval[1]
    assert result.data_fingerprint == pairs.fingerprint()
    assert seen_by(tmp_path / "lean").tolist() == keys_of(dev).tolist()
    assert len(seen_by(tmp_path / "full")) == 0  # which nothing chose
    assert result.texts["excluded"] >= 30
    assert result.texts["compared"] == len({text.lower() for part in (dev, test) for text in part.texts()})
    assert result.scores.low <= result.scores.difference <= result.scores.high
    assert result.scores.difference == pytest.approx(result.scores.lean - result.scores.full)
    longer = "The texts of bundled are longer than the training texts: 95 % have up to"
    assert longer in notes_of(replace(result, texts=result.texts | {"long": result.data_tokens // 2}))
    assert longer not in notes_of(result)


def test_word_pairs_choose_and_report_as_the_seed_divides_them(full, texts, tmp_path):
    words, settings = load_pairs(words_folder(tmp_path / "words")), replace(SHORT, seed=2)
    divided = split_pairs(words.train, 2, words.shares)
    given = [*texts[:FEWEST_TEXTS], *divided.dev.texts()]
    result = lean_of(full, given, tmp_path, settings, words, blocks="2,4")
    assert result.full_score == pytest.approx(evaluate(full, divided.dev.pairs).spearman)
    assert result.scores.full == pytest.approx(evaluate(full, divided.test.pairs).spearman)
    assert result.texts["excluded"] >= len(divided.dev.texts())
    assert result.data_fingerprint == words.fingerprint()
    assert unseen(words, tmp_path / "lean").evaluation.pairs == divided.test.pairs


def test_vectors_of_a_layer_before_the_end_are_learned_by_blocks_up_to_it(full, texts, tmp_path):
    result = lean_of(full, texts[:FEWEST_TEXTS], tmp_path, replace(SHORT, layer=3), blocks="1,3")
    assert max(result.chosen) == 3
    assert result.metric == "agreement with layer 3 of the full model"
    assert [len(row.blocks) for row in result.candidates] == [2, 3, 4]
    assert result.candidates[1].score == pytest.approx(100, abs=0.01)
    assert result.candidates[-1].score < 99
    assert is_nearer(load_encoder(tmp_path / "lean"), keep(full, (1, 3)), truncate(full, 3))
    assert encoder_digest(load_encoder(tmp_path / "full")) == encoder_digest(full)


def test_all_blocks_up_to_that_layer_have_nothing_to_learn(encoder, tmp_path):
    result = lean_of(encoder, TINY_TEXTS, tmp_path, replace(FEW, layer=2), blocks="2")
    assert (result.chosen, result.student.steps, result.student.scores) == ((1, 2), 0, ())
    assert encoder_digest(load_encoder(tmp_path / "lean")) == encoder_digest(truncate(encoder, 2))
    assert result.student.untrained == pytest.approx(100, abs=0.01)


def test_blocks_that_labels_prefer_before_learning_are_saved_as_they_came(full, texts, tmp_path):
    pairs, few = load_pairs(BUNDLED), texts[:FEWEST_TEXTS]
    two, cut = truncate(full, 2), truncate(full, 1)
    some = pairs.dev.pairs[:30]
    sides = (cut.vectors([getattr(pair, side) for pair in some]) for side in ("first", "second"))
    its_own = tuple(
        replace(pair, target=float(cosine)) for pair, cosine in zip(some, torch.cosine_similarity(*sides), strict=True)
    )
    data = replace(pairs, dev=replace(pairs.dev, pairs=its_own), test=None)
    fast = replace(SHORT, learning_rate=1e-2, warmup=0.0)
    result = lean_of(two, few, tmp_path, fast, data, blocks="1")
    assert result.student.score == pytest.approx(100, abs=0.1)
    assert max(result.student.scores) < 99
    assert "Training did not improve these blocks" in notes_of(result)
    assert "untrained blocks are saved" in notes_of(result)
    assert encoder_digest(load_encoder(tmp_path / "lean")) == encoder_digest(cut)


def test_what_cannot_be_kept_or_met_is_said_before_anything_is_read(full, tmp_path):
    smallest = keep(full, (1,)).num_parameters * 4 / 1e6
    pairs = load_pairs(BUNDLED)
    for wrong, problem, said in (
        ({"budget": Budget(blocks="1,99")}, LayerOutOfRangeError, "99"),
        ({"budget": Budget(blocks="1,4"), "settings": replace(SHORT, layer=3)}, UsageError, "Block 4 comes after"),
        ({"settings": replace(SHORT, layer=9)}, LayerOutOfRangeError, "9"),
        ({"budget": Budget(megabytes=smallest - 0.01)}, UsageError, f"takes {smallest:.1f} megabytes"),
        ({"data": replace(pairs, dev=None, test=None)}, DataError, "neither dev nor test pairs"),
        ({"data": replace(pairs, dev=replace(pairs.dev, classes=("no", "yes")))}, DataError, "holds classes"),
        ({"budget": Budget(megabytes=smallest + 0.01)}, DataError, "Only 0 distinct texts"),
    ):
        with pytest.raises(problem, match=said):
            distill(full, iter(()), out=tmp_path, **wrong)
    with pytest.raises(ModelError, match="has a single block"):
        distill(truncate(full, 1), iter(()), out=tmp_path)
    model = load_encoder("mini-bert")
    model.name = str(tmp_path / "lean")
    (tmp_path / "lean").mkdir()
    with pytest.raises(UsageError, match="holds the model to start from"):
        distill(model, iter(()), out=tmp_path)
