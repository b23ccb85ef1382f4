"""A whole bench on tiny models: its report and its sentences. No test asserts a time."""

import shutil
import sys
from collections import Counter
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

from tests.support.families import TINY_CONFIGS, WORDS
from tests.support.retrieval import retrieval_folder
from truncate_kit.bench.result import BACKENDS as BACKENDS_KNOWN
from truncate_kit.bench.result import BenchReport, BenchSettings, Contestant, select_backends
from truncate_kit.bench.run import Subject, scored_fields
from truncate_kit.bench.run import bench as bench_with
from truncate_kit.bench.runners import PeerRunner
from truncate_kit.core.errors import ModelError, UsageError
from truncate_kit.core.files import digest_of
from truncate_kit.core.hardware import INSTRUCTIONS
from truncate_kit.core.results import file_for
from truncate_kit.data.pairs import PairSet, TextPair, load_pairs
from truncate_kit.data.retrieval import read_retrieval
from truncate_kit.evaluation.graded import evaluate
from truncate_kit.evaluation.retrieval import evaluate_retrieval
from truncate_kit.export.exporting import export_onnx
from truncate_kit.export.record import check_record, read_exports, record_with
from truncate_kit.export.sessions import OUTPUT
from truncate_kit.models.loading import load_encoder, random_encoder
from truncate_kit.models.pipeline import save_encoder
from truncate_kit.models.store import encoder_digest, origin_of
from truncate_kit.models.truncation import truncate
from truncate_kit.report.view import view_of

BACKENDS = ("torch-fp32", "onnx-fp32")


def _text(start, step, count):
    return " ".join(WORDS[(start + step * place) % len(WORDS)] for place in range(count))


def named(name, pairs):
    return PairSet(name=name, pairs=tuple(pairs), scale=(0, 5))


PAIRS = named("tiny", (TextPair(_text(3 * i, 1, 2 + i % 5), _text(5 * i, 1, 3), i % 6) for i in range(18)))
TEXTS = [text for pair in PAIRS for text in (pair.first, pair.second)]
FEW = {"lengths": (4, 9), "batch_sizes": (1, 3), "repeats": 2, "threads": 1, "memory": False, "backends": BACKENDS}
ONCE = FEW | {"lengths": (4,), "repeats": 1}


def bench(lean, full=None, *, pairs=None, texts=None, graphs=None, **settings) -> BenchReport:
    return bench_with(lean, full, BenchSettings(**settings), pairs=pairs, texts=texts, graphs=graphs)


@pytest.fixture(scope="session")
def duo(tiny_folder, tmp_path_factory):
    """A tiny BERT and its cut as folders of one sweep."""
    root = tmp_path_factory.mktemp("bench")
    full = load_encoder(tiny_folder("bert"))
    for name, model in (("full", full), ("lean", truncate(full, 1))):
        save_encoder(model, root / name, origin=origin_of("finetune", full, model))
    return root


@pytest.fixture(scope="session")
def report(duo) -> BenchReport:
    return bench(duo / "lean", duo / "full", pairs=PAIRS, texts=TEXTS, graphs=duo / "graphs", **FEW)


def rows_of(report):
    return {row.backend: row for row in report.contestants if row.role == "lean"}


def said(report):
    view = view_of(report)
    return " ".join([*view.sentences, *view.details])


def test_every_contestant_is_timed_in_every_scenario(report, duo):
    contestants = {(role, backend) for role in ("lean", "full") for backend in BACKENDS}
    assert {(row.role, row.backend) for row in report.measured()} == contestants
    expected = {("one sentence", None, None): 20, ("real set", None, None): 2}
    expected |= {("latency", 1, 4): 20, ("latency", 1, 9): 20, ("throughput", 3, 4): 2, ("throughput", 3, 9): 2}
    for key in contestants:
        rows = [row for row in report.timings if (row.role, row.backend) == key]
        assert {(row.scenario, row.batch_size, row.length): len(row.seconds) for row in rows} == expected
    distinct = list(dict.fromkeys(TEXTS))
    row = report.timing("lean", "onnx-fp32", "real set")
    assert row.sentences == len(distinct) == report.num_texts
    assert row.tokens == sum(map(len, load_encoder(duo / "lean").token_ids(distinct)))
    assert all(row.device_seconds == () for row in report.timings)  # no GPU


def test_scores_sizes_and_graphs_are_those_of_the_models(report, duo):
    rows = {(row.role, row.backend): row for row in report.contestants}
    for role in ("lean", "full"):
        encoder = load_encoder(duo / role)
        expected = evaluate(encoder, PAIRS.pairs).spearman
        assert rows[role, "torch-fp32"].score == pytest.approx(expected) == report.quality[role]
        assert rows[role, "onnx-fp32"].score == pytest.approx(expected, abs=0.5)
        assert rows[role, "torch-fp32"].file_bytes == (duo / role / "model.safetensors").stat().st_size
        graph = duo / "graphs" / encoder_digest(encoder)[:16] / "onnx/model.onnx"
        assert rows[role, "onnx-fp32"].file_bytes == graph.stat().st_size
        assert report.exported[role] == str(graph)
    assert report.quality["low"] <= report.quality["difference"] <= report.quality["high"]
    assert report.quality["resamples"] >= 1990
    assert report.comparison == "fair"
    assert f"points; {len(PAIRS)} pairs are too few to tell which model is better" in said(report)


def test_a_report_names_the_pairs_of_its_scores(duo, report, tmp_path):
    """Pairs are compared by content, whatever their order or file."""
    assert (report.scored_on, report.num_scored, report.bundled) == ("tiny", len(PAIRS), False)
    pairs = PAIRS.pairs
    assert scored_fields(named("set/test", reversed(pairs)))["fingerprint"] == report.fingerprint
    for other in (pairs[1:], (*pairs[1:], replace(pairs[0], target=5.0))):
        assert scored_fields(named("tiny", other))["fingerprint"] != report.fingerprint
    bundled = load_pairs("bundled").test
    some = replace(bundled, pairs=bundled.pairs[:20])
    result = bench(duo / "lean", duo / "full", pairs=some, **ONCE | {"backends": ["torch-fp32"]})
    assert (result.scored, result.bundled) == ("20 pairs of bundled/test, synthetic", True)
    assert "The bundled pairs are synthetic" in said(result)
    result.write(tmp_path / "bench.json")
    assert BenchReport.read(tmp_path / "bench.json") == result
    own = replace(result, **scored_fields(named("set/test", pairs)))
    assert (own.may_replace(result), result.may_replace(own)) == (
        True,
        False,
    )  # scores on bundled pairs do not replace others


def test_a_bench_that_measured_less_replaces_none_that_measured_more(report, tmp_path):
    one, place = report.timings[0], tmp_path / "bench.json"
    report.write(place)
    others = tuple(replace(row, name="other") if row.role == "full" else row for row in report.models)
    more = Contestant(role="lean", backend="st-fp32", absent=None, score=1)
    for alike in (replace(report, models=others), replace(report, contestants=(*report.contestants, more))):
        assert file_for(alike, place) == place
    for less in (
        replace(report, timings=report.timings[1:]),
        replace(report, timings=(replace(one, seconds=one.seconds[1:]), *report.timings[1:])),
        replace(report, timings=(replace(one, sentences=one.sentences - 1), *report.timings[1:])),
        replace(report, contestants=tuple(replace(row, score=None) for row in report.contestants)),
    ):
        assert (less.may_replace(report), report.may_replace(less)) == (False, True)
        assert file_for(less, place) == tmp_path / "bench-2.json"
        retrained = tuple(replace(row, weights_sha256="new") for row in less.models)
        assert file_for(replace(less, models=retrained), place) == place


def state(folder):
    """Names, times and bytes of everything in a folder."""
    return {path: (path.stat().st_mtime_ns, path.is_dir() or path.read_bytes()) for path in folder.rglob("*")}


def test_folders_of_models_stay_as_they_are_and_graphs_are_used_again(report, duo, tmp_path):
    """A graph of another model, or a damaged one, is not."""
    model = Path(shutil.copytree(duo / "lean", tmp_path / "lean"))
    graphs = Path(shutil.copytree(duo / "graphs", tmp_path / "graphs"))
    before, kept, options = state(model), state(graphs), ONCE | {"backends": ["onnx-fp32"], "graphs": graphs}
    model.chmod(0o555)
    again = bench(model, **options)
    assert (rows_of(again)["onnx-fp32"].absent, state(graphs), again.exported) == (None, kept, {})
    file = graphs / encoder_digest(load_encoder(duo / "lean"))[:16] / "onnx/model.onnx"
    file.write_bytes(b"damaged")
    assert rows_of(bench(model, **options))["onnx-fp32"].absent is None
    assert file.read_bytes() == kept[file][1]
    assert state(model) == before
    model.chmod(0o755)
    other = Path(shutil.copytree(duo / "full", tmp_path / "full"))
    shutil.copytree(file.parents[1], other, dirs_exist_ok=True)
    with pytest.raises(ModelError, match="was exported from a model other than"):
        bench(other, **options)


def test_lean_alone_has_no_difference_and_peers_run_their_own_encode(duo):
    names = ["torch-fp32", "torch-fp16", "onnx-graphs-fp16", "st-fp32"]
    before = torch.get_num_threads()
    result = bench(duo / "lean", pairs=PAIRS, texts=TEXTS, **ONCE | {"backends": names})
    assert (result.threads, torch.get_num_threads()) == (1, before)
    assert (result.quality, result.comparison, len(result.models)) == (None, None, 1)
    rows = rows_of(result)
    assert rows["torch-fp16"].absent == "needs a GPU"
    assert rows["onnx-graphs-fp16"].absent is not None
    assert rows["st-fp32"].score == pytest.approx(rows["torch-fp32"].score)
    encoder, device = load_encoder(duo / "lean"), torch.device("cpu")
    runner = PeerRunner(BACKENDS_KNOWN["st-fp32"], encoder, lambda: duo / "lean", device=device)
    vectors = runner.encode_ids(encoder.token_ids(TEXTS))
    torch.testing.assert_close(vectors, runner.encode(TEXTS), atol=1e-5, rtol=1e-4)


def test_a_runtime_that_is_not_installed_is_a_row_with_the_extra(duo, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # as if it were not installed
    result = bench(duo / "lean", **ONCE)
    assert "pip install 'truncate-kit[cpu]'" in rows_of(result)["onnx-fp32"].absent
    assert {row.backend for row in result.timings} == {"torch-fp32"}


def test_a_compiler_that_is_missing_is_a_row_with_its_reason(duo, tmp_path, monkeypatch):
    from torch._inductor import config

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    without_blocks = save_encoder(truncate(load_encoder(duo / "full"), 0), tmp_path / "lean")
    with config.patch({"cpp.cxx": (str(tmp_path / "no-such-compiler"),)}):
        result = bench(without_blocks, **ONCE | {"backends": ["torch-fp32", "compile-fp32"]})
    assert rows_of(result)["compile-fp32"].absent.startswith("torch.compile failed: ")
    assert [row.backend for row in result.measured()] == ["torch-fp32"]


def test_peak_memory_is_measured(duo):
    rows = bench(duo / "lean", **ONCE | {"backends": ["onnx-fp32"], "memory": True}).contestants
    assert all(row.peak_bytes > 2**20 for row in rows)


@pytest.fixture
def faulty(duo, tmp_path):
    """A function that adds `table`[31 - id] of each token to the vectors of the lean model's graph."""

    def change(table):
        folder = Path(shutil.copytree(duo / "lean", tmp_path / f"model-{len(table)}"))
        export_onnx(load_encoder(folder), folder)
        (report,), model = read_exports(folder), onnx.load(folder / "onnx/model.onnx")
        (last,) = (node for node in model.graph.node if OUTPUT in node.output)
        last.output[list(last.output).index(OUTPUT)] = "plain"
        for name, value in {"table": np.array(table, np.float32), "last": np.array(31), "axes": np.array([1])}.items():
            model.graph.initializer.append(numpy_helper.from_array(value, name))
        model.graph.node.extend(
            [
                helper.make_node("Sub", ["last", "input_ids"], ["places"]),
                helper.make_node("Gather", ["table", "places"], ["added"]),
                helper.make_node("ReduceSum", ["added", "axes"], ["sum"]),
                helper.make_node("Add", ["plain", "sum"], [OUTPUT]),
            ]
        )
        onnx.save(model, folder / "onnx/model.onnx")
        digests = {"onnx/model.onnx": digest_of(folder / "onnx/model.onnx")}
        (folder / "export.json").write_text(record_with(folder, replace(report, graph_sha256=digests)))
        return folder

    return change


def test_a_runtime_that_fails_leaves_the_others_their_figures(faulty):
    failure = "ONNX Runtime fp32 failed: "
    folder = faulty([0] * 29)  # too short for the first token of texts, which random ids lack
    result = bench(folder, texts=TEXTS, **ONCE)
    assert rows_of(result)["onnx-fp32"].absent.startswith(f"at one sentence: {failure}")
    scenarios = {name: {row.scenario for row in result.timings if row.backend == name} for name in BACKENDS}
    assert scenarios["onnx-fp32"] == {"latency", "throughput"}  # what was timed before stays
    assert scenarios["torch-fp32"] == {"latency", "throughput", "one sentence", "real set"}
    scored = rows_of(bench(folder, pairs=PAIRS, **ONCE))
    assert scored["onnx-fp32"].absent.startswith(f"while scoring: {failure}")
    assert scored["torch-fp32"].score is not None
    with pytest.raises(UsageError, match="No runtime could be measured: ONNX Runtime fp32: at one sentence"):
        bench(folder, texts=TEXTS, **ONCE | {"backends": ["onnx-fp32"]})
    folder = faulty([0])
    rows = rows_of(bench(folder, **ONCE))
    assert rows["onnx-fp32"].absent.startswith(failure)
    assert rows["torch-fp32"].absent is None


def test_a_runtime_whose_vectors_are_no_numbers_is_not_scored_by_queries(duo, faulty, tmp_path):
    """A search would rank NaN first, so a few bad texts would cost most of the score."""
    data, encoder = read_retrieval(retrieval_folder(tmp_path / "set")), load_encoder(duo / "lean")
    counts = Counter(chain(*map(set, encoder.token_ids([*data.queries, *data.documents]))))
    rare, bad = counts.most_common()[-1]
    folder = faulty([float("nan") if 31 - place == rare else 0 for place in range(32)])
    rows = rows_of(bench(folder, pairs=data, **ONCE))
    reason = f"while scoring: ONNX Runtime fp32 failed: NaN or infinity in the vectors of {bad} of 75 texts"
    assert (rows["onnx-fp32"].score, rows["onnx-fp32"].absent) == (None, reason)
    expected = evaluate_retrieval(encoder, data, model="lean").means["nDCG@10"]
    assert rows["torch-fp32"].score == pytest.approx(expected)


def test_a_graph_is_made_for_the_device_and_the_runtime(duo, tmp_path):
    backend, kept = BACKENDS_KNOWN["onnx-fp32"], tmp_path / "graphs"
    bare = save_encoder(load_encoder(duo / "lean"), tmp_path / "bare")
    paths = [Subject("lean", bare, tmp_path / target, kept, target=target).graph(backend) for target in ("cpu", "cuda")]
    assert [check_record(path).target for path in paths] == ["cpu", "cuda"]
    assert {file.name for path in paths for file in path.parents[1].rglob("*.*")} == {"export.json", "model.onnx"}
    other = Subject("lean", bare, tmp_path / "other", kept)
    assert other.graph(backend) == paths[0]  # kept for the next bench
    graph = other.graph(BACKENDS_KNOWN["tensorrt-fp16"])
    assert {node.domain for node in onnx.load(graph).graph.node} <= {"", "ai.onnx"}


def test_a_process_of_its_own_gets_what_it_can_load(duo, tmp_path):
    memory = Subject("full", load_encoder(duo / "lean"), tmp_path)
    assert load_encoder(memory.for_worker()).num_parameters == memory.encoder.num_parameters
    assert Subject("full", duo / "full", tmp_path).for_worker() == duo / "full"
    nothing = random_encoder(TINY_CONFIGS["albert"])
    with pytest.raises(ModelError, match="has no tokenizer"):
        bench(nothing, texts=TEXTS, **ONCE | {"backends": ["torch-fp32"]})


@pytest.mark.parametrize(("flags", "absent"), [("avx2", "This processor has no bf16"), ("avx2,avx512_bf16", "None")])
def test_bf16_is_measured_or_its_absence_explained(duo, monkeypatch, flags, absent):
    monkeypatch.setenv(INSTRUCTIONS, flags)
    result = bench(duo / "lean", **ONCE | {"backends": ["torch-fp32", "torch-bf16"]})
    assert str(rows_of(result)["torch-bf16"].absent).startswith(absent)


def test_the_cpu_leaves_out_what_compiles_unless_asked():
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    names = ["torch-fp32", "torch-bf16", "onnx-fp32", "openvino-fp32", "openvino-bf16"]
    assert [row.name for row in select_backends(None, cpu)] == names
    assert len(select_backends(["all"], cpu)) == len(select_backends(["torch-fp32", "all"], cpu)) == 12
    cuda = [row.name for row in select_backends(None, gpu)]
    assert {"torch-tf32", "torch-fp16", "compile-fp16", "onnx-fp32"} <= set(cuda)
    quick = [row.name for row in select_backends(None, gpu, slow_starts=False)]
    assert quick == [name for name in cuda if not name.startswith("compile")]
    assert not any(BACKENDS_KNOWN[name].rival for name in cuda)
    assert len(select_backends(["all"], gpu)) == len(BACKENDS_KNOWN) - 3  # OpenVINO runs on the CPU


@pytest.mark.parametrize("options", [{"backends": ["tensorrt"]}, {"lengths": (500,)}])
def test_an_unknown_backend_and_a_length_beyond_the_model_are_refused(duo, options):
    with pytest.raises(UsageError, match=r"no backend 'tensorrt'|A length of 500 tokens does not fit"):
        bench(duo / "lean", **options)
