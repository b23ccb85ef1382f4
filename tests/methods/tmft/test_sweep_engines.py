"""Sweeps and studies in several processes: equal to one process but for times, also when a worker is killed."""

import json

import psutil
import pytest
import torch

from tests.support.commands import refused
from tests.support.files import study_file
from tests.support.pairs import make_pairs
from tests.support.training import SETTINGS, swept
from tests.support.trials import Watcher, timeless
from truncate_kit.core.errors import DeviceError
from truncate_kit.data.pairs import PairSplits
from truncate_kit.methods.priors import WordPrior
from truncate_kit.models.loading import load_encoder
from truncate_kit.training.settings import TrainingSettings


def sweep(folder, out, engine, **how):
    encoder = load_encoder(folder)
    if how.pop("words_first", False):
        few = PairSplits(name="few", train=make_pairs(24, 3), dev=make_pairs(12, 4), test=make_pairs(12, 5))
        how["prior"] = WordPrior(encoder, few, TrainingSettings(epochs=1, batch_size=8, learning_rate=1e-3))
    return swept(encoder, out, engine=engine, seeds=(0, 1), **how)


def plain(result) -> dict:
    return timeless(json.loads(result.to_json()))


def test_two_processes_give_what_one_gives(tiny_folder, tmp_path, two_processes):
    how, heard = {"layers": "all", "words_first": True}, [Watcher(), Watcher()]
    alone = sweep(tiny_folder("electra"), tmp_path / "alone", None, progress=heard[0], **how)
    shared = sweep(tiny_folder("electra"), tmp_path / "shared", two_processes, progress=heard[1], **how)
    assert plain(shared) == plain(alone)
    for part in ("lean", "full"):
        ours, theirs = (load_encoder(tmp_path / out / part).state_dict() for out in ("shared", "alone"))
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    epochs = [sorted((*one.place, one.done) for one in own.events if one.kind == "epoch") for own in heard]
    assert epochs[0] == epochs[1]
    assert not list((tmp_path / "shared").rglob("*.checkpoint"))


def test_a_search_whose_worker_is_killed_stops_and_continues_to_the_same_result(tiny_folder, tmp_path, two_processes):
    how = {"strategy": "rankings", "training": SETTINGS}
    alone = sweep(tiny_folder("bert"), tmp_path / "alone", None, **how)

    def kill_a_worker(event):
        if event.kind == "epoch" and len(watcher.places("epoch")) == 3:  # in the middle of a trial, once
            (server,) = (one for one in psutil.Process().children() if "forkserver" in " ".join(one.cmdline()))
            server.children()[0].kill()

    watcher = Watcher(kill_a_worker)
    with pytest.raises(DeviceError, match="A worker process died") as stopped:
        sweep(tiny_folder("bert"), tmp_path / "shared", two_processes, progress=watcher, **how)
    assert "to continue" in stopped.value.hint
    shared = sweep(tiny_folder("bert"), tmp_path / "shared", two_processes, **how)
    assert plain(shared) == plain(alone)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--engine", "ray", "--workers", "2"), "--workers works only with --engine local"),
        (("--ray-address", "x:1"), "--ray-address works only with --engine ray"),
        (("--gpus-per-worker", "1"), "--gpus-per-worker works only with --engine ray"),
        (("--engine", "ray", "--ray-address", "ray://x:1"), "is not a Ray cluster address"),
        (("--engine", "ray", "--gpus-per-worker", "1.5"), "cannot use 1.5 GPUs"),
        (("--engine", "ray", "--device", "cuda", "--gpus-per-worker", "0"), "--gpus-per-worker 0 and --device cuda"),
        (("--workers", "0"), "--workers 0 is out of range"),
        (("--workers", "2", "--device", "cuda"), "CUDA"),
    ],
)
def test_what_is_refused(tiny_folder, tmp_path, capfd, options, said):
    file = study_file(tiny_folder("bert"), tmp_path)
    assert said in refused(capfd, "study", file, "--workspace", tmp_path / "out", *options)
