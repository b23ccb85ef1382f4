"""Encode a file of texts to vectors in constant memory; a killed run can be resumed."""

import hashlib
import io
import json
import shutil
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from truncate_kit.core.errors import DataError, UsageError, cannot_write
from truncate_kit.core.files import digest_of, local_path, run_lock, write_json
from truncate_kit.core.progress import Engine, Progress, ProgressOption, reporter
from truncate_kit.core.results import COUNT, Result, check_number
from truncate_kit.core.vectors import VectorFormat
from truncate_kit.data.tables import iter_texts
from truncate_kit.export.runtime import Chunk, EncodingWork, GraphEncoder
from truncate_kit.models.encoder import Encoder
from truncate_kit.models.store import StoredRows, add_parts, encoder_digest

CHUNK = 4096  # rows: enough for all cores, and seconds to repeat
_STEP = 100_000  # texts between two progress reports


class EncodedFile(Result):
    """Result of one call of `encode_file`."""

    file: str
    source: str
    graph: str | None  # the file that ran in ONNX Runtime
    shape: tuple[int, ...]
    dtype: str
    file_bytes: int
    resumed_at: int  # rows from earlier runs
    seconds: float  # of this run
    num_cut: int | None = None  # texts truncated in this run

    @property
    def rate(self) -> float:
        """Return texts per second."""
        return (self.shape[0] - self.resumed_at) / self.seconds


def encode_file(
    encoder: Encoder | GraphEncoder,
    source: Path,
    out: Path,
    *,
    column: str | None = None,
    form: VectorFormat | None = None,
    chunk: int = CHUNK,
    engine: Engine | None = None,
    progress: ProgressOption = False,
) -> EncodedFile:
    """Write the vectors of all texts in `source` to `out`, a .npy file of shape (texts, columns).

    The same call resumes a killed run and gives the same bytes. `out`.json records the origin.

    source: .txt (one text a line), .csv, .tsv, .jsonl or .parquet.
    form: Vector format; by default full vectors in float32.
    engine: Runs the chunks, by default in this process.

    Raises:
        DataError: A row has no text.
        UsageError: `out` exists with other content.
        FileProblemError: `out` cannot be written.
    """
    progress, begin = reporter(progress), time.perf_counter()
    source, out, form = local_path(source), local_path(out), form or VectorFormat()
    if out.suffix != ".npy":
        raise UsageError(f"{out} does not end in .npy.", hint="Name it like vectors.npy.")
    count, digest = _counted(iter_texts(source, column=column, by_row=True), progress)
    width = int(encoder.encode(["a"]).shape[1])
    job = {
        "model": encoder.digest() if isinstance(encoder, GraphEncoder) else encoder_digest(encoder),
        "texts": digest,
        "num_texts": count,
        "width": width,
        "form": form.to_dict(),
        "chunk": check_number("chunk", chunk, COUNT),
    }
    work, note, resumed, cut = out.with_name(f".{out.name}.part"), out.with_name(f"{out.name}.json"), count, None
    if not _is_done(out, note, job):
        with run_lock(work):
            stored = _rows_of(work, job, form)
            resumed = count - sum(min(chunk, count - start) for start in stored.missing)
            texts, seen = iter_texts(source, column=column, by_row=True), hashlib.sha256()
            missing, cut, done = set(stored.missing), 0, resumed
            chunks = (part for part in _chunks(texts, job, seen) if part[0] in missing)
            encoding = EncodingWork(encoder, form)
            for (start, part), (rows, num_cut) in (engine or Engine()).run(encoding, chunks, lambda _: None):
                stored.write(start, rows)
                cut, done = cut + num_cut, done + len(part)
                progress("Encoding", done, count)
            if seen.hexdigest() != job["texts"]:
                shutil.rmtree(work, ignore_errors=True)
                raise DataError("The file of texts was changed while it was read.", hint="Run it again.")
            # Write the note first: `out` never exists without a note.
            write_json(note, {"job": job, "sha256": digest_of(stored.file)})
            try:
                stored.file.replace(out)
            except OSError as error:
                raise cannot_write(out, error) from error
    shutil.rmtree(work, ignore_errors=True)
    return EncodedFile(
        file=str(out),
        source=str(source),
        graph=encoder.file.name if isinstance(encoder, GraphEncoder) else None,
        shape=(count, form.columns(width)),
        dtype=str(form.dtype),
        file_bytes=out.stat().st_size,
        resumed_at=resumed,
        seconds=time.perf_counter() - begin,
        num_cut=cut,
    )


def _counted(texts: Iterator[str], progress: Progress) -> tuple[int, str]:
    count, digest = 0, hashlib.sha256()
    for count, text in enumerate(texts, start=1):
        add_parts(digest, text)
        if count % _STEP == 0:
            progress("Counting texts", count, count + 1)  # the total is unknown yet
    progress("Counting texts", count, count)
    return count, digest.hexdigest()


def _is_done(out: Path, note: Path, job: dict[str, Any]) -> bool:
    try:
        values = json.loads(note.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        values = {}
    if not out.exists() and (not note.exists() or "job" in values):
        return False
    if not out.exists() or values != {"job": job, "sha256": digest_of(out)}:
        raise UsageError(
            f"{out if out.exists() else note} already exists: it was made from another input, model or option, or was "
            "changed since.",
            hint="Name another file as `out`, or remove this file.",
        )
    return True


def _rows_of(work: Path, job: dict[str, Any], form: VectorFormat) -> StoredRows:
    header, width, count = io.BytesIO(), job["width"], job["num_texts"]
    descr, shape = np.lib.format.dtype_to_descr(form.dtype), (count, form.columns(width))
    np.lib.format.write_array_header_1_0(header, {"descr": descr, "fortran_order": False, "shape": shape})
    return StoredRows(
        work / "vectors.npy",
        job,
        num_rows=count,
        row_bytes=form.bytes_per_vector(width),
        chunk=job["chunk"],
        header=header.getvalue(),
    )


def _chunks(texts: Iterator[str], job: dict[str, Any], digest: "hashlib._Hash") -> Iterator[Chunk]:
    """Yield complete chunks, and add all texts to `digest`."""
    for start in range(0, job["num_texts"], job["chunk"]):
        wanted = min(job["chunk"], job["num_texts"] - start)
        chunk = list(islice(texts, wanted))
        add_parts(digest, *chunk)
        if len(chunk) == wanted:
            yield start, chunk
