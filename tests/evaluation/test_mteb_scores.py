"""Scores by the `mteb` package: a published figure, our own figures, and its own wrapper of sentence-transformers."""

import json
import sys

import pytest
import torch

from tests.support.mteb_tasks import aggregate_task, mteb_package, retrieval_task, sts_task
from tests.support.pairs import make_pairs
from tests.support.retrieval import retrieval_folder
from truncate_kit.core.errors import DataError, MissingExtraError, UsageError
from truncate_kit.data.pairs import read_pairs
from truncate_kit.data.retrieval import read_retrieval
from truncate_kit.evaluation import SuiteReport
from truncate_kit.evaluation.graded import MEASURES, evaluate
from truncate_kit.evaluation.mteb import MtebEncoder, evaluate_mteb, find_tasks
from truncate_kit.evaluation.retrieval import evaluate_retrieval
from truncate_kit.models.loading import load_encoder

PUBLISHED = 82.03  # all-MiniLM-L6-v2 on STSBenchmark, by MTEB


@pytest.fixture(scope="module")
def mteb():
    return mteb_package()


@pytest.fixture(scope="module")
def stsb(shared_data):
    return read_pairs(shared_data / "stsb/en/test.csv").pairs


def figures(encoder, pairs, data):
    report = evaluate_mteb(encoder, [sts_task("Pairs", pairs), retrieval_task("Answers", data)], model="it")
    return [row.values["score"] for row in report.rows]


def test_the_published_figure_of_a_real_model(mteb, minilm_vectors, stsb):
    task = sts_task("Pairs", stsb)
    report = evaluate_mteb(minilm_vectors, [task], model="all-MiniLM-L6-v2")
    (row,) = report.rows
    assert row.values["score"] == pytest.approx(PUBLISHED, abs=0.01)
    assert (row.task, row.labels) == ("Pairs", {"metric": "cosine_spearman", "split": "test"})
    assert report.means["score"] == row.values["score"]
    assert f"MTEB {mteb.__version__} " in report.title
    assert row.values["seconds"] > 0
    assert SuiteReport.from_dict(json.loads(report.to_json())) == report


@pytest.mark.filterwarnings("ignore:Task name all", "ignore:Some prompts")  # from mteb
@pytest.mark.parametrize(
    "settings",
    [
        {"prompts": {"query": "the red ", "document": "a tree and ", "all": "not "}, "default_prompt_name": "all"},
        {"prompts": {"STS": "is the cat ", "Retrieval-query": "the red ", "query": "not ", "document": ""}},
        {"similarity_fn_name": "dot"},
    ],
)
def test_as_mteb_scores_the_folder_by_sentence_transformers(mteb, prompting, tmp_path, settings):
    from sentence_transformers import SentenceTransformer

    folder = prompting(**settings)
    pairs, data = make_pairs(60).pairs, read_retrieval(retrieval_folder(tmp_path / "set"))
    tasks = [sts_task("Pairs", pairs), retrieval_task("Answers", data)]
    peer = mteb.evaluate(SentenceTransformer(str(folder), device="cpu"), tasks, cache=None, show_progress_bar=False)
    expected = [100 * result.get_score() for result in peer.task_results]
    assert figures(load_encoder(folder), pairs, data) == pytest.approx(expected, abs=0.01)
    if not any(name.startswith(("STS", "Retrieval")) for name in settings.get("prompts", {})):
        encoder = load_encoder(folder)
        own = [evaluate(encoder, pairs).spearman, evaluate_retrieval(encoder, data, model="it").means["nDCG@10"]]
        assert own == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("measure", MEASURES)
def test_the_protocol_and_the_measure(mteb, prompting, measure):
    adapter = MtebEncoder(load_encoder(prompting(similarity_fn_name=measure)), "it")
    assert isinstance(adapter, mteb.EncoderProtocol)
    assert not isinstance(adapter, mteb.SearchProtocol | mteb.CrossEncoderProtocol)
    drawn = torch.Generator().manual_seed(0)
    first, second = (torch.randn(300, 4, generator=drawn) for _ in range(2))
    table = adapter.similarity(first.numpy(), second.numpy())
    torch.testing.assert_close(table, MEASURES[measure](first, second))
    torch.testing.assert_close(adapter.similarity_pairwise(first.numpy(), second.numpy()), table.diagonal())


def test_a_task_that_is_the_mean_of_others(mteb, encoder):
    parts = [sts_task(f"Pairs{seed}", make_pairs(40, seed).pairs) for seed in (0, 1)]
    (row,) = evaluate_mteb(encoder, [aggregate_task("Both", parts)], model="it").rows
    single = evaluate_mteb(encoder, parts, model="it")
    assert single.rows[0].values["score"] != single.rows[1].values["score"]
    assert (row.task, row.values["score"]) == ("Both", pytest.approx(single.means["score"], abs=1e-6))
    assert not any(part.data_loaded for part in parts)


def test_tasks_that_cannot_be_run(mteb, tiny_folder):
    assert [task.metadata.name for task in find_tasks(["STS12", "STS13", "STS12"])] == ["STS12", "STS13"]
    with pytest.raises(UsageError, match=r"'stsbenchmrk' not found.*'STSBenchmark'") as problem:
        find_tasks(["STS12", "stsbenchmrk"])
    assert "available-tasks" in problem.value.hint
    with pytest.raises(UsageError, match="needs a model for image"):
        find_tasks(["CIFAR10"])
    with pytest.raises(DataError, match="The data of the MTEB task STS12 cannot be loaded: ") as problem:
        evaluate_mteb(load_encoder(tiny_folder("bert")), ["STS12"], model="it")
    assert "mteb/sts12-sts" in problem.value.hint


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "mteb", None)
    with pytest.raises(MissingExtraError, match="mteb") as problem:
        find_tasks(["STS12"])
    assert "truncate-kit[mteb]" in problem.value.hint
