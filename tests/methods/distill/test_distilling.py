"""Distillation of a real miniature: it learns, keeps to its budget, and survives being killed."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from tests.support.families import make_tiny
from tests.support.files import words_folder
from tests.support.pairs import made_texts, word_splits
from truncate_kit.data import BUNDLED, RetrievalSet, load_pairs, split_pairs
from truncate_kit.errors import DataError, LayerOutOfRangeError, ModelError, UsageError
from truncate_kit.evaluation.graded import evaluate
from truncate_kit.hardware import bf16_instructions
from truncate_kit.methods.distill import frontier as speed
from truncate_kit.methods.distill import learning as teacher
from truncate_kit.methods.distill import subsets as search_plan
from truncate_kit.methods.distill import texts as tryout_texts
from truncate_kit.methods.distill.agreement import AgreementEvaluator, held_out_scores
from truncate_kit.methods.distill.distilling import distill
from truncate_kit.methods.distill.learning import Learning
from truncate_kit.methods.distill.result import DistillResult, HeldOutScores, SubsetScore, best_tryout
from truncate_kit.methods.distill.settings import Budget, DistillSettings
from truncate_kit.methods.distill.texts import FEW_TOKENS, FEWEST_TEXTS, TextStore, few_texts
from truncate_kit.models import encoder_digest, keep, keep_words, load_encoder, truncate
from truncate_kit.progress import silent
from truncate_kit.report.distillation import choice, sizes_table
from truncate_kit.report.view import view_of
from truncate_kit.seen import keys_of, read_seen, unseen
from truncate_kit.training.distributed import ALONE
from truncate_kit.training.evaluators import PairEvaluator, RetrievalEvaluator
from truncate_kit.training.store import RunStore

SHORT = DistillSettings(batch_size=16, learning_rate=1e-3, held_out=200)


@pytest.fixture(scope="module", autouse=True)
def _no_graphs():
    """Vectors to learn come from torch, as where ONNX Runtime is not installed; test_text_store.py has the graph."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(teacher, "fastest", lambda encoder, folder: encoder)
        yield


@pytest.fixture(scope="module")
def texts():
    pairs = load_pairs(BUNDLED)
    return list(dict.fromkeys(pairs.texts()))[:300]


@pytest.fixture(scope="module")
def full():
    return truncate(load_encoder("mini-bert", max_length=32), 4)


@pytest.fixture(scope="module")
def few(texts):
    """As many as distillation takes at least."""
    return texts[:FEWEST_TEXTS]


@pytest.fixture
def tiny(tiny_folder):
    """Three random blocks: for what does not depend on how much is learned."""
    return load_encoder(tiny_folder("bert"))


TINY_TEXTS = made_texts(FEWEST_TEXTS + 10)  # some are held out by their pairs


@pytest.fixture(scope="module")
def learned(full, texts, tmp_path_factory):
    out = tmp_path_factory.mktemp("distilled")
    return out, distill(full, texts, out=out, budget=Budget(blocks="2"), settings=SHORT)


def test_the_student_comes_closer_to_the_full_model(full, learned):
    out, result = learned
    lean = load_encoder(out / "lean")
    assert lean.depth == 2
    assert result.student.best > result.candidate.untrained + 1
    assert result.student.agreement.correlation > result.candidate.untrained
    assert DistillResult.read(out / "lean" / "distill.json") == result
    assert result.holds
    assert result.speedup > 0
    untrained = keep(full, result.chosen)
    embeddings = [model.backbone.embeddings.word_embeddings.weight for model in (lean, untrained)]
    assert torch.equal(*embeddings)  # frozen
    some = ["a dog runs over the grass", "two people sit at a table"]
    wanted = full.vectors(some)
    near, far = (torch.cosine_similarity(model.vectors(some), wanted).mean() for model in (lean, untrained))
    assert near > far
    assert encoder_digest(load_encoder(out / "full")) == encoder_digest(full)


def test_the_same_call_again_learns_nothing(full, texts, learned):
    out, result = learned
    seen = []
    again = distill(
        full, texts, out=out, budget=Budget(blocks="2"), settings=SHORT, progress=lambda *step: seen.append(step)
    )
    assert again == result
    assert {step[0] for step in seen} == {"Reading texts"}


@pytest.fixture
def short_run(tiny, tmp_path):
    """A function from settings to what a distillation to two blocks in one workspace gives, and its tasks."""

    def run(settings):
        seen = []
        options = {"budget": Budget(blocks="2"), "settings": settings}
        result = distill(tiny, TINY_TEXTS, out=tmp_path, progress=lambda *step: seen.append(step[0]), **options)
        return result, {"Searching subsets", "Timing"} & set(seen)

    return run


def test_another_rate_searches_and_times_nothing_again(short_run):
    run = short_run
    first, begun = run(replace(SHORT, held_out=42))
    again, repeated = run(replace(SHORT, held_out=42, learning_rate=5e-4, batch_size=8, similarity=1.0))
    assert begun
    assert not repeated
    assert again.search == first.search
    assert again.student.scores != first.student.scores
    speeds = [[row.texts_per_second for row in result.candidates] for result in (first, again)]
    assert speeds[0] == speeds[1]
    assert run(replace(SHORT, held_out=60))[1]
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)  # speeds are those of another number, in the same workspace
    try:
        assert run(replace(SHORT, held_out=42))[1] == {"Timing"}
    finally:
        torch.set_num_threads(threads)


def test_a_busy_machine_is_said_and_timed_anew(short_run, monkeypatch):
    def run():
        result, tasks = short_run(replace(SHORT, held_out=42))
        return [note for note in result.notes if "Other processes" in note], "Timing" in tasks

    class Busy:
        def share(self):
            return 0.72

    with monkeypatch.context() as patch:
        patch.setattr(speed, "OtherWork", Busy)  # what else runs here is not for a test to decide
        notes, timed = run()
        assert timed
        assert notes[0].startswith("Other processes took 72% of this machine while sizes were timed")
        assert run() == (notes, True)
    assert run() == ([], True)
    assert run() == ([], False)


def test_learning_that_makes_it_worse_is_said(full, few, tmp_path):
    settings = replace(SHORT, held_out=42, learning_rate=0.05)
    result = distill(full, few, out=tmp_path, budget=Budget(blocks="1,3"), settings=settings)
    before, after, steps = result.candidate.untrained, result.student.best, result.student.steps
    assert after <= before
    said = f"Learning has not helped these blocks: {before:.2f} before, {after:.2f} after {steps} steps. Give more"
    assert any(note.startswith(said) for note in result.notes)


def test_every_size_has_its_agreement_with_an_interval(full, learned):
    out, result = learned
    store = TextStore(out / "distillation/texts")
    report = np.random.default_rng(0).permutation(len(store))[:42][21:]
    ids = store.ids_at(report)
    reported = AgreementEvaluator(ids, full.encode_ids(ids))
    for row in result.candidates:
        model = load_encoder(out / "lean") if row.blocks == result.chosen else keep(full, row.blocks)
        wanted = reported.agreement(model)
        assert row.agreement.correlation == pytest.approx(wanted.correlation, abs=0.1)
        assert row.agreement.overlap == pytest.approx(wanted.overlap, abs=1)
        assert row.agreement.low <= row.agreement.correlation <= row.agreement.high
    found = result.candidates[0].agreement
    assert f"{found.correlation:.1f} [{found.low:.1f}, {found.high:.1f}]" in sizes_table(result).rows[0]
    earlier = replace(result, candidates=tuple(replace(row, agreement=None) for row in result.candidates))
    assert "–" in sizes_table(earlier).rows[-1]


def test_a_test_part_that_repeats_pairs_is_no_more_sure(full):
    data = load_pairs(BUNDLED)
    some = replace(data.test, pairs=data.test.pairs[:25])
    lean = keep(full, (1, 2))
    once, thrice = (
        held_out_scores(full, lean, replace(data, test=replace(some, pairs=times * some.pairs)), None)
        for times in (1, 3)
    )
    assert (thrice.low, thrice.high) == pytest.approx((once.low, once.high))
    assert thrice.num_compared == once.num_compared == len({frozenset((p.first, p.second)) for p in some.pairs})


def test_labels_give_an_interval_of_their_own(full):
    dev = replace(load_pairs(BUNDLED).dev, pairs=load_pairs(BUNDLED).dev.pairs[:60])
    evaluator = PairEvaluator(full, dev)
    vectors = full.encode_ids(evaluator.texts())
    said, true = np.array(evaluator.cosines(vectors)), np.array(dev.scores())
    drawn = np.random.default_rng(1).integers(0, 60, (2000, 60))
    wanted = np.quantile([100 * spearmanr(said[row], true[row]).statistic for row in drawn], (0.025, 0.975))
    assert evaluator.interval_of(vectors) == pytest.approx(wanted, abs=4)  # 200 draws there
    data = RetrievalSet(
        name="set",
        document_ids=("a", "b", "c"),
        documents=("one cat", "two dogs", "a red car"),
        query_ids=tuple("pqrs"),
        queries=("cat", "dogs", "car", "green tree"),
        relevance=({0: 1.0}, {1: 1.0}, {2: 1.0}, {0: 1.0}),
    )
    searched = RetrievalEvaluator(full, data, np.arange(4))
    vectors = full.encode_ids(searched.texts())
    each = searched.scores(vectors, vectors)
    means = each[np.random.default_rng(1).integers(0, 4, (4000, 4))].mean(1)
    assert searched.interval_of(vectors) == pytest.approx(np.percentile(means, (2.5, 97.5)), abs=3)


def test_a_choice_that_misses_on_unseen_texts_says_so(learned):
    _, result = learned
    agreement = replace(result.student.agreement, correlation=96.26)
    student = replace(result.student, best=97.2, agreement=agreement)
    near = replace(result, students=(student,), needed=97.0, budget=Budget(within=1))
    assert (near.compared().holds, near.compared().holds_unseen) == (True, False)
    assert choice(near.compared()).endswith("On held-out data they lose more than 1 point.")
    close = replace(student, agreement=replace(agreement, correlation=97.01))
    assert replace(near, students=(close,)).compared().holds_unseen
    assert result.holds_unseen is None, "nothing was asked for but two blocks"
    scores = HeldOutScores(
        data="set", metric="nDCG@10", lean=38.5, full=40.0, mixed=None, difference=-1.5, low=-2, high=-1
    )
    labelled = replace(near, metric="nDCG@10 of half the queries", needed=39.5, scores=scores, students=(close,))
    assert labelled.compared().holds_unseen is False
    # Points are asked for of the layer that is learned, scores are against the whole model; and four pairs say nothing.
    for other in ({"settings": replace(labelled.settings, layer=3)}, {"scores": replace(scores, num_compared=4)}):
        assert replace(labelled, **other).compared().holds_unseen is not False
    kept = replace(scores, lean=39.1, difference=-0.9)
    assert replace(labelled, scores=kept).compared().holds_unseen


def test_a_frontier_is_measured_once_and_stays(full, few, tmp_path):
    two = truncate(full, 2)

    def run(frontier, seen):
        settings = replace(SHORT, held_out=42, frontier=frontier)
        budget = Budget(blocks="1..1")
        options = {"budget": budget, "settings": settings, "progress": lambda *step: seen.append(step[0])}
        return distill(two, few, out=tmp_path, **options)

    assert run(False, []).frontier is None
    measured = run(True, seen := []).frontier
    assert {point.blocks for point in measured.points} == {(1, 2), (1,)}
    assert {point.words for point in measured.points} == {measured.words, measured.all_words}
    assert "Measuring graphs" in seen
    for frontier in (False, True):
        assert run(frontier, seen := []).frontier == measured
        assert "Measuring graphs" not in seen
    assert DistillResult.read(tmp_path / "lean" / "distill.json").frontier == measured


def test_a_frontier_takes_over_what_earlier_ones_measured_and_says_what_it_lacks(tiny, tmp_path):
    def run(blocks, frontier):
        settings = replace(SHORT, held_out=42, frontier=frontier)
        return distill(tiny, TINY_TEXTS, out=tmp_path, budget=Budget(blocks=blocks), settings=settings)

    first = run("1,3", True).frontier
    run("1..1", False)
    run("1,2", False)  # the weights of 1 alone go with its end
    result = run("2,3", True)
    assert {one.blocks for one in result.frontier.points} == {(1, 2, 3), (1, 3), (1, 2), (2, 3)}
    taken = {(one.precision, one.dims, one.words): one.score for one in result.frontier.points if one.blocks == (1, 3)}
    assert taken == {(one.precision, one.dims, one.words): one.score for one in first.points if one.blocks == (1, 3)}
    (lacking,) = (note for note in result.notes if "lacks" in note)
    assert lacking == "The frontier lacks blocks 1, which learned in other runs: their weights are gone."


def test_a_size_shows_what_learned_best_in_earlier_runs(tiny, tmp_path):
    """Also where blocks lead it that did not learn; those that are chosen now stand for their size nevertheless."""
    data = replace(word_splits(), test=None)

    def run(blocks):
        settings = replace(SHORT, held_out=42, epochs=1)
        return distill(tiny, TINY_TEXTS, out=tmp_path, budget=Budget(blocks=blocks), settings=settings, data=data)

    first = run("1")
    (leading,) = (row.blocks for row in first.search.best if len(row.blocks) == 2)
    assert first.candidates[1].blocks == leading
    others = [blocks for blocks in ((1, 2), (1, 3), (2, 3)) if blocks != leading]
    named = [run(",".join(map(str, blocks))) for blocks in others]
    again = run("1")
    assert again.chosen == first.chosen
    best = max((student for student in again.students if len(student.blocks) == 2), key=lambda one: one.best)
    assert best.blocks in others
    row, (before,) = again.candidates[1], (found.candidate for found in named if found.chosen == best.blocks)
    assert (row.blocks, row.learned, row.agreement) == (best.blocks, best.best, best.agreement)
    assert row.untrained == pytest.approx(before.untrained, abs=1e-9)
    assert row.interval is not None
    assert row.interval == before.interval
    shown = sizes_table(again).rows[1]
    assert shown[0] == ", ".join(map(str, best.blocks))
    assert shown[2] == f"{best.best:.2f}"
    assert [run(",".join(map(str, blocks))).candidate.blocks for blocks in others] == others


def test_texts_that_score_are_read_anew_by_another_tokenizer(full, texts, learned, tmp_path):
    store = TextStore(learned[0] / "distillation/texts")
    pairs = load_pairs(BUNDLED)
    queries = tuple(texts[:24])
    names = tuple(map(str, range(24)))
    answers = tuple({place: 1.0} for place in range(24))
    searched = RetrievalSet(
        name="set", document_ids=names, documents=queries, query_ids=names, queries=queries, relevance=answers
    )
    other = keep_words(full, texts[:100])
    for data in (None, replace(pairs, dev=replace(pairs.dev, pairs=pairs.dev.pairs[:20])), searched):
        vectors = np.zeros((len(store), full.width), np.float16)
        runs = RunStore(tmp_path, "key")
        learning = Learning(full, full, store, vectors, SHORT, data, runs, ALONE, silent)
        scored = learning.evaluator.texts()
        assert learning.reread(full) == scored
        ids = learning.reread(other)
        assert len(ids) == len(scored)
        assert max(map(max, ids)) < len(other.tokenizer)
        read = [encoder.tokenizer.batch_decode(rows) for encoder, rows in ((full, scored), (other, ids))]
        same = [one == another for one, another in zip(*read, strict=True)]
        assert np.mean(same) >= 0.8


class KilledError(Exception):
    pass


def test_of_the_leading_choices_the_one_that_learns_best_from_few_texts_is_taken(learned):
    _, result = learned
    leading = [one.blocks for one in result.search.leading if len(one.blocks) == 2]
    assert leading[0] == next(row.blocks for row in result.search.best if len(row.blocks) == 2)
    assert [one.blocks for one in result.tryouts] == leading
    assert len(leading) == 4
    assert result.chosen == best_tryout(result.tryouts).blocks
    assert all(one.learned > one.untrained for one in result.tryouts)
    assert result.candidate.untrained == next(o.untrained for o in result.tryouts if o.blocks == result.chosen)
    (said,) = (one for one in view_of(result).sentences if "from few texts" in one)
    assert all(f"{one.learned:.2f}, {one.overlap:.1f} % of nearest texts" in said for one in result.tryouts)


def test_of_the_leading_choices_one_is_chosen_from_long_texts_too(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(tryout_texts, "FEW_TOKENS", tokens := 9)  # the tiny model reads no text of as many as it is
    long = [f"{first} {second}" for first, second in zip(TINY_TEXTS, made_texts(len(TINY_TEXTS), seed=1), strict=True)]
    long = [f"{text} the cat sat on the mat" for text in long]
    assert min(map(len, tiny.token_ids(long))) > tokens
    settings = replace(SHORT, held_out=42)
    result = distill(tiny, long, out=tmp_path, budget=Budget(blocks="2"), settings=settings)
    assert len(result.tryouts) == 3
    assert result.chosen == best_tryout(result.tryouts).blocks
    store = TextStore(tmp_path / "distillation/texts")
    cut, places, vectors = few_texts(tiny, store, np.arange(len(store)), np.zeros((len(store), tiny.width)))
    assert len(places) == len(store) // 10
    assert set(cut.lengths()) == {tokens}
    assert cut.ids(3) == [*store.ids(3)[: tokens - 1], store.ids(3)[-1]]
    torch.testing.assert_close(
        torch.from_numpy(vectors[3]).float(), tiny.encode_ids([cut.ids(3)])[0], atol=2e-3, rtol=2e-3
    )


def test_where_enough_texts_are_short_these_are_tried_as_they_are(full, learned):
    store = TextStore(learned[0] / "distillation/texts")
    order = np.random.default_rng(0).permutation(len(store))
    vectors = np.zeros((len(store), full.width), np.float16)
    found, places, same = few_texts(full, store, order, vectors)
    assert (found, same is vectors) == (store, True)
    assert places.tolist() == order[store.lengths()[order] <= FEW_TOKENS][: len(order) // 10].tolist()


def test_where_the_search_had_fewer_texts_candidates_are_scored_on_all(tiny, tmp_path, monkeypatch):
    texts, options = made_texts(500), {"budget": Budget(blocks="2"), "settings": SHORT}  # 25 of them choose
    exact = {one.blocks: one.score for one in distill(tiny, texts, out=tmp_path / "all", **options).search.leading}
    # A search of a tiny model over few texts never takes ten minutes: here any takes too long, and fewer texts do.
    monkeypatch.setattr(search_plan, "SEARCH_SECONDS", 0.0)
    monkeypatch.setattr(search_plan, "FEWEST_SEARCHED", 22)
    result = distill(tiny, texts, out=tmp_path / "fewer", **options)
    assert (result.search.exact, result.search.num_texts) == (False, 22)
    assert "on 22 texts that were cut short, by a beam." in view_of(result).sentences[0]
    tried = [one for one in result.tryouts if one.blocks in exact]
    assert tried
    assert [one.untrained for one in tried] == pytest.approx([exact[one.blocks] for one in tried], abs=1e-3)
    searched = {row.blocks: row.score for row in result.search.best}
    assert result.candidates[0].untrained != searched[result.candidates[0].blocks]


def test_choices_that_few_texts_make_worse_say_what_they_are_compared_by(learned):
    _, result = learned
    first = result.tryouts[0]
    worse = replace(first, blocks=(1, 2), untrained=98.3, learned=96.01, overlap=61.0, low=97.5)
    better = replace(first, blocks=(3, 4), untrained=97.0, learned=97.5, overlap=61.04, low=97.0)
    labelled = [replace(tryout, overlap=None, low=None) for tryout in (better, worse)]
    assert best_tryout((better, worse)) is better  # within the interval of the other one, and nearer
    assert best_tryout((better, replace(worse, low=97.6))).blocks == (1, 2)
    assert best_tryout(labelled).blocks == (1, 2)


def test_what_is_tried_out_is_compared_by_its_nearest_texts(full, learned, tmp_path):
    folder, _ = learned
    store = TextStore(folder / "distillation/texts")
    vectors = full.encode_ids([store.ids(place) for place in range(len(store))]).numpy().astype(np.float16)
    runs = RunStore(tmp_path, "key")
    learning = Learning(full, full, store, vectors, SHORT, None, runs, ALONE, silent)
    with runs.open():
        start = SubsetScore(blocks=(1, 3), score=0.0)
        student, _ = learning._taught((1, 3), few=True)
        found = learning.try_out(start)
        agreement = learning.evaluator.agreement(student)
        assert (found.overlap, found.low) == (agreement.overlap, agreement.low)
        assert found.learned == learning.evaluator.score(student)[0]
        better = learning.try_out(SubsetScore(blocks=(2, 4), score=100.0))  # learning has made it worse
        assert better.overlap == learning.evaluator.agreement(keep(full, (2, 4))).overlap


def test_a_killed_run_ends_with_the_same_model(full, texts, learned, tmp_path):
    out, result = learned
    steps = 0

    def dying(task, done, total):
        nonlocal steps
        steps += "learning" in task
        if steps == 10:
            raise KilledError

    with pytest.raises(KilledError):
        distill(full, texts, out=tmp_path, budget=Budget(blocks="2"), settings=SHORT, progress=dying)
    assert not (tmp_path / "lean").exists()
    again = distill(full, texts, out=tmp_path, budget=Budget(blocks="2"), settings=SHORT, progress=silent)
    assert again.student.scores == result.student.scores
    assert encoder_digest(load_encoder(tmp_path / "lean")) == encoder_digest(load_encoder(out / "lean"))


def test_the_fewest_blocks_within_a_loss(full, texts, learned, tmp_path):
    out, result = learned
    out = shutil.copytree(out, tmp_path / "out")
    points = (100 - result.student.best + 0.03) / 3  # a point of score is three of agreement
    close = distill(full, texts, out=out, budget=Budget(within=points), settings=SHORT)
    assert close.holds
    assert close.student.best >= close.needed == pytest.approx(result.student.best - 0.03)
    assert len(close.chosen) <= 2
    assert len(close.students) <= 3
    assert {student.blocks for student in close.students} >= {close.chosen}
    none = distill(full, texts, out=out, budget=Budget(within=0), settings=SHORT)
    assert not none.holds
    assert "No cut reaches 100.00, 0 points less" in choice(none)
    assert result.needed is None


def test_steps_are_smaller_where_little_is_left_out(tmp_path):
    five = load_encoder(make_tiny("bert", tmp_path / "five", blocks=5))
    wanted = replace(SHORT, learning_rate=DistillSettings().rate(five.width) / 3, held_out=42)
    lean = []
    for name, settings in (("chosen", replace(wanted, learning_rate=None)), ("given", wanted)):
        result = distill(five, TINY_TEXTS, out=tmp_path / name, budget=Budget(blocks="1,2,3,5"), settings=settings)
        assert result.learning_rate == wanted.learning_rate
        lean.append(load_encoder(tmp_path / name / "lean"))
    assert encoder_digest(lean[0]) == encoder_digest(lean[1])


def test_a_model_of_one_block_has_none_to_leave_out(full, texts, tmp_path):
    with pytest.raises(ModelError, match="no block to leave out"):
        distill(truncate(full, 1), texts, out=tmp_path)


def test_labelled_pairs_choose_where_they_are_given(full, texts, tmp_path):
    pairs = load_pairs(BUNDLED)
    dev, test = (replace(part, pairs=part.pairs[:30]) for part in (pairs.dev, pairs.test))
    pairs = replace(pairs, dev=dev, test=test)
    held_back = pairs.dev.texts()[:30]
    budget = Budget(blocks="2,4")
    result = distill(full, [*texts[:250], *held_back], out=tmp_path, budget=budget, settings=SHORT, data=pairs)
    assert result.metric == "Spearman × 100 on dev"
    assert result.chosen == (2, 4)
    for row in result.candidates:  # where agreement chooses, that has an interval of its own
        assert row.interval[0] <= row.untrained <= row.interval[1]
    low, high = result.candidates[0].interval
    assert sizes_table(result).rows[0][1].endswith(f" [{low:.1f}, {high:.1f}]")
    assert result.data_fingerprint == pairs.fingerprint()
    assert read_seen(tmp_path / "lean").tolist() == keys_of(dev).tolist()
    assert read_seen(tmp_path / "full") is None  # which nothing chose
    assert result.texts.excluded >= 30
    assert result.texts.compared == len({text.lower() for part in (dev, test) for text in part.texts()})
    assert not result.notes
    words = [" ".join(text.split()[:4]) for text in texts[:300]]
    again = distill(full, words, out=tmp_path / "short", budget=budget, settings=SHORT, data=pairs)
    assert "The texts of bundled are longer than those learned from: 95 of 100 have up to" in again.notes[0]
    assert result.scores.low <= result.scores.difference <= result.scores.high
    assert result.scores.difference == pytest.approx(result.scores.lean - result.scores.full)


def test_word_pairs_choose_and_report_as_the_seed_divides_them(full, few, tmp_path):
    words, settings = load_pairs(words_folder(tmp_path / "words")), replace(SHORT, seed=2)
    divided = split_pairs(words.train, 2, words.shares)
    learned = [*few, *divided.dev.texts()]
    result = distill(full, learned, out=tmp_path, budget=Budget(blocks="2,4"), settings=settings, data=words)
    assert result.metric == "Spearman × 100 on dev"
    assert result.full_score == pytest.approx(evaluate(full, divided.dev.pairs).spearman)
    assert result.scores.full == pytest.approx(evaluate(full, divided.test.pairs).spearman)
    assert result.texts.excluded >= len(divided.dev.texts())
    assert result.data_fingerprint == words.fingerprint()
    assert unseen(words, tmp_path / "lean").evaluation.pairs == divided.test.pairs


def test_pairs_that_cannot_choose_are_refused_first(full, texts, tmp_path):
    pairs = load_pairs(BUNDLED)
    with pytest.raises(DataError, match="neither dev nor test pairs"):
        distill(full, texts, out=tmp_path / "w", data=replace(pairs, dev=None, test=None))
    classes = replace(pairs.dev, classes=("no", "yes"))
    with pytest.raises(DataError, match="holds classes, not scores"):
        distill(full, texts, out=tmp_path / "w", data=replace(pairs, dev=classes))
    assert not (tmp_path / "w").exists()


def test_vectors_of_a_layer_before_the_end_are_learned_by_blocks_up_to_it(full, texts, few, tmp_path):
    before_the_end = replace(SHORT, layer=3)
    result = distill(full, few, out=tmp_path, budget=Budget(blocks="1,3"), settings=before_the_end)
    assert max(result.chosen) == 3
    assert result.metric == "agreement with layer 3 of the full model"
    assert "with layer 3 of the full model" in choice(result)
    assert [len(row.blocks) for row in result.candidates] == [2, 3, 4]
    assert result.candidates[1].untrained == pytest.approx(100, abs=0.01)
    assert result.candidates[-1].untrained < 99
    assert "has learned the vectors of layer 3 of the full model" in (tmp_path / "lean" / "README.md").read_text()
    some = ["a dog runs over the grass", "two people sit at a table"]
    lean, wanted = load_encoder(tmp_path / "lean").vectors(some), truncate(full, 3).vectors(some)
    near, far = (torch.cosine_similarity(found, wanted).mean() for found in (lean, keep(full, (1, 3)).vectors(some)))
    assert near > far
    assert encoder_digest(load_encoder(tmp_path / "full")) == encoder_digest(full)
    with pytest.raises(UsageError, match="Block 4 lies behind layer 3"):
        distill(full, texts, out=tmp_path / "beyond", budget=Budget(blocks="1,4"), settings=before_the_end)
    with pytest.raises(LayerOutOfRangeError) as beyond:
        distill(full, texts, out=tmp_path / "beyond", settings=replace(SHORT, layer=9))
    assert "from 2 to" in beyond.value.hint


def test_all_blocks_up_to_that_layer_have_nothing_to_learn(full, few, tmp_path):
    settings = replace(SHORT, layer=2)
    result = distill(full, few, out=tmp_path, budget=Budget(blocks="2"), settings=settings)
    assert (result.chosen, result.student.steps, result.student.scores) == ((1, 2), 0, ())
    assert encoder_digest(load_encoder(tmp_path / "lean")) == encoder_digest(truncate(full, 2))
    card = (tmp_path / "lean" / "README.md").read_text()
    assert "keeps blocks 1, 2 of 4 and is layer 2 of the full model itself." in card
    assert "has learned" not in card
    assert result.candidate.learned is None
    assert result.candidate.untrained == pytest.approx(100, abs=0.01)
    assert "after learning" not in [series.label for series in view_of(result).plots[0].series]


def test_blocks_that_labels_prefer_before_learning_are_saved_as_they_came(full, few, tmp_path):
    pairs = load_pairs(BUNDLED)
    two, cut = truncate(full, 2), truncate(full, 1)
    some = pairs.dev.pairs[:30]
    cosines = torch.cosine_similarity(
        *(cut.vectors([getattr(pair, side) for pair in some]) for side in ("first", "second"))
    )
    its_own = [replace(pair, target=float(cosine)) for pair, cosine in zip(some, cosines, strict=True)]
    data = replace(pairs, dev=replace(pairs.dev, pairs=tuple(its_own)), test=None)
    fast = replace(SHORT, learning_rate=1e-2, warmup=0.0)
    result = distill(two, few, out=tmp_path, budget=Budget(blocks="1"), settings=fast, data=data)
    assert result.student.best == pytest.approx(100, abs=0.1)
    assert max(result.student.scores) < 99
    assert result.notes[0].startswith("These blocks had")
    assert encoder_digest(load_encoder(tmp_path / "lean")) == encoder_digest(cut)
    card = (tmp_path / "lean" / "README.md").read_text()
    assert "keeps blocks 1 of 2 and is saved as it was cut." in card
    assert "has learned" not in card


def test_what_cannot_be_kept_or_met_is_said_before_anything_is_read(full, texts, tmp_path):
    with pytest.raises(LayerOutOfRangeError):
        distill(full, iter(()), out=tmp_path, budget=Budget(blocks="1,99"))
    with pytest.raises(UsageError, match="No lean model has 4 blocks"):
        distill(full, iter(()), out=tmp_path, budget=Budget(blocks="1..4"))
    with pytest.raises(UsageError, match="No lean model has 3 blocks") as problem:
        distill(full, iter(()), out=tmp_path, budget=Budget(blocks="3"), settings=replace(SHORT, layer=2))
    assert "from 1 to 2" in problem.value.hint
    smallest = keep(full, (1,)).num_parameters * 4 / 1e6
    with pytest.raises(UsageError, match=f"The smallest choice of blocks takes {smallest:.1f} megabytes") as problem:
        distill(full, iter(()), out=tmp_path, budget=Budget(megabytes=smallest - 0.01))
    assert "a quarter" in problem.value.hint
    with pytest.raises(DataError, match="Only 0 distinct texts"):
        distill(full, iter(()), out=tmp_path, budget=Budget(megabytes=smallest + 0.01))
    model = load_encoder("mini-bert")
    model.name = str(tmp_path / "lean")
    (tmp_path / "lean").mkdir()
    with pytest.raises(UsageError, match="holds the model to start from"):
        distill(model, texts, out=tmp_path)


def test_learning_in_bf16_comes_as_close(full, texts, learned, tmp_path):
    if bf16_instructions(full.device) is None:
        pytest.skip("bf16 is emulated on this processor")
    _, exact = learned
    result = distill(full, texts, out=tmp_path, budget=Budget(blocks="2"), settings=replace(SHORT, precision="bf16"))
    assert result.chosen == exact.chosen
    assert result.student.best == pytest.approx(exact.student.best, abs=0.5)
