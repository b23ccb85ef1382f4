"""Strategies behind `--layer auto`: what they rank by, against truncated models; what they choose and cost."""

import dataclasses
import functools
import shutil

import pytest
import torch

from tests.support.pairs import labelled_splits, make_pairs, word_splits
from tests.support.training import SETTINGS, swept, without_dropout
from tests.support.trials import Watcher
from truncate_kit.analysis.result import DropPrediction
from truncate_kit.methods.tmft import trials
from truncate_kit.methods.tmft.settings import STRATEGIES
from truncate_kit.methods.tmft.trials import MultiExit, exit_vectors_of
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.store import RunStore
from truncate_kit.models.truncation import truncate
from truncate_kit.training.examples import LabelledTask

LAYERS = (0, 1, 2, 3)


@pytest.fixture(scope="module")
def encoder(tiny_folder):
    return without_dropout(load_encoder(tiny_folder("bert")))


@pytest.mark.parametrize("family", ["bert", "electra", "gpt2", "modernbert"])
def test_exits_equal_truncated_models(tiny_folder, family):
    encoder = load_encoder(tiny_folder(family))
    texts = word_splits().dev.texts()
    vectors = exit_vectors_of(encoder, encoder.token_ids(texts), (1, 2), batch_size=7)
    for layer, exit_ in zip((1, 2), vectors, strict=True):
        torch.testing.assert_close(exit_, truncate(encoder, layer).vectors(texts))


def test_the_loss_of_all_exits_is_the_mean_of_truncated_ones(encoder):
    examples, dev, _ = parts = LabelledTask(encoder, word_splits()).trial(encoder, 0)
    places = [3, 1, 8]
    each = torch.stack([examples.loss(truncate(encoder, layer).eval(), places) for layer in LAYERS])
    encoder.eval()
    exits = MultiExit(dict.fromkeys(LAYERS, parts))
    torch.testing.assert_close(exits.loss(encoder, places), each.mean())
    scores = exits.by_layer(encoder)
    assert scores == pytest.approx({layer: dev.score(truncate(encoder, layer))[0] for layer in LAYERS}, abs=1e-3)


def test_the_probe_learns_and_leaves_the_encoder_alone(encoder):
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    examples, dev, _ = parts = LabelledTask(encoder, word_splits()).trial(encoder, 0)
    exits, heard = MultiExit(dict.fromkeys(LAYERS, parts)), []
    scores = exits.probe(encoder, 0, lambda task, done, total: heard.append((done, total)))
    assert heard == [(1, 2), (2, 2)]  # 128 texts, 64 at a time
    assert scores == exits.probe(encoder, seed=0)
    centred = exit_vectors_of(encoder, dev.texts(), LAYERS)
    centred = centred - exit_vectors_of(encoder, examples.texts(), LAYERS).mean(dim=1, keepdim=True)
    untrained = [dev.score_of(states)[0] for states in centred]
    assert all(score >= start - 1e-3 for score, start in zip(scores.values(), untrained, strict=True))
    assert max(scores.values()) > max(untrained)
    for name, value in encoder.state_dict().items():
        assert torch.equal(value, before[name])


def test_a_probe_of_many_pairs_reads_a_part_of_them(encoder, monkeypatch):
    """The first 20 of a random order: as if the others were not there. One batch holds them all, in any order."""
    exits = MultiExit(dict.fromkeys(LAYERS, LabelledTask(encoder, word_splits()).trial(encoder, 0)))
    drawn = torch.randperm(64, generator=torch.Generator().manual_seed(5))[:20].tolist()
    train = word_splits().train
    fewer = dataclasses.replace(
        word_splits(), train=dataclasses.replace(train, pairs=tuple(train.pairs[i] for i in drawn))
    )
    alone = MultiExit(dict.fromkeys(LAYERS, LabelledTask(encoder, fewer).trial(encoder, 0)))
    expected, everything = alone.probe(encoder, seed=5), exits.probe(encoder, seed=5)
    monkeypatch.setattr(trials, "PROBE_PAIRS", 20)  # 10,001 pairs would take minutes
    scores = exits.probe(encoder, seed=5)
    assert scores == pytest.approx(expected, abs=0.05)
    assert scores != pytest.approx(everything, abs=0.05)


BATCH = 32


def tuned(encoder, out, strategy, pairs=None, epochs=2, seeds=1, **options):
    training = dataclasses.replace(
        SETTINGS, epochs=epochs, batch_size=BATCH, objective=options.pop("objective", "cosine")
    )
    return swept(encoder, out, pairs, training, strategy=strategy, seeds=tuple(range(seeds)), **options)


STEPS, DEPTH = -(-64 // BATCH), 3


@pytest.fixture(scope="module")
def ranked(encoder, tmp_path_factory):
    """The folder of a search by rankings."""
    out = tmp_path_factory.mktemp("rankings")
    tuned(encoder, out, "rankings")
    return out


@pytest.mark.parametrize("strategy", list(STRATEGIES))
def test_every_strategy_ends_with_a_layer_and_states_its_cost(encoder, tmp_path, strategy):
    result = tuned(encoder, tmp_path, strategy)
    assert encoder.depth == DEPTH
    assert result.chosen in LAYERS
    assert strategy in result.choice
    if strategy in ("last", "random", "cka"):
        assert result.search_cost == 0
        assert {row.layer for row in result.layers} == {result.chosen, DEPTH}
    elif strategy == "exhaustive":
        assert result.search_cost == result.exhaustive_cost
    elif strategy in ("multi-exit", "probe", "rankings"):
        exits, frozen = STEPS * DEPTH, STEPS * DEPTH // 3
        ranking = {"multi-exit": exits, "probe": frozen, "rankings": exits + frozen}[strategy]
        others = {trial.layer for trial in result.search} - {result.chosen}  # one epoch each: there is no more to spend
        assert others or strategy == "rankings"  # there is no race where they agree
        assert result.search_cost - ranking == sum(STEPS * max(1, layer) for layer in others)
        assert {row.layer for row in result.layers} == {result.chosen, DEPTH}


def test_without_a_prediction_the_cka_rule_takes_the_last_layer_and_with_one_the_layer_before(encoder, tmp_path):
    falls = DropPrediction(from_layer=2, confidence=0.8, sentence="It falls.", signs={})
    unsure = dataclasses.replace(falls, confidence=0.4)
    unlikely = dataclasses.replace(falls, probability=0.3)  # where there is a probability, it counts
    for prediction, chosen in ((None, DEPTH), (falls, 1), (unsure, DEPTH), (unlikely, DEPTH)):
        assert tuned(encoder, tmp_path, "cka", epochs=1, prediction=prediction).chosen == chosen


def stored_ranking(out, name):
    (folder,) = out.glob(f"trials/*/{name}-seed0-*/")
    return folder


def replace_ranking(out, name, scores) -> None:
    folder = stored_ranking(out, name)
    shutil.rmtree(folder)
    store = RunStore(out / "trials", folder.parent.name)
    store.tensor(folder.name, lambda: torch.tensor(list(scores.values()), dtype=torch.float64))


def test_a_ranking_is_kept_and_taken_up(encoder, tmp_path):
    scores = tuned(encoder, tmp_path, "multi-exit").rankings
    replace_ranking(tmp_path, "multi-exit", {0: 1.0, 1: 98.0, 2: 99.0, 3: 1.0})
    result = tuned(encoder, tmp_path, "multi-exit")
    assert {trial.layer for trial in result.search} == {1, 2}
    assert dict(result.rankings["multi-exit"])[2] == 99.0
    (stored_ranking(tmp_path, "multi-exit") / "model.safetensors").write_bytes(b"short")
    assert tuned(encoder, tmp_path, "multi-exit").rankings == scores


@pytest.mark.parametrize(
    ("frozen", "exits", "raced"),
    [
        ({0: 50, 1: 80, 2: 70, 3: 60}, {0: 50, 1: 80, 2: 70, 3: 75}, set()),  # both would pick 1
        ({0: 50, 1: 80, 2: 70, 3: 60}, {0: 50, 1: 60, 2: 70, 3: 75}, {1, 2, 3}),  # with the second of the first
        ({0: 50, 1: 80, 2: 70, 3: 60}, {0: 50, 1: 60, 2: 75, 3: 70}, {1, 2}),
    ],
)
def test_rankings_that_agree_decide_and_others_race(encoder, ranked, tmp_path, frozen, exits, raced):
    shutil.copytree(ranked, tmp_path, dirs_exist_ok=True)
    for name, scores in (("probe", frozen), ("multi-exit", exits)):
        replace_ranking(tmp_path, name, scores)
    result = tuned(encoder, tmp_path, "rankings")
    assert {trial.layer for trial in result.search} == raced
    dev = {trial.layer: trial.dev for trial in result.search} or frozen
    assert result.chosen == max(dev, key=lambda layer: (dev[layer], -layer))
    others = sum(STEPS * layer for layer in raced - {result.chosen})
    assert result.search_cost == STEPS * DEPTH + STEPS * DEPTH // 3 + others
    assert {name: dict(scores) for name, scores in result.rankings.items()} == {"probe": frozen, "multi-exit": exits}
    assert type(result).read(tmp_path / "sweep.json") == result


def timeless(trials):
    return [dataclasses.replace(trial, seconds=0) for trial in trials]


@pytest.fixture(scope="module")
def everything(encoder, tmp_path_factory):
    """The trials of all layers in three epochs."""
    found = tuned(encoder, tmp_path_factory.mktemp("exhaustive"), "exhaustive", epochs=3)
    return {trial.layer: trial for trial in timeless(found.trials)}


@pytest.fixture(scope="module")
def race(encoder, tmp_path_factory):
    """A function that runs a race in three epochs, each once: its folder, its result, and what was heard of it."""

    @functools.cache
    def run(strategy):
        out, watcher = tmp_path_factory.mktemp("race"), Watcher()
        return out, tuned(encoder, out, strategy, epochs=3, progress=watcher), watcher

    return run


@pytest.mark.parametrize("strategy", ["probe", "multi-exit"])
def test_only_the_winner_of_a_race_goes_on_and_ends_as_if_it_had_never_stopped(encoder, everything, race, strategy):
    out, result, watcher = race(strategy)
    raced = {trial.layer for trial in result.search}
    assert len(raced) > 1
    assert {(trial.epochs, trial.epochs_run, trial.test) for trial in result.search} == {(3, 1, None)}
    assert {(layer, 0, 1) for layer in raced} == set(watcher.places("stopped"))
    for layer in raced - {DEPTH} | {result.chosen}:  # the last layer is the yardstick
        heard = [place for place in watcher.places("epoch") if place[0] == layer]
        assert heard == [(layer, 0, done) for done in ((1, 2, 3) if layer == result.chosen else (1,))]
    assert not list(out.rglob("*.checkpoint"))
    assert timeless(result.trials) == [everything[trial.layer] for trial in result.trials]
    assert timeless(result.search) == [everything[trial.layer].first(1) for trial in result.search]
    again = Watcher()
    assert tuned(encoder, out, strategy, epochs=3, progress=again).chosen == result.chosen
    assert not again.places("epoch")


def test_a_killed_race_is_run_to_its_end(encoder, race, tmp_path):
    def kill(event):
        if event.kind == "stopped" and event.layer != DEPTH:  # the yardstick's, which is there already
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tuned(encoder, tmp_path, "probe", epochs=3, progress=Watcher(kill))
    again, undisturbed = Watcher(), race("probe")[1]
    result = tuned(encoder, tmp_path, "probe", epochs=3, progress=again)
    assert result.chosen == undisturbed.chosen
    assert timeless(result.search) == timeless(undisturbed.search)
    begun = next(trial.layer for trial in result.search if trial.layer != DEPTH)
    assert (begun, 0, 1) not in again.places("epoch")


@pytest.mark.parametrize(("seeds", "epochs"), [(1, 8), (3, 8), (1, 1)])
def test_a_race_spends_a_tenth_of_an_exhaustive_search(encoder, tmp_path, seeds, epochs):
    """One epoch at least, however few there are to spend; in full if there is only one."""
    pairs = dataclasses.replace(word_splits(), train=make_pairs(32))
    result = tuned(encoder, tmp_path, "probe", epochs=epochs, seeds=seeds, pairs=pairs)
    steps = STEPS // 2  # of half the pairs
    raced = {trial.layer for trial in result.search} or {row.layer for row in result.layers}
    ranking = steps * DEPTH // 3
    tenth = 0.1 * seeds * epochs * steps * (1 + 1 + 2)  # of all layers but the deepest
    each = steps * sum(sorted(max(1, layer) for layer in raced)[1:])  # an epoch of all that may lose
    run = {trial.epochs_run for trial in result.search} or {epochs}
    assert run == {min(epochs, max(1, int((tenth - ranking) / each)))}
    if run != {1}:
        assert result.search_cost <= 0.1 * result.exhaustive_cost


def test_rankings_work_with_a_head(encoder, tmp_path):
    pairs = labelled_splits((0.2, 0.6))
    assert tuned(encoder, tmp_path, "rankings", objective="entailment", pairs=pairs, epochs=1).chosen in LAYERS
