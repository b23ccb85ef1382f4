"""Views of results: the cells of tables, and the sentences that follow from numbers."""

from dataclasses import replace

import pytest

from tests.support.made_results import (
    a_bench,
    a_combination,
    a_contrast,
    a_distillation,
    a_sweep,
    an_export,
    some_heads,
    timing,
)
from tests.support.pairs import TEXTS
from tests.support.records import INVARIANCE, QUANTIZED
from truncate_kit import AnalysisSettings, SweepSettings, profile
from truncate_kit.analysis.result import DropPrediction
from truncate_kit.core.errors import UsageError
from truncate_kit.data.pairs import TextPair
from truncate_kit.evaluation import Score, SuiteReport, means_of
from truncate_kit.evaluation.graded import Evaluation
from truncate_kit.methods.distill.settings import Budget, LeanModel
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.truncation import truncate
from truncate_kit.report.measuring import gained_table
from truncate_kit.report.view import Table, View, view_of


def said(result):
    view = view_of(result)
    return " ".join([*view.notes, *view.sentences, *view.details])


@pytest.fixture(scope="module")
def models(tiny_folder):
    return load_encoder(tiny_folder("bert")), load_encoder(tiny_folder("electra"))


DROP = DropPrediction(from_layer=2, confidence=0.7, sentence="It falls.", signs={})


def test_a_table_leaves_out_empty_columns_and_writes_markdown():
    rows = [{"a": None, "b": 1}, {"a": "", "b": 2}]
    columns = {"": lambda row: "xy"[row["b"] - 1], "a": lambda row: row["a"], "b": lambda row: row["b"]}
    table = Table.of("t", rows, columns, marked=rows[1])
    assert (table.columns, table.marked) == (["", "b"], 1)
    assert table.markdown().splitlines() == ["|  | b |", "|---|---|", "| x | 1 |", "| **y** | 2 |"]
    row = a_sweep().rows[0]
    columns = {"layer": "layer", "dev": "dev:±", "test": "test:.1f", "seeds": lambda row: len(row.seeds)}
    assert Table.of("t", [row], columns, last=("mean", 1.0, None, 1234)).rows == [
        ("0", "50.70 ± 0.60", "40.0", "2"),
        ("mean", "1.00", "–", "1,234"),
    ]
    assert View("k", "t", [table, None, Table("", (), ())], [None, False, "s"]).tables == [table]


def test_each_layer_of_an_analysis_has_its_numbers(models):
    encoder, other = models
    pairs = [TextPair(*texts, float(row % 6)) for row, texts in enumerate(zip(TEXTS[::2], TEXTS[1::2], strict=True))]
    found = replace(profile(encoder, TEXTS, reference=other, pairs=pairs), drop=DROP)
    view = view_of(found)
    layers, matrix = view.tables
    assert layers.columns == [
        "layer", "Spearman", "CKA (95 %)", "parameters", "CKA without 3 outliers", "Block Influence",
        "angular distance", "effective rank", "anisotropy",
    ]  # fmt: skip
    assert [row[0] for row in layers.rows] == ["0", "1", "2 (drop)", "3 (drop)"]
    assert layers.rows[1][2] == f"{found.cka.values[1]:.3f} ± {found.cka.high[1] - found.cka.values[1]:.3f}"
    assert layers.rows[1][3] == f"{found.parameters[1]:,}"
    assert layers.rows[3][5:7] == ("–", "–")  # nothing comes after the last layer
    assert matrix.detail
    assert matrix.rows[1][1] == f"{found.cka_matrix[1][0]:.3f}"
    best = max(range(4), key=lambda layer: found.spearman[layer])
    assert f"layer {best}" in view.sentences[0]
    assert [bool(plot.heat) for plot in view.plots] == [False, True, False]
    assert view.plots[0].shade[:2] == (1.5, 3.5)


def test_an_analysis_shows_only_what_was_measured_and_maps_layers(models):
    encoder, other = models
    bare = view_of(profile(encoder, TEXTS, settings=AnalysisSettings(intervals=0, outliers=0)))
    assert bare.tables[0].columns[1:4] == ["CKA", "parameters", "Block Influence"]
    assert "its own layer 1" in bare.tables[0].title
    mapped = view_of(profile(encoder, TEXTS, reference=truncate(other, 1)))
    assert mapped.tables[0].columns[3] == "reference layer"
    assert [row[3] for row in mapped.tables[0].rows] == ["0", "0", "1", "1"]
    kept = view_of(replace(profile(encoder, TEXTS, settings=AnalysisSettings(blocks=(2, 3))), drop=DROP))
    assert [row[0] for row in kept.tables[0].rows] == ["0", "1 (block 2)", "2 (block 3, drop)"]
    assert kept.plots[0].ticks == {0: "0", 1: "2", 2: "3"}


def test_layers_of_a_sweep():
    result = a_sweep()
    view = view_of(result)
    layers, *_ = view.tables
    names = [row[0] for row in layers.rows]
    assert names[layers.marked] == f"{result.chosen} (chosen)"
    assert names[-1] == f"{result.full.layer} (full model)"
    row = result.lean
    assert layers.rows[layers.marked][2] == f"{row.dev:.2f} ± {row.dev_std:.2f}"
    assert result.choice in view.sentences
    (plot,) = view.plots
    assert plot.levels[0][0] == result.full.test
    assert plot.series[-1].x == [result.chosen]


def test_a_sweep_as_a_data_frame_a_figure_and_a_few_words():
    sweep = a_sweep()
    frame = sweep.to_frame()
    for name in ("layer", "parameters", "dev", "dev_std", "test"):
        assert frame[name.replace("_std", " ±")].tolist() == pytest.approx(
            [getattr(row, name) for row in sweep.rows], abs=0.005
        )
    assert frame["layer note"].dropna().to_dict() == {5: "chosen", 8: "full model"}
    assert [axes.get_ylabel() for axes in sweep.plot().axes] == [plot.y for plot in view_of(sweep).plots]
    assert repr(sweep).splitlines()[:2] == ["SweepResult: Which layer", "  Layer 5."]


def test_no_line_runs_over_layers_that_were_not_trained():
    plot = view_of(replace(a_sweep(), rankings={})).plots[0]
    dev = next(series for series in plot.series if series.label.startswith("dev, mean"))
    trained = {row.layer for row in a_sweep().rows}
    assert [y is None for y in dev.y] == [layer not in trained for layer in dev.x]


def test_numbers_of_blocks_and_graphs():
    made = a_distillation()
    first, second, third = made.frontier
    view = view_of(made)
    best, sizes, rules, every = view.tables
    assert (best.detail, sizes.detail, rules.detail, every.detail) == (False, True, True, True)
    speeds = [row[sizes.columns.index("speed (estimate)")] for row in sizes.rows]
    assert speeds == ["4.0 ×", "2.0 ×", "1.3 ×", "1.0 ×"]
    assert sizes.rows[sizes.marked][sizes.columns.index("result")] == "chosen"
    points = (first, replace(second, dominated=True), third)
    beaten = replace(made, frontier=points)
    best, *_, every = view_of(beaten).tables
    assert [(row[0], row[1]) for row in best.rows] == [("1, 2, 3, 4", "fp32"), ("1, 3", "int8")]
    assert every.rows[1][3] == f"({second.score:.2f})"
    frontier = (first, replace(points[1], pace=200.0), replace(third, score=90.0))
    taken = view_of(replace(beaten, frontier=frontier, budget=Budget(speedup=2)))
    assert [row[-2] for row in taken.tables[0].rows] == ["", f"chosen at {second.dims}", ""]
    plain = view_of(replace(made, frontier=()))
    assert [table.detail for table in plain.tables] == [False, True]


def test_choices_that_were_tried():
    made = a_distillation()
    tryout = LeanModel(blocks=made.chosen, score=70.0, untrained=70.0, scores=(60.0,))
    assert view_of(replace(made, tryouts=(tryout,))).tables[-2].rows == [("1, 3", "70.00", "60.00", "1")]


def test_other_trainings():
    contrast = view_of(a_contrast())
    assert contrast.tables[0].rows[0][1] == f"{a_contrast().layer} of {a_contrast().depth}"
    assert len(contrast.plots[0].series) == 2 * len(a_contrast().trials)
    heads = view_of(some_heads())
    steps, worst = heads.tables
    assert steps.rows[steps.marked] == ("siamese", "2", "1,234", "62.50 ± 0.71", "53.00 ± 1.41", "52.00 ± 0.00")
    assert steps.rows[1][0] == "untrained states of block 1 (best on test)"
    assert worst.rows[0][0].endswith("… | b")
    assert worst.rows[0][1:] == ("0.25", "0.75", "-0.50")
    combined = view_of(a_combination(2))
    assert combined.tables[0].rows[0] == ("best combination", "73.00 ± 0.00", "65.00 ± 0.00")
    assert combined.tables[0].marked == 0
    assert view_of(a_combination(1, missing=True)).tables[0].rows[1] == ("last layer", "60.00", "–")


def test_a_bench():
    report = a_bench()
    gained, overview, *others = view_of(report).tables
    assert all(table.detail for table in others)
    lean, full = report.models
    assert gained.rows[0] == ("layers", str(full.layer), str(lean.layer), f"{full.layer / lean.layer:.2f}× fewer")
    assert gained.columns == ("", "full, torch fp32", "lean, ONNX Runtime fp32", "gain")
    # 0.3 s in torch at full depth, 0.1 s cut, 0.05 s as a graph: 3 × 2 = 6; 50 sentences in 0.05 and in 0.3 s.
    assert gained.rows[-1] == ("sentences per second", "167", "1,000", "6.0× faster (3.0 × 2.0)")
    lean = next(row for row in overview.rows if row[0] == "lean, torch fp32")
    speed = report.timing("lean", "torch-fp32", "real set").sentences_per_second
    assert lean[overview.columns.index("sentences/s")] == f"{speed:,.0f}"
    assert "lean, torch bf16 (this processor has no bf16 instructions)." in said(report)
    assert report.scored in overview.title
    full = report.timing("full", "torch-fp32", "real set").sentences_per_second
    assert report.rate("full", "torch-fp32") == full
    assert gained_table(replace(report, timings=())) is None
    torch_alone = [row for row in report.timings if row.backend == "torch-fp32"]
    alone = gained_table(replace(report, timings=tuple(torch_alone)))
    assert alone.rows[-1] == ("sentences per second", "167", "500", "3.0× faster")
    alone = [row for row in report.timings if row.role == "lean"]
    alone = gained_table(replace(report, models=report.models[:1], timings=tuple(alone)))
    assert alone.columns[1:3] == ("torch fp32", "ONNX Runtime fp32")
    assert alone.rows[-1] == ("sentences per second", "500", "1,000", "2.0× faster")
    bare = replace(report, contestants=tuple(replace(row, score=None) for row in report.contestants))
    assert view_of(bare).plots == []


def test_a_column_of_the_gpu_is_shown_only_if_it_was_measured():
    shape = timing(("full", "torch-fp32"), "latency", (0.01, 0.01), sentences=1, tokens=16, shape=(1, 16))
    for seconds in ((), (0.002, 0.004, 0.009)):
        report = replace(a_bench(), timings=(replace(shape, device_seconds=seconds),))
        fixed = next(table for table in view_of(report).tables if table.title == "All timings")
        assert ("GPU p50 ms" in fixed.columns) == bool(seconds)
        if seconds:
            assert fixed.rows[0][3] == "4.00"


def test_an_export():
    report = an_export()
    rows = view_of(report).tables[0].rows
    assert rows[0][1:] == ("1.0e-07", "0.0001")
    assert rows[-1][0] == "Pearson × 100 on stsb/test: 57.00 to 57.00"
    int8 = said(replace(report, quantization=replace(QUANTIZED, num_pairs=3), invariance=INVARIANCE, invariant_on="d"))
    assert "in float: encoder.layer.1.output.dense. Weights have 7 bits" in int8
    assert "3 pairs: too few" in int8


def test_a_score_and_any_other_result():
    values = {"pairs": 1234, "Spearman": 81.0, "Pearson": None}
    row = Score(task="d, test", labels={"vectors": "float32"}, values=values, intervals={"Spearman": (80.0, 82.0)})
    report = SuiteReport(suite="pairs", model="m", runtime="torch", title="m in torch", rows=(row,))
    assert view_of(report).tables[0].rows == [("d, test", "float32", "1,234", "81.00 (80.00 to 82.00)")]
    assert [*report.to_frame().iloc[0]] == ["d, test", "float32", 1234, 81.0, 80.0, 82.0]
    fields = view_of(Evaluation(spearman=81.25, pearson=80.0, num_pairs=9, cosines=tuple(range(9)))).tables[0].rows
    assert ("spearman", "81.25") in fields
    assert ("cosines", "9 values") in fields
    assert view_of(SweepSettings()).title == "SweepSettings"
    assert SweepSettings().to_frame()["seeds"][0] == (0, 1, 2)
    assert eval(repr(SweepSettings(layers=3))) == SweepSettings(layers=3)
    with pytest.raises(UsageError, match="SweepSettings has no figure"):
        SweepSettings().plot()


def test_rows_means_and_curves_of_a_suite():
    scores = {"as it is": 81.0, "last layer": 80.0, "layers combined": 85.0, "fewer errors %": 25.0}
    rows = [
        Score(task=task, labels={"share": f"{share:g}"}, values={"rows to train on": int(100 * share), **scores})
        for task in ("MPQA", "TREC")
        for share in (0.5, 1.0)
    ]
    few = Score(task="TREC", labels={"share": "0.5"}, values={"rows to train on": 2}, remark="too few rows")
    rows[2], means = few, means_of([rows[1], rows[3]])
    report = SuiteReport(suite="transfer", model="m", runtime="torch", title="T", rows=tuple(rows), means=means)
    view = view_of(report)
    assert view.tables[0].columns == ["task", "share", "rows to train on", *scores, "remark"]
    written = ("81.00", "80.00", "85.00", "+25.0", "")
    assert view.tables[0].rows[1:] == [
        ("MPQA", "1", "100", *written),
        ("TREC", "0.5", "2", *["–"] * 4, "too few rows"),
        ("TREC", "1", "100", *written),
        ("mean of 2", "", "", *written),
    ]
    assert [plot.title for plot in view.plots] == ["MPQA", "TREC"]
    alone = view_of(replace(report, rows=(rows[1],)))
    assert len(alone.tables[0].rows) == 1  # a mean of one is no row
    assert alone.plots == []  # a curve needs two shares
