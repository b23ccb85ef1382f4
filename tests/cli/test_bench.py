"""`truncate-kit bench`: every option, what it prints and what it leaves. Nothing here asserts a time."""

import matplotlib.image
import pytest

from tests.support.files import pairs_file as graded
from truncate_kit.bench.result import BenchReport
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.pipeline import save_encoder
from truncate_kit.models.store import origin_of
from truncate_kit.models.truncation import truncate

FAST = ("--backends", "torch-fp32", "--batch-sizes", "1,2", "--lengths", "4", "--repeats", "1", "--threads", "1")


@pytest.fixture
def bench(run, tmp_path):
    """Run a quick `bench` on a file of pairs; return stdout and stderr."""
    graded(tmp_path / "pairs.csv", "score", range(6))
    return lambda *options: run("bench", "--data", "pairs.csv", "--quick", *FAST, *options)


@pytest.fixture
def workspace(tmp_path, tiny_folder):
    """`exported` as finetune leaves it, with tiny models."""
    full = load_encoder(tiny_folder("electra"))
    for name, model in (("full", full), ("lean", truncate(full, 2))):
        save_encoder(model, tmp_path / "exported" / name, origin=origin_of("finetune", full, model))
    return tmp_path / "exported"


def test_without_arguments_it_takes_what_finetune_left(bench, workspace, drawn):
    out, err = bench("--verbose")
    assert "Model: exported/lean" in err
    assert "Compared with: exported/full." in err
    assert "peak MB" not in out  # which a quick look does not measure
    for row in ("lean, torch fp32", "full, torch fp32", "2 × 4, lean, torch fp32"):
        assert row in out
    assert "paired bootstrap over 64 pairs, 2,000 resamples" in out
    report = BenchReport.read(workspace / "bench.json")
    assert {(row.batch_size, row.length) for row in report.timings} == {(1, 4), (2, 4), (None, None)}
    assert matplotlib.image.imread(workspace / "bench.png").shape[1] >= 1000


def test_random_weights_need_a_configuration_only(bench, tiny_folder, tmp_path):
    bench("--random-weights", tiny_folder("bert") / "config.json", "--layer", "1")
    report = BenchReport.read(tmp_path / "exported" / "bench.json")
    assert [row.layer for row in report.models] == [1, 3]
    assert [row.score for row in report.contestants] == [None, None]
    assert not (tmp_path / "exported" / "bench.png").exists()
