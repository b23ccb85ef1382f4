"""Pick rules, strategies, the store and `finetune` end to end on tiny models."""

import csv
import dataclasses
import shutil
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModel

from tests.support.files import edit_json, kept_in
from tests.support.killing import killed
from tests.support.pairs import word_splits
from tests.support.training import SHORT, swept
from tests.support.trials import Watcher, read_trials, timeless
from truncate_kit.analysis.profile import predicted_drop
from truncate_kit.analysis.result import DropPrediction
from truncate_kit.core.errors import UsageError
from truncate_kit.data.pairs import BUNDLED, load_pairs
from truncate_kit.evaluation.graded import evaluate
from truncate_kit.methods.tmft.finetune import sweep_prediction
from truncate_kit.methods.tmft.settings import SweepResult, SweepSettings, parse_layers, picker
from truncate_kit.methods.tmft.trials import layers_named
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.truncation import layer_states, parameters_kept, truncate
from truncate_kit.training.settings import TrainingSettings

# Table of the bundled discriminator's README: dev by layer, predicted to fall from layer 6.
DEV = dict(enumerate([50.7, 69.6, 68.0, 67.6, 68.3, 67.3, 65.0, 64.0, 61.5]))


@pytest.mark.parametrize(
    ("rule", "within", "drop_from", "layer"),
    [
        ("best-dev", None, None, 1),
        ("robust", 2.5, None, 5),
        ("robust", 2.5, 5, 4),
        ("robust", 0.0, None, 1),
        ("robust", 100.0, None, 8),
        ("robust", 0.5, 1, 1),  # nothing close lies before the drop: the best stands
        ("small", 2.5, None, 1),
        ("small", 30.0, None, 0),
        ("robust", None, None, 5),  # 2.5 points
        ("small", None, None, 1),
        ("depth-bonus", None, None, 4),  # 68.3 + 4 / 2 = 70.3; layer 1 has 70.1, layer 5 has 69.8
        ("depth-bonus", 0.0, None, 1),
        ("depth-bonus", 100.0, None, 8),
    ],
)
def test_pick_rules(rule, within, drop_from, layer):
    assert picker(rule, within, drop_from).pick(DEV) == layer


def test_the_bonus_counts_from_the_depth_of_the_model_not_of_what_is_left():
    left = {1: 69.6, 4: 68.3}
    assert picker("depth-bonus", 3.0).pick(left) == 4  # + 3.0
    assert picker("depth-bonus", 3.0, depth=8).pick(left) == 1  # + 1.5
    assert picker("depth-bonus", 3.0, depth=8).contenders(DEV, 2) == [1, 4]


def test_the_robust_rule_on_the_papers_own_results(shared_data):
    """Mean and worst pick regret over the paper's models: 0.60 / 3.8 points by best dev, 0.10 / 1.25 within 2.5."""
    splits = {"val": "dev", "dev": "dev", "validation": "dev", "test": "test"}
    scores = defaultdict(lambda: {"dev": {}, "test": {}})
    for row in csv.DictReader((shared_data / "reference/tmft_per_layer.csv").open()):
        wanted = (row["setting"], row["metric"], row["pooling"]) == ("plain", "spearman", "mean")
        if wanted and row["dataset"].lower().startswith("sts") and row["split"] in splits:
            scores[row["model"]][splits[row["split"]]][int(row["layer"])] = 100 * float(row["mean"])
    regret = {"best-dev": [], "robust": [], "depth-bonus": []}
    for score in scores.values():
        layers = score["dev"].keys() & score["test"].keys()
        for rule in regret if len(layers) > 1 else ():
            chosen = picker(rule).pick({layer: score["dev"][layer] for layer in layers})
            regret[rule].append(max(score["test"][layer] for layer in layers) - score["test"][chosen])
    assert len(regret["robust"]) >= 10
    assert max(regret["best-dev"]) > 3
    for rule in ("robust", "depth-bonus"):
        assert max(regret[rule]) < 1.5
        assert sum(regret[rule]) < sum(regret["best-dev"]) / 3


@pytest.fixture(scope="module")
def exhaustive(tiny_folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("exhaustive")
    return swept(load_encoder(tiny_folder("electra")), out, training=SHORT, layers="all", seeds=(0, 1)), out


@pytest.fixture(scope="module")
def whole(tiny_folder, tmp_path_factory):
    """Every layer once, by a model whose weights stay for other rules."""
    out = tmp_path_factory.mktemp("whole")
    return swept(load_encoder(tiny_folder("bert")), out, layers="all"), out


def test_exhaustive_sweep_reports_means_over_seeds(exhaustive, tiny_folder):
    result, out = exhaustive
    assert [row.layer for row in result.layers] == [0, 1, 2, 3]
    kept = parameters_kept(load_encoder(tiny_folder("electra")).backbone.config)
    assert tuple(row.parameters for row in result.layers) == kept
    for row in result.layers:
        scores = [trial.test for trial in result.trials if trial.layer == row.layer]
        mean = sum(scores) / 2
        assert row.test == pytest.approx(mean)
        assert row.test_std == pytest.approx((2 * (scores[0] - mean) ** 2) ** 0.5)
    assert result.chosen == max(result.layers, key=lambda row: row.dev).layer
    assert result.full == result.layers[-1]
    assert "best dev score" in result.choice
    assert SweepResult.read(out / "sweep.json") == result


_SWEEP = """
from tests.support.training import SHORT, swept
from truncate_kit.models.loading import load_encoder

def work(out, model):
    swept(load_encoder(model), out, training=SHORT, layers="all", seeds=(0, 1), pick="best-dev")
"""


def test_a_killed_sweep_continues_and_ends_with_the_same_result(exhaustive, tiny_folder, tmp_path):
    _, undisturbed = exhaustive
    assert killed(_SWEEP, tmp_path, load_encoder(tiny_folder("electra")).name, writes=10, most=2) >= 1
    (kept,) = read_trials(tmp_path / "trials" / "trials.jsonl").values()
    assert len(kept) == 8  # each trial once
    assert timeless(kept_in(tmp_path / "sweep.json")) == timeless(kept_in(undisturbed / "sweep.json"))


def test_a_combination_of_layers_is_trained_as_one(encoder, tmp_path):
    encoder.combine_layers((0, 2, 3))
    result = swept(encoder, tmp_path)
    lean = load_encoder(tmp_path / "lean")
    assert result.choice == "Layer 3: the only layer that can be trained."
    assert lean.combination == (0, 2, 3)
    trained = evaluate(lean, word_splits().test.pairs).spearman
    assert result.lean.test == pytest.approx(trained, abs=0.01)
    assert trained != pytest.approx(evaluate(encoder, word_splits().test.pairs).spearman, abs=0.01)
    assert "| Layers | their mean: 0, 2, 3 |" in (tmp_path / "lean" / "README.md").read_text()
    assert layers_named(encoder, "auto") == (3,)  # cut below it would be another model under the same name
    with pytest.raises(UsageError, match="combine several layers"):
        layers_named(encoder, "1..3")


def test_trials_of_one_model_are_not_handed_to_another(tiny_folder, tmp_path):
    """Equal weights, other heads: the second sweep in a folder ends as it would alone."""
    other = Path(shutil.copytree(tiny_folder("bert"), tmp_path / "other"))
    edit_json(other / "config.json", num_attention_heads=4)

    def scores(folder, out):
        result = swept(load_encoder(folder), tmp_path / out, layers="1", seeds=(1,))
        return [(row.layer, row.dev, row.test) for row in result.layers]

    first, second = scores(tiny_folder("bert"), "both"), scores(other, "both")
    assert second == scores(other, "alone") != first


@pytest.mark.parametrize(
    ("settings", "chosen", "said"),
    [
        ({"pick": "robust", "within": 100.0}, 3, "distillation makes the model smaller."),
        ({"strategy": "last"}, 3, "No block is cut; distillation makes the model smaller."),
        ({"pick": "small", "within": 100.0}, 0, "within 100 points of the best dev score (small, exhaustive search)."),
        ({"pick": "robust", "within": 100.0, "layers": "1,2"}, 2, "(robust, among the requested layers)."),
        ({"layers": "3"}, 3, "Layer 3: as requested."),
    ],
)
def test_the_choice_says_why_and_whether_nothing_was_gained(settings, chosen, said, tiny_folder, whole):
    asked = settings if "layers" in settings else {"strategy": "exhaustive"} | settings
    result = swept(load_encoder(tiny_folder("bert")), whole[1], **asked)  # nothing is trained
    assert result.chosen == chosen
    assert result.choice.endswith(said)
    assert result.choice in (whole[1] / "lean" / "README.md").read_text()


def test_a_predicted_drop_bounds_the_robust_pick(tiny_folder, tmp_path):
    drop = DropPrediction(from_layer=2, confidence=0.8, sentence="", signs={})
    encoder = load_encoder(tiny_folder("electra"), pooling="cls")  # layer 0 is the same for all texts
    result = swept(encoder, tmp_path, layers="all", pick="robust", within=100.0, prediction=drop)
    assert [row.layer for row in result.layers] == [1, 2, 3]
    assert result.chosen == 1
    assert "before the predicted drop (layer 2)" in result.choice


def test_guided_search_costs_less_and_never_sees_the_test_set(tiny_folder, tmp_path):
    encoder = load_encoder(tiny_folder("electra"))
    result = swept(encoder, tmp_path, training=dataclasses.replace(SHORT, epochs=4), strategy="guided")
    assert result.search
    assert all(trial.test is None for trial in result.search)
    assert result.search_cost == sum(t.steps * max(1, t.layer) for t in result.search)
    assert 2 * result.search_cost < result.exhaustive_cost
    assert {row.layer for row in result.layers} == {result.chosen, 3}


def test_another_rule_or_fewer_seeds_train_nothing_and_take_no_layer_away(tiny_folder, tmp_path):
    encoder, watcher, results = load_encoder(tiny_folder("bert")), Watcher(), {}
    every = {"layers": "1,2,3", "within": 100, "seeds": (0, 1)}
    for pick, asked in (("small", every), ("depth-bonus", every), ("best-dev", {"layers": "1,3", "seeds": (0,)})):
        settings = {"pick": pick} | asked
        result = swept(encoder, tmp_path, progress=watcher, **settings)
        lean = load_encoder(tmp_path / "lean")
        assert lean.depth == result.chosen
        dev = [trial.dev for trial in result.trials if trial.layer == result.chosen and trial.seed in asked["seeds"]]
        assert evaluate(lean, word_splits().dev.pairs).spearman == pytest.approx(max(dev), abs=1e-3)
        results[pick] = result
    assert len(set(watcher.trials)) == 6  # some are run again for their weights
    assert [results[pick].chosen for pick in ("small", "depth-bonus")] == [1, 3]
    first, again = results["small"], results["best-dev"]
    assert first.certainty.compared == (1, 2, 3)
    assert again.certainty.best == again.chosen
    assert again.trials == tuple(trial for trial in first.trials if trial.seed == 0)
    assert all(trial.dev_draws == () for trial in first.trials)
    assert [row.layer for row in again.layers] == [row.layer for row in first.layers]
    assert SweepResult.read(tmp_path / "sweep.json") == again
    assert (first.certainty.seeds, again.certainty.seeds) == (2, 1)
    alone = swept(encoder, tmp_path / "alone", **settings)
    assert [row for row in again.rows if row.layer != 2] == alone.rows
    assert (again.chosen, again.choice, again.certainty) == (alone.chosen, alone.choice, alone.certainty)
    swept(encoder, tmp_path, training=SHORT, **settings)
    kept = {result.training.epochs: result for result in map(SweepResult.read, tmp_path.glob("trials/*/sweep.json"))}
    assert kept.keys() == {1, 2}
    assert kept[1].layers == again.layers


def test_a_model_that_was_cut_before_is_compared_with_the_full_one(tiny_folder, whole, tmp_path):
    """Its trials and its yardstick's are those that each model alone would give."""
    full = load_encoder(tiny_folder("bert"))
    cut, before = truncate(full, 2), {"full": full, "before": "words of | mine"}
    result = swept(cut, tmp_path / "both", layers="all", **before)
    own = swept(cut, tmp_path / "cut", layers="all")
    assert (result.layers, result.full) == (own.layers, whole[0].full)
    assert load_encoder(tmp_path / "both" / "full").depth == 3
    assert swept(cut, tmp_path / "both", layers="all", **before).trials == result.trials
    card = (tmp_path / "both" / "lean" / "README.md").read_text()
    assert f"| Layer | {result.chosen} of 3 |" in card
    assert "| Training before | words of \\| mine |" in card
    weights = [path for path in (tmp_path / "both").glob("trials/*/layer*") if path.is_dir()]
    assert len(weights) == len({(path.parent, path.name[:7]) for path in weights})  # the best of each layer


@pytest.mark.parametrize(
    ("text", "layers"), [("3", (3,)), ("1,3", (1, 3)), ("1..3", (1, 2, 3)), ("all", (0, 1, 2, 3)), ("3..1", None)]
)
def test_layers_as_text(text, layers):
    if layers is None:
        with pytest.raises(UsageError, match="names no layers"):
            parse_layers(text, (0, 1, 2, 3), 3)
    else:
        assert parse_layers(text, (0, 1, 2, 3), 3) == layers
    assert SweepSettings(layers=np.array([1, 2])).layers == "1,2"


@pytest.mark.parametrize(
    ("name", "pooling", "lowest"),
    [("bert", "cls", 1), ("qwen2", "last", 1), ("llama", "last", 1), ("gpt2", "last", 0), ("bert", "mean", 0)],
)
def test_layer_0_is_left_out_where_the_vector_is_the_same_for_every_text(tiny_folder, name, pooling, lowest):
    """The tokenizer of qwen2 and llama ends each text with one token; gpt2 adds its place to it."""
    encoder = load_encoder(tiny_folder(name), pooling=pooling)
    states = layer_states(encoder, ["a cat", "the dog sat on a mat"])[0]
    assert torch.equal(states[0], states[1]) == bool(lowest)
    assert layers_named(encoder, "all") == tuple(range(lowest, 4))
    if lowest:
        with pytest.raises(UsageError, match="cannot be trained at layer 0"):
            layers_named(encoder, "0..2")


@pytest.mark.parametrize("biased", [True, False])
def test_layer_0_is_left_out_where_places_are_relative_only(tiny_folder, tmp_path, biased):
    """DeBERTa adds them to its embeddings, or has them in its attention alone."""
    folder = Path(shutil.copytree(tiny_folder("deberta"), tmp_path / "model"))
    config = AutoConfig.from_pretrained(folder, position_biased_input=biased)
    AutoModel.from_config(config).save_pretrained(folder)
    encoder = load_encoder(folder, pooling="last")
    assert layers_named(encoder, "all") == tuple(range(0 if biased else 1, 4))


def test_the_prediction_sees_training_pairs_alone_and_is_made_where_it_can_count():
    encoder, pairs = load_encoder("mini-bert"), load_pairs(BUNDLED)
    splits = dataclasses.replace(pairs, train=dataclasses.replace(pairs.train, pairs=pairs.train.pairs[:60]))
    found = sweep_prediction(encoder, splits)
    assert found == predicted_drop(encoder, splits.train.texts(), pairs=splits.train.pairs)
    assert found.probability is not None
    assert sweep_prediction(encoder, dataclasses.replace(splits, dev=None, test=None)) == found
    assert sweep_prediction(encoder, splits, SweepSettings(layers="2..4")) is None
    assert sweep_prediction(encoder, splits, training=TrainingSettings(objective="entailment")) is None
    assert sweep_prediction(encoder, dataclasses.replace(splits, train=None)) is None
