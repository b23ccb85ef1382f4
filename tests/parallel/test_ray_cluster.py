"""Tasks on a real Ray cluster of two nodes on this machine, one of which is killed in the middle of a study."""

import contextlib
import dataclasses
import math
import os
import shutil
import socket
import sys
import threading
from collections.abc import Iterator
from functools import partial

import numpy as np
import psutil
import pytest
import torch

from tests.support.commands import refused, run_both
from tests.support.files import study_file
from tests.support.squares import DEADLY, WRONG, Squares
from tests.support.trials import read_trials
from truncate_kit.core.errors import DeviceError, TruncateKitError, UsageError
from truncate_kit.core.parallel import RayCluster, Steps
from truncate_kit.core.progress import TrialWatcher
from truncate_kit.export.encode import encode_file
from truncate_kit.methods.distill.learning import teacher_vectors
from truncate_kit.methods.distill.texts import RawTexts, store_texts
from truncate_kit.methods.study.plan import read_study
from truncate_kit.methods.study.running import run_study
from truncate_kit.models.loading import load_encoder

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


@pytest.fixture(scope="module")
def second(cluster):
    """Another node with one CPU."""
    return another(cluster)


def another(cluster):
    return patiently(lambda: cluster.add_node(num_cpus=1, object_store_memory=STORE))


def raylet(node):
    return psutil.Process(node.all_processes["raylet"][0].process.pid)


def patiently(start):
    """Ray gives a node thirty seconds to start; on a busy machine it may need them more than once."""
    for _ in range(2):
        with contextlib.suppress(Exception):
            return start()
    return start()


@pytest.fixture(scope="module")
def engine(cluster, second) -> Iterator[RayCluster]:
    """One connection for all tests that follow: Ray starts workers anew for each."""
    with RayCluster(cluster.address) as engine:
        yield engine


def test_what_cannot_be_reached_is_said():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        free = server.getsockname()[1]
    with pytest.raises(DeviceError, match=f"No Ray cluster answers at 127.0.0.1:{free}"):
        RayCluster(f"127.0.0.1:{free}").__enter__()
    with pytest.raises(DeviceError, match="nowhere at all"):
        RayCluster("nowhere at all").__enter__()
    with pytest.raises(UsageError, match="for Ray's client"):
        RayCluster("ray://127.0.0.1:10001")
    with pytest.raises(UsageError, match=r"1\.5 GPUs for a task"):
        RayCluster(gpus=1.5)
    for numbers in ({"gpus": -1}, {"gpus": math.inf}, {"gpus": math.nan}, {"cpus": 0}, {"cpus": -1}, {"cpus": 1.5}):
        with pytest.raises(UsageError, match=f"`{next(iter(numbers))}`"):
            RayCluster(**numbers)


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
    steps = [message for message in said if isinstance(message, Steps)]
    assert {message.name for message in steps if message.done == 3} == {f"number {n}" for n in range(1, 9)}
    with pytest.raises(TruncateKitError, match="epoch 1, step 3"):
        list(engine.run(Squares(WEIGHTS), [WRONG, 2], said.append))


def test_a_killed_workers_task_is_done_again(engine, tmp_path):
    found = dict(engine.run(Squares(WEIGHTS, deaths=tmp_path), [1, DEADLY], lambda _: None))
    assert {number: square for number, (square, _, _) in found.items()} == {n: 3 * n * n for n in (1, DEADLY)}


def test_the_full_models_vectors_are_the_same(engine, tiny_folder, tmp_path):
    encoder = load_encoder(tiny_folder("bert"))
    store = store_texts(encoder, RawTexts(texts=[f"the cat {n} sat" for n in range(300)]), tmp_path / "texts")
    here = teacher_vectors(encoder, store, tmp_path / "here")
    shutil.copytree(tmp_path / "here/full", tmp_path / "there/full")  # the graph
    assert np.array_equal(teacher_vectors(encoder, store, tmp_path / "there", engine=engine), here)


def test_a_file_is_encoded_by_all(cluster, engine, tiny_folder, tmp_path, capfd, monkeypatch):
    monkeypatch.setitem(encode_file.__kwdefaults__, "chunk", 100)
    (tmp_path / "texts.txt").write_text("".join(f"the {'cat ' * (n % 9)}sat\n" for n in range(250)))  # three chunks
    model = ("encode", tmp_path / "texts.txt", "--model", tiny_folder("bert"), "--threads", 1, "--out")
    run_both(capfd, *model, tmp_path / "alone.npy")
    out, _ = run_both(capfd, *model, tmp_path / "shared.npy", "--engine", "ray", "--ray-address", cluster.address)
    assert "250 texts" in out
    assert (tmp_path / "shared.npy").read_bytes() == (tmp_path / "alone.npy").read_bytes()


def set_running(raylet: psutil.Process, change) -> list[psutil.Process]:
    """The workers of a node that have a task, each of them changed."""
    found = []
    for worker in raylet.children():
        with contextlib.suppress(psutil.Error):
            if worker.name() == "ray::_on_cluster":
                change(worker)
                found.append(worker)
    return found


class Killer(TrialWatcher):
    """Kills a node in the middle of a trial: where two have begun, each node with its one CPU has one of them.

    Its workers are halted first, so that nothing ends on it while it is killed.
    """

    def __init__(self, node: psutil.Process, kill) -> None:
        self._node, self._kill = node, kill
        self._going, self._killing = {}, threading.Thread(target=self._halt_and_kill, daemon=True)

    def _halt_and_kill(self) -> None:
        halted = set_running(self._node, psutil.Process.suspend)
        self._kill()
        for worker in halted:  # it cannot see that its node is gone
            with contextlib.suppress(psutil.Error):
                worker.kill()

    @property
    def struck(self) -> bool:
        return self._killing.ident is not None

    def trial(self, event) -> None:
        if event.kind != "epoch":
            self._going.pop(event.place, None)
            return
        self._going[event.place] = event.done / event.epochs
        if len(self._going) == 2 and max(self._going.values()) < 0.7 and not self.struck:
            self._killing.start()


def test_a_study_loses_a_node_and_ends_as_if_it_had_not(cluster, second, engine, tiny_folder, tmp_path):
    study = read_study(study_file(tiny_folder("bert"), tmp_path, epochs=24, seeds=1))  # each trial lasts a second
    alone = run_study(study, tmp_path / "alone")
    for turn in range(4):  # what was heard of a trial may be old beside tests that keep all cores busy
        place, node = tmp_path / f"shared{turn}", second if turn == 0 else another(cluster)
        killer = Killer(raylet(node), partial(cluster.remove_node, node, False))
        shared = run_study(study, place, engine=engine, progress=killer)
        if killer.struck:
            break
    assert killer.struck
    assert dataclasses.replace(shared, seconds=0) == dataclasses.replace(alone, seconds=0)
    kept = [read_trials(folder / "trials" / "trials.jsonl") for folder in (tmp_path / "alone", place)]
    assert kept[0]
    ours, theirs = (
        {store: [dataclasses.replace(trial, seconds=0) for trial in trials] for store, trials in stores.items()}
        for stores in kept
    )
    assert ours == theirs
    assert not list(tmp_path.rglob("*.checkpoint"))


def test_without_ray_the_extra_is_named(tiny_folder, tmp_path, monkeypatch, capfd):
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    study = study_file(tiny_folder("bert"), tmp_path)
    problem = refused(capfd, "study", study, "--engine", "ray", "--workspace", tmp_path / "out")
    assert "truncate-kit[ray]" in problem
