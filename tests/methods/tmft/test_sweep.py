"""Pick rules, strategies, the store and `finetune` end to end on tiny models."""

import dataclasses
import json
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard as HubCard
from sentence_transformers import SentenceTransformer
from transformers import AutoConfig, AutoModel

from tests.support.files import kept_in
from tests.support.pairs import word_splits
from tests.support.processes import Program
from tests.support.training import SHORT
from tests.support.trials import read_trials
from truncate_kit.analysis.drop import DropPrediction
from truncate_kit.errors import FileProblemError, LayerOutOfRangeError, UsageError
from truncate_kit.evaluation.graded import evaluate
from truncate_kit.methods.tmft.choosing import PICK_RULES, Picker, PickRule, Search
from truncate_kit.methods.tmft.finetune import Preparation, Sweep, check_sweep, finetune
from truncate_kit.methods.tmft.result import SweepResult
from truncate_kit.methods.tmft.settings import SweepSettings
from truncate_kit.methods.tmft.trials import parse_layers
from truncate_kit.models import load_encoder, parameters_kept, truncate
from truncate_kit.models.layer_pooling import LayerAttentionPooling
from truncate_kit.models.states import layer_states
from truncate_kit.progress import TrialWatcher
from truncate_kit.report.page import write_page
from truncate_kit.report.training import sweep_table

ONCE = dataclasses.replace(SHORT, epochs=1)  # where epochs are not looked at

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
    assert Picker(rule, within, drop_from).pick(DEV) == layer


def test_a_new_row_is_a_rule_everywhere(monkeypatch, tiny_folder, tmp_path):
    row = PickRule(name="middle", within=10.0, words="the middle layer within {within}", choose=middle)
    monkeypatch.setitem(PICK_RULES, row.name, row)
    assert Picker("middle", 2.5).pick(DEV) == 3  # of 1 to 5
    assert Picker("middle", 2.5).contenders(DEV, 2) == [1, 3]
    with pytest.raises(UsageError, match="'centre'") as problem:
        Picker("centre")
    assert "middle" in problem.value.hint
    settings = SweepSettings(layers="1,2,3", pick="middle", within=100, seeds=(0,))
    result = finetune(load_encoder(tiny_folder("bert")), word_splits(), out=tmp_path, settings=settings, training=ONCE)
    assert result.chosen == 2
    assert result.choice == "Layer 2: the middle layer within 100 points (middle, of those that were asked for)."


def test_another_rule_among_finished_trials_trains_nothing(tiny_folder, tmp_path):
    class Planned(TrialWatcher):
        def __init__(self):
            self.trials = []

        def planned(self, trials):
            self.trials += trials

    chosen, encoder = {}, load_encoder(tiny_folder("bert"))
    for pick in ("small", "depth-bonus", "best-dev"):
        watcher = Planned()
        within = None if pick == "best-dev" else 100
        settings = SweepSettings(layers="1,2,3", pick=pick, within=within, seeds=(0, 1))
        result = finetune(encoder, word_splits(), out=tmp_path, settings=settings, training=ONCE, progress=watcher)
        chosen[pick] = result.chosen
        assert len(watcher.trials) == (6 if pick == "small" else 0)
        assert load_encoder(tmp_path / "lean").depth == result.chosen
        dev = evaluate(load_encoder(tmp_path / "lean"), word_splits().dev.pairs).spearman
        assert dev == pytest.approx(max(trial.dev for trial in result.trials if trial.layer == result.chosen), abs=1e-3)
    assert (chosen["small"], chosen["depth-bonus"]) == (1, 3)


def middle(layers):
    return sorted(layers)[len(list(layers)) // 2]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"pick": "robust", "within": 100.0}, "{}; distillation makes it smaller."),
        ({"pick": "robust", "within": 100.0, "layers": "2,3"}, "{}; distillation makes it smaller."),
        ({"pick": "small", "within": 100.0}, None),
        ({"strategy": "last"}, "Nothing is cut; distillation makes it smaller."),
        ({"layers": "3"}, None),  # as asked for
    ],
)
def test_a_search_that_ends_at_the_full_model_says_that_nothing_was_gained(settings, said, tiny_folder, tmp_path):
    result = finetune(
        load_encoder(tiny_folder("bert")),
        word_splits(),
        out=tmp_path,
        settings=SweepSettings(**{"strategy": "exhaustive", "seeds": (0,)} | settings),
        training=ONCE,
    )
    assert (result.chosen == result.full.layer == 3) == (settings.get("pick") != "small")
    beaten = any(row.dev > result.full.dev for row in result.layers)  # the rule passes them over
    none = "None of these layers" if "layers" in settings else "No layer"
    kept = "Nothing is cut" if beaten else f"{none} is better than the full model"
    assert result.choice.endswith(said.format(kept)) if said else "makes it smaller" not in result.choice
    assert result.choice in (tmp_path / "lean" / "README.md").read_text()


@pytest.mark.parametrize(
    ("layers", "beaten", "said"),
    [
        ("all", False, "No layer is better than the full model"),
        ("auto", False, "No layer is better than the full model"),
        ("2,4", False, "None of these layers is better than the full model"),
        ("all", True, "Nothing is cut"),
    ],
)
def test_that_no_layer_is_better_is_said_where_it_is_so(layers, beaten, said):
    run = SimpleNamespace(
        settings=SweepSettings(layers=layers), full=SimpleNamespace(full=SimpleNamespace(depth=4)), blocks=None,
        layers=(1, 2, 3, 4), runner=SimpleNamespace(prior=None), _strategy="rankings", _picker="the best dev score",
    )  # fmt: skip
    assert Sweep._reason(run, Search(4), beaten=beaten).endswith(f". {said}; distillation makes it smaller.")


def test_the_bonus_counts_from_the_depth_of_the_model_not_of_what_is_left():
    left = {1: 69.6, 4: 68.3}
    assert Picker("depth-bonus", 3.0).pick(left) == 4  # + 3.0
    assert Picker("depth-bonus", 3.0, depth=8).pick(left) == 1  # + 1.5
    assert Picker("depth-bonus", 3.0, depth=8).contenders(DEV, 2) == [1, 4]


def test_the_robust_rule_on_the_papers_own_results(shared_data):
    """Mean and worst pick regret over the paper's models: 0.60 / 3.8 points by best dev, 0.10 / 1.25 within 2.5."""
    import csv

    rows = [
        row
        for row in csv.DictReader((shared_data / "reference/tmft_per_layer.csv").open())
        if row["setting"] == "plain"
        and row["metric"] == "spearman"
        and row["dataset"].lower().startswith("sts")
        and row["pooling"] == "mean"
    ]
    regret = {"best-dev": [], "robust": [], "depth-bonus": []}
    for model in {row["model"] for row in rows}:
        score = {
            split: {
                int(r["layer"]): 100 * float(r["mean"]) for r in rows if r["model"] == model and r["split"] in names
            }
            for split, names in (("dev", ("val", "dev", "validation")), ("test", ("test",)))
        }
        layers = set(score["dev"]) & set(score["test"])
        if len(layers) < 2:
            continue
        dev = {layer: score["dev"][layer] for layer in layers}
        for rule in regret:
            chosen = Picker(rule).pick(dev)
            regret[rule].append(max(score["test"][layer] for layer in layers) - score["test"][chosen])
    assert len(regret["robust"]) >= 10
    assert max(regret["best-dev"]) > 3
    for rule in ("robust", "depth-bonus"):
        assert max(regret[rule]) < 1.5
        assert sum(regret[rule]) < sum(regret["best-dev"]) / 3


def test_contenders_hold_what_decides_the_pick():
    assert Picker("best-dev").contenders(DEV, 3) == [1, 2, 4]
    assert Picker("robust", 2.5).contenders(DEV, 3) == [1, 3, 5]  # the best, today's pick, the nearest to the bound
    assert max(Picker("robust", 2.5, 5).contenders(DEV, 4)) < 5


@pytest.mark.parametrize(("text", "layers"), [("3", (3,)), ("1,3", (1, 3)), ("1..3", (1, 2, 3)), ("all", (0, 1, 2, 3))])
def test_layers_as_text(text, layers):
    assert parse_layers(text, (0, 1, 2, 3), 3) == layers


@pytest.mark.parametrize("text", ["", "three", "1,,2", "3..1"])
def test_bad_layers_as_text(text):
    with pytest.raises(UsageError, match="names no layers"):
        parse_layers(text, (0, 1, 2, 3), 3)


@pytest.fixture(scope="module")
def exhaustive(tiny_folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("exhaustive")
    settings = SweepSettings(layers="all", seeds=(0, 1), pick="best-dev")
    return finetune(
        load_encoder(tiny_folder("electra")), word_splits(), out=out, settings=settings, training=SHORT
    ), out


@pytest.mark.parametrize("kind", [list, tuple, np.array])
def test_layers_and_seeds_of_any_list_are_the_same_settings(kind):
    assert SweepSettings(layers=kind([1, 2]), seeds=kind([0, 3])) == SweepSettings(layers="1,2", seeds=(0, 3))


@pytest.mark.parametrize(("seeds", "said"), [(3, "is no list of numbers"), ([], "No seeds"), ([True], "is no number")])
def test_seeds_that_are_none(seeds, said):
    with pytest.raises(UsageError, match=said):
        SweepSettings(seeds=seeds)


@pytest.mark.parametrize("kind", ["a single set", "an object of the type dict"])
def test_what_are_no_splits_is_refused_in_words(kind, tiny_folder, tmp_path):
    given = {} if kind.endswith("dict") else word_splits().train
    with pytest.raises(UsageError, match=f"as `data`, not {kind}"):
        finetune(load_encoder(tiny_folder("bert")), given, out=tmp_path)


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


def test_saved_folder_loads_in_sentence_transformers_and_scores_equally(exhaustive):
    result, out = exhaustive
    trial = next(t for t in result.trials if (t.layer, t.seed) == (result.chosen, result.chosen_seed))
    pairs = word_splits().test.pairs
    ours = evaluate(load_encoder(out / "lean"), pairs)
    assert ours.spearman == pytest.approx(trial.test, abs=1e-4)

    class Peer:
        def encode(self, texts):
            return torch.as_tensor(SentenceTransformer(str(out / "lean"), device="cpu").encode(list(texts)))

    assert evaluate(Peer(), pairs).spearman == pytest.approx(ours.spearman, abs=1e-4)
    assert load_encoder(out / "full").depth == 3


def test_model_card_says_what_it_must(exhaustive):
    result, out = exhaustive
    card = (out / "lean/README.md").read_text()
    row = result.lean
    for part in (f"layer {row.layer}", f"{row.parameters:,}", "words", f"{row.test:.2f}", "Seeds | 0, 1", "Pearson"):
        assert part in card
    found = HubCard(card).data.eval_results  # in the hub's form, `model-index`
    assert [row.metric_type for row in found] == ["spearman_cosine", "pearson_cosine"]
    assert f", test {100 * found[0].metric_value:.2f}." in card


def test_guided_search_costs_less_and_never_sees_the_test_set(tiny_folder, tmp_path):
    training = dataclasses.replace(SHORT, epochs=4)
    result = finetune(
        load_encoder(tiny_folder("electra")),
        word_splits(),
        out=tmp_path,
        settings=SweepSettings(strategy="guided", seeds=(0,)),
        training=training,
    )
    assert result.search
    assert all(trial.test is None for trial in result.search)
    assert result.search_cost == sum(t.steps * max(1, t.layer) for t in result.search)
    assert 2 * result.search_cost < result.exhaustive_cost
    assert {row.layer for row in result.layers} == {result.chosen, 3}
    assert "guided" in result.choice


def test_a_predicted_drop_bounds_the_robust_pick(tiny_folder, tmp_path):
    prediction = DropPrediction(
        falls=True, from_layer=2, confidence=0.8, sentence="It falls.", with_reference=True, signs=()
    )
    settings = SweepSettings(layers="all", seeds=(0,), pick="robust", within=100.0)
    result = finetune(
        load_encoder(tiny_folder("electra")),
        word_splits(),
        out=tmp_path,
        settings=settings,
        training=ONCE,
        prediction=prediction,
    )
    assert result.chosen == 1
    assert "before the predicted drop (layer 2)" in result.choice


def test_wrong_settings_fail_before_any_training(tiny_folder, tmp_path):
    encoder = load_encoder(tiny_folder("bert"))
    for wrong in ({"pick": "best"}, {"strategy": "fast"}, {"seeds": ()}, {"within": -1.0}):
        with pytest.raises(UsageError):
            finetune(encoder, word_splits(), out=tmp_path, settings=SweepSettings(**wrong), training=SHORT)
    with pytest.raises(LayerOutOfRangeError):
        finetune(encoder, word_splits(), out=tmp_path, settings=SweepSettings(layers="9"), training=SHORT)
    assert not (tmp_path / "trials").exists()


_SWEEP = """
import sys
from pathlib import Path
from tests.support.pairs import word_splits
from tests.support.training import SHORT
from truncate_kit.models import load_encoder
from truncate_kit.progress import TrialWatcher
from truncate_kit.methods.tmft.finetune import finetune
from truncate_kit.methods.tmft.settings import SweepSettings
class Shown(TrialWatcher):
    def progress(self, task, done, total):
        print(task, done, flush=True)
finetune(load_encoder(sys.argv[1]), word_splits(), out=Path(sys.argv[2]),
         settings=SweepSettings(layers="all", seeds=(0, 1), pick="best-dev"), training=SHORT,
         progress=Shown())
"""


def _comparable(path: Path) -> dict:
    values = kept_in(path)
    values.pop("seconds")
    for trial in values["trials"] + values["search"]:
        trial.pop("seconds")
    return values


def test_a_killed_sweep_continues_and_ends_with_the_same_result(exhaustive, tiny_folder, tmp_path):
    _, undisturbed = exhaustive
    model = load_encoder(tiny_folder("electra")).name
    for lines in (3, 20):  # in the first trial, and some trials later
        running = Program(_SWEEP, model, tmp_path)
        for _ in range(lines):
            running.stdout.readline()
        running.kill()
        assert running.returncode == -signal.SIGKILL
    (kept,) = read_trials(tmp_path / "trials" / "trials.jsonl").values()
    finished = len(kept)
    assert 0 < finished < 8
    running = Program(_SWEEP, model, tmp_path)
    output, errors = running.communicate()
    assert running.returncode == 0, errors
    assert "layer 3, seed 0" not in output  # the yardstick, finished before the kill: not run again
    ours, theirs = _comparable(tmp_path / "sweep.json"), _comparable(undisturbed / "sweep.json")
    assert json.dumps(ours, sort_keys=True) == json.dumps(theirs, sort_keys=True)


def test_a_shorter_run_takes_no_result_away(tiny_folder, tmp_path):
    encoder = load_encoder(tiny_folder("bert"))
    long, short = SweepSettings(layers="1,2", seeds=(0, 1)), SweepSettings(layers="2", seeds=(0,))
    first = finetune(encoder, word_splits(), out=tmp_path, settings=long, training=SHORT)
    records = (tmp_path / "trials" / "trials.jsonl").read_bytes()
    again = finetune(encoder, word_splits(), out=tmp_path, settings=short, training=SHORT)
    assert (tmp_path / "trials" / "trials.jsonl").read_bytes() == records
    assert [row.layer for row in again.layers] == [1, 2, 3]
    assert (again.layers, again.full, again.trials) == (first.layers, first.full, first.trials)
    assert SweepResult.read(tmp_path / "sweep.json") == again
    assert again.chosen == load_encoder(tmp_path / "lean").depth == 2  # saved is what was asked for
    # Whatever is shown beside means over two seeds counts two.
    assert "2 seeds" in sweep_table(again).title
    assert again.certainty.seeds == first.certainty.seeds == 2
    page = Path(write_page(tmp_path).page).read_text()
    assert "2 seeds: test" in page
    assert "One seed: another one" not in page
    fewer = dataclasses.replace(SHORT, epochs=1)
    finetune(encoder, word_splits(), out=tmp_path, settings=short, training=fewer)
    kept = {result.training.epochs: result for result in map(SweepResult.read, tmp_path.glob("trials/*/sweep.json"))}
    assert set(kept) == {1, SHORT.epochs}
    assert kept[SHORT.epochs].layers == first.layers


def test_cls_pooling_leaves_out_the_layer_where_all_texts_are_alike(tiny_folder, tmp_path):
    encoder = load_encoder(tiny_folder("electra"), pooling="cls")
    settings = SweepSettings(layers="all", seeds=(0,))
    result = finetune(encoder, word_splits(), out=tmp_path, settings=settings, training=ONCE)
    assert [row.layer for row in result.layers] == [1, 2, 3]


def test_a_second_process_on_the_same_run_is_told(tiny_folder, tmp_path):
    model = Path(load_encoder(tiny_folder("electra")).name)
    running = Program(_SWEEP, model, tmp_path)
    running.stdout.readline()
    try:
        with pytest.raises(FileProblemError, match="Another process"):
            finetune(
                load_encoder(model),
                word_splits(),
                out=tmp_path,
                settings=SweepSettings(layers="1", seeds=(0,)),
                training=SHORT,
            )
    finally:
        running.kill()


def test_a_combination_of_layers_is_trained_as_one(tiny_folder, tmp_path):
    encoder = load_encoder(tiny_folder("bert"))
    encoder.combine_layers((0, 2, 3))
    settings = SweepSettings(layers="3", seeds=(0,))
    result = finetune(encoder, word_splits(), out=tmp_path, settings=settings, training=ONCE)
    lean = load_encoder(tmp_path / "lean")
    assert lean.combination == (0, 2, 3)
    trained = evaluate(lean, word_splits().test.pairs).spearman
    assert result.lean.test == pytest.approx(trained, abs=0.01)
    assert trained != pytest.approx(evaluate(encoder, word_splits().test.pairs).spearman, abs=0.01)
    assert "| Layers | their mean: 0, 2, 3 |" in (tmp_path / "lean" / "README.md").read_text()


def test_layer_0_is_refused_where_the_first_token_is_the_vector(tiny_folder):
    encoder = load_encoder(tiny_folder("bert"), pooling="cls")
    assert check_sweep(encoder, SweepSettings(layers="all")) == (1, 2, 3)
    with pytest.raises(UsageError, match="the first token is the same for every text"):
        check_sweep(encoder, SweepSettings(layers="0..2"))


@pytest.mark.parametrize(("name", "layers"), [("qwen2", (1, 2, 3)), ("llama", (1, 2, 3)), ("gpt2", (0, 1, 2, 3))])
def test_layer_0_is_left_out_where_the_last_token_is_the_same_for_every_text(tiny_folder, name, layers):
    """The tokenizer of these ends each text with one token; gpt2 adds its place to it."""
    encoder = load_encoder(tiny_folder(name), pooling="last")
    states = layer_states(encoder, ["a cat", "the dog sat on a mat"])[0]
    assert torch.equal(states[0], states[1]) == (0 not in layers)
    assert check_sweep(encoder, SweepSettings(layers="all")) == layers
    if 0 not in layers:
        with pytest.raises(UsageError, match="the last token is the same for every text"):
            check_sweep(encoder, SweepSettings(layers="0..2"))


@pytest.mark.parametrize("biased", [True, False])
def test_layer_0_is_left_out_where_places_are_relative_only(tiny_folder, tmp_path, biased):
    """DeBERTa adds them to its embeddings, or has them in its attention alone."""
    folder = Path(shutil.copytree(tiny_folder("deberta"), tmp_path / "model"))
    config = AutoConfig.from_pretrained(folder, position_biased_input=biased)
    AutoModel.from_config(config).save_pretrained(folder)
    encoder = load_encoder(folder, pooling="last")
    states = layer_states(encoder, ["a cat", "the dog sat on a mat"])[0]
    assert torch.equal(states[0], states[1]) is not biased
    assert check_sweep(encoder, SweepSettings(layers="all")) == ((0, 1, 2, 3) if biased else (1, 2, 3))


def test_parameters_of_a_pooling_over_layers_are_counted(tiny_folder, tmp_path):
    encoder = load_encoder(tiny_folder("bert"))
    encoder.pool_with(LayerAttentionPooling(encoder.width))
    result = finetune(encoder, word_splits(), out=tmp_path, settings=SweepSettings(seeds=(0,)), training=ONCE)
    assert result.lean.parameters == load_encoder(tmp_path / "lean").num_parameters


@pytest.mark.parametrize("layers", ["auto", "all", "3"])
def test_a_combination_of_layers_is_tried_nowhere_else(tiny_folder, layers):
    """Cut below its last layer it would be another model under the same name."""
    encoder = load_encoder(tiny_folder("bert"))
    encoder.combine_layers((0, 2, 3))
    assert check_sweep(encoder, SweepSettings(layers=layers)) == (3,)
    with pytest.raises(UsageError, match="made of several layers, up to layer 3"):
        check_sweep(encoder, SweepSettings(layers="1..3"))


def test_a_model_that_was_cut_before_is_compared_with_the_full_one(tiny_folder, tmp_path):
    """Its trials and its yardstick's are those that each model alone would give."""
    full = load_encoder(tiny_folder("bert"))
    cut = truncate(full, 2)
    settings = SweepSettings(layers="all", seeds=(0,))
    options = {"settings": settings, "training": ONCE}
    result = finetune(
        cut, word_splits(), out=tmp_path / "both", before=Preparation(full=full, words="words of | mine"), **options
    )
    own = finetune(cut, word_splits(), out=tmp_path / "cut", **options)
    whole = finetune(full, word_splits(), out=tmp_path / "whole", **options)
    assert result.layers == own.layers
    assert result.full == whole.full
    assert load_encoder(tmp_path / "both" / "full").depth == 3
    again = finetune(cut, word_splits(), out=tmp_path / "both", before=Preparation(full=full), **options)
    assert again.trials == result.trials
    card = (tmp_path / "both" / "lean" / "README.md").read_text()
    assert f"| Layer | {result.chosen} of 3 |" in card
    finetune(
        cut, word_splits(), out=tmp_path / "both", before=Preparation(full=full, words="words of | mine"), **options
    )
    assert "| Before it | words of \\| mine |" in (tmp_path / "both" / "lean" / "README.md").read_text()
    weights = [path for path in (tmp_path / "both").glob("trials/*/layer*") if path.is_dir()]
    assert len(weights) == len({(path.parent, path.name[:7]) for path in weights})  # the best of each layer


def test_trials_of_one_model_are_not_handed_to_another(tiny_folder, tmp_path):
    """Equal weights, other heads: the second sweep in a folder ends as it would alone."""
    other = Path(shutil.copytree(tiny_folder("bert"), tmp_path / "other"))
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"num_attention_heads": 4}))
    settings = SweepSettings(layers="1", seeds=(1,))

    def scores(folder, out):
        result = finetune(load_encoder(folder), word_splits(), out=tmp_path / out, settings=settings, training=ONCE)
        return [(row.layer, row.dev, row.test) for row in result.layers]

    first, second = scores(tiny_folder("bert"), "both"), scores(other, "both")
    assert second == scores(other, "alone") != first
