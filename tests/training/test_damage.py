"""What this package wrote and reads again: no damage is taken for something else, whatever byte it hits."""

import contextlib
import random

import pytest
import torch

from tests.fuzz.mutating import mutated
from tests.support.trials import made_trial
from truncate_kit.core.errors import FileProblemError
from truncate_kit.core.results import append_records, read_records
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.store import RunStore, StoredRows
from truncate_kit.training.loop import read_checkpoint, write_checkpoint
from truncate_kit.training.settings import Trial

KEY = "0" * 64
TRIAL = made_trial(3, 1, dev=(70.25, 71.5))


def damaged(content, number):
    drawn = random.Random(20261123)
    return [copy for copy in (mutated(content, drawn) for _ in range(number)) if copy != content]


def test_a_changed_result_is_not_read(tmp_path):
    file = tmp_path / "r.json"
    TRIAL.write(file)
    content = file.read_bytes()
    assert Trial.read(file) == TRIAL
    for copy in damaged(content, 400):
        file.write_bytes(copy)
        with contextlib.suppress(ValueError, KeyError, FileProblemError):
            assert Trial.read(file) == TRIAL  # white space, say
    for text in ("[1]", "null"):
        file.write_text(text)
        with pytest.raises(ValueError, match=r"r\.json"):
            Trial.read(file)


def test_a_damaged_line_of_records_is_left_out_and_never_another_record(tmp_path):
    journal = tmp_path / "trials.jsonl"
    written = [{"store": "s"}, {"name": "a", "score": 71.5, "n": 3}, {"name": "b", "score": 70.0}]
    append_records(journal, *written)
    content = journal.read_bytes()
    for copy in damaged(content, 600):
        journal.write_bytes(copy)
        found, _ = read_records(journal)
        assert all(record in written for record in found)


def test_a_damaged_checkpoint_is_never_continued(tmp_path):
    path, cpu = tmp_path / "c.checkpoint", torch.device("cpu")
    values = {"weights": {"w": torch.arange(300.0)}, "state": {"scores": [1.5]}, "best": None}
    write_checkpoint(path, values)
    content = path.read_bytes()
    assert torch.equal(read_checkpoint(path, cpu)["weights"]["w"], values["weights"]["w"])
    write_checkpoint(tmp_path / "other.checkpoint", values)  # of another seed or store, with the same shapes
    others = (tmp_path / "other.checkpoint").read_bytes()
    for copy in [*damaged(content, 150), b"", content[:-1], content + b"x", content[:-32], others]:
        path.write_bytes(copy)
        with pytest.raises(FileProblemError, match=r"c\.checkpoint is damaged"):
            read_checkpoint(path, cpu)


def test_damaged_weights_and_tensors_of_a_run_are_as_good_as_gone(tmp_path, tiny_folder):
    store, encoder, value = RunStore(tmp_path, KEY), load_encoder(tiny_folder("bert")), torch.arange(30.0)
    with store.open():
        store.write_encoder(TRIAL.name, TRIAL, encoder)
        store.tensor("states", lambda: value)
    assert RunStore(tmp_path, KEY).has_weights(TRIAL.name)
    file = store.weights(TRIAL.name) / "model.safetensors"
    file.write_bytes(damaged(file.read_bytes(), 9)[0])
    again = RunStore(tmp_path, KEY)
    assert not again.has_weights(TRIAL.name)
    file = store.weights("states") / "model.safetensors"
    for copy in damaged(file.read_bytes(), 100):
        file.write_bytes(copy)
        assert RunStore(tmp_path, KEY).read_tensor("states") is None
    assert torch.equal(again.tensor("states", lambda: value), value)
    with again.open():
        again.write_encoder(TRIAL.name, TRIAL, encoder)
        assert again.has_weights(TRIAL.name)


def test_rows_resumed_over_damage_end_with_the_same_bytes(tmp_path):
    rows = [bytes([number]) * 4 for number in range(20)]
    shape = {"num_rows": 20, "row_bytes": 4, "chunk": 6, "header": b"head"}

    def fill():
        stored = StoredRows(tmp_path / "v.npy", {"from": "a"}, **shape)
        for start in stored.missing:
            stored.write(start, b"".join(rows[start : start + 6]))
        return stored.file.read_bytes()

    whole = fill()
    assert whole == b"head" + b"".join(rows)
    for file, number in ((tmp_path / "v.npy", 30), (tmp_path / "v.jsonl", 60)):
        for copy in damaged(file.read_bytes(), number):
            file.write_bytes(copy)
            assert fill() == whole
