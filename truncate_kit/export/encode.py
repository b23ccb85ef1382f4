"""A file of texts to a file of vectors: any size in flat memory, and nothing lost when it is killed.

The rows grow in a hidden folder beside the output, chunk by chunk, each with a checksum; a resumed run makes those that
are missing and ends with the same bytes.
"""

import io
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from truncate_kit.core.errors import DataError, ModelError, UsageError, cannot_write
from truncate_kit.core.files import digest_of, local_path, run_lock, write_json
from truncate_kit.core.parallel import Engine, Send
from truncate_kit.core.progress import Progress, ProgressOption, reporter
from truncate_kit.core.results import Result
from truncate_kit.core.settings import STEPS, check_number
from truncate_kit.core.vectors import VectorFormat
from truncate_kit.data.tables import iter_rows
from truncate_kit.export.graph import graph_files
from truncate_kit.export.runtime import OnnxEncoder
from truncate_kit.export.trace import ends_normalized
from truncate_kit.models.encoder import Encoder
from truncate_kit.models.pipeline import Digest, Normalize, encoder_digest, read_pipeline
from truncate_kit.models.store import StoredRows

CHUNK = 4096  # rows: enough to sort by length and to fill all cores, and seconds of work at most to do again
_ROWS = "vectors.npy"
_STEP = 100_000  # texts between two messages while they are counted
_SETTINGS = (".json", ".jinja", ".model", ".txt")  # of model, modules and tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodingJob(Result):
    """All that the bytes of the output depend on."""

    model: str  # SHA-256 of the encoder
    texts: str  # SHA-256 of the texts in order
    num_texts: int
    width: int  # of the model's own vectors
    form: VectorFormat
    chunk: int  # rows that are encoded together


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedFile(Result):
    """One run of `encode_file`."""

    file: str
    source: str
    graph: str | None  # the file that ran in ONNX Runtime, None in torch
    shape: tuple[int, ...]  # of the stored array
    dtype: str
    file_bytes: int
    resumed_at: int  # rows that an earlier run had left
    seconds: float  # of this run, counting and encoding
    job: EncodingJob
    num_cut: int | None = None  # encoded texts that are longer than the model takes; None if nothing was encoded

    @property
    def rate(self) -> float:
        """Texts per second of this run; 0 if there was nothing left to do."""
        return (self.shape[0] - self.resumed_at) / self.seconds if self.resumed_at < self.shape[0] else 0.0


def encode_file(
    encoder: Encoder | OnnxEncoder,
    source: Path,
    out: Path,
    *,
    column: str | None = None,
    form: VectorFormat | None = None,
    chunk: int = CHUNK,
    engine: Engine | None = None,
    progress: ProgressOption = False,
) -> EncodedFile:
    """Write the vectors of all texts in `source` to `out`, a .npy file of shape (texts, columns), row n for text n.

    A run that was killed continues with the same arguments and ends with the same bytes; one that had ended does
    nothing. Beside `out` stands NAME.json, which says what it was made from.

    Args:
        encoder: The model.
        source: A .txt file with one text a line, or a .csv, .tsv, .jsonl or .parquet file with the texts in `column`.
        out: The .npy file.
        column: Of the texts.
        form: Precision and dimensions of the stored vectors; None is float32, all of them, as the model gives them.
        chunk: Rows that are encoded together.
        engine: Where chunks are encoded, None is one after another here; the bytes do not depend on it on processors
            and threads alike.
        progress: Called after each chunk.

    Raises:
        DataError: A row has no text.
        UsageError: `out` was made from something else.
        FileProblemError: `out` cannot be written.
    """
    progress = reporter(progress)
    begin = time.perf_counter()
    source, out, form = local_path(source), local_path(out), form or VectorFormat()
    if out.suffix != ".npy":
        raise UsageError(f"{out} does not end in .npy.", hint="Name it like vectors.npy.")
    count, digest = 0, Digest()
    for count, text in enumerate(iter_rows(source, column=column), start=1):
        digest.add(text)
        if count % _STEP == 0:
            progress("Counting texts", count, count + 1)  # the total is what this finds out
    progress("Counting texts", count, count)
    job = EncodingJob(
        model=encoder.digest() if isinstance(encoder, OnnxEncoder) else encoder_digest(encoder),
        texts=digest.hexdigest(),
        num_texts=count,
        width=int(encoder.encode(["a"]).shape[1]),
        form=form,
        chunk=check_number("chunk", chunk, STEPS),
    )
    resumed, cut = count, None
    if not _is_done(out, job):
        resumed, cut = _encode(encoder, iter_rows(source, column=column), out, job, engine or Engine(), progress)
    shutil.rmtree(_work_folder(out), ignore_errors=True)
    return EncodedFile(
        file=str(out),
        source=str(source),
        graph=encoder.file.name if isinstance(encoder, OnnxEncoder) else None,
        shape=(count, form.columns(job.width)),
        dtype=str(form.dtype),
        file_bytes=out.stat().st_size,
        resumed_at=resumed,
        seconds=time.perf_counter() - begin,
        job=job,
        num_cut=cut,
    )


def gives_unit_vectors(encoder: Encoder | OnnxEncoder) -> bool:
    """Return whether vectors have length 1: by the record of the export, else by the model's modules."""
    if isinstance(encoder, Encoder):
        return ends_normalized(encoder)
    if encoder.report is not None:
        return encoder.report.normalized
    tail = read_pipeline(encoder.file.parent).tail
    return bool(tail) and isinstance(tail[-1], Normalize)


def _is_done(out: Path, job: EncodingJob) -> bool:
    """Return whether `out` is what this job would give. Raises `UsageError` if it is something else."""
    hint, file = "Name another file as `out`, or remove this one.", _note_file(out)
    try:
        note = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        note = {}
    if not out.exists():
        if file.exists() and "job" not in note:
            raise UsageError(f"{file} is there already, and is no note on {out.name}.", hint=hint)
        return False
    if note.get("job") != json.loads(job.to_json()):
        raise UsageError(
            f"{out} is there already and was made from something else: another input, model or option.", hint=hint
        )
    if note.get("sha256") != digest_of(out):
        raise UsageError(f"{out} was changed after it was written.", hint=hint)
    return True


def _work_folder(out: Path) -> Path:
    """Return where rows are written before all are there."""
    return out.with_name(f".{out.name}.part")


def _note_file(out: Path) -> Path:
    """Return where it is noted what an output was made from, with the SHA-256 of its bytes."""
    return out.with_name(f"{out.name}.json")


def _encode(
    encoder: Encoder | OnnxEncoder,
    texts: Iterator[str],
    out: Path,
    job: EncodingJob,
    engine: Engine,
    progress: Progress,
) -> tuple[int, int]:
    """Write what is missing of the output; return the number of rows that were there already, and of texts cut."""
    work = _work_folder(out)
    with run_lock(work):
        header = io.BytesIO()
        descr, shape = np.lib.format.dtype_to_descr(job.form.dtype), (job.num_texts, job.form.columns(job.width))
        np.lib.format.write_array_header_1_0(header, {"descr": descr, "fortran_order": False, "shape": shape})
        stored = StoredRows(
            work / _ROWS,
            job.to_dict(),
            num_rows=job.num_texts,
            row_bytes=job.form.bytes_per_vector(job.width),
            chunk=job.chunk,
            header=header.getvalue(),
        )
        missing = set(stored.missing)
        resumed = done = job.num_texts - sum(min(job.chunk, job.num_texts - start) for start in missing)
        seen, cut = Digest(), 0
        chunks = (chunk for chunk in _chunks(texts, job, seen) if chunk.start in missing)
        for chunk, (rows, num_cut) in engine.run(EncodingWork(encoder, job.form), chunks, lambda message: None):
            stored.write(chunk.start, rows)
            cut += num_cut
            done += len(chunk.texts)
            progress("Encoding", done, job.num_texts)
        if done < job.num_texts or seen.hexdigest() != job.texts:
            shutil.rmtree(work, ignore_errors=True)  # rows of other texts than those that were counted
            raise DataError("The file of texts was changed while it was read.", hint="Run it again.")
        # Before the rename: the output never stands without its note.
        write_json(_note_file(out), {"job": job.to_dict(), "sha256": digest_of(stored.file)})
        try:
            stored.file.replace(out)
        except OSError as error:
            raise cannot_write(out, error) from error
    return resumed, cut


class Chunk(NamedTuple):
    """Texts that are encoded together."""

    start: int  # number of texts before them
    texts: list[str]

    def __str__(self) -> str:
        return f"the texts {self.start + 1:,} to {self.start + len(self.texts):,}"


def _chunks(texts: Iterator[str], job: EncodingJob, digest: Digest) -> Iterator[Chunk]:
    """Yield the texts in chunks, none beyond those that were counted; each is added to `digest`."""
    for start in range(0, job.num_texts, job.chunk):
        wanted = min(job.chunk, job.num_texts - start)
        chunk = list(islice(texts, wanted))
        digest.add(*chunk)
        if len(chunk) == wanted:
            yield Chunk(start, chunk)


class EncodingWork:
    """Encoding as work for an engine: the encoder and the form of its stored vectors.

    A graph travels as the files of its folder, by their places in it; it is opened where it arrives.
    """

    def __init__(self, encoder: Encoder | OnnxEncoder, form: VectorFormat) -> None:
        self._encoder: Any = encoder
        self._form = form
        self._graph: tuple[str, dict[str, bytes]] | None = None
        self._home: tempfile.TemporaryDirectory[str] | None = None

    def move(self, device: str) -> None:
        """Go to another device."""
        if self._graph is not None:
            name, files = self._graph
            self._home = tempfile.TemporaryDirectory(prefix="truncate-kit-")
            folder = Path(self._home.name)
            for place, content in files.items():
                if not (folder / place).resolve().is_relative_to(folder.resolve()):
                    raise ModelError(f"The file {place!r} leads out of the model's folder.", hint="Use another model.")
                (folder / place).parent.mkdir(parents=True, exist_ok=True)
                (folder / place).write_bytes(content)
            self._encoder = OnnxEncoder.load(folder / name, threads=torch.get_num_threads(), device=device)
        elif isinstance(self._encoder, Encoder):
            self._encoder.to(device)

    def perform(self, chunk: Chunk, send: Send) -> tuple[bytes, int]:
        """Return the rows as they are stored, and the number of texts that are longer than the model takes."""
        rows = self._form.store(self._encoder.vectors(chunk.texts)).tobytes()
        reader = self._encoder.reader
        return rows, 0 if reader is None else reader.num_cut(chunk.texts)

    def __getstate__(self) -> dict[str, Any]:
        if not isinstance(self._encoder, OnnxEncoder):
            return self.__dict__
        graph, folder = self._encoder.file, self._encoder.file.parent
        found = [*graph_files(graph), *(file for file in folder.iterdir() if file.suffix in _SETTINGS)]
        for place in read_pipeline(folder).folders:
            found += [file for file in place.rglob("*") if place != folder]
        files = {str(file.relative_to(folder)): file.read_bytes() for file in found if file.is_file()}
        self._encoder.check_unreplaced()
        return self.__dict__ | {"_encoder": None, "_graph": (graph.name, files)}
