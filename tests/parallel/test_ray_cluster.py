"""Run tasks on a real Ray cluster of two nodes on this machine."""

import contextlib
import dataclasses
import math
import os
import shutil
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from tests.support.commands import refused, run_both
from tests.support.distributed import free_port
from tests.support.files import study_file
from tests.support.squares import DEADLY, WRONG, Squares
from truncate_kit.core.errors import DeviceError, TruncateKitError, UsageError
from truncate_kit.core.parallel import RayCluster
from truncate_kit.export.encode import encode_file
from truncate_kit.methods.distill.learning import RawTexts, TextStore, add_vectors, store_texts
from truncate_kit.methods.study.plan import read_study
from truncate_kit.methods.study.running import run_study

if os.environ.get("CI") != "true":
    pytest.importorskip("ray", reason="needs Ray")

WEIGHTS = torch.tensor([5, 3])
STORE = 80 * 2**20  # bytes; the least that Ray takes is 75 MB


@pytest.fixture(scope="module")
def cluster() -> Iterator:
    """A head with one CPU, where the tests are, and what Ray believes to be a GPU."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Ray lets its workers come last; but other tests keep all cores busy.
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112  # so Ray spells it
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    head = {"num_cpus": 1, "num_gpus": 1, "object_store_memory": STORE}
    spared = {"include_dashboard": False, "include_log_monitor": False, "no_monitor": True}  # processes of Ray's own
    patiently(lambda: cluster.add_node(**head, **spared))
    yield cluster
    cluster.shutdown()


def patiently(start):
    """Ray gives a node thirty seconds to start; on a busy machine it may need them more than once."""
    for _ in range(2):
        with contextlib.suppress(Exception):
            return start()
    return start()


@pytest.fixture(scope="module")
def engine(cluster) -> Iterator[RayCluster]:
    """One connection for all tests that follow, and another node with one CPU: Ray starts workers anew for each."""
    patiently(lambda: cluster.add_node(num_cpus=1, object_store_memory=STORE))
    with RayCluster(cluster.address) as engine:
        yield engine


def test_what_cannot_be_reached_is_said():
    free = free_port()
    with pytest.raises(DeviceError, match=f"No Ray cluster answers at 127.0.0.1:{free}"):
        RayCluster(f"127.0.0.1:{free}").__enter__()
    for wrong in ({"address": "nowhere at all"}, {"address": "ray://127.0.0.1:10001"}, {"gpus": 1.5}, {"gpus": -1},
                  {"gpus": math.nan}, {"cpus": 0}, {"cpus": 1.5}):  # fmt: skip
        with pytest.raises(UsageError):
            RayCluster(**wrong)


def test_a_cluster_without_room_is_said_and_left(cluster):
    import ray

    with pytest.raises(DeviceError, match="No machine of the Ray cluster has 2 GPUs and 1 CPUs"):
        RayCluster(cluster.address, gpus=2).__enter__()
    assert not ray.is_initialized()


def test_tasks_have_shares_of_a_gpu(cluster, engine):
    """Before what runs on CPUs: Ray starts a process for each task on a GPU, and ends one that waits for others."""
    with RayCluster(cluster.address, gpus=0.5) as sharing:
        found = dict(sharing.run(Squares(WEIGHTS), [1], lambda _: None))
    assert {number: (square, device) for number, (square, _, device) in found.items()} == {1: (3, "cuda")}


def test_tasks_give_and_tell_what_they_do_here(engine):
    said = []
    found = dict(engine.run(Squares(WEIGHTS, seconds=0.3), range(1, 9), said.append))
    assert {number: square for number, (square, _, _) in found.items()} == {n: 3 * n * n for n in range(1, 9)}
    assert len({process for _, process, _ in found.values()} - {os.getpid()}) >= 2
    assert {device for _, _, device in found.values()} == {"cpu"}
    assert {name for name, *steps in said if steps == [3, 3]} == {f"number {n}" for n in range(1, 9)}
    with pytest.raises(TruncateKitError, match="epoch 1, step 3"):
        list(engine.run(Squares(WEIGHTS), [WRONG, 2], said.append))


def test_a_killed_workers_task_is_done_again(engine, tmp_path):
    found = dict(engine.run(Squares(WEIGHTS, deaths=tmp_path), [1, DEADLY], lambda _: None))
    assert {number: square for number, (square, _, _) in found.items()} == {n: 3 * n * n for n in (1, DEADLY)}


def test_the_full_models_vectors_are_the_same(engine, encoder, tmp_path):
    here = store_texts(encoder, RawTexts(texts=[f"the cat {n} sat" for n in range(300)]), tmp_path / "here/texts")
    add_vectors(encoder, here)
    shutil.copytree(tmp_path / "here", tmp_path / "there", ignore=shutil.ignore_patterns("vectors.*"))  # with the graph
    there = TextStore(tmp_path / "there/texts")
    add_vectors(encoder, there, engine=engine)
    assert np.array_equal(there.vectors, here.vectors)


def test_a_file_is_encoded_by_all(cluster, engine, tiny_folder, tmp_path, capfd, monkeypatch):
    monkeypatch.setitem(encode_file.__kwdefaults__, "chunk", 100)
    (tmp_path / "texts.txt").write_text("".join(f"the {'cat ' * (n % 9)}sat\n" for n in range(250)))  # three chunks
    model = ("encode", tmp_path / "texts.txt", "--model", tiny_folder("bert"), "--threads", 1, "--out")
    run_both(capfd, *model, tmp_path / "alone.npy")
    out, _ = run_both(capfd, *model, tmp_path / "shared.npy", "--engine", "ray", "--ray-address", cluster.address)
    assert "250 texts" in out
    assert (tmp_path / "shared.npy").read_bytes() == (tmp_path / "alone.npy").read_bytes()


def test_a_study_on_a_cluster_ends_as_one_here(engine, tiny_folder, tmp_path):
    study = read_study(study_file(tiny_folder("bert"), tmp_path, epochs=2, seeds=1))
    alone, shared = run_study(study, tmp_path / "alone"), run_study(study, tmp_path / "shared", engine=engine)
    assert dataclasses.replace(shared, seconds=0) == dataclasses.replace(alone, seconds=0)
    assert not list(tmp_path.rglob("*.checkpoint"))


def test_without_ray_the_extra_is_named(tiny_folder, tmp_path, monkeypatch, capfd):
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    study = study_file(tiny_folder("bert"), tmp_path)
    problem = refused(capfd, "study", study, "--engine", "ray", "--workspace", tmp_path / "out")
    assert "truncate-kit[ray]" in problem
