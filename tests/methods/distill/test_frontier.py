"""The frontier of graphs, against models that are exported and scored one by one; and how models are timed."""

import random
import statistics
from dataclasses import replace

import numpy as np
import pytest
import torch

from truncate_kit.data.pairs import BUNDLED, load_pairs
from truncate_kit.export.exporting import export_graph
from truncate_kit.methods.distill.distilling import distill, speeds
from truncate_kit.methods.distill.labels import own_pairs
from truncate_kit.methods.distill.learning import AgreementEvaluator, TextStore, held_out_places
from truncate_kit.methods.distill.settings import (
    Budget,
    DistillSettings,
    LeanModel,
    Measured,
    mark_dominated,
    merged_graphs,
)
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.truncation import keep_pieces, kept_pieces, truncate

SETTINGS = DistillSettings(frontier=True)


@pytest.fixture(scope="module")
def full():
    return truncate(load_encoder("mini-bert", max_length=32), 2)


@pytest.fixture(scope="module")
def distilled(full, tmp_path_factory, no_graphs):
    """Return the folder, the texts and the result of a distillation that measured graphs."""
    out, texts = tmp_path_factory.mktemp("frontier"), load_pairs(BUNDLED).texts()[:300]
    return out, texts, distill(full, texts, out=out, budget=Budget(blocks=[2]), settings=SETTINGS)


def test_every_point_is_what_its_graph_gives(full, distilled, tmp_path):
    out, _, found = distilled
    lean, store = load_encoder(out / "lean"), TextStore(out / "distillation" / "texts")
    choosing, reporting, learned_from = held_out_places(len(store), SETTINGS)
    evaluator, report = (
        AgreementEvaluator(ids := store.ids_at(places), full.encode_ids(ids)) for places in (choosing, reporting)
    )
    points = {(one.blocks, one.precision, one.dims, one.words): one for one in found.frontier}
    words, width = full.backbone.config.vocab_size, full.width
    learned = {piece for row in store.ids_at(learned_from) for piece in row}
    kept = kept_pieces(full, learned)
    assert {one.words for one in found.frontier} == {len(kept), words}
    assert len(kept) < words
    assert len(points) == len(found.frontier) == 2 * 2 * 3 * 2
    first = found.frontier[0]
    assert first.score == pytest.approx(100, abs=0.01)
    judged = lean.encode_ids(evaluator.texts())
    for dims in (width, width // 2, width // 4):
        wanted = evaluator.score_of(judged[:, :dims])[0]
        exact, eight = (points[(2,), precision, dims, words].score for precision in ("fp32", "int8"))
        assert exact == pytest.approx(wanted, abs=0.01)
        assert eight == pytest.approx(wanted, abs=1)
        assert eight != exact
    # Some of these texts need other pieces, and are read in those that are left.
    fewer = keep_pieces(lean, kept)
    split = evaluator.score_of(fewer.encode_ids(store.ids_for(fewer, choosing.tolist())))[0]
    assert points[(2,), "fp32", width, len(kept)].score == pytest.approx(split, abs=0.01)
    assert split != points[(2,), "fp32", width, words].score
    unseen = store.read(reporting.tolist())
    order = np.argsort(np.argsort(reporting))
    for one in found.frontier:
        assert (one.agreement is None) == one.dominated
        low, high = one.speedup_interval
        assert low <= one.texts_per_second / first.texts_per_second <= high
        assert one.interval is None, "agreement has one of its own"
        if one.agreement is not None:
            whole = full if one.blocks == (1, 2) else lean
            model = whole if one.words == words else keep_pieces(whole, kept)
            wanted = report.agreement_of(model.vectors(unseen)[order][:, : one.dims])
            close = 0.05 if one.precision == "fp32" else 2  # int8 is only like them
            assert one.agreement.correlation == pytest.approx(wanted.correlation, abs=close)
    export_graph(fewer, tmp_path / "fewer")
    size = (tmp_path / "fewer/onnx/model.onnx").stat().st_size / 1e6
    assert points[(2,), "fp32", width, len(kept)].megabytes == pytest.approx(size, rel=0.01)
    assert points[(2,), "int8", width, words].megabytes < points[(2,), "fp32", width, words].megabytes
    held_out = store.ids_at(np.concatenate([choosing, reporting]))
    assert found.covered == pytest.approx(100 * np.mean([set(row) <= learned for row in held_out]))
    assert first.speedup_interval == (1.0, 1.0)
    assert not all(one.dominated for one in found.frontier)


def test_graphs_are_measured_once_and_merged_with_earlier_ones(full, distilled):
    out, texts, first = distilled

    def run(blocks, frontier):
        seen = []
        options = {"settings": replace(SETTINGS, frontier=frontier), "progress": lambda *step: seen.append(step[0])}
        return distill(full, texts, out=out, budget=Budget(blocks=blocks), **options), "Measuring graphs" in seen

    for frontier in (False, True):
        again, measured = run([2], frontier)
        assert (again.frontier, measured) == (first.frontier, False)
    assert run([1], False)[0].frontier == ()
    result, measured = run([1], True)
    assert measured
    assert {one.blocks for one in result.frontier} == {(1, 2), (2,), (1,)}

    def scores(found):
        return {(one.precision, one.dims, one.words): one.score for one in found if one.blocks == (2,)}

    assert scores(result.frontier) == scores(first.frontier)


def a_point(**changes):
    made = LeanModel(blocks=(1, 2), precision="fp32", dims=64, words=9, score=87.19, pace=14.2, megabytes=10.7)
    return replace(made, **changes)


@pytest.mark.parametrize(
    ("changes", "beats"),
    [
        ({"score": 87.1871}, True),  # printed as the other's 87.19, and faster
        ({"score": 87.184}, False),  # 87.18
        ({"score": 87.1871, "megabytes": 10.8}, False),
        ({"score": 87.1871, "dims": 65}, False),
        ({"score": 87.1871, "pace": 9.9}, False),
        ({"score": 87.1871, "pace": 10.0}, False),  # what differs behind the printed digits alone
        ({"score": 87.2, "pace": 10.0}, True),
    ],
)
def test_scores_that_are_printed_alike_are_equal(changes, beats):
    marked = mark_dominated([a_point(**changes), a_point(score=87.1941, pace=10.0)])
    assert marked[1].dominated == beats


def test_pairs_without_labels_carry_the_models_own_cosines(full):
    texts = load_pairs(BUNDLED).texts()[:40]
    pairs = own_pairs(full, texts)
    assert len({pair.first for pair in pairs}) == len(pairs) == 40
    cosines = torch.nn.functional.normalize(full.vectors(texts), dim=1)
    cosines = (cosines @ cosines.T).fill_diagonal_(-2)
    for pair in pairs:
        assert pair.first != pair.second
        assert pair.target == pytest.approx(float(cosines[texts.index(pair.first), texts.index(pair.second)]), abs=1e-5)
    assert pairs.pairs[0].second == texts[int(cosines[0].argmax())]


def test_blocks_that_an_earlier_frontier_has_are_taken_over_at_the_pace_of_now():
    def made(*rows):
        points = tuple(
            a_point(blocks=blocks, score=score, texts_per_second=speed, pace=speed, megabytes=len(blocks))
            for blocks, speed, score in rows
        )
        return Measured(rows=points)

    now = made(((1, 2, 3), 10.0, 100.0), ((1,), 30.0, 90.0))
    before = made(((1, 2, 3), 20.0, 100.0), ((1,), 50.0, 90.0), ((1, 3), 30.0, 95.0))
    slow = made(((1, 2, 3), 20.0, 100.0), ((2, 3), 16.0, 94.0))
    found = merged_graphs([before, slow, now])
    assert [(one.blocks, one.texts_per_second, one.pace, one.dominated) for one in found] == [
        ((1, 2, 3), 10.0, 10.0, False),
        ((1, 3), 15.0, 15.0, False),
        ((2, 3), 8.0, 8.0, True),
        ((1,), 30.0, 30.0, False),
    ]
    assert merged_graphs([now]) == now.rows


def test_speedups_have_the_interval_of_a_bootstrap_over_rounds():
    """Against one that draws by itself; a round that was slow for all says nothing of their factor."""
    draw = random.Random(1)
    slow = [draw.uniform(1, 3) for _ in range(12)]
    full = [2.0 * factor for factor in slow]
    lean = [1.0 * factor * draw.uniform(0.9, 1.1) for factor in slow]
    (rate, (low, high)), (full_rate, same) = speeds(np.array([lean, full]), 30, -1)
    assert (rate, full_rate) == pytest.approx((30 / statistics.median(lean), 30 / statistics.median(full)))
    assert same == (1.0, 1.0)
    factors = []
    for _ in range(4000):
        rounds = [draw.randrange(12) for _ in range(12)]
        factors.append(statistics.median(full[one] for one in rounds) / statistics.median(lean[one] for one in rounds))
    ends = statistics.quantiles(factors, n=40)
    assert (low, high) == pytest.approx((ends[0], ends[-1]), rel=0.02)
    assert high - low < 0.5, "the machine's own changes, threefold, are no part of it"
