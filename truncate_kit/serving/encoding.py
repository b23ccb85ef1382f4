"""A file of texts to a file of vectors: any size in flat memory, and nothing lost when it is killed.

The rows are appended to a hidden file beside the output and counted in a note; both are flushed to the disk after each
chunk. What was written after the last note is cut off and made again, so that a resumed run ends with the same bytes.
"""

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from truncate_kit.data import iter_rows
from truncate_kit.encoders import Encoder
from truncate_kit.encoders.pipeline import Normalize, read_pipeline
from truncate_kit.engines import Engine, Sequential
from truncate_kit.errors import CannotWriteError, DataFileError, TruncateKitError, UsageError
from truncate_kit.export.runtime import OnnxEncoder
from truncate_kit.export.tracing import ends_normalized
from truncate_kit.files import run_lock, write_json
from truncate_kit.progress import Progress, silent
from truncate_kit.serving.digests import count_texts, encoder_digest
from truncate_kit.serving.results import EncodedFile, EncodingJob, job_file
from truncate_kit.serving.work import Chunk, EncodingWork, in_order
from truncate_kit.vectors import VectorFormat

CHUNK = 4096  # rows: enough to sort by length and to fill all cores, and seconds of work at most to do again


def encode_file(
    encoder: Encoder | OnnxEncoder,
    source: Path,
    out: Path,
    *,
    column: str | None = None,
    form: VectorFormat | None = None,
    chunk: int = CHUNK,
    engine: Engine | None = None,
    progress: Progress = silent,
) -> EncodedFile:
    """Write the vectors of all texts in `source` to `out`, a .npy file of shape (texts, columns), row n for text n.

    source: a .txt file with one text a line, or a .csv, .tsv, .jsonl or .parquet file with the texts in `column`.
    form: precision and dimensions of the stored vectors; None is float32, all of them, as the model gives them. A run
    that was killed continues with the same arguments and ends with the same bytes; one that had ended does nothing.
    engine: where chunks are encoded, None is one after another here; the bytes do not depend on it where processors and
    threads are alike.
    Raises `DataError` for a row without text, `UsageError` where `out` was made from something else,
    `RunInUseError`, `CannotWriteError`, and what the engine raises.
    """
    begin = time.perf_counter()
    source, out, form = Path(source), Path(out), form or VectorFormat()
    if out.suffix != ".npy":
        raise UsageError(f"{out} does not end in .npy.", hint="Name it like vectors.npy.")
    count, digest = count_texts(iter_rows(source, column=column), progress=progress)
    job = EncodingJob(
        model=encoder_digest(encoder),
        texts=digest,
        num_texts=count,
        width=int(encoder.encode(["a"]).shape[1]),
        form=form,
        chunk=chunk,
    )
    shape = (count, form.columns(job.width))
    resumed = count
    if not _is_done(out, job):
        work = out.with_name(f".{out.name}.part")
        with run_lock(work):
            rows = iter_rows(source, column=column)
            resumed = _encode(EncodingWork(encoder, form), rows, work, job, engine or Sequential(), progress)
            with _writing(out):
                job.write(job_file(out))  # before the rename: the output never stands without its note
                (work / "vectors.npy").replace(out)
        shutil.rmtree(work, ignore_errors=True)
    return EncodedFile(
        file=str(out),
        source=str(source),
        graph=encoder.file.name if isinstance(encoder, OnnxEncoder) else None,
        shape=shape,
        dtype=str(form.dtype),
        file_bytes=out.stat().st_size,
        resumed_at=resumed,
        seconds=time.perf_counter() - begin,
        job=job,
    )


def gives_unit_vectors(encoder: Encoder | OnnxEncoder) -> bool:
    """Whether the encoder scales its vectors to length 1: by the note of its export, else by the model's modules."""
    if isinstance(encoder, Encoder):
        return ends_normalized(encoder)
    if encoder.report is not None:
        return encoder.report.normalized
    tail = read_pipeline(encoder.file.parent).tail
    return bool(tail) and isinstance(tail[-1], Normalize)


def _is_done(out: Path, job: EncodingJob) -> bool:
    """Whether `out` is what this job would give. Raises `UsageError` where it is something else."""
    if not out.exists():
        return False
    if _noted(job_file(out)) != job.to_dict():
        raise UsageError(
            f"{out} is there already and was made from something else: another input, model or option.",
            hint="Name another file with --out, or remove this one.",
        )
    return True


def _noted(file: Path) -> dict[str, Any]:
    """The JSON in a note; empty where there is none or it is damaged."""
    try:
        values: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return values


def _encode(
    encoding: EncodingWork, texts: Iterator[str], folder: Path, job: EncodingJob, engine: Engine, progress: Progress
) -> int:
    """Append chunk after chunk to the file in `folder`; returns how many rows were there already."""
    file, note = folder / "vectors.npy", folder / "rows.json"
    row_bytes = job.form.bytes_per_vector(job.width)
    with _writing(file):
        start = _start(file, note, job)
        with file.open("r+b" if start else "wb") as stream:
            if not start:
                _write_header(stream, job)
                write_json(note, {"job": job.to_dict(), "rows": 0, "header": stream.tell()})
            header = int(_noted(note)["header"])
            _check_space(folder, (job.num_texts - start) * row_bytes)
            stream.truncate(header + start * row_bytes)
            stream.seek(0, os.SEEK_END)
            done = start
            found = engine.run(encoding, _chunks(texts, start, job), lambda message: None)
            for chunk, stored in in_order(found, start):
                stream.write(stored)
                _flush(stream)
                done += len(chunk.texts)
                write_json(note, {"job": job.to_dict(), "rows": done, "header": header})
                progress("Encoding", done, job.num_texts)
            if done < job.num_texts:
                raise DataFileError("The file of texts became shorter while it was read.", hint="Run it again.")
    return start


def _chunks(texts: Iterator[str], start: int, job: EncodingJob) -> Iterator[Chunk]:
    """The texts from the place `start` on; none beyond those that were counted."""
    rows = islice(texts, start, job.num_texts)
    while chunk := list(islice(rows, job.chunk)):
        yield Chunk(start, chunk)
        start += len(chunk)


def _start(file: Path, note: Path, job: EncodingJob) -> int:
    """Rows of this job that are safely in `file`. Raises `UsageError` where another job left some."""
    values = _noted(note)
    if not values or not file.is_file():
        return 0
    if values["job"] != job.to_dict():
        raise UsageError(
            f"{note.parent} holds {values['rows']:,} rows of another run: of another input, model or option.",
            hint="Finish that one with its own command, name another file with --out, or remove that folder.",
        )
    return int(values["rows"])


def _write_header(stream: IO[bytes], job: EncodingJob) -> None:
    shape = (job.num_texts, job.form.columns(job.width))
    description = np.lib.format.dtype_to_descr(job.form.dtype)
    np.lib.format.write_array_header_1_0(stream, {"descr": description, "fortran_order": False, "shape": shape})
    _flush(stream)


def _flush(stream: IO[bytes]) -> None:
    stream.flush()
    os.fsync(stream.fileno())


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise UsageError(
            f"The vectors need {needed / 1e9:,.1f} GB more, and {folder.parent} has {free / 1e9:,.1f} GB left.",
            hint="Free some space, name another place with --out, or store less: --precision int8, --dimensions 128.",
        )


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Say which file could not be written. Rows that are safely stored stay: the same command continues."""
    try:
        yield
    except TruncateKitError:
        raise
    except OSError as error:
        raise CannotWriteError(path, error) from error
