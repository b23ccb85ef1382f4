"""The page of a workspace: its recommendation, its parts, lines to copy, and two side by side; every string escaped."""

import json
import shlex
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy
import pytest

from tests.support.made_results import (
    a_bench,
    a_contrast,
    a_distillation,
    a_quality,
    a_sweep,
    an_export,
    some_heads,
    timing,
    write_run,
)
from tests.support.pairs import TEXTS, pairs_of
from truncate_kit import AnalysisSettings, export_onnx, profile
from truncate_kit.core.errors import UsageError
from truncate_kit.core.workspace import Source, Workspace
from truncate_kit.evaluation import Score, SuiteReport
from truncate_kit.methods.distill.settings import HeldOutScores
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.pipeline import save_encoder
from truncate_kit.models.truncation import truncate
from truncate_kit.report.page import Run, snippets, write_page
from truncate_kit.training.cutting import CutResult
from truncate_kit_cli.app import main

EVIL = "</script><img src=x onerror=alert(1)>\"'><b>"
SENTENCES = ["A dog runs.", "A puppy is running."]


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
        replace(row, seconds=(base.p50_seconds / (factor if row.role == "lean" else 1),)) for row in report.timings
    ]
    return replace(report, timings=tuple(timings), quality=quality)


@pytest.mark.parametrize(
    ("low", "high", "factor", "begins", "why"),
    [
        (1, 3, 6, "Take the lean model (layer 5 of 8)", "scores higher (82.0 against 80.0"),
        (-0.9, 1.9, 6, "Take the lean model", "it is 6.0 times as fast, and no difference in score is shown"),
        (-1, 2, 6, "No recommendation", "a loss of 1.0 points is not excluded"),
        (-3, -1, 6, "Keep the full model", "loses 2.0 points (78.0 against 80.0"),
        (-3, -1, 1.06, "Keep the full model", "hardly faster (1.06 times the speed"),
    ],
)
def test_the_recommendation_follows_interval_and_speed(lean, tmp_path, low, high, factor, begins, why):
    bench = bench_of(a_quality(low, high), factor=factor)
    found = write_page(write_run(tmp_path / "run", lean, bench=bench))
    (sentence,) = found.recommendations
    assert sentence.startswith(begins)
    assert why in sentence
    grounds = " ".join(found.grounds[0])
    assert f"95% interval {low:+.2f} to {high:+.2f}, paired bootstrap over 500 pairs" in grounds
    assert f"The lean model is {factor:.1f} times as fast, both models in torch fp32." in grounds


def test_what_judges_nothing_recommends_nothing(lean, tmp_path):
    bench = bench_of(a_quality(1, 3))
    bundled = replace(bench, scored_on="bundled/test", bundled=True)
    cases = {
        "few": (replace(bench, quality=bench.quality | {"num_pairs": 3}), "3 pairs are too few"),
        "alike": (
            replace(bench, metric="nDCG@10", quality=bench.quality | {"num_higher": 0, "num_lower": 8}),
            "8 of 500 queries differ, 0 of them higher: worse",
        ),
        "bundled": (bundled, "their scores say little about your task"),
        "none": (replace(bench, quality=None, others_busy=0.5), "6.0 times as fast, both models in torch fp32."),
    }
    for name, (report, ground) in cases.items():
        found = write_page(write_run(tmp_path / name, lean, bench=report, sweep=replace(a_sweep(), model="mine")))
        assert found.recommendations[0].startswith("No recommendation")
        assert ground in " ".join(found.grounds[0])
        reason = ground if name in ("few", "alike") else "its score was not compared on your pairs"
        assert reason in found.recommendations[0]
    runs = (("torch-fp32", 0.1), ("onnx-fp32", 0.04))
    timings = [timing(("lean", name), "real set", (took,), sentences=50, tokens=300) for name, took in runs]
    one = replace(bench, models=bench.models[:1], timings=tuple(timings), quality_of=("onnx-fp32", "torch-fp32"))
    found = write_page(write_run(tmp_path / "one", lean, bench=one, sweep=replace(a_sweep(), model="mine")))
    assert "ONNX Runtime fp32: 2.5 times as fast as in torch fp32" in found.recommendations[0]
    alone = write_page(write_run(tmp_path / "alone", lean, bench=None))
    assert "its speed was not compared" in alone.recommendations[0]
    miniature = replace(a_sweep(), model="mini-bert")  # for which the bundled pairs were made
    run = write_run(tmp_path / "mini", lean, bench=bundled, sweep=miniature)
    assert write_page(run).recommendations[0].startswith("Take the lean model")


def test_the_last_layer_is_kept_whatever_was_measured(lean, tmp_path):
    sweep = replace(a_sweep(), chosen=8, choice="Layer 8: nothing is gained.")
    found = write_page(write_run(tmp_path / "run", lean, sweep=sweep))
    assert found.recommendations == ("Keep the full model: all 8 layers are needed.",)
    assert found.grounds[0][0] == sweep.choice


@pytest.mark.parametrize(
    ("low", "high", "pairs", "begins"),
    [(1.0, 2.0, 500, "Take"), (-3.0, -1.0, 500, "Keep"), (1.0, 2.0, 5, "No "), (None, None, 0, "No ")],
)
def test_a_distilled_model_is_judged_by_its_own_scores(lean, tmp_path, low, high, pairs, begins):
    made = a_distillation()
    if low is not None:
        scores = HeldOutScores(
            data="set", metric="Spearman × 100", lean=81.5, full=80.0, mixed=None, difference=1.5, low=low, high=high,
            num_compared=pairs,
        )  # fmt: skip
        made = replace(made, scores=scores)
    found = write_page(write_run(tmp_path / "run", lean, sweep=None, bench=None, distilled=made))
    assert found.recommendations[0].startswith(begins)
    assert f"agreement {made.student.agreement.correlation:.1f}" in " ".join(found.grounds[0])


def test_a_profile_alone_is_shown(looked_at, tmp_path):
    (tmp_path / "analysis").mkdir()
    looked_at.write(tmp_path / "analysis/profile.json")
    found, page = write_page(tmp_path), page_of(tmp_path)
    assert found.recommendations == ("There is no lean model yet.",)
    assert len(page.of("svg")) == 3  # curve, heat map, untrained scores
    assert f"truncate-kit finetune --workspace {tmp_path}" in found.commands


@pytest.mark.parametrize(
    ("key", "result", "title"),
    [
        ("contrast", a_contrast(), "Contrastive training"),
        ("cut", CutResult(model="m", layer=2, depth=4, parameters=10, full_parameters=20), "The cut model"),
    ],
)
def test_each_method_has_its_part(lean, tmp_path, key, result, title):
    run = write_run(tmp_path / "run", lean, **{"sweep": None, "bench": None, "graph": None, key: result})
    assert title in page_of(run).text


def test_missing_parts_name_their_commands(lean, looked_at, tmp_path):
    run = write_run(tmp_path / "run", lean, bench=None, graph=None)
    commands = write_page(run).commands
    assert [command.split()[1] for command in commands] == ["bench", "analyze", "export"]
    assert "--data PAIRS.csv" in commands[0]
    Workspace(run).remember_benched(Source("my.csv", columns=("a", "b", "c"), scale=(0.0, 5.0)))
    assert "--data my.csv --columns a,b,c --scale 0,5" in write_page(run).commands[0]
    whole = write_run(tmp_path / "whole", lean, profile=looked_at, bench=bench_of(a_quality(1, 3)))
    assert write_page(whole).commands == ()


def test_nothing_there_is_one_sentence_and_a_hint(tmp_path):
    with pytest.raises(UsageError, match="contains no model"):
        write_page(tmp_path)
    with pytest.raises(UsageError, match="There is no folder"):
        write_page(tmp_path / "none")
    for name in ("model.safetensors", "pairs.csv", "page"):
        (tmp_path / name).write_text("mine")
        with pytest.raises(UsageError, match=r"does not end in \.html"):
            write_page(tmp_path, out=tmp_path / name)
        assert (tmp_path / name).read_text() == "mine"


def test_benches_of_other_weights_and_damaged_ones_are_left_out(lean, tmp_path):
    bench = bench_of(a_quality(1, 3))
    gone = replace(bench, models=tuple(replace(row, weights_sha256="0" * 64) for row in bench.models))
    run = write_run(tmp_path / "run", lean, bench=gone)
    (run / "bench-2.json").write_text("{")
    grounds = write_page(run).grounds[0]
    assert "bench.json measured different weights than this model has, so it is not shown. Run bench again." in grounds
    own = replace(bench, bundled=True)
    own.write(run / "bench.json")
    bench.write(run / "bench-2.json")
    assert Run(run).bench == bench  # on pairs of the user's own


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


def test_strings_from_data_are_text_wherever_they_stand(lean, looked_at, tmp_path, drawn):
    bench = bench_of(a_quality(1, 3))
    contestants = tuple(replace(row, absent=row.absent and EVIL) for row in bench.contestants)
    bench = replace(bench, processor=EVIL, notes=(EVIL,), contestants=contestants)
    sweep = replace(a_sweep(), model=EVIL, data=EVIL, choice=EVIL, metric=f"{EVIL} $\\frac{{$")
    graph = replace(an_export(), scored_on=EVIL)
    seen = replace(looked_at, model=EVIL, reference=EVIL)
    page = page_of(write_run(tmp_path / "run", lean, bench=bench, sweep=sweep, profile=seen, graph=graph))
    assert page.of("img") == []
    assert page.of("b") == []
    assert len(page.of("script")) == 1
    assert page.text.count("onerror=alert(1)") >= 8  # it is shown as it is
    cells = Elements(a_contrast()._repr_html_() + some_heads()._repr_html_())
    assert "gpt <b>" in cells.text
    assert len(cells.of("b")) == 2  # the titles


def test_a_cell_of_a_notebook_has_tables_and_plots_without_a_script(drawn):
    cells = Elements("".join(result._repr_html_() for result in (a_sweep(), a_bench(), an_export())))
    assert len(cells.of("svg")) == 2
    assert cells.of("table")
    assert cells.of("script") == []


def test_two_runs_stand_side_by_side_and_what_differs_is_named(lean, tmp_path):
    first = write_run(tmp_path / "a", lean, bench=bench_of(a_quality(1, 3)))
    bench = bench_of(a_quality(-3, -1))
    bench = replace(bench, processor="Another", scored_on="other/test", fingerprint="fedcba", num_texts=9)
    second = write_run(tmp_path / "b", lean, bench=bench)
    found = write_page(first, second)
    assert found.page == str(first / "comparison.html")
    assert len(found.recommendations) == 2
    page = page_of(first, second)
    for said in ("different pairs", "different machines", "different sizes", "A: lean against", "B: lean against"):
        assert said in page.text
    assert len(page.of("svg")) == 2
    alike = page_of(first, write_run(tmp_path / "c", lean, bench=bench_of(a_quality(1, 3)))).text
    assert "different" not in alike
    bare = page_of(first, write_run(tmp_path / "d", lean, bench=None)).text
    assert "B was not measured" in bare


def ran(text):
    names = {}
    exec(text, names)  # what a reader pastes
    return numpy.asarray(names["vectors"])


def test_the_lines_to_copy_run_and_give_the_vectors_of_the_model(tiny_folder, tmp_path, monkeypatch):
    encoder = truncate(load_encoder(tiny_folder("bert")), 2)
    folder = tmp_path / "it's" / "lean"
    save_encoder(encoder, folder)
    expected = encoder.vectors(SENTENCES).numpy()
    assert [title for title, _ in snippets(folder)] == ["Command line", "Python", "sentence-transformers"]
    export_onnx(load_encoder(folder), folder)
    monkeypatch.chdir(tmp_path)
    found = dict(snippets(folder))
    for title in ("Python", "sentence-transformers", "ONNX Runtime, without torch (fp32)"):
        numpy.testing.assert_allclose(ran(found[title]), expected, atol=1e-4, err_msg=title)
    (tmp_path / "texts.txt").write_text("\n".join(SENTENCES))
    with pytest.raises(SystemExit) as end:
        main(shlex.split(found["Command line"])[1:])
    assert not end.value.code
    numpy.testing.assert_allclose(numpy.load("vectors.npy"), expected, atol=1e-4)


def test_no_code_of_a_changed_folder_is_recommended(tmp_path):
    folder = tmp_path / "lean"
    folder.mkdir()
    (folder / "modules.json").write_text(json.dumps([{"type": "evil.Pooling", "path": "1_Pooling"}]))
    assert [title for title, _ in snippets(folder)] == ["Command line", "Python"]


def test_two_reports_of_one_suite_have_anchors_of_their_own(lean, tmp_path):
    run = write_run(tmp_path / "run", lean)
    row = Score(task="pairs", labels={}, values={"Spearman": 80.0}, remark="")
    report = SuiteReport(suite="retrieval", model="m", runtime="torch", title="T", rows=(row,), means={}, notes=())
    for name in ("suite-retrieval.json", "suite-retrieval-2.json"):
        report.write(run / name)
    sections = [section["id"] for section in page_of(run).of("section") if "id" in section]
    assert [name for name in sections if "retrieval" in name] == ["retrieval", "retrieval-1"]
    assert len({*sections}) == len(sections)
