"""Readers of what this package itself wrote: all but what was written is refused, or is as if it were not there."""

import dataclasses
from pathlib import Path
from typing import Any

import torch

from tests.fuzz.readers import Reader, WrongError
from tests.support.made_results import a_sweep, an_export

STORE = "cffe26a345801bbd"
CHECKPOINT = f"{STORE}/c.checkpoint"  # it knows its store
ROWS = [bytes([number]) * 8 for number in range(40)]


def _write_results(folder: Path) -> None:
    """A file of each kind, written now."""
    from truncate_kit.export.record import record_with
    from truncate_kit.origin import ORIGIN_FILE, Origin
    from truncate_kit.workspace import DataSource, ModelSource, Workspace

    a_sweep().write(folder / "sweep.json")
    Workspace(folder).remember(ModelSource("mini-bert", "mean", 64), DataSource("pairs.csv", ("a", "b", "c"), (0, 5)))
    made = Origin(method="cut", model="mini-bert", source_digest="3" * 64, layer=2, depth=8, parameters=9, trained=None,
                  settings={}, versions={"torch": "2"})  # fmt: skip
    made.write(folder / ORIGIN_FILE)
    (folder / "model.onnx").write_bytes(bytes(range(256)) * 20)
    (folder / "export.json").write_text(record_with(folder, an_export()))


def _sweep(folder: Path) -> Any:
    from truncate_kit.methods.tmft.sweep_result import SweepResult
    from truncate_kit.results import read_or_pass_over

    return read_or_pass_over(SweepResult.read, folder / "sweep.json")


def _memory(folder: Path) -> Any:
    from truncate_kit.workspace import Workspace

    found = Workspace(folder).remembered()
    return None if found == type(found)() else found


def _origin(folder: Path) -> Any:
    from truncate_kit.origin import read_origin

    return read_origin(folder)


def _exports(folder: Path) -> Any:
    from truncate_kit.export.record import read_exports

    return read_exports(folder)


def _trials(folder: Path) -> Any:
    from truncate_kit.training.store import RunStore
    from truncate_kit.training.trials import Trial

    found = RunStore(folder, STORE).all(Trial)
    if any(trial != _trial(trial.layer) for trial in found.values()):
        raise WrongError("a trial that nobody ran")


def _trial(layer: int) -> Any:
    from truncate_kit.training.trials import Trial

    return Trial(layer=layer, seed=0, epochs=1, steps=4, dev_scores=(layer / 7,), best_epoch=1, dev=layer / 7,
                 dev_pearson=1.5, test=2.5, test_pearson=None, seconds=1.0)  # fmt: skip


def _write_trials(folder: Path) -> None:
    from truncate_kit.training.store import RunStore

    store = RunStore(folder, STORE, {"model": "mini-bert"})
    for layer in range(1, 6):
        store.write(_trial(layer).name, _trial(layer))


def _make_rows(folder: Path) -> None:
    from truncate_kit.training.store import StoredRows

    stored = StoredRows(folder / "v.npy", {"from": "a"}, num_rows=40, row_bytes=8, chunk=7, header=b"head")
    for start in stored.missing[:-1]:
        stored.write(start, b"".join(ROWS[start : start + 7]))


def _resume_rows(folder: Path) -> None:
    from truncate_kit.training.store import StoredRows

    stored = StoredRows(folder / "v.npy", {"from": "a"}, num_rows=40, row_bytes=8, chunk=7, header=b"head")
    for start in stored.missing:
        stored.write(start, b"".join(ROWS[start : start + 7]))
    if stored.file.read_bytes() != b"head" + b"".join(ROWS):
        raise WrongError("other bytes than those of a run without damage")


def _checkpoint(folder: Path) -> None:
    from truncate_kit.training.loop import write_checkpoint

    write_checkpoint(folder / CHECKPOINT, {"weights": {"w": torch.arange(200.0)}, "state": {"scores": [1.0]}})


def _read_checkpoint(folder: Path) -> Any:
    from truncate_kit.training.loop import read_checkpoint

    found = read_checkpoint(folder / CHECKPOINT, torch.device("cpu"))
    return found["weights"]["w"].tolist(), found["state"]


def _tensor(folder: Path) -> None:
    from truncate_kit.training.store import RunStore

    RunStore(folder, STORE).tensor("states", lambda: torch.arange(60.0))


def _read_tensor(folder: Path) -> Any:
    from truncate_kit.training.store import RunStore

    found = RunStore(folder, STORE).read_tensor("states")
    return None if found is None else found.tolist()


def _graph(folder: Path) -> None:
    """A graph, as far as whoever holds it against its record can see."""
    from truncate_kit.export.record import record_with
    from truncate_kit.files import digest_of

    (folder / "model.onnx").write_bytes(bytes(range(256)) * 20)
    (folder / "config.json").write_text("{}")
    report = dataclasses.replace(an_export(), sha256=digest_of(folder / "model.onnx"))
    (folder / "export.json").write_text(record_with(folder, report))


def _read_graph(folder: Path) -> Any:
    from truncate_kit.export.record import check_record

    return check_record(folder / "model.onnx")


def _kept(name: str, read: Any) -> Reader:
    return Reader(name=name, files=(name,), make=_write_results, read=read, sealed=True)


def _learned(folder: Path) -> None:
    from truncate_kit.data import TextPair
    from truncate_kit.seen import keys_of, write_seen

    write_seen(folder, keys_of([TextPair(f"text {number}", "other", 1.0) for number in range(40)]))


def _read_learned(folder: Path) -> Any:
    from truncate_kit.seen import read_seen

    found = read_seen(folder)
    return None if found is None else found.tolist()


OWN = (
    _kept("sweep.json", _sweep),
    Reader(name="seen.pairs", files=("seen.pairs",), make=_learned, read=_read_learned, sealed=True),
    _kept("workspace.json", _memory),
    _kept("origin.json", _origin),
    _kept("export.json", _exports),
    Reader(name="graph beside its record", files=("model.onnx",), make=_graph, read=_read_graph, sealed=True),
    Reader(name="trials.jsonl", files=("trials.jsonl",), make=_write_trials, read=_trials),
    Reader(name="encode's parts", files=("v.npy", "v.jsonl"), make=_make_rows, read=_resume_rows, cost=4),
    Reader(name="checkpoint", files=(CHECKPOINT,), make=_checkpoint, read=_read_checkpoint, sealed=True),
    Reader(name="stored tensor", files=(f"{STORE}/states.safetensors",), make=_tensor, read=_read_tensor, sealed=True),
)
