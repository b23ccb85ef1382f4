"""Readers of what this package itself wrote: all but what was written is refused, or is as if it were not there."""

import shutil
from pathlib import Path
from typing import Any

import torch

from tests.fuzz.readers import KEPT, Reader, WrongError, _copied

STORE = "cffe26a345801bbd"
CHECKPOINT = f"{STORE}/c.checkpoint"  # it knows its store
ROWS = [bytes([number]) * 8 for number in range(40)]


def _sweep(folder: Path) -> Any:
    from truncate_kit.workspace.places import Workspace

    return Workspace(folder).sweep()


def _memory(folder: Path) -> Any:
    from truncate_kit.workspace.places import Workspace

    found = Workspace(folder).remembered()
    return None if found == type(found)() else found


def _cut(folder: Path) -> Any:
    from truncate_kit.results import read_or_pass_over
    from truncate_kit.training.cutting import CutResult

    return read_or_pass_over(CutResult.read, folder / "cut.json")


def _note(folder: Path) -> Any:
    from truncate_kit.results import read_or_pass_over
    from truncate_kit.serving.encoded_file import EncodingNote

    return read_or_pass_over(EncodingNote.read, folder / "vectors.npy.json")


def _exports(folder: Path) -> Any:
    from truncate_kit.export.record import read_exports

    return read_exports(folder)


def _trials(folder: Path) -> Any:
    from truncate_kit.training.store import RunStore
    from truncate_kit.training.trial import Trial

    found = RunStore(folder, STORE).all(Trial)
    known = RunStore(KEPT, STORE).all(Trial)
    # Before the first line with a checksum lines may be of the first format, which had none.
    sealed = b'"crc32"' in (folder / "trials.jsonl").read_bytes().partition(b"\n")[0]
    if sealed and any(trial != known.get(name) for name, trial in found.items()):
        raise WrongError("a trial that nobody ran")


def _make_rows(folder: Path) -> None:
    from truncate_kit.training.rows import StoredRows

    stored = StoredRows(folder / "v.npy", {"from": "a"}, num_rows=40, row_bytes=8, chunk=7, header=b"head")
    for start in stored.missing[:-1]:
        stored.write(start, b"".join(ROWS[start : start + 7]))


def _resume_rows(folder: Path) -> None:
    from truncate_kit.training.rows import StoredRows

    stored = StoredRows(folder / "v.npy", {"from": "a"}, num_rows=40, row_bytes=8, chunk=7, header=b"head")
    for start in stored.missing:
        stored.write(start, b"".join(ROWS[start : start + 7]))
    if stored.file.read_bytes() != b"head" + b"".join(ROWS):
        raise WrongError("other bytes than those of a run without damage")


def _checkpoint(folder: Path) -> None:
    from truncate_kit.training.checkpoints import write_checkpoint

    write_checkpoint(folder / CHECKPOINT, {"weights": {"w": torch.arange(200.0)}, "state": {"scores": [1.0]}})


def _read_checkpoint(folder: Path) -> Any:
    from truncate_kit.training.checkpoints import read_checkpoint

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
    from truncate_kit.export.record import read_exports, record_with
    from truncate_kit.file_digests import digest_of

    (folder / "model.onnx").write_bytes(bytes(range(256)) * 20)
    report = read_exports(KEPT).graphs[0]
    shutil.copy(KEPT / "cut.json", folder / "config.json")
    import dataclasses

    report = dataclasses.replace(report, sha256=digest_of(folder / "model.onnx"))
    (folder / "export.json").write_text(record_with(folder, report))


def _read_graph(folder: Path) -> Any:
    from truncate_kit.export.record import check_record

    return check_record(folder / "model.onnx")


def _kept(name: str, read: Any) -> Reader:
    return Reader(name=name, files=(name,), make=_copied(name), read=read, sealed=True)


def _learned(folder: Path) -> None:
    from truncate_kit.data import TextPair
    from truncate_kit.data.learned import note_learned

    note_learned(folder / "sweep.json", "a set", [TextPair(f"text {number}", "other", 1.0) for number in range(40)])


def _read_learned(folder: Path) -> Any:
    from truncate_kit.data.learned import read_learned

    found = read_learned(folder / "sweep.json", "a set")
    return None if found is None else found.tolist()


OWN = (
    _kept("sweep.json", _sweep),
    Reader(name="sweep.pairs", files=("sweep.pairs",), make=_learned, read=_read_learned, sealed=True),
    _kept("workspace.json", _memory),
    _kept("cut.json", _cut),
    _kept("vectors.npy.json", _note),
    _kept("export.json", _exports),
    Reader(name="graph beside its record", files=("model.onnx",), make=_graph, read=_read_graph, sealed=True),
    Reader(name="trials.jsonl", files=("trials.jsonl",), make=_copied("trials.jsonl"), read=_trials),
    Reader(name="encode's parts", files=("v.npy", "v.jsonl"), make=_make_rows, read=_resume_rows, cost=4),
    Reader(name="checkpoint", files=(CHECKPOINT,), make=_checkpoint, read=_read_checkpoint, sealed=True),
    Reader(name="stored tensor", files=(f"{STORE}/states.safetensors",), make=_tensor, read=_read_tensor, sealed=True),
)
