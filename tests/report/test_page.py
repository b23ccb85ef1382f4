"""The page of a run: what it recommends, that nothing in it comes from elsewhere, that no string becomes HTML."""

import hashlib
import os
import shlex
import time
from dataclasses import fields, replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import typer.main

from tests.support.made_results import (
    SCORED,
    a_bench,
    a_combination,
    a_contrast,
    a_distillation,
    a_quality,
    a_sweep,
    an_export,
    some_heads,
    write_run,
)
from tests.support.pairs import TEXTS, pairs_of
from truncate_kit.analysis.profiling import profile
from truncate_kit.analysis.settings import AnalysisSettings
from truncate_kit.data import load_pairs
from truncate_kit.errors import ModelError, UsageError
from truncate_kit.methods.distill.result import HeldOutScores
from truncate_kit.methods.tmft.settings import SweepSettings
from truncate_kit.models import load_encoder, save_encoder
from truncate_kit.report import writing
from truncate_kit.report.charts import layers_chart
from truncate_kit.report.measures import against_table
from truncate_kit.report.origins import origins
from truncate_kit.report.run import read_run
from truncate_kit.report.sections import against, speed
from truncate_kit.report.writing import PageReport, write_page
from truncate_kit.training.cutting import CutResult
from truncate_kit.training.objectives import OBJECTIVES
from truncate_kit.training.settings import TrainingSettings
from truncate_kit.workspace import DataSource, LearnedSource, ModelSource, Workspace
from truncate_kit_cli.app import app

EVIL = "</script><img src=x onerror=alert(1)>\"'><b>"


@pytest.fixture(scope="module")
def lean(tiny_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "lean"
    save_encoder(load_encoder(tiny_folder("bert")), folder)
    return folder


@pytest.fixture(scope="module")
def looked_at(tiny_folder):
    encoder, other = load_encoder(tiny_folder("bert")), load_encoder(tiny_folder("electra"))
    return profile(encoder, TEXTS, reference=other, pairs=pairs_of(TEXTS), settings=AnalysisSettings())


class Elements(HTMLParser):
    """Every element with its attributes, and all text."""

    def __init__(self, page):
        super().__init__()
        self.found, self.text = [], ""
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.text += data

    def of(self, tag):
        return [attributes for name, attributes in self.found if name == tag]


def page_of(folder, *others):
    return Elements(Path(write_page(folder, *others).page).read_text(encoding="utf-8"))


def bench_of(quality, *, factor=6.0):
    """The bench of the chosen layer with this interval, lean being `factor` times as fast as full."""
    report = a_bench()
    base = next(row for row in report.timings if (row.role, row.backend) == ("full", "torch-fp32"))
    timings = [
        replace(row, sentences_per_second=base.sentences_per_second * (factor if row.role == "lean" else 1))
        for row in report.timings
    ]
    return replace(report, timings=tuple(timings), quality=quality)


@pytest.mark.parametrize(
    ("low", "high", "factor", "sentence"),
    [
        (1, 3, 6, "Take the lean model (layer 5 of 8): it scores higher (82.0 against 80.0 for the full model) and "
                  "encodes 6.0 times the sentences a second, both in torch fp32."),
        (-0.9, 1.9, 6, "Take the lean model (layer 5 of 8): it encodes 6.0 times the sentences a second, both in torch "
                       "fp32, and no difference in score is shown (80.5 against 80.0)."),
        (-1, 2, 6, "Try the lean model (layer 5 of 8): it encodes 6.0 times the sentences a second, both in torch "
                   "fp32, and no difference in score is shown (80.5 against 80.0), but a loss of 1.0 points is not "
                   "excluded."),
        (-11.48, 3.16, 6, "Try the lean model (layer 5 of 8): it encodes 6.0 times the sentences a second, both in "
                          "torch fp32, and no difference in score is shown (75.8 against 80.0), but a loss of 11.5 "
                          "points is not excluded."),
        (-3, -1, 6, "The lean model (layer 5 of 8) encodes 6.0 times the sentences a second, both in torch fp32, and "
                    "scores 2.0 points less (78.0 against 80.0): take it where speed is worth that."),
        (-3, -1, 1.05, "Keep the full model: the lean one (layer 5 of 8) scores 78.0 against 80.0 and is hardly faster "
                       "(1.05 times the speed in the same runtime)."),
    ],
)  # fmt: skip
def test_the_recommendation_follows_interval_and_speed(lean, tmp_path, low, high, factor, sentence):
    bench = bench_of(a_quality(low, high), factor=factor)
    found = write_page(write_run(tmp_path / "run", lean, bench=bench))
    assert found.recommendations == (sentence,)
    assert f"interval {low:+.2f} to {high:+.2f} (paired bootstrap over 500 pairs of set/test)" in found.grounds[0][0]


def test_a_gain_is_by_the_seeds_that_both_models_have(lean, tmp_path):
    sweep = a_sweep()
    first = sweep.search[0]
    tests = ((5, 0, 60.0), (8, 0, 50.0), (8, 1, 59.0))
    trials = tuple(replace(first, layer=layer, seed=seed, test=test) for layer, seed, test in tests)
    full = replace(sweep.full, seeds=(0, 1), test=54.5)
    layers = (*(replace(row, seeds=(0,)) for row in sweep.layers[:-1]), full)
    run = write_run(tmp_path / "run", lean, sweep=replace(sweep, trials=trials, layers=layers, full=full), bench=None)
    said = write_page(run).recommendations[0]
    assert ", by the seeds that both have, (Spearman × 100) against 50.00 of the full model (+10.00)" in said


def test_pairs_that_repeat_are_said(lean, tmp_path):
    found = write_page(write_run(tmp_path / "run", lean, bench=bench_of(replace(a_quality(-1, 1), num_pairs=400))))
    assert "(paired bootstrap over 500 pairs of set/test, 400 of them different)" in found.grounds[0][0]


def test_a_few_pairs_recommend_nothing(lean, tmp_path):
    """Over three pairs an interval may have no width; where there are more it counts."""
    few = replace(a_quality(150, 150), num_pairs=3)
    bench = replace(bench_of(few), scored=replace(a_bench().scored, num_pairs=3))
    said = "3 pairs are too few for an interval to say which is better"
    found = write_page(write_run(tmp_path / "cut", lean, bench=bench, sweep=None))
    assert found.recommendations[0].startswith(f"{said}. It encodes 6.0 times the sentences a second")
    assert found.grounds[0][0] == f"Score: +150.00 points, without an interval: {said}."
    text = page_of(tmp_path / "cut").text
    assert "no interval yet" in text
    assert "[+150.0, +150.0]" not in text
    assert "Take the lean" not in text
    found = write_page(write_run(tmp_path / "sweep", lean, bench=bench))
    assert found.recommendations[0].startswith("The lean model (layer 5 of 8) scores ")
    enough = replace(bench, quality=replace(few, num_pairs=20))
    assert "Take" in write_page(write_run(tmp_path / "more", lean, bench=enough)).recommendations[0]


def test_a_distilled_model_is_not_judged_by_a_few_queries(lean, tmp_path):
    scores = HeldOutScores(
        data="set", metric="nDCG@10", lean=52.0, full=50.0, mixed=None, difference=2.0, low=2.0, high=2.0,
        num_compared=10,
    )  # fmt: skip
    result = replace(a_distillation(), scores=scores)
    said = "10 queries are too few for an interval to say which is better."
    assert f"set, nDCG@10 of the 10 queries that chose nothing: 52.00 against 50.00, +2.00; {said}" in result.sentence
    run = write_run(tmp_path / "run", lean, sweep=None, bench=None, distilled=result)
    found = write_page(run).recommendations[0]
    assert found.startswith("Try the lean model")
    assert found.endswith(said)
    enough = replace(result, scores=replace(scores, num_compared=50))
    assert "+2.00 [+2.00, +2.00]." in enough.sentence
    run = write_run(tmp_path / "more", lean, sweep=None, bench=None, distilled=enough)
    assert write_page(run).recommendations[0].startswith("Take the lean model")


def in_another(bench, backend, times, **spearman):
    """The bench, in which the models named were also timed in a runtime, that number of times as fast as in torch."""
    rows = [
        replace(row, backend=backend, sentences_per_second=times[row.role] * row.sentences_per_second)
        for row in bench.timings
        if row.backend == "torch-fp32" and row.role in times
    ]
    base = {row.role: row for row in bench.measured() if row.backend == "torch-fp32"}
    some = [replace(base[role], backend=backend, spearman=spearman.get(role, base[role].spearman)) for role in times]

    def apart(row):  # what was measured there before goes
        return row.backend != backend

    return replace(
        bench,
        contestants=(*filter(apart, bench.contestants), *some),
        timings=(*filter(apart, bench.timings), *rows),
    )


def with_8_bits(bench, spearman):
    """The bench, in which graphs in 8 bits are ten times as fast as torch for both, and lean scores this there."""
    return in_another(bench, "onnx-int8", {"lean": 10.0, "full": 10.0}, lean=spearman)


def test_what_is_recommended_is_of_one_runtime(lean, tmp_path):
    """Its speed and its score: an interval of float32 says nothing of a graph that scores eight points less."""
    bench = bench_of(a_quality(-1, 2))
    score = next(row.spearman for row in bench.measured() if (row.role, row.backend) == ("lean", bench.quality.backend))
    found = write_page(write_run(tmp_path / "one", lean, bench=with_8_bits(bench, score - 8)))
    assert "encodes 6.0 times the sentences a second, both in torch fp32, and no diff" in found.recommendations[0]
    assert any(f"lean scores {score - 8:.2f}: the interval is not of that" in line for line in found.grounds[0])
    text = page_of(tmp_path / "one").text
    assert "6.0 × as many" in text  # all parts of the page are of the same runtime
    assert "[-1.0, +2.0]" in text
    assert "among those that timed both and score them as the interval says; score and interval are of that" in text
    assert "Speed: 6.0 × by fewer blocks, both models in torch fp32." in found.grounds[0]
    assert not any("full model was not timed there" in line for line in found.grounds[0])
    found = write_page(write_run(tmp_path / "two", lean, bench=with_8_bits(bench, score - 0.01)))
    assert "encodes 6.0 times the sentences a second, both in ONNX Runtime int8, and no" in found.recommendations[0]
    text = page_of(tmp_path / "two").text
    assert "[-1.0, +2.0]" in text
    assert "; the interval is of torch fp32, where both score within 0.1 points of these." in text


def test_what_a_runtime_gives_to_both_is_no_gain_of_the_lean_model(lean, tmp_path):
    """A graph against torch, or bf16 against float32, is as fast for the full model."""
    slower = in_another(bench_of(a_quality(-1, 2), factor=0.9), "onnx-fp32", {"lean": 1.9, "full": 1.8})
    found = write_page(write_run(tmp_path / "slower", lean, bench=slower))
    assert found.recommendations[0].startswith("Keep the full model: the lean one (layer 5 of 8) scores 80.5 against")
    assert "is slower (0.95 times the speed in the same runtime)" in found.recommendations[0]
    half = in_another(bench_of(a_quality(-1, 2), factor=1.5), "torch-bf16", {"lean": 3.0, "full": 3.0})
    half = in_another(half, "onnx-fp32", {})
    found = write_page(write_run(tmp_path / "half", lean, bench=half))
    assert "it encodes 1.5 times the sentences a second, both in torch bf16" in found.recommendations[0]
    assert "Speed: 1.5 × by fewer blocks, both models in torch bf16." in found.grounds[0]
    said = "Runtime and precision, against torch fp32: torch bf16 gives 3.0 × to lean and 3.0 × to full."
    assert said in found.grounds[0]
    assert "Lean against full in the others: 1.5 × in torch fp32." in found.grounds[0]
    text = page_of(tmp_path / "half").text
    assert "1.5 × as many" in text
    assert "4.5 ×" not in text


def test_no_factor_is_stated_where_no_runtime_timed_both(lean, tmp_path):
    apart = in_another(bench_of(a_quality(-1, 2)), "onnx-fp32", {"lean": 2.0})
    timings = tuple(row for row in apart.timings if (row.role, row.backend) != ("lean", "torch-fp32"))
    found = write_page(write_run(tmp_path / "run", lean, bench=replace(apart, timings=timings)))
    assert found.recommendations == (
        "The lean model (layer 5 of 8) shows no difference in score (80.5 against 80.0); it was not timed in a runtime "
        "that timed the full one as well, so what it gains is not known.",
    )
    said = "Speed: lean was timed in ONNX Runtime fp32 and full in torch fp32. No runtime timed both"
    assert any(line.startswith(said) for line in found.grounds[0])
    text = page_of(tmp_path / "run").text
    assert "No runtime timed both models" in text
    assert "× as many" not in text
    assert "1.60 × smaller" in text  # weights are the same in every runtime


def on_bundled(bench):
    return replace(bench, scored=replace(SCORED, name="bundled/test", bundled=True))


@pytest.mark.parametrize(("low", "high"), [(1, 3), (-1, 2), (-3, -1)])
def test_nothing_is_recommended_by_scores_on_the_bundled_pairs(lean, tmp_path, low, high):
    """For a model of the user's: they are synthetic. What its own data or texts say is taken instead."""
    bench = on_bundled(bench_of(a_quality(low, high)))
    command = f"truncate-kit bench --data PAIRS.csv --workspace {tmp_path}"
    alike = replace(bench, models=tuple(replace(row, parameters=2000) for row in bench.models))
    found = write_page(write_run(tmp_path / "distilled", lean, sweep=None, bench=alike, distilled=a_distillation()))
    assert found.recommendations == (
        "Try the lean model (2 of 4 blocks): it encodes 6.0 times the sentences a second, both in torch fp32, "
        "and agrees with the full model by 97.0 [96.5, 97.5] of 100 on 250 held-out texts. No pairs of yours judge it "
        "yet.",
    )
    assert (
        f"No labels were used. How the lean model scores on pairs of your own: {command}/distilled."
        in (found.grounds[0])
    )
    assert any(line.startswith("Score: measured on the bundled pairs alone") for line in found.grounds[0])
    assert "lean is better" not in page_of(tmp_path / "distilled").text
    found = write_page(write_run(tmp_path / "classes", lean, bench=bench))
    assert found.recommendations[0].startswith(
        "The lean model (layer 5 of 8) scores 56.40 on test of stsb (Spearman × 100) against 53.80 of the full model"
    )
    found = write_page(write_run(tmp_path / "sweep", lean, bench=bench, sweep=replace(a_sweep(), data="bundled")))
    assert "was chosen and scored on the bundled pairs" in found.recommendations[0]
    found = write_page(write_run(tmp_path / "alone", lean, bench=bench, sweep=None))
    assert found.recommendations == (
        "There are no pairs of yours to judge the lean model by. It encodes 6.0 times the sentences a second, both in "
        f"torch fp32. Measure it on pairs of your own: {command}/alone.",
    )
    assert f"{command}/alone" in found.commands
    cut = CutResult(model="mine", layer=2, depth=8, parameters=5000, full_parameters=8000)
    found = write_page(write_run(tmp_path / "cut", lean, bench=bench, cut=cut))
    assert "What it scores on your task is not known." in found.recommendations[0]


def test_what_is_no_lean_model_names_its_data(lean, tmp_path):
    says_little = "bundled, synthetic pairs that say little of your task."
    for data, ends in (("stsb", "of stsb."), ("bundled", f"of {says_little}")):
        results = {"sweep": None, "bench": None, "contrast": replace(a_contrast(), data=data)}
        found = write_page(write_run(tmp_path / f"contrast {data}", lean, **results))
        assert found.recommendations[0].endswith(ends)
    heads = {"sweep": None, "bench": None, "heads": replace(some_heads(), data="bundled")}
    found = write_page(write_run(tmp_path / "heads", lean, **heads))
    says_little_of_heads = f"{says_little[:-1]}; the states of block 2 as they are have 10.00."
    assert found.recommendations[0].endswith(f"of {says_little_of_heads}")
    combined = {"sweep": None, "bench": None, "combined": replace(a_combination(1), data="bundled")}
    found = write_page(write_run(tmp_path / "combined", lean, **combined))
    assert found.recommendations[0].endswith(f"found on {says_little}")


def test_the_bundled_pairs_judge_a_miniature(lean, tmp_path):
    """They come with the package, as it does: the demo ends with a recommendation."""
    sweep = replace(a_sweep(), model="mini-bert", data="bundled")
    found = write_page(write_run(tmp_path / "run", lean, bench=on_bundled(bench_of(a_quality(-0.5, 2))), sweep=sweep))
    assert found.recommendations[0].startswith("Take the lean model")
    assert "(paired bootstrap over 500 pairs of bundled/test, synthetic)" in found.grounds[0][0]


def test_a_bench_that_names_no_pairs_counts_where_pairs_of_the_user_were_the_last(lean, tmp_path):
    """As earlier versions wrote it."""
    bench = replace(bench_of(a_quality(-0.5, 2)), scored=None)
    run = write_run(tmp_path / "run", lean, bench=bench)
    assert not write_page(run).recommendations[0].startswith("Take")
    assert any("bench.json does not say on which pairs" in line for line in write_page(run).grounds[0])
    Workspace(run).remember(None, DataSource("mine.csv"))
    assert write_page(run).recommendations[0].startswith("Take the lean model")


def test_where_only_a_bench_is_both_models_are_to_be_named_again(tmp_path):
    on_bundled(bench_of(a_quality(1, 3))).write(tmp_path / "bench.json")
    (said,) = write_page(tmp_path).recommendations
    assert said.startswith("There are no pairs of yours to judge the lean model by. It encodes 6.0 times")
    assert said.endswith(f"truncate-kit bench LEAN --full FULL --data PAIRS.csv --workspace {tmp_path}.")


def test_a_bench_on_pairs_of_the_user_counts_before_one_on_the_bundled_ones(lean, tmp_path):
    run = write_run(tmp_path / "run", lean, bench=on_bundled(bench_of(a_quality(1, 3))))
    bench_of(a_quality(-3, -1)).write(run / "bench-2.json")
    assert "scores 2.0 points less" in write_page(run).recommendations[0]
    text = page_of(run).text
    assert "Spearman is of 500 pairs of set/test." in text
    assert "Scored on other pairs, so not drawn: a bench on 500 pairs of bundled/test, synthetic." in text


def test_speed_is_known_where_nothing_was_compared(lean, tmp_path):
    bench = replace(bench_of(None), quality=None)
    found = write_page(write_run(tmp_path / "both", lean, bench=bench))
    assert "(+2.60); it encodes 6.0 times the sentences a second, both in torch" in found.recommendations[0]
    alone = replace(
        bench,
        models=tuple(row for row in bench.models if row.role == "lean"),
        contestants=tuple(row for row in bench.contestants if row.role == "lean"),
        timings=tuple(row for row in bench.timings if row.role == "lean"),
    )
    found = write_page(write_run(tmp_path / "alone", lean, bench=alone))
    assert found.recommendations[0].endswith(
        "; in torch fp32 it encodes 1,000 sentences a second, the full one was not timed."
    )
    text = page_of(tmp_path / "alone").text
    assert "The full model was not measured" in text
    assert "Not measured yet" not in text
    assert "the lean model was not timed" not in text
    untimed = replace(bench, timings=tuple(row for row in bench.timings if row.role == "full"))
    write_page(write_run(tmp_path / "untimed", lean, bench=untimed))
    text = page_of(tmp_path / "untimed").text
    assert "The lean model was not timed on a real set" in text
    assert "full model was not measured" not in text


def test_the_last_layer_is_kept_whatever_was_measured(lean, tmp_path):
    sweep = replace(a_sweep(), chosen=8, choice="Layer 8: the best.")
    found = write_page(write_run(tmp_path / "run", lean, sweep=sweep, bench=bench_of(a_quality(1, 3))))
    assert found.recommendations == ("Keep all 8 layers: the best.",)


def test_without_a_bench_nothing_is_said_of_speed(lean, tmp_path):
    found = write_page(write_run(tmp_path / "run", lean, bench=None, graph=None))
    assert found.recommendations[0].endswith("(+2.60); how fast it is has not been measured.")  # 56.4 less 53.8
    assert "Layers 4 and 5 are alike on dev." in found.grounds[0]
    folder = tmp_path / "run"
    for words in ("bench", "export --onnx", "analyze 'mini <b>'"):
        assert f"truncate-kit {words} --workspace {folder}" in found.commands


def of_one_seed(sweep):
    return replace(sweep, layers=tuple(replace(row, seeds=(0,)) for row in sweep.layers))


def test_more_seeds_are_asked_for_with_the_options_of_the_run(lean, tmp_path):
    """Other options would make another model, and find no trial again."""
    settings = SweepSettings(layers="1,2", strategy="rankings", pick="small", within=1.5, seeds=(0,))
    training = TrainingSettings(epochs=2, learning_rate=1e-3, objective="paraphrase")
    sweep = replace(of_one_seed(a_sweep()), settings=settings, training=training, metric="F1 × 100")
    found = write_page(write_run(tmp_path / "run", lean, sweep=sweep))
    (again,) = [command for command in found.commands if " finetune " in command]
    assert again == (
        "truncate-kit finetune 'mini <b>' --data PAIRS.csv --layer 1,2 --pick small --within 1.5 "
        "--objective paraphrase --epochs 2 --batch-size 32 --learning-rate 0.001 --seeds 3 "
        f"--workspace {tmp_path / 'run'}"
    )
    bundled = replace(sweep, data="bundled")  # which need no name; of other pairs nobody noted the file here
    (again,) = [c for c in write_page(write_run(tmp_path / "b", lean, sweep=bundled)).commands if " finetune " in c]
    assert "finetune 'mini <b>' --layer 1,2 " in again
    changes = ({"before": "Words first."}, {"blocks": (1, 4)}, {"metric": "nDCG@10 of half the queries"})
    for place, change in enumerate(changes):
        found = write_page(write_run(tmp_path / f"other{place}", lean, sweep=replace(sweep, **change)))
        assert not [command for command in found.commands if " finetune " in command]


# A value of each setting of `finetune` that is not its default.
OTHER = {
    **{"layers": "1,2", "strategy": "guided", "pick": "small", "within": 1.5, "seeds": (0,), "objective": "paraphrase"},
    **{"epochs": 2, "batch_size": 8, "learning_rate": 1e-3, "precision": "bf16", "weight_decay": 0.5, "warmup": 0.5},
    **{"max_gradient_norm": 2.0, "buckets": False, "compact_vocabulary": False},
}
FINETUNE = typer.main.get_command(app).commands["finetune"]
BESIDE_SETTINGS = {
    *("model", "data", "columns", "scale", "pooling", "max_length"),  # what the page knows of model and pairs
    # with these, no command is shown
    *("retrieval", "search_metric", "blocks", "teacher", "teacher_weight"),
    *("prior_words", "prior_texts", "prior_layer", "prior_epochs"),
    # change no trial
    *("engine", "workers", "ray_address", "gpus_per_worker", "device", "threads", "folder", "tensorboard"),
    *("push_to", "public", "as_json", "json_schema", "quiet", "verbose", "help"),
}


@pytest.mark.parametrize("name", [field.name for kind in (SweepSettings, TrainingSettings) for field in fields(kind)])
def test_each_setting_is_in_the_command_that_asks_for_more_seeds(lean, tmp_path, name):
    """Or there is no such command: a new setting fails here until the page says it again."""
    value = OTHER[name]
    of_sweep = name in {field.name for field in fields(SweepSettings)}
    settings = SweepSettings(**{name: value} if of_sweep else {})
    training = TrainingSettings(**{} if of_sweep else {name: value})
    sweep = replace(of_one_seed(a_sweep()), settings=settings, training=training, metric=training.row.metric)
    found = write_page(write_run(tmp_path / "run", lean, sweep=sweep))
    again = [command for command in found.commands if " finetune " in command]
    option = {"layers": "layer"}.get(name, name)
    if option not in {parameter.name for parameter in FINETUNE.params}:
        assert not again  # set in the library: the command would make another model
        return
    (command,) = again
    read = FINETUNE.make_context("finetune", shlex.split(command)[2:]).params
    assert read[option] == (3 if name == "seeds" else value)


def test_each_option_of_finetune_is_a_setting_or_known_to_the_page():
    settings = {field.name for kind in (SweepSettings, TrainingSettings) for field in fields(kind)}
    options = {parameter.name for parameter in FINETUNE.params}
    assert options - BESIDE_SETTINGS <= settings | {"layer"}


def test_what_train_and_test_share_is_said_of_classes_as_well(lean, tmp_path):
    rows = [f"{one} {place},{one},{name}" for place, one in enumerate(TEXTS[:8]) for name in ("same", "other")]
    for split in ("train", "dev", "test"):
        (tmp_path / "pairs").mkdir(exist_ok=True)
        (tmp_path / f"pairs/{split}.csv").write_text("\n".join(["sentence1,sentence2,label", *rows]) + "\n")
    splits = load_pairs(tmp_path / "pairs", classes=True)
    training = TrainingSettings(objective="entailment")
    sweep = replace(a_sweep(), training=training, data_fingerprint=splits.fingerprint())
    run = write_run(tmp_path / "run", lean, sweep=sweep)
    data = DataSource(str(tmp_path / "pairs"))
    learned = LearnedSource(sweep.data_fingerprint, ModelSource("mini <b>"), data)
    Workspace(run).remember(learned.model, data, learned=learned)
    (section,) = [one for one in origins(read_run(run)) if one.key == "data"]
    assert splits.overlap.warning() in section.sentences


def test_more_seeds_are_asked_for_on_the_same_data_read_alike(lean, tmp_path):
    sweep = replace(of_one_seed(a_sweep()), settings=SweepSettings(seeds=(0,)), training=TrainingSettings())
    run = write_run(tmp_path / "run", lean, sweep=sweep)
    data = DataSource("pairs.csv", ("a", "b", "how alike"), (0.0, 5.0))
    learned = LearnedSource(sweep.data_fingerprint, ModelSource("mini <b>", "cls", 64), data)
    Workspace(run).remember(learned.model, data, learned=learned)
    # What other commands took since is not what was learned from.
    Workspace(run).remember(ModelSource("mini <b>", "mean", 32), DataSource("others.csv"))
    (again,) = [command for command in write_page(run).commands if " finetune " in command]
    assert again == (
        "truncate-kit finetune 'mini <b>' --pooling cls --max-length 64 --data pairs.csv --columns 'a,b,how alike' "
        f"--scale 0,5 --epochs 10 --batch-size 32 --seeds 3 --workspace {run}"
    )
    training = TrainingSettings(objective="entailment")
    replace(sweep, training=training, metric=OBJECTIVES["entailment"].metric).write(run / "sweep.json")
    (again,) = [command for command in write_page(run).commands if " finetune " in command]
    assert "--scale 0,5 --objective entailment --epochs 10 --batch-size 32 --seeds 3" in again
    # Another sweep has taken the place of the one whose pairs were noted.
    replace(sweep, data_fingerprint="other").write(run / "sweep.json")
    (again,) = [command for command in write_page(run).commands if " finetune " in command]
    more = "--epochs 10 --batch-size 32 --seeds 3"
    assert again == f"truncate-kit finetune 'mini <b>' --data PAIRS.csv {more} --workspace {run}"


def test_the_bench_is_asked_for_on_what_it_was_given(lean, tmp_path):
    bench = bench_of(a_quality(1, 3))
    run = write_run(tmp_path / "run", lean, bench=replace(bench, contestants=without_memory(bench)))
    Workspace(run).remember(None, DataSource("last.csv"))
    command = f"truncate-kit bench --workspace {run}"
    assert command in write_page(run).commands
    Workspace(run).remember_benched(DataSource("own.csv", scale=(0.0, 5.0)))
    assert f"truncate-kit bench --data own.csv --scale 0,5 --workspace {run}" in write_page(run).commands
    Workspace(run).remember_benched(None)
    assert command in write_page(run).commands


def without_memory(bench):
    return tuple(replace(row, peak_bytes=None) for row in bench.contestants)


def test_a_bench_of_another_model_is_not_this_ones(lean, tmp_path):
    other = bench_of(a_quality(1, 3))
    other = replace(other, models=tuple(replace(row, parameters=77) for row in other.models))
    found = write_page(write_run(tmp_path / "run", lean, bench=other))
    assert "has not been measured" in found.recommendations[0]


def named(bench, name, **values):
    """The bench of a model of this name, with these facts."""
    models = (replace(row, name=name, **values) if row.role == "lean" else row for row in bench.models)
    return replace(bench, models=tuple(models))


@pytest.mark.parametrize("place", ["run", "."])
def test_a_bench_of_another_model_of_the_workspace_is_not_this_ones(lean, tmp_path, monkeypatch, place):
    """All layers combined are the same weights with other vectors: a name says which model it was."""
    monkeypatch.chdir(tmp_path)
    own = hashlib.sha256((lean / "model.safetensors").read_bytes()).hexdigest()
    cut = CutResult(model="mine", layer=5, depth=8, parameters=5000, full_parameters=8000)
    write_run(tmp_path / "run", lean, sweep=None, cut=cut, bench=None)
    theirs = named(bench_of(a_quality(4, 6), factor=9.0), f"{place}/combined", weights_sha256=own)
    theirs = replace(theirs, scored=None)
    theirs.write(tmp_path / "run/bench.json")
    if place == ".":
        monkeypatch.chdir(tmp_path / "run")
    run = read_run(Path(place))
    assert run.bench is None
    assert run.benches == (theirs,)  # it stands among the measurements
    assert not [note for note in run.notes if "measured other weights" in note]
    assert write_page(Path(place)).recommendations == (f"{cut.sentence} What it scores is not known.",)
    ours = named(on_bundled(bench_of(a_quality(1, 3))), f"{place}/lean", weights_sha256=own)
    ours.write(Path(place) / "bench-2.json")
    assert read_run(Path(place)).bench == ours
    assert read_run(Path(place)).benches == (ours, theirs)  # whatever the pairs are
    assert read_run(tmp_path / "run").bench == ours  # from any folder
    named(ours, "run/lean", weights_sha256="0" * 64).write(Path(place) / "bench-2.json")
    (note,) = (note for note in read_run(Path(place)).notes if "measured other weights" in note)
    assert note.startswith("bench-2.json measured")  # bench.json never was of this model


def test_the_page_of_a_combined_model_has_its_bench(lean, tmp_path):
    folder = write_run(tmp_path / "run", lean, sweep=None, bench=None, graph=None, combined=a_combination(1))
    (folder / "lean").rename(folder / "combined")
    of_lean, own = (named(bench_of(a_quality(1, 3)), f"run/{name}") for name in ("lean", "combined"))
    of_lean.write(folder / "bench.json")
    assert read_run(folder).bench is None
    own.write(folder / "bench-2.json")
    assert read_run(folder).bench == own


def test_models_that_are_drawn_together_are_told_apart_by_their_names(lean, tmp_path, drawn):
    """Both end at layer 5."""
    folder = write_run(tmp_path / "run", lean, bench=bench_of(a_quality(1, 3)))
    named(bench_of(a_quality(1, 3)), "run/combined").write(folder / "bench-2.json")
    page = page_of(folder)
    assert "lean, layer 5" in page.text
    assert "combined, layer 5" in page.text


def test_a_bench_of_what_contrast_replaced_is_not_of_its_model(lean, tmp_path):
    run = write_run(tmp_path / "run", lean, sweep=None, contrast=a_contrast(), bench=bench_of(a_quality(1, 3)))
    assert read_run(run).bench is None
    command = f"truncate-kit bench --full '<b>mini' --workspace {run}"
    assert command.replace(" --workspace", " --data PAIRS.csv --workspace") in write_page(run).commands
    Workspace(run).remember(None, DataSource("mine.csv"))
    assert command in write_page(run).commands


def test_of_several_benches_the_one_of_these_weights_counts(lean, tmp_path):
    """A model of the same shape took the place of the first: `bench` again leaves bench.json, and writes a second."""
    first, second = bench_of(a_quality(1, 3)), bench_of(a_quality(4, 6))
    own = hashlib.sha256((lean / "model.safetensors").read_bytes()).hexdigest()
    first, second = (
        replace(report, models=tuple(replace(row, weights_sha256=digest) for row in report.models))
        for report, digest in ((first, "0" * 64), (second, own))
    )
    folder = write_run(tmp_path / "run", lean, bench=first)
    second.write(folder / "bench-2.json")
    run = read_run(folder)
    assert run.bench == second
    assert not [note for note in run.notes if "measured other weights" in note]
    page = page_of(folder)
    assert page.text.count("1 bench of weights that are no longer here: left out.") == 1
    named = [cells.title for cells in speed(run).tables]
    assert len(named) == 1
    (folder / "bench-2.json").unlink()  # the model was trained again, and nothing was measured since
    assert read_run(folder).bench is None
    found = write_page(folder)
    assert "has not been measured" in found.recommendations[0]
    assert any("bench.json measured other weights" in line for line in found.grounds[0])


def test_tables_of_several_machines_name_theirs(lean, tmp_path):
    report = a_bench()
    run = write_run(tmp_path / "run", lean, bench=report)
    (alone,) = speed(read_run(run)).tables
    assert "measured on" not in alone.title
    gpu = replace(report.machine, device="A GPU")
    replace(report, machine=gpu).write(run / "bench-2.json")
    replace(report, machine=replace(report.machine, processor="another", threads=1)).write(run / "bench-3.json")
    titles = [cells.title for cells in speed(read_run(run)).tables]
    assert [title.removeprefix(alone.title) for title in titles] == [
        f"; measured on {report.machine.threads} threads of {report.machine.processor}",
        "; measured on A GPU",
        "; measured on 1 thread of another",
    ]


@pytest.mark.parametrize("hours", [-1000, 0, 1000])
def test_whether_a_bench_is_of_these_weights_does_not_depend_on_clocks(lean, tmp_path, hours):
    """What was measured is known by the weights' digest: a clock that jumps, or a copied file, changes nothing."""

    def notes(digest: str | None) -> list[str]:
        models = tuple(replace(row, weights_sha256=digest) for row in a_bench().models)
        folder = write_run(tmp_path / str(digest), lean, bench=replace(a_bench(), models=models))
        instant = time.time() + 3600 * hours
        os.utime(folder / "bench.json", (instant, instant))
        return [note for note in read_run(folder).notes if "measured other weights" in note]

    own = hashlib.sha256((lean / "model.safetensors").read_bytes()).hexdigest()
    assert [len(notes(digest)) for digest in (own, None, "0" * 64)] == [0, 0, 1]


def test_a_distilled_model_is_told_by_its_agreement(lean, tmp_path):
    run = write_run(tmp_path / "run", lean, sweep=None, bench=None, distilled=a_distillation())
    found, page = write_page(run), page_of(run)
    assert found.recommendations[0].startswith(
        "Try the lean model (2 of 4 blocks): it encodes 2.0 times the texts a second"
    )
    assert any("No labels were used" in ground for ground in found.grounds[0])
    assert len(page.of("svg")) == 2
    assert "4.00 ×" in page.text  # the int8 graph's speed
    assert "How many blocks" in page.text
    assert "Which layer" not in page.text


@pytest.mark.parametrize(
    ("compared", "excluded", "said"),
    [
        (0, 0, "Not compared with any evaluation set. Name what the model will be measured on with --exclude."),
        (1200, 0, "1,200 texts of evaluation sets compared as whole texts, none found."),
        (1200, 7, "1,200 texts of evaluation sets compared as whole texts, 7 found and left out."),
    ],
)
def test_how_many_texts_of_evaluation_sets_were_compared_is_said(lean, tmp_path, compared, excluded, said):
    result = a_distillation()
    result = replace(result, texts=replace(result.texts, compared=compared, excluded=excluded))
    run = write_run(tmp_path / "run", lean, sweep=None, bench=None, distilled=result)
    (section,) = [one for one in origins(read_run(run)) if one.key == "data"]
    assert " ".join(section.sentences) == said


@pytest.mark.parametrize(
    ("low", "high", "begins"),
    [
        (0.5, 1, "Take the lean"),
        (-0.5, 1, "Take the lean"),
        (-1, 1, "Try the lean"),
        (-2, -1, "The lean model (2 of 4 blocks) encodes 2.0 times"),
    ],
)
def test_a_distilled_model_with_scores_is_told_by_their_interval(lean, tmp_path, low, high, begins):
    middle = (low + high) / 2
    scores = HeldOutScores(
        data="set", metric="nDCG", lean=50 + middle, full=50.0, mixed=None, difference=middle, low=low, high=high
    )
    result = replace(a_distillation(), scores=scores)
    run = write_run(tmp_path / "run", lean, sweep=None, bench=None, distilled=result)
    assert write_page(run).recommendations[0].startswith(begins)
    assert ("no difference shown" in page_of(run).text) == (low < 0 < high)
    assert "no interval yet" not in page_of(run).text


def test_scores_that_bench_does_not_compare_have_no_difference(tmp_path):
    """A model that was tuned and one that was not."""
    assert a_bench().quality is None
    (scores,) = [row[1:] for row in against_table(a_bench()).rows if row[0] == "score, Spearman × 100"]
    assert scores == ("80.00", "82.00", "–")


def test_weights_that_take_fewer_bytes_each_are_said_to(lean, tmp_path):
    bench, said = bench_of(a_quality(1, 3)), "do not compare the models"
    sizes = {one.role: one.parameters for one in bench.models}
    for name, width in (("single", 4), ("half", 2)):
        bytes_of = {"lean": 4 * sizes["lean"], "full": width * sizes["full"]}
        models = tuple(replace(one, weights_bytes=bytes_of[one.role]) for one in bench.models)
        found = against(read_run(write_run(tmp_path / name, lean, bench=replace(bench, models=models))))
        assert any(said in sentence for sentence in found.sentences) == (name == "half")


def test_a_cut_in_the_folder_of_an_earlier_sweep_is_what_counts(lean, tmp_path):
    cut = CutResult(model="mini", layer=2, depth=8, parameters=2000, full_parameters=8000)
    found = write_page(write_run(tmp_path / "run", lean, bench=None, cut=cut))
    assert found.recommendations == (f"{cut.sentence} What it scores is not known.",)


def test_a_profile_alone_is_told(looked_at, tmp_path):
    (tmp_path / "analysis").mkdir()
    looked_at.write(tmp_path / "analysis/profile.json")
    found, page = write_page(tmp_path), page_of(tmp_path)
    assert found.recommendations == (f"Nothing is cut yet. {looked_at.sentence}",)
    assert len(page.of("svg")) == 3  # curve, heat map, untrained scores
    assert f"truncate-kit finetune --workspace {tmp_path}" in found.commands


def test_a_look_at_another_model_is_said_to_be_one(lean, looked_at, tmp_path):
    model = a_sweep().model
    for name, whose in ((model, False), ("another", True)):
        page = page_of(write_run(tmp_path / name, lean, profile=replace(looked_at, model=name)))
        assert (f"the layers of another, which analyze looked at, not those of {model}" in page.text) == whose


def test_nothing_there_is_one_sentence_and_a_hint(tmp_path):
    with pytest.raises(UsageError, match="No command has left a model"):
        write_page(tmp_path)
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo/workspace.json").write_text("{}")
    with pytest.raises(UsageError) as refused:
        write_page(tmp_path)
    assert refused.value.hint == f"Name {tmp_path / 'demo'}."


def test_a_folder_that_is_not_there_or_holds_scores_alone_is_called_that(tmp_path):
    with pytest.raises(UsageError, match=f"There is no folder {tmp_path / 'none'}"):
        write_page(tmp_path / "none")
    (tmp_path / "suite-sts.json").write_text("{}")
    with pytest.raises(UsageError, match=r"holds scores alone \(suite-sts\.json\)") as refused:
        write_page(tmp_path)
    assert "Run analyze" in refused.value.hint


def test_the_table_is_what_was_measured(lean, tmp_path):
    page = page_of(write_run(tmp_path / "run", lean, bench=bench_of(a_quality(1, 3))))
    full = 50 / 0.3  # sentences a second
    assert "lean, ONNX Runtime fp32" in page.text or "lean, torch fp32" in page.text
    for cell in (f"{full:,.0f}", f"{6 * full:,.0f}", "6.0 × as many", "+2.0 points [+1.0, +3.0]", "1.60 × smaller"):
        assert cell in page.text, cell
    metric = a_sweep().metric
    for title in ("Every trial, those of the search first; ", "Cheap rankings of the search on dev, "):
        assert f"{title}{metric}" in page.text  # a score names its measure
    assert "a linear map on frozen states" in page.text


def test_what_takes_more_is_not_called_smaller(lean, tmp_path):
    """Weights that came in half precision, as the bundled ones, are saved in single."""
    bench = bench_of(a_quality(1, 3))
    grown = tuple(replace(one, weights_bytes=3_000_000 if one.role == "lean" else 2_400_000) for one in bench.models)
    text = page_of(write_run(tmp_path / "run", lean, bench=replace(bench, models=grown))).text
    assert "1.25 × larger" in text
    assert "0.80 ×" not in text


def test_more_blocks_and_a_slower_model_are_not_called_fewer_and_faster(tmp_path):
    """The models of a bench are whatever was named: the larger one may be the one to judge."""
    bench = bench_of(a_quality(-3, -1), factor=0.61)
    few, many = ({"layer": 2, "blocks": None, "parameters": 1000}, {"layer": 8, "blocks": None, "parameters": 4000})

    def page_of_bench(report, folder):
        folder.mkdir()
        report.write(folder / "bench.json")
        return write_page(folder)

    def sized(ours, theirs):
        models = tuple(replace(one, **(ours if one.role == "lean" else theirs)) for one in bench.models)
        return replace(bench, models=models)

    for name, ours, theirs, cells in (
        ("fewer", few, many, ("4.0 × fewer", "4.00 × fewer")),
        ("more", many, few, ("4.0 × more", "4.00 × more")),
        ("alike", few, few, ("the same", "the same")),
    ):
        rows = {row[0]: row[-1] for row in against_table(sized(ours, theirs)).rows}
        assert (rows["blocks"], rows["parameters"]) == cells
        found = page_of_bench(sized(ours, theirs), tmp_path / name)
        assert found.recommendations[0].endswith("is slower (0.61 times the speed in the same runtime).")
        assert "Speed: 0.6 × (slower), both models in torch fp32." in found.grounds[0]
        quick = replace(sized(ours, theirs), timings=bench_of(None, factor=3.0).timings)
        said = " ".join(page_of_bench(quick, tmp_path / f"{name}-quick").grounds[0])
        assert ("Speed: 3.0 × by fewer blocks, both" in said) == (name == "fewer")
        assert ("Speed: 3.0 ×, both" in said) == (name != "fewer")


def test_what_was_not_measured_takes_no_row_and_no_column(lean, tmp_path):
    page = page_of(write_run(tmp_path / "run", lean, bench=bench_of(a_quality(1, 3))))
    assert "Peak memory was not measured" in page.text
    assert "peak memory, MB" not in page.text
    assert "peak MB" not in page.text


def test_one_prediction_is_told_where_two_say_the_same(lean, looked_at, tmp_path):
    """That of `analyze`, which has seen more; the search's own where they differ, for that one bounded the search."""
    own = a_sweep().prediction
    for layer, expected in ((own.from_layer, "Seen whole."), (own.from_layer - 1, own.sentence)):
        seen = replace(own, from_layer=layer, sentence="Seen whole.")
        profile = replace(looked_at, model=a_sweep().model, drop=seen)
        grounds = write_page(write_run(tmp_path / str(layer), lean, profile=profile)).grounds[0]
        assert [line for line in grounds if line in ("Seen whole.", own.sentence)] == [expected]


def test_nothing_is_fetched_and_one_script_runs(lean, looked_at, tmp_path, drawn):
    run = write_run(tmp_path / "run", lean, profile=looked_at, bench=bench_of(a_quality(1, 3)))
    page = page_of(run)
    assert len(page.of("script")) == 1
    assert len(page.of("svg")) == 5
    for _, attributes in page.found:
        for name, value in attributes.items():
            assert not name.startswith("on"), (name, value)
            if name in ("href", "src", "xlink:href", "action", "srcset"):
                assert value.startswith(("#", "data:")), value
    (policy,) = [row["content"] for row in page.of("meta") if row.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none';")
    ids = [attributes["id"] for _, attributes in page.found if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert (run / "report.html").stat().st_size < 6 * 2**20


def test_a_page_that_would_be_too_large_is_refused(lean, looked_at, tmp_path, monkeypatch, drawn):
    run = write_run(tmp_path / "run", lean, profile=looked_at)
    size = write_page(run).file_bytes
    monkeypatch.setattr(writing, "MOST_BYTES", size)
    write_page(run)
    kept = (run / "report.html").read_bytes()
    monkeypatch.setattr(writing, "MOST_BYTES", size - 1)
    with pytest.raises(ModelError, match=r"The page would have 0\.[1-9] MiB"):
        write_page(run)
    assert (run / "report.html").read_bytes() == kept


def test_the_search_is_explained_where_there_was_one():
    found = a_sweep()
    assert "grey is what the search saw" in layers_chart(found).caption
    assert "grey" not in layers_chart(replace(found, search=(), rankings={})).caption


def test_strings_from_data_are_text_wherever_they_stand(lean, looked_at, tmp_path, drawn):
    bench = bench_of(a_quality(1, 3))
    bench = replace(
        bench,
        machine=replace(bench.machine, processor=EVIL),
        notes=(EVIL,),
        contestants=tuple(replace(row, absent=row.absent and EVIL) for row in bench.contestants),
    )
    sweep = replace(a_sweep(), model=EVIL, data=EVIL, choice=EVIL, metric=f"{EVIL} $\\frac{{$")
    task = replace(an_export().task, data=EVIL)
    seen = replace(looked_at, model=EVIL, reference=EVIL)
    graph = replace(an_export(), task=task, family=EVIL)
    clean = page_of(write_run(tmp_path / "clean", lean, bench=bench_of(a_quality(1, 3)), profile=looked_at))
    page = page_of(write_run(tmp_path / "run", lean, bench=bench, sweep=sweep, profile=seen, graph=graph))
    assert page.of("img") == []
    assert page.of("b") == []
    assert len(page.of("script")) == len(clean.of("script"))
    assert page.text.count("onerror=alert(1)") >= 8  # it is shown as it is


def test_the_same_run_gives_the_same_bytes(lean, looked_at, tmp_path, drawn):
    run = write_run(tmp_path / "run", lean, profile=looked_at)
    first = write_page(run)
    content = (run / "report.html").read_bytes()
    assert write_page(run) == first == PageReport.from_dict(first.to_dict())
    assert (run / "report.html").read_bytes() == content


def test_two_runs_stand_side_by_side_and_what_differs_is_said(lean, tmp_path):
    first = write_run(tmp_path / "a", lean, bench=bench_of(a_quality(1, 3)))
    bench = bench_of(a_quality(-3, -1))
    bench = replace(bench, machine=replace(bench.machine, processor="Another"))
    second = write_run(tmp_path / "b", lean, bench=bench, sweep=replace(a_sweep(), data_fingerprint="other"))
    found = write_page(first, second)
    assert found.page == str(first / "comparison.html")
    assert len(found.recommendations) == 2
    page = page_of(first, second)
    assert "different data" in page.text
    assert "different machines" in page.text
    assert "A lean: layer 5; A full: layer 8; B lean: layer 5; B full: layer 8" in page.text
    assert "peak memory" not in page.text  # which no bench measured
    assert "A lean, " in page.text
    assert "B full, " in page.text
    assert len(page.of("svg")) == 2


@pytest.mark.parametrize(
    ("searched", "said"),
    [
        ({"retrieval": "search/test", "metric": "nDCG@10 of half the queries"}, "Trained and tested on different data"),
        ({"metric": "MRR@10 of half the queries"}, "Scored by different measures"),
    ],
)
def test_sweeps_by_other_measures_are_not_compared(lean, tmp_path, searched, said):
    """The pairs as they were given are the same with queries and without."""
    runs = [write_run(tmp_path / "a", lean), write_run(tmp_path / "b", lean, sweep=replace(a_sweep(), **searched))]
    text = page_of(*runs).text
    assert f"{said}: scores of A and B cannot be compared." in text
    assert "Nothing in the results speaks against" not in text


def test_runs_in_two_runtimes_or_of_gone_weights_are_not_called_alike(lean, tmp_path):
    bench = bench_of(a_quality(1, 3))
    score = next(row.spearman for row in bench.measured() if (row.role, row.backend) == ("lean", bench.quality.backend))
    faster = with_8_bits(bench, score)
    gone = replace(bench, models=tuple(replace(row, weights_sha256="0" * 64) for row in bench.models))
    for name, second, said in (
        ("runtimes", faster, "Each is shown in its own fastest runtime: A in torch fp32; B in ONNX Runtime int8."),
        ("gone", gone, "B: bench.json measured other weights than those of the model here. Run bench again."),
    ):
        runs = [write_run(tmp_path / name / letter, lean, bench=one) for letter, one in (("a", bench), ("b", second))]
        text = page_of(*runs).text
        assert said in text
        assert "Nothing in the results speaks against" not in text


def test_two_runs_are_called_alike_only_where_both_were_measured(lean, tmp_path):
    alike = "same machine, same pairs"
    whole = bench_of(a_quality(1, 3))
    for name, first, second, said in (
        ("both", whole, whole, True),
        ("one", whole, None, False),
        ("none", None, None, False),
        ("unscored", whole, replace(whole, quality=None), False),
    ):
        runs = [
            write_run(tmp_path / name / letter, lean, bench=bench) for letter, bench in (("a", first), ("b", second))
        ]
        text = page_of(*runs).text
        assert (alike in text) == said
        assert ("not both were measured" in text) != said


def test_scores_on_other_pairs_are_not_compared(lean, tmp_path):
    """The same number of other pairs as well; the same pairs under another name are the same."""
    bench = bench_of(a_quality(1, 3))
    other = replace(SCORED, name="other/test", fingerprint="fedcba")
    others = {
        "other": (other, "A on 500 pairs of set/test; B on 500 pairs of other/test"),
        "renamed": (replace(SCORED, name="renamed/test"), None),
        "unnamed": (None, "B does not say on which pairs"),
    }
    for name, (scored, said) in others.items():
        runs = [write_run(tmp_path / name / "a", lean, bench=bench)]
        runs.append(write_run(tmp_path / name / "b", lean, bench=replace(bench, scored=scored)))
        text = page_of(*runs).text
        assert ("scores of A and B cannot be compared" in text) == (said is not None)
        assert (said or "same machine, same pairs") in text


def test_a_damaged_bench_is_named(lean, tmp_path):
    run = write_run(tmp_path / "run", lean)
    (run / "bench-2.json").write_text("{")
    assert "bench-2.json cannot be read and is left out." in write_page(run).grounds[0]
