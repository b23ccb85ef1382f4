"""The frontier of graphs, against models that are exported and scored one by one."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.support.made_results import a_distillation
from truncate_kit.data import BUNDLED, load_pairs
from truncate_kit.export.exporting import export_graph
from truncate_kit.methods.distill.agreement import AgreementEvaluator
from truncate_kit.methods.distill.frontier import Scored, measure_frontier, own_pairs, with_earlier
from truncate_kit.methods.distill.learning import ids_of
from truncate_kit.methods.distill.result import Agreement, Frontier, FrontierPoint
from truncate_kit.methods.distill.settings import Budget
from truncate_kit.methods.distill.texts import RawTexts, store_texts
from truncate_kit.models import keep, load_encoder, truncate
from truncate_kit.models.vocabulary import keep_pieces, kept_pieces


@pytest.fixture(scope="module")
def full():
    return truncate(load_encoder("mini-bert", max_length=32), 3)


@pytest.fixture(scope="module")
def store(full, tmp_path_factory):
    pairs = load_pairs(BUNDLED)
    return store_texts(full, RawTexts(texts=pairs.texts()[:300]), tmp_path_factory.mktemp("texts") / "texts")


def test_every_point_is_what_its_graph_gives(full, store, tmp_path):
    lean, held_out = keep(full, (1, 3)), np.arange(60)
    ids, reported = ids_of(store, held_out[:30]), held_out[30:]
    evaluator = AgreementEvaluator(ids, full.encode_ids(ids))
    report = AgreementEvaluator(ids_of(store, reported), full.encode_ids(ids_of(store, reported)))
    scored = Scored(
        evaluator, lambda encoder: store.ids_for(encoder, held_out[:30].tolist()), report, reported.tolist()
    )
    found = measure_frontier([((1, 2, 3), full), ((1, 3), lean)], scored, store, held_out)
    points = {(one.blocks, one.precision, one.dims, one.words): one for one in found.points}
    words, width = full.backbone.config.vocab_size, full.width
    kept = kept_pieces(full, {piece for place in range(60, len(store)) for piece in store.ids(place)})
    assert found.words == len(kept) < found.all_words == words
    assert len(points) == len(found.points) == 2 * 2 * 3 * 2
    assert found.points[0].score == pytest.approx(100, abs=0.01)
    vectors = lean.encode_ids(ids)
    for dims in (width, width // 2, width // 4):
        wanted = evaluator.score_of(vectors[:, :dims])[0]
        assert points[(1, 3), "fp32", dims, words].score == pytest.approx(wanted, abs=0.01)
        assert points[(1, 3), "int8", dims, words].score == pytest.approx(wanted, abs=1)
        assert points[(1, 3), "int8", dims, words].score != points[(1, 3), "fp32", dims, words].score
    fewer = keep_pieces(lean, kept)
    split = evaluator.score_of(fewer.vectors(store.read(held_out[:30])))[0]
    assert points[(1, 3), "fp32", width, len(kept)].score == pytest.approx(split, abs=0.01)
    unseen = store.read(reported)
    in_torch = {
        (blocks, kept_words): model.vectors(unseen)
        for blocks, whole in (((1, 2, 3), full), ((1, 3), lean))
        for kept_words, model in ((words, whole), (len(kept), keep_pieces(whole, kept)))
    }
    for one in found.points:
        assert (one.agreement is None) == one.dominated
        if one.agreement is not None:  # int8 is only like them
            wanted = report.agreement_of(in_torch[one.blocks, one.words][:, : one.dims])
            ends = wanted.correlation, wanted.low, wanted.high
            same = pytest.approx(ends, abs=0.05 if one.precision == "fp32" else 2)
            assert (one.agreement.correlation, one.agreement.low, one.agreement.high) == same
    assert split < points[(1, 3), "fp32", width, words].score - 0.01  # some of these texts need other pieces
    export_graph(fewer, tmp_path / "fewer")
    size = (tmp_path / "fewer/model.onnx").stat().st_size / 1e6
    assert points[(1, 3), "fp32", width, len(kept)].megabytes == pytest.approx(size, rel=0.01)
    assert points[(1, 3), "int8", width, words].megabytes < points[(1, 3), "fp32", width, words].megabytes
    learned = {piece for place in range(60, len(store)) for piece in store.ids(place)}
    assert found.covered == pytest.approx(100 * np.mean([set(store.ids(place)) <= learned for place in held_out]))
    assert found.points[0].speedup_interval == (1.0, 1.0)
    for one in found.points:
        low, high = one.speedup_interval
        assert low <= one.texts_per_second / found.points[0].texts_per_second <= high
        assert one.interval is None, "agreement has one of its own"
    values = [(float(f"{one.score:.2f}"), one.texts_per_second, -one.megabytes, -one.dims) for one in found.points]
    for one, mine in zip(found.points, values, strict=True):
        assert one.dominated == any(
            all(a >= b for a, b in zip(other, mine, strict=True)) and other != mine for other in values
        )
    assert not all(one.dominated for one in found.points)


def a_point(**changes):
    made = FrontierPoint(
        blocks=(1, 2), precision="fp32", dims=64, words=9, score=87.19, texts_per_second=10.0, megabytes=10.7
    )
    return replace(made, **changes)


@pytest.mark.parametrize(
    ("changes", "beats"),
    [
        ({"score": 87.1871}, True),  # printed as the other's 87.19, and faster
        ({"score": 87.184}, False),  # 87.18
        ({"score": 87.1871, "megabytes": 10.8}, False),
        ({"score": 87.1871, "dims": 65}, False),
        ({"score": 87.1871, "texts_per_second": 9.9}, False),
    ],
)
def test_scores_that_are_printed_alike_are_equal(changes, beats):
    other = a_point(score=87.1941)
    assert a_point(**({"texts_per_second": 14.2} | changes)).beats(other) == beats


def test_what_differs_behind_the_printed_digits_alone_beats_nothing():
    better, worse = a_point(score=87.1941), a_point(score=87.1871)
    assert not better.beats(worse)
    assert not worse.beats(better)
    assert a_point(score=87.2).beats(worse)


def test_pairs_without_labels_carry_the_models_own_cosines(full):
    texts = load_pairs(BUNDLED).texts()[:40]
    pairs = own_pairs(full, texts)
    assert len(pairs) == 40
    assert len({pair.first for pair in pairs}) == 40
    for pair in list(pairs)[:6]:
        first, second = full.vectors([pair.first, pair.second])
        assert pair.first != pair.second
        assert pair.target == pytest.approx(float(torch.cosine_similarity(first, second, dim=0)), abs=1e-5)
    nearest = max(
        (text for text in texts if text != texts[0]),
        key=lambda text: float(torch.cosine_similarity(*full.vectors([texts[0], text]), dim=0)),
    )
    assert pairs.pairs[0].second == nearest


def test_blocks_that_an_earlier_frontier_has_are_taken_over_at_the_pace_of_now():
    def point(blocks, speed, score):
        return FrontierPoint(
            blocks=blocks, precision="fp32", dims=8, words=9, score=score, texts_per_second=speed, megabytes=len(blocks)
        )

    def frontier(*points):
        return Frontier(points=points, words=None, all_words=9, covered=100.0, seconds=1.0)

    now = frontier(point((1, 2, 3), 10.0, 100.0), point((1,), 30.0, 90.0))
    before = frontier(point((1, 2, 3), 20.0, 100.0), point((1,), 50.0, 90.0), point((1, 3), 30.0, 95.0))
    slow = frontier(point((1, 2, 3), 20.0, 100.0), point((2, 3), 16.0, 94.0))
    found = with_earlier(now, [before, slow])
    assert [(one.blocks, one.texts_per_second) for one in found.points] == [
        ((1, 2, 3), 10.0),
        ((1, 3), 15.0),
        ((2, 3), 8.0),
        ((1,), 30.0),
    ]
    assert [one.dominated for one in found.points] == [False, False, True, False]
    assert with_earlier(now, []) == now


def test_the_graph_that_a_budget_takes_is_said_with_its_intervals():
    made = a_distillation()
    agreement = Agreement(correlation=96.5, low=96.0, high=97.0, overlap=70.0, num_texts=250)
    measured = replace(
        made.frontier.points[-1], blocks=(1, 3), score=97.25, agreement=agreement, speedup_interval=(3.5, 4.25)
    )
    points = (*made.frontier.points[:-1], measured)
    result = replace(
        made, budget=Budget(within=1), needed=97.0, frontier=replace(made.frontier, points=points), graph=measured
    )
    speed = measured.texts_per_second / made.frontier.points[0].texts_per_second
    assert result.graph_sentence == (
        f"Of the graphs that lose at most 1 point the fastest has blocks 1, 3 in {measured.precision}, 16 dimensions "
        f"and 100 words: {speed:.1f} [3.5, 4.2] times the texts a second, 1.0 MB, score 97.25; agreement 96.5 [96.0, "
        "97.0] on texts that nothing was chosen by, below 97.00."
    )
    assert result.sentence.startswith("2 blocks of 4 (1, 3), 2.0 times the texts a second")
    timed = tuple(replace(row, speedup_interval=(1.9, 2.125)) for row in made.candidates)
    assert replace(made, candidates=timed).sentence.startswith("2 blocks of 4 (1, 3), 2.0 [1.9, 2.1] times the texts")
    labels = replace(measured, interval=(95.5, 98.75))
    by_labels = replace(result, metric="Spearman × 100 on dev", graph=labels).graph_sentence
    assert "score 97.25 [95.5, 98.8]; agreement 96.5 [96.0, 97.0] on texts that nothing was chosen by." in by_labels
    other = replace(result, chosen=(1, 2, 4), budget=Budget(speedup=3.5))
    assert other.graph_sentence.startswith("Of the graphs that are 3.5 times as fast as the full float32 one the best")
    assert other.graph_sentence.endswith(". Saved: blocks 1, 2, 4; `blocks` saves others.")
    assert replace(result, graph=None).graph_sentence == "No graph that was measured keeps the budget."
    assert replace(result, budget=Budget(blocks=2)).graph_sentence == ""
    assert replace(result, frontier=None).graph_sentence == ""
