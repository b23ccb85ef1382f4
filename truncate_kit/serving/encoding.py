"""A file of texts to a file of vectors: any size in flat memory, and nothing lost when it is killed.

The rows grow in a hidden folder beside the output, chunk by chunk, each with a checksum; a resumed run makes those that
are missing and ends with the same bytes.
"""

import io
import shutil
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from truncate_kit.data import iter_rows
from truncate_kit.engines import Engine, Sequential
from truncate_kit.errors import DataError, UsageError, cannot_write
from truncate_kit.export.normalization import ends_normalized
from truncate_kit.export.runtime import OnnxEncoder
from truncate_kit.file_digests import digest_of
from truncate_kit.files import local_path
from truncate_kit.models import Encoder, check_encoder, encoder_digest
from truncate_kit.models.digest import Digest
from truncate_kit.models.pipeline import read_pipeline
from truncate_kit.models.tail import Normalize
from truncate_kit.progress import Progress, ProgressOption, reporter
from truncate_kit.results import read_or_pass_over
from truncate_kit.serving.encoded_file import EncodedFile, EncodingJob, EncodingNote, job_file
from truncate_kit.serving.work import Chunk, EncodingWork
from truncate_kit.settings import STEPS, check_number, given_or
from truncate_kit.training.rows import StoredRows
from truncate_kit.vectors import VectorFormat
from truncate_kit.working_folders import run_lock

_ROWS = "vectors.npy"
_STEP = 100_000  # texts between two messages while they are counted
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
    progress: ProgressOption = False,
) -> EncodedFile:
    """Write the vectors of all texts in `source` to `out`, a .npy file of shape (texts, columns), row n for text n.

    source: a .txt file with one text a line, or a .csv, .tsv, .jsonl or .parquet file with the texts in `column`.
    form: precision and dimensions of the stored vectors; None is float32, all of them, as the model gives them. A run
    that was killed continues with the same arguments and ends with the same bytes; one that had ended does nothing.
    engine: where chunks are encoded, None is one after another here; the bytes do not depend on it where processors and
    threads are alike.
    Raises `DataError` for a row without text, `UsageError` where `out` was made from something else, or for what is no
    model, `FileProblemError`, and what the engine raises.
    """
    if not isinstance(encoder, OnnxEncoder):
        check_encoder(encoder)
    progress = reporter(progress)
    begin = time.perf_counter()
    source, out, form = local_path(source), local_path(out), given_or(VectorFormat, form, "form")
    if out.suffix != ".npy":
        raise UsageError(f"{out} does not end in .npy.", hint="Name it like vectors.npy.")
    count, digest = _count_texts(iter_rows(source, column=column), progress)
    job = EncodingJob(
        model=encoder.digest() if isinstance(encoder, OnnxEncoder) else encoder_digest(encoder),
        texts=digest,
        num_texts=count,
        width=int(encoder.encode(["a"]).shape[1]),
        form=form,
        chunk=check_number("chunk", CHUNK if chunk is None else chunk, STEPS),
    )
    resumed, cut = count, None
    if not _is_done(out, job):
        resumed, cut = _encode(encoder, iter_rows(source, column=column), out, job, engine or Sequential(), progress)
    elif (work := _work_folder(out)).is_dir() and not (work / _ROWS).exists():  # killed before that went
        shutil.rmtree(work, ignore_errors=True)
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
    """Whether the encoder scales its vectors to length 1: by the note of its export, else by the model's modules."""
    if isinstance(encoder, Encoder):
        return ends_normalized(encoder)
    if encoder.report is not None:
        return encoder.report.normalized
    tail = read_pipeline(encoder.file.parent).tail
    return bool(tail) and isinstance(tail[-1], Normalize)


def _is_done(out: Path, job: EncodingJob) -> bool:
    """Whether `out` is what this job would give. Raises `UsageError` where it is something else."""
    noted = read_or_pass_over(EncodingNote.read, job_file(out))
    if not out.exists():
        if noted is None and job_file(out).exists():
            hint = "Name another file as `out`, or remove that one: what the vectors are made from is noted there."
            raise UsageError(f"{job_file(out)} is there already, and is no note on {out.name}.", hint=hint)
        return False
    if noted is None or noted.job != job or not out.is_file():
        raise UsageError(
            f"{out} is there already and was made from something else: another input, model or option.",
            hint="Name another file as `out`, or remove this one.",
        )
    if noted.sha256 != digest_of(out):
        raise UsageError(
            f"{out} is no longer as it was written: it has {out.stat().st_size:,} bytes.",
            hint="Remove it to encode the texts again, or name another file as `out`.",
        )
    return True


def _work_folder(out: Path) -> Path:
    """Where rows are written before all are there."""
    return out.with_name(f".{out.name}.part")


def _encode(
    encoder: Encoder | OnnxEncoder,
    texts: Iterator[str],
    out: Path,
    job: EncodingJob,
    engine: Engine,
    progress: Progress,
) -> tuple[int, int]:
    """Write what is missing of the output; returns the number of rows that were there already, and of texts cut."""
    work = _work_folder(out)
    if work.is_symlink():
        raise UsageError(f"{work} is a link, which is not followed.", hint="Remove it, or name another file as `out`.")
    with run_lock(work):
        stored = StoredRows(
            work / _ROWS,
            job.to_dict(),
            num_rows=job.num_texts,
            row_bytes=job.form.bytes_per_vector(job.width),
            chunk=job.chunk,
            header=_npy_header(job),
        )
        missing = set(stored.missing)
        resumed = done = job.num_texts - sum(min(job.chunk, job.num_texts - start) for start in missing)
        seen = Digest()
        chunks = (chunk for chunk in _chunks(_added(texts, seen), job) if chunk.start in missing)
        cut = 0
        for chunk, encoded in engine.run(EncodingWork(encoder, job.form), chunks, lambda message: None):
            stored.write(chunk.start, encoded.rows)
            cut += encoded.num_cut
            done += len(chunk.texts)
            progress("Encoding", done, job.num_texts)
        if done < job.num_texts or seen.hexdigest() != job.texts:
            shutil.rmtree(work, ignore_errors=True)  # rows of other texts than those that were counted
            raise DataError("The file of texts was changed while it was read.", hint="Run it again.")
        # Before the rename: the output never stands without its note.
        EncodingNote(job=job, sha256=digest_of(stored.file)).write(job_file(out))
        try:
            stored.file.replace(out)
        except OSError as error:
            raise cannot_write(out, error) from error
    shutil.rmtree(work, ignore_errors=True)
    return resumed, cut


def _chunks(texts: Iterator[str], job: EncodingJob) -> Iterator[Chunk]:
    rows = islice(texts, job.num_texts)  # none beyond those that were counted
    for start in range(0, job.num_texts, job.chunk):
        chunk = list(islice(rows, job.chunk))
        if len(chunk) == min(job.chunk, job.num_texts - start):
            yield Chunk(start, chunk)


def _added(texts: Iterator[str], digest: Digest) -> Iterator[str]:
    """The texts as they are, each added to `digest` when it is read."""
    for text in texts:
        digest.add(text)
        yield text


def _npy_header(job: EncodingJob) -> bytes:
    stream = io.BytesIO()
    description = np.lib.format.dtype_to_descr(job.form.dtype)
    shape = (job.num_texts, job.form.columns(job.width))
    np.lib.format.write_array_header_1_0(stream, {"descr": description, "fortran_order": False, "shape": shape})
    return stream.getvalue()


def _count_texts(texts: Iterable[str], progress: Progress) -> tuple[int, str]:
    """The number of texts, and the SHA-256 of them in order; also finds what is wrong with any of them."""
    digest, count = Digest(), 0
    for count, text in enumerate(texts, start=1):
        digest.add(text)
        if count % _STEP == 0:
            progress("Counting texts", count, count + 1)  # how many there are is what this finds out
    progress("Counting texts", count, count)
    return count, digest.hexdigest()
