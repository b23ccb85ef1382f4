"""A whole bench on tiny models: what is in the report and what is said. Nothing here asserts a time."""

import shutil
import statistics
from dataclasses import replace

import onnx
import pytest
import torch

from tests.support.families import TINY_CONFIGS, WORDS
from tests.support.retrieval import retrieval_folder
from truncate_kit.bench.backends import BACKENDS as BACKENDS_KNOWN
from truncate_kit.bench.backends import BenchSettings, select_backends
from truncate_kit.bench.bench_report import BenchReport, Contestant
from truncate_kit.bench.quality import PairsEvaluator
from truncate_kit.bench.run import Subject
from truncate_kit.bench.run import bench as bench_with
from truncate_kit.bench.runners import OnnxRunner, PeerRunner
from truncate_kit.core.errors import DeviceError, ModelError, UsageError
from truncate_kit.core.hardware import INSTRUCTIONS
from truncate_kit.core.results import file_for
from truncate_kit.data.pairs import PairSet, TextPair, load_pairs
from truncate_kit.data.retrieval import read_retrieval
from truncate_kit.evaluation.graded import evaluate
from truncate_kit.evaluation.retrieval import evaluate_retrieval
from truncate_kit.export.record import check_record
from truncate_kit.models.loading import load_config, load_encoder, random_encoder
from truncate_kit.models.pipeline import encoder_digest, origin_of, save_encoder
from truncate_kit.models.truncation import truncate, truncated_config
from truncate_kit.report.view import view_of

BACKENDS = ("torch-fp32", "onnx-fp32")


def _text(start, step, count):
    return " ".join(WORDS[(start + step * place) % len(WORDS)] for place in range(count))


PAIRS = tuple(TextPair(_text(3 * i, 1, 2 + i % 5), _text(5 * i, 1, 3), i % 6) for i in range(18))
TEXTS = [text for pair in PAIRS for text in (pair.first, pair.second)]
FEW = {"lengths": (4, 9), "batch_sizes": (1, 3), "repeats": 2, "threads": 1}


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
    options = {"backends": BACKENDS, "memory": False, "graphs": duo / "graphs", **FEW}
    return bench(duo / "lean", duo / "full", pairs=PAIRS, texts=TEXTS, **options)


def test_every_contestant_is_timed_in_every_scenario(report):
    contestants = {(role, backend) for role in ("lean", "full") for backend in BACKENDS}
    assert {(row.role, row.backend) for row in report.measured()} == contestants
    expected = {("one sentence", None, None), ("real set", None, None)}
    expected |= {("latency", 1, 4), ("latency", 1, 9), ("throughput", 3, 4), ("throughput", 3, 9)}
    for key in contestants:
        rows = [row for row in report.timings if (row.role, row.backend) == key]
        assert {(row.scenario, row.batch_size, row.length) for row in rows} == expected
        calls = {row.scenario: len(row.seconds) for row in rows}
        assert calls == {"one sentence": 20, "latency": 20, "throughput": 2, "real set": 2}


def test_rates_count_real_sentences_and_tokens(report, duo):
    distinct = list(dict.fromkeys(TEXTS))
    ids = load_encoder(duo / "lean").token_ids(distinct)
    row = report.timing("lean", "onnx-fp32", "real set")
    assert (row.sentences, row.tokens) == (len(distinct), sum(map(len, ids)))
    assert row.sentences_per_second == pytest.approx(len(distinct) / statistics.median(row.seconds))
    assert report.num_texts == len(distinct)
    shape = report.timing("full", "torch-fp32", "throughput", batch_size=3, length=9)
    assert shape.tokens_per_second == pytest.approx(27 / statistics.median(shape.seconds))


def test_scores_are_those_of_the_models(report, duo):
    for role in ("lean", "full"):
        expected = evaluate(load_encoder(duo / role), PAIRS).spearman
        scores = {row.backend: row.spearman for row in report.contestants if row.role == role}
        assert scores["torch-fp32"] == pytest.approx(expected)
        assert scores["onnx-fp32"] == pytest.approx(expected, abs=0.5)
    assert report.quality.difference == pytest.approx(report.quality.lean - report.quality.full)
    assert report.quality.low <= report.quality.difference <= report.quality.high
    assert report.quality.resamples >= 1990


def named(name, pairs, path="somewhere/test.csv"):
    return PairSet(name=name, pairs=tuple(pairs), scale=(0, 5), path=path, columns=("a", "b", "c"))


def test_a_report_says_which_pairs_its_scores_are_of(duo, report, tmp_path):
    """By content: the same pairs in another order, or from another file, are the same."""
    assert (report.scored.name, report.scored.num_pairs, report.scored.bundled) == ("", len(PAIRS), False)
    assert PairsEvaluator(named("set/test", reversed(PAIRS))).of.fingerprint == report.scored.fingerprint
    assert PairsEvaluator(PAIRS[1:]).of.fingerprint != report.scored.fingerprint
    assert PairsEvaluator((*PAIRS[1:], replace(PAIRS[0], target=5.0))).of.fingerprint != report.scored.fingerprint
    assert f"points; {len(PAIRS)} pairs are too few for an interval" in said(report)
    bundled = load_pairs("bundled").test
    some = replace(bundled, pairs=bundled.pairs[:20])
    options = {"backends": ["torch-fp32"], "memory": False, **FEW}
    result = bench(duo / "lean", duo / "full", pairs=some, **options)
    assert result.scored.words == "20 pairs of bundled/test, synthetic"
    assert result.scored.bundled
    notes = said(result)
    assert "of the bundled pairs, which a grammar made: they say little of your task" in notes
    assert not {"lean is better", "lean is worse", "no difference shown"} & {*notes.split(": "), *notes.split(".")}
    assert view_of(result).tables[0].title.endswith("; Spearman × 100 on 20 pairs of bundled/test, synthetic")
    result.write(tmp_path / "bench.json")
    assert BenchReport.read(tmp_path / "bench.json") == result
    own = replace(result, scored=PairsEvaluator(named("set/test", PAIRS)).of)
    assert file_for(own, tmp_path / "bench.json") == tmp_path / "bench.json"
    own.write(tmp_path / "bench.json")
    assert file_for(result, tmp_path / "bench.json") == tmp_path / "bench-2.json"  # what says more stays
    other = replace(own, scored=PairsEvaluator(named("other/test", PAIRS[1:])).of)
    assert file_for(other, tmp_path / "bench.json") == tmp_path / "bench.json"


def test_files_and_graphs(report, duo):
    sizes = {(row.role, row.backend): row.file_bytes for row in report.contestants}
    for role in ("lean", "full"):
        assert sizes[role, "torch-fp32"] == (duo / role / "model.safetensors").stat().st_size
        graph = duo / "graphs" / encoder_digest(load_encoder(duo / role))[:16] / "model.onnx"
        assert sizes[role, "onnx-fp32"] == graph.stat().st_size
        assert report.exported[role] == str(graph)
    assert sizes["lean", "torch-fp32"] < sizes["full", "torch-fp32"]


def state(folder):
    """Names, times and bytes of everything in a folder."""
    return {path: (path.stat().st_mtime_ns, path.is_dir() or path.read_bytes()) for path in folder.rglob("*")}


def test_nothing_is_written_into_the_folders_of_models_and_graphs_are_used_again(report, duo, tmp_path):
    """A graph of another model, or a damaged one, is not."""
    models = [shutil.copytree(duo / role, tmp_path / role) for role in ("lean", "full")]
    graphs = shutil.copytree(duo / "graphs", tmp_path / "graphs")
    before, options = [state(model) for model in models], {**FEW, "lengths": (4,), "repeats": 1, "memory": False}
    for model in models:
        model.chmod(0o555)
    kept = state(graphs)
    again = bench(*models, backends=["onnx-fp32"], graphs=graphs, **options)
    assert [row.absent for row in again.contestants] == [None, None]
    assert state(graphs) == kept
    assert again.exported == {}
    lean = graphs / encoder_digest(load_encoder(duo / "lean"))[:16]
    (lean / "model.onnx").write_bytes(b"damaged")
    mended = bench(*models, backends=["onnx-fp32"], graphs=graphs, **options)
    assert [row.absent for row in mended.contestants] == [None, None]
    assert (lean / "model.onnx").read_bytes() == kept[lean / "model.onnx"][1]
    assert [state(model) for model in models] == before
    for model in models:
        model.chmod(0o755)


def test_a_graph_beside_another_model_than_its_own_is_an_error(duo, report, tmp_path):
    model = shutil.copytree(duo / "full", tmp_path / "full")
    shutil.copytree(duo / "graphs" / encoder_digest(load_encoder(duo / "lean"))[:16], model, dirs_exist_ok=True)
    with pytest.raises(ModelError, match="was made from another model"):
        bench(model, backends=["onnx-fp32"], **FEW)


def test_a_bench_that_measured_less_replaces_none_that_measured_more(report, tmp_path):
    def with_(**values):
        return replace(report, **values)

    assert file_for(report, tmp_path / "bench.json") == tmp_path / "bench.json"
    report.write(tmp_path / "bench.json")
    moved = tuple(replace(row, name=f"elsewhere/{row.role}") for row in report.models)
    assert file_for(with_(models=moved, seconds=1.0), tmp_path / "bench.json") == tmp_path / "bench.json"
    others = tuple(replace(row, name="other") if row.role == "full" else row for row in report.models)
    assert file_for(with_(models=others), tmp_path / "bench.json") == tmp_path / "bench.json"
    one = report.timings[0]
    fewer = [
        with_(timings=report.timings[1:]),
        with_(timings=(replace(one, seconds=one.seconds[1:]), *report.timings[1:])),
        with_(timings=(replace(one, sentences=one.sentences - 1), *report.timings[1:])),
        with_(contestants=tuple(replace(row, spearman=None) for row in report.contestants)),
    ]
    for less in fewer:
        assert not less.covers(report)
        assert report.covers(less)
        assert file_for(less, tmp_path / "bench.json") == tmp_path / "bench-2.json"
    fewer[0].write(tmp_path / "bench-2.json")
    assert file_for(fewer[0], tmp_path / "bench.json") == tmp_path / "bench-2.json"
    assert file_for(fewer[1], tmp_path / "bench.json") == tmp_path / "bench-2.json"  # it has all, and more
    assert file_for(fewer[3], tmp_path / "bench.json") == tmp_path / "bench-3.json"
    more = with_(contestants=(*report.contestants, Contestant(role="lean", backend="st-fp32", absent=None, spearman=1)))
    assert file_for(more, tmp_path / "bench.json") == tmp_path / "bench.json"
    (tmp_path / "bench.json").write_text("{")
    assert file_for(fewer[0], tmp_path / "bench.json") == tmp_path / "bench.json"  # nothing there can be read


def test_a_pair_from_one_sweep_needs_no_warning(report):
    assert report.comparison == "fair"
    assert "fine-tun" not in said(report)
    assert "Left out: torch.compile" in said(report)


def said(report):
    return " ".join(view_of(report).sentences)


def test_a_plain_checkpoint_is_no_yardstick_for_a_tuned_model(duo, tiny_folder):
    options = {**FEW, "lengths": (4,), "repeats": 1, "backends": ["torch-fp32"], "memory": False}
    result = bench(duo / "lean", tiny_folder("electra"), pairs=PAIRS, **options)
    assert (result.quality, result.comparison) == (None, "unfair")
    assert "the full model was not fine-tuned and the lean one was" in said(result)


def test_lean_alone_has_no_gain_and_no_difference(duo):
    options = {**FEW, "lengths": (4,), "repeats": 1, "backends": BACKENDS, "memory": False}
    result = bench(duo / "lean", pairs=PAIRS, **options)
    assert (result.quality, result.comparison, len(result.models)) == (None, None, 1)
    assert not any(table.title.startswith("How much faster") for table in view_of(result).tables)
    assert result.contestants[0].spearman is not None


def test_random_weights_are_timed_without_scores():
    config = TINY_CONFIGS["electra"]
    lean, full = random_encoder(truncated_config(config, 1)), random_encoder(config)
    result = bench(lean, full, pairs=PAIRS, texts=TEXTS, backends=["torch-fp32"], memory=False, **FEW)
    assert [row.spearman for row in result.contestants] == [None, None]
    assert result.quality is None
    assert result.scored is None
    assert "random ids" in said(result)
    row = result.timing("lean", "torch-fp32", "real set")
    assert row.tokens == sum(len(text.split()) + 2 for text in dict.fromkeys(TEXTS))
    assert [(row.layer, row.weights_bytes) for row in result.models] == [(1, None), (3, None)]


def test_a_runtime_that_is_not_installed_is_a_row_with_the_extra(duo, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)  # as if it were not installed
    options = {**FEW, "lengths": (4,), "repeats": 1}
    result = bench(duo / "lean", backends=BACKENDS, memory=False, **options)
    absent = {row.backend: row.absent for row in result.contestants}
    assert absent["torch-fp32"] is None
    assert "pip install 'truncate-kit[cpu]'" in absent["onnx-fp32"]
    assert {row.backend for row in result.timings} == {"torch-fp32"}


def test_a_compiler_that_is_missing_is_a_row_with_its_reason(duo, tmp_path, monkeypatch):
    from torch._inductor import config

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    options = {**FEW, "lengths": (4,), "repeats": 1}
    without_blocks = save_encoder(truncate(load_encoder(duo / "full"), 0), tmp_path / "lean")
    with config.patch({"cpp.cxx": (str(tmp_path / "no-such-compiler"),)}):
        result = bench(without_blocks, backends=["torch-fp32", "compile-fp32"], memory=False, **options)
    row = next(row for row in result.contestants if row.backend == "compile-fp32")
    assert row.absent.startswith("torch.compile failed: ")
    assert [row.backend for row in result.measured()] == ["torch-fp32"]


def test_peak_memory_is_measured(duo):
    rows = bench(duo / "lean", backends=["onnx-fp32"], **FEW).contestants
    assert all(row.peak_bytes > 2**20 for row in rows)


def _failing(error):
    def fail(*_):
        raise error

    return fail


def test_a_runtime_that_fails_in_the_middle_leaves_the_others_their_figures(duo, monkeypatch):
    monkeypatch.setattr(OnnxRunner, "encode", _failing(RuntimeError("CUDA error 700\nat line 3")))
    options = {**FEW, "lengths": (4,), "repeats": 1, "backends": BACKENDS, "memory": False}
    result = bench(duo / "lean", texts=TEXTS, **options)
    absent = {row.backend: row.absent for row in result.contestants}
    assert absent == {
        "torch-fp32": None,
        "onnx-fp32": "at one sentence: ONNX Runtime fp32 failed: CUDA error 700",
    }
    scenarios = {name: {row.scenario for row in result.timings if row.backend == name} for name in BACKENDS}
    assert scenarios["onnx-fp32"] == {"latency", "throughput"}  # what was timed before stays
    assert scenarios["torch-fp32"] == {"latency", "throughput", "one sentence", "real set"}
    scored = bench(duo / "lean", pairs=PAIRS, **options)
    reasons = [row.absent for row in scored.contestants if row.absent is not None]
    assert reasons == ["while scoring: ONNX Runtime fp32 failed: CUDA error 700"]
    with pytest.raises(UsageError, match="No runtime could be measured: ONNX Runtime fp32: at one sentence"):
        bench(duo / "lean", texts=TEXTS, **{**options, "backends": ["onnx-fp32"]})


def test_a_runtime_whose_vectors_are_no_numbers_is_not_scored_by_queries(duo, tmp_path, monkeypatch):
    """A search would rank them first, and of a few bad texts take most of the score."""
    data = read_retrieval(retrieval_folder(tmp_path / "set"))
    encode = OnnxRunner.encode_ids

    def some_wrong(runner, ids):
        vectors = encode(runner, ids)
        vectors[3, 1] = float("nan")
        return vectors

    monkeypatch.setattr(OnnxRunner, "encode_ids", some_wrong)
    options = {**FEW, "lengths": (4,), "repeats": 1, "backends": BACKENDS, "memory": False}
    rows = {row.backend: row for row in bench(duo / "lean", pairs=data, **options).contestants}
    said = "while scoring: ONNX Runtime fp32 failed: vectors that are not numbers for 1 of 75 texts"
    assert (rows["onnx-fp32"].search, rows["onnx-fp32"].absent) == (None, said)
    expected = evaluate_retrieval(load_encoder(duo / "lean"), data, model="lean").means["nDCG@10"]
    assert rows["torch-fp32"].search == pytest.approx(expected)


def test_a_runtime_that_fails_at_the_start_is_a_row_but_a_damaged_model_an_error(duo, monkeypatch):
    options = {**FEW, "lengths": (4,), "repeats": 1, "backends": BACKENDS, "memory": False}
    monkeypatch.setattr(OnnxRunner, "prepare", _failing(RuntimeError("no kernel image")))
    result = bench(duo / "lean", **options)
    assert [row.absent for row in result.contestants] == [None, "ONNX Runtime fp32 failed: no kernel image"]
    monkeypatch.setattr(OnnxRunner, "prepare", _failing(ModelError("It is damaged.", hint="Export it again.")))
    with pytest.raises(ModelError, match="damaged"):
        bench(duo / "lean", **options)


def test_a_graph_is_made_for_the_device_that_runs_it(duo, tmp_path):
    backend, kept = BACKENDS_KNOWN["onnx-fp32"], tmp_path / "graphs"
    bare = tmp_path / "bare"
    save_encoder(load_encoder(duo / "lean"), bare)
    paths = [Subject("lean", bare, tmp_path / target, kept, target=target).graph(backend) for target in ("cpu", "cuda")]
    assert [check_record(path).target for path in paths] == ["cpu", "cuda"]
    other = Subject("lean", bare, tmp_path / "other", kept)
    assert other.graph(backend) == paths[0]  # kept for the next bench


def test_a_process_of_its_own_gets_what_it_can_load(duo, tmp_path):
    config = TINY_CONFIGS["albert"]
    shape = Subject("lean", random_encoder(config), tmp_path)
    assert random_encoder(load_config(shape.for_worker())).num_parameters == shape.encoder.num_parameters
    memory = Subject("full", load_encoder(duo / "lean"), tmp_path)
    assert load_encoder(memory.for_worker()).num_parameters == memory.encoder.num_parameters
    assert Subject("full", duo / "full", tmp_path).for_worker() == duo / "full"


@pytest.mark.parametrize("flags", ["avx2", "avx2,avx512_bf16"])
def test_bf16_is_measured_or_its_absence_explained(duo, monkeypatch, flags):
    monkeypatch.setenv(INSTRUCTIONS, flags)
    options = {**FEW, "lengths": (4,), "repeats": 1}
    result = bench(duo / "lean", backends=["torch-fp32", "torch-bf16"], memory=False, **options)
    row = next(row for row in result.contestants if row.backend == "torch-bf16")
    if "bf16" in flags:
        assert row.absent is None
    else:
        assert row.absent == "this processor has no bf16 instructions"


def test_threads_are_as_asked_and_given_back(duo):
    before = torch.get_num_threads()
    result = bench(duo / "lean", backends=["torch-fp32"], memory=False, lengths=(4,), repeats=1, threads=1)
    assert result.machine.threads == 1
    assert torch.get_num_threads() == before


def test_the_cpu_leaves_out_what_compiles_unless_asked():
    cpu = torch.device("cpu")
    assert [row.name for row in select_backends(None, cpu)] == ["torch-fp32", "torch-bf16", "onnx-fp32"]
    assert len(select_backends(["all"], cpu)) == 9
    cuda = [row.name for row in select_backends(None, torch.device("cuda"))]
    assert {"torch-tf32", "torch-fp16", "compile-fp16", "onnx-fp32"} <= set(cuda)
    quick = [row.name for row in select_backends(None, torch.device("cuda"), slow_starts=False)]
    assert quick == [name for name in cuda if not name.startswith("compile")]
    rivals = {"st-fp16", "st-flash-fp16", "flash-fp16", "compile-static-fp16", "tensorrt-fp16", "onnx-graphs-fp16"}
    assert not {*rivals, "onnx-int8"} & set(cuda)
    assert len(select_backends(["all"], torch.device("cuda"))) == len(BACKENDS_KNOWN)


def test_what_needs_a_gpu_is_a_row_with_its_reason_and_peers_run_their_own_encode(duo):
    options = {**FEW, "lengths": (4,), "repeats": 1}
    backends = ["torch-fp32", "torch-fp16", "onnx-graphs-fp16", "st-fp32"]
    result = bench(duo / "lean", pairs=PAIRS, texts=TEXTS, backends=backends, memory=False, **options)
    rows = {row.backend: row for row in result.contestants}
    assert rows["torch-fp16"].absent == "it needs a GPU"
    assert rows["onnx-graphs-fp16"].absent is not None
    assert rows["st-fp32"].absent is None
    assert rows["st-fp32"].spearman == pytest.approx(rows["torch-fp32"].spearman)
    ids = load_encoder(duo / "lean").token_ids(TEXTS)
    cpu = torch.device("cpu")
    runner = PeerRunner(BACKENDS_KNOWN["st-fp32"], load_encoder(duo / "lean"), lambda: duo / "lean", device=cpu)
    torch.testing.assert_close(runner.encode_ids(ids), runner.encode(TEXTS), atol=1e-5, rtol=1e-4)
    peer = {row.scenario for row in result.timings if row.backend == "st-fp32"}
    assert peer == {"one sentence", "latency", "throughput", "real set"}
    assert all(row.device_seconds == () for row in result.timings)  # no GPU


def test_other_runtimes_get_a_graph_of_standard_operators(duo, tmp_path):
    graph = Subject("lean", duo / "lean", tmp_path).graph(BACKENDS_KNOWN["tensorrt-fp16"])
    assert {node.domain for node in onnx.load(graph).graph.node} <= {"", "ai.onnx"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_cuda_asked_for_and_not_active_is_an_error(duo):
    with pytest.raises(DeviceError, match="CUDA was asked for"):
        bench(duo / "lean", device="cuda")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"backends": ["tensorrt"]}, "no backend 'tensorrt'"),
        ({"repeats": 0}, "`repeats` 0 is out of range"),
        ({"batch_sizes": (1, 0)}, "`batch_sizes` 0 is out of range"),
        ({"lengths": (500,)}, "A length of 500 tokens does not fit"),
    ],
)
def test_options_that_make_no_sense(duo, options, match):
    with pytest.raises(UsageError, match=match):
        bench(duo / "lean", **options)
