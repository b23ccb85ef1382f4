"""Records, weights and checkpoints of runs: what a kill leaves, what is damaged, what one process may do."""

import dataclasses
import multiprocessing

import pytest
import torch

from tests.support.trials import made_trial
from truncate_kit.core.errors import FileProblemError
from truncate_kit.core.results import FORMAT, append_records, read_records
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.store import RunStore, run_key
from truncate_kit.training.settings import Trial, trial_name

KEY = "0" * 64


def test_a_file_cut_at_any_byte_holds_what_was_written_before_and_goes_on(tmp_path):
    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    append_records(whole, {"number": 0, "text": "ß\n"}, {"number": 1})
    append_records(whole, {"number": 2, "text": "größer"})
    content = whole.read_bytes()
    lines = content.splitlines(keepends=True)
    for size in range(len(content) + 1):
        cut.write_bytes(content[:size])
        kept = [number for number in range(3) if size >= sum(map(len, lines[: number + 1]))]
        assert [record["number"] for record in read_records(cut)[0]] == kept
        append_records(cut, {"number": 9})
        found, damaged = read_records(cut)
        assert [record["number"] for record in found] == [*kept, 9]
        assert damaged == 0


def append_many(file, name):
    for number in range(200):
        append_records(file, {"name": name, "number": number, "text": "x" * 3000})


def test_processes_that_append_at_once_lose_nothing(tmp_path):
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=append_many, args=(tmp_path / "a.jsonl", name)) for name in "ab"]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    found, damaged = read_records(tmp_path / "a.jsonl")
    assert damaged == 0
    for name in "ab":
        assert [record["number"] for record in found if record["name"] == name] == list(range(200))


def test_records_come_back_equal_the_first_stays_and_those_of_a_later_version_are_refused(tmp_path):
    store = RunStore(tmp_path, KEY, {"model": "m"})
    first = made_trial()
    with store.open():
        assert store.read(first.name, Trial) is None
        store.write(first.name, first)
        store.write(first.name, dataclasses.replace(first, seconds=99.0))
        with pytest.raises(FileProblemError, match="Another process"), RunStore(tmp_path, KEY).open():
            pass
    assert RunStore(tmp_path, KEY).all(Trial) == {first.name: first}
    settings = {"store": store.key, "kind": "settings", "format": FORMAT, "model": "m"}
    assert read_records(tmp_path / "trials.jsonl")[0][0] == settings
    append_records(tmp_path / "trials.jsonl", {"store": store.key, "kind": "settings", "format": FORMAT + 1})
    with pytest.raises(FileProblemError, match="another version"):
        RunStore(tmp_path, KEY).read(first.name, Trial)
    assert RunStore(tmp_path, "1" * 64).read(first.name, Trial) is None  # what others wrote does not matter


def test_weights_are_kept_until_they_are_forgotten(tmp_path, tiny_folder):
    store, encoder = RunStore(tmp_path, KEY), load_encoder(tiny_folder("bert"))
    kept, gone = made_trial(3, 0), made_trial(3, 1)
    with store.open():
        for one in (kept, gone):
            store.write_encoder(one.name, one, encoder)
        store.forget_weights({kept.name})
        assert (store.has_weights(kept.name), store.has_weights(gone.name)) == (True, False)
        assert store.read(gone.name, Trial) == gone
        again = store.encoder(kept.name, torch.device("cpu"))
    assert torch.equal(again.vectors(["a cat"]), encoder.vectors(["a cat"]))


def test_checkpoints_go_with_their_trial_and_with_what_a_killed_process_left(tmp_path):
    store = RunStore(tmp_path, KEY)
    name, other = trial_name(1, 0, 3), trial_name(1, 0, 30)
    assert store.checkpoint(name) is None  # another machine, which does not see the folder

    def leave(*runs):
        for run in runs:
            for stage in ("", "prior"):
                file = store.checkpoint(run, stage)
                file.write_bytes(b"state")
                (file.parent / f".{file.name}.abc12345.tmp").mkdir(exist_ok=True)

    def left():
        return {path.name.removeprefix(".").partition(".")[0] for path in store.folder.iterdir()}

    with store.open():
        leave(name, other)
        store.write(trial_name(1, 0, 3, 1), made_trial(1, dev=(1.0, 2.0, 3.0), stopped_after=1))  # waits to go on
        assert len(list(store.folder.iterdir())) == 10
        store.write(name, made_trial(1, dev=(1.0, 2.0, 3.0)))
        assert left() == {"lock", "unfinished", other}
        leave(name)
    with store.open():
        assert left() == {"lock", "unfinished", other}
        assert not list(store.folder.glob("*.tmp"))


def test_keys_differ_where_model_or_any_part_differs(tiny_folder):
    encoder, other = load_encoder(tiny_folder("bert")), load_encoder(tiny_folder("bert"), pooling="cls")
    parts = [("ab", "c"), ("a", "bc"), ("abc",), ("ab", "c", "")]
    assert len({run_key(model, *some) for some in parts for model in (encoder, other)}) == 8
    assert run_key(encoder, "ab", "c") == run_key(load_encoder(tiny_folder("bert")), "ab", "c")
