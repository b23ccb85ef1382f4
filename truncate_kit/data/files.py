"""Opening data files: plain, gzip or xz, UTF-8 only, and one clear error for everything that is wrong with them."""

import contextlib
import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, TextIO

from truncate_kit.errors import DataError, RowError
from truncate_kit.files import is_there

PAIR_FORMATS = (".csv", ".tsv", ".jsonl", ".parquet")
TEXT_FORMAT = ".txt"
COMPRESSIONS = (".gz", ".xz")
NULL_HINT = "Remove it; where all characters are so apart, convert the file: iconv -f UTF-16LE -t UTF-8 OLD > NEW"
_BLOCK = 1 << 20
_PLENTY, _MOST_GROWTH = 100_000_000, 200  # texts are packed to a third or a tenth, zeros to a thousandth


def format_of(path: Path) -> str:
    """The extension that says how to read the file, without `.gz` or `.xz`: ".csv" for pairs.csv.gz."""
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    if suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def stem_of(path: Path) -> str:
    """The name of a file up to the first point, in lower case: "train" for Train.csv.gz."""
    return path.name.partition(".")[0].lower()


def data_files(folder: Path) -> list[Path]:
    """The files of a folder that hold tables, sorted by name."""
    return sorted(path for path in folder.iterdir() if path.is_file() and format_of(path) in PAIR_FORMATS)


def unsupported(path: Path) -> DataError:
    """The error for a file whose extension says nothing this package reads."""
    return DataError(
        f"{path}: cannot read files that end in {path.suffix!r}." if path.suffix else f"{path}: no file extension.",
        hint="Give a .csv, .tsv, .jsonl or .parquet file, or a folder of splits; raw text may be .txt. "
        "All but Parquet may be packed as .gz or .xz.",
    )


@contextlib.contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Open `path` for reading bytes, unpacking `.gz` and `.xz`; `DataError` where it cannot be read, also meanwhile."""
    if not is_there(path):
        start = "" if path.is_absolute() else "; a relative one starts in the current folder"
        raise DataError(f"{path} does not exist.", hint=f"Check the path{start}.")
    if path.is_dir():
        raise DataError(f"{path} is a folder, not a file.", hint="Name one file in it.")
    if not path.is_file():
        raise DataError(f"{path} is a pipe or a device.", hint="Write it to a file first: it is read more than once.")
    try:
        with _open(path) as stream:
            yield stream
    except DataError:
        raise
    except MemoryError as error:
        hint = "Divide it into smaller files; a small packed file of great size may be meant to do harm."
        raise DataError(f"{path} holds more than there is memory for.", hint=hint) from error
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        hint = "Copy or download the file again; `gzip -t` or `xz -t` checks whether it is whole."
        raise DataError(f"{path}: the packed data is broken or ends too early ({error}).", hint=hint) from error
    except OSError as error:
        raise DataError(
            f"Cannot read {path}: {error.strerror or error}.", hint="Check the file and its permissions."
        ) from error


def _open(path: Path) -> IO[bytes]:
    suffix = path.suffix.lower()
    if suffix == ".gz":
        return io.BufferedReader(_Unpacked(path, gzip.open(path, "rb")), _BLOCK)
    if suffix == ".xz":
        return io.BufferedReader(_Unpacked(path, _XzStreams(path)), _BLOCK)
    return path.open("rb")


class _Unpacked(io.RawIOBase):
    """What a packed file holds; ends with `DataError` where that is out of all proportion to the file."""

    def __init__(self, path: Path, inner: "gzip.GzipFile | _XzStreams") -> None:
        self._path, self._inner, self._count = path, inner, 0
        self._most = max(_PLENTY, _MOST_GROWTH * path.stat().st_size)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        found = self._inner.read(len(buffer))
        self._count += len(found)
        if self._count > self._most:
            raise DataError(
                f"{self._path} is more than {_MOST_GROWTH} times as large as its packed file, which may be meant to "
                "do harm.",
                hint="If you know where it comes from, unpack it first.",
            )
        buffer[: len(found)] = found
        return len(found)

    def close(self) -> None:
        self._inner.close()
        super().close()


class _XzStreams:
    """What the streams of an .xz file hold, one after the other.

    `lzma.open` takes whatever follows a stream and is none for the end of the file: rows behind damage would be lost
    without a word.
    """

    def __init__(self, path: Path) -> None:
        self._file, self._stream = path.open("rb"), lzma.LZMADecompressor()

    def read(self, size: int) -> bytes:
        """Up to `size` bytes; none at the end. Raises `EOFError` or `lzma.LZMAError`."""
        while True:
            block = b""
            if self._stream.eof:
                block = self._stream.unused_data.lstrip(b"\0")  # zeros may stand between streams
                while not block and (more := self._file.read(_BLOCK)):
                    block = more.lstrip(b"\0")
                if not block:
                    return b""
                self._stream = lzma.LZMADecompressor()
            elif self._stream.needs_input and not (block := self._file.read(_BLOCK)):
                raise EOFError("a stream has no end")
            if found := self._stream.decompress(block, size):
                return found

    def close(self) -> None:
        self._file.close()


@contextlib.contextmanager
def opened_text(path: Path, *, newline: str) -> Iterator[TextIO]:
    """Open `path` as UTF-8 text without byte order mark; newline as for `open`. Raises also `RowError`."""
    with opened(path) as stream:
        try:
            yield io.TextIOWrapper(stream, encoding="utf-8-sig", newline=newline)
        except UnicodeDecodeError as error:
            raise _first_bad_line(path) from error


def _first_bad_line(path: Path) -> RowError:
    """Look the line up again: a decoder that reads blocks does not know it."""
    head = b""
    with opened(path) as stream:
        for number, line in enumerate(stream, start=1):
            head = head or line[:2]
            try:
                line.decode()
            except UnicodeDecodeError as error:
                return not_utf8(path, number, line[error.start], head)
    raise AssertionError(f"{path} changed while it was read")


def check_returns(path: Path, line: int, text: str) -> None:
    """Raise `RowError` where carriage returns (CR) alone end lines, so that several of them were read as this one.

    A single one inside a line is white space.

    Args:
        path: For the error.
        line: Its number, for the error.
        text: The line with its end.
    """
    inside = text.rstrip("\r\n").count("\r")
    if inside > 1 or (inside and not text.endswith("\n")):
        hint = "End them with line feeds: tr '\\r' '\\n' < OLD > NEW."
        raise RowError(str(path), f"line {line}", "lines end in carriage returns (CR) alone.", hint=hint)


def not_utf8(path: Path, line: int, byte: int, head: bytes) -> RowError:
    """The error for a byte that is not UTF-8, with the likely encoding of the file."""
    likely = "UTF-16" if head in (b"\xff\xfe", b"\xfe\xff") else "WINDOWS-1252"
    hint = f"Save the file as UTF-8, for example: iconv -f {likely} -t UTF-8 OLD > NEW"
    return RowError(str(path), f"line {line}", f"byte 0x{byte:02X} is not UTF-8.", hint=hint)
