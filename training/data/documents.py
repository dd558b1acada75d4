"""Read and write documents: one parquet file per rank, streamed; JSON lines for everything small.

docs/architecture.md, "Documents", describes the columns and folders. Equal rows give equal bytes: row-group size and
compression are fixed, and the file contains no time and no path.
"""

from __future__ import annotations

import bisect
import codecs
import gzip
import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, Any, BinaryIO, TextIO, cast, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from training.contract.artifact import written
from training.contract.files.checksums import at_once
from training.contract.job import DataError, InputArtifact, Share

ROWS_PER_GROUP = 1000
MAX_LINE_BYTES = 32 << 20  # of a line from outside; its JSON may take forty times as much memory
ZSTD_LEVEL = 3
BUFFER_BYTES = 1 << 16
TOO_LONG = f"has more than {MAX_LINE_BYTES >> 20} MiB"

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        pa.field("url", pa.string()),
        pa.field("snapshot", pa.string(), nullable=False),
        pa.field("warc_file", pa.string(), nullable=False),
        pa.field("warc_offset", pa.int64(), nullable=False),
        pa.field("date", pa.string()),
        pa.field("title", pa.string()),
        pa.field("language", pa.string()),
        pa.field("language_score", pa.float32()),
        pa.field("source", pa.string(), nullable=False),
    ]
)
"""The columns that every document has, in order."""

EXTRA_COLUMNS: dict[str, pa.DataType] = {
    "robots": pa.string(),  # directives, joined by commas
    "tdm_reservation": pa.string(),  # 1 or 0, then the policy's URL
    "licence": pa.string(),  # the licence that the page states
    "prompt": pa.string(),  # what a model was asked for the text; it is searched for exam items, and not trained on
    "reason": pa.string(),  # why the document was dropped
    "duplicate_of": pa.string(),  # id of the document that this one repeats
    "similarity": pa.float32(),  # Jaccard similarity to that document, in [0, 1]
    "survivor": pa.string(),  # why that document stays and this one does not
    "benchmark": pa.string(),
    "item": pa.string(),  # id of the benchmark's item
    "part": pa.string(),  # the item's part that was found: question, answer, passage, or several joined by +
    "span": pa.string(),  # start:end in characters of the text that document and item share
    "flags": pa.list_(pa.string()),
}
"""Columns that later stages add, by name. The filter's rules add others, which are declared with them."""


def document_id(snapshot: str, warc_file: str, offset: int) -> str:
    """Return `<snapshot>/<warc_file>/<offset>`; with 12 digits ids sort like offsets within a file (up to 1 TB)."""
    return f"{snapshot}/{warc_file}/{offset:012d}"


def schema_with(extra: Iterable[str | pa.Field] = ()) -> pa.Schema:
    """Return SCHEMA plus the columns `extra` in the order given: names in EXTRA_COLUMNS, or fields.

    Any other name raises KeyError.
    """
    schema = SCHEMA
    for column in extra:
        schema = schema.append(pa.field(column, EXTRA_COLUMNS[column]) if isinstance(column, str) else column)
    return schema


class DocumentWriter:
    """Writes documents to one parquet file, which appears complete if the `with` block succeeds, otherwise not at all.

    Without rows it still writes the schema, so that a rank whose documents were all dropped leaves a readable file.
    """

    def __init__(self, path: Path, extra: Sequence[str | pa.Field] = ()) -> None:
        self.path = Path(path)
        self.schema = schema_with(extra)
        self.num_documents = 0
        self.reasons: Counter[str] = Counter()  # documents written, by their column `reason`
        self._required = {field.name for field in self.schema if not field.nullable}
        self._names = frozenset(self.schema.names)
        self._rows: list[Mapping[str, Any]] = []
        self._table = self.schema.empty_table()
        self._stack = ExitStack()

    def __enter__(self) -> DocumentWriter:
        stream = self._stack.enter_context(written(self.path))
        self._parquet = pq.ParquetWriter(
            stream,
            self.schema,
            compression="zstd",
            compression_level=ZSTD_LEVEL,
            use_dictionary=["snapshot", "warc_file", "source"],
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stack:
            # If an error is raised here or passed on, `written` leaves no file behind.
            self._stack.push(lambda *_: self._parquet.close())
            if error is not None:
                self._rows.clear()
                raise error
            self._flush()

    def write(self, row: Mapping[str, Any]) -> None:
        """Add one document, given as a mapping from columns to values. Absent optional columns become null.

        Raise ValueError for an unknown column or a missing required one.
        """
        if unknown := row.keys() - self._names:
            raise ValueError(
                f"{self.path.name}: unknown column {sorted(unknown)[0]!r}; columns here: {', '.join(self.schema.names)}"
            )
        if missing := {name for name in self._required if row.get(name) is None}:
            raise ValueError(f"{self.path.name}: column {sorted(missing)[0]!r} is missing from {row.get('id')!r}")
        self._rows.append(row)
        self.num_documents += 1
        if "reason" in row:
            self.reasons[row["reason"]] += 1
        if len(self._rows) == ROWS_PER_GROUP:
            self._add(self._rows_as_table())

    def write_table(self, table: pa.Table) -> None:
        """Add the documents of a table that has the writer's columns. The file has the same bytes as with `write`."""
        self.num_documents += len(table)
        if "reason" in self._names:
            self.reasons.update(table["reason"].to_pylist())
        self._add(pa.concat_tables([self._rows_as_table(), table.select(self.schema.names).cast(self.schema)]))

    def _rows_as_table(self) -> pa.Table:
        table = pa.Table.from_pylist(self._rows, schema=self.schema)
        self._rows = []
        return table

    def _add(self, table: pa.Table) -> None:
        """Write full row groups to the file and keep the remaining rows for the next one."""
        table = pa.concat_tables([self._table, table])
        whole = len(table) - len(table) % ROWS_PER_GROUP
        for start in range(0, whole, ROWS_PER_GROUP):
            self._write_group(table.slice(start, ROWS_PER_GROUP))
        self._table = table.slice(whole)

    def _flush(self) -> None:
        self._add(self._rows_as_table())
        if len(self._table):
            self._write_group(self._table)

    def _write_group(self, table: pa.Table) -> None:
        self._parquet.write_table(table.combine_chunks(), row_group_size=ROWS_PER_GROUP)


def read_documents(path: Path, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the rows of a document file in order, with one row group in memory; only `columns` if given."""
    for table in read_tables(path, columns):
        yield from table.to_pylist()


def read_tables(path: Path, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """Yield the row groups of a document file in order, as tables; only `columns` if given."""
    with open_documents(path) as parquet:
        for group in range(parquet.num_row_groups):
            yield parquet.read_row_group(group, columns=columns, use_threads=False)


def texts_at(path: Path, rows: Sequence[int]) -> Iterator[str]:
    """Yield the texts of some (ascending) rows of a document file. Row groups without such a row are not read."""
    return (row["text"] for row in rows_at(path, rows, ["text"]))


def rows_at(path: Path, rows: Sequence[int], columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield columns of some (ascending) rows of a document file. Row groups without such a row are not read."""
    with open_documents(path) as parquet:
        first, at = 0, 0
        for group in range(parquet.num_row_groups):
            last = first + parquet.metadata.row_group(group).num_rows
            end = bisect.bisect_left(rows, last, at)
            if end > at:
                table = parquet.read_row_group(group, columns=list(columns), use_threads=False)
                yield from table.take(pa.array([row - first for row in rows[at:end]])).to_pylist()
            first, at = last, end


def utf8_of(texts: pa.StringArray) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return the bytes of an array of strings, and where each string begins, [texts + 1].

    Raise DataError if a string is not UTF-8.
    """
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid as error:
        raise DataError(f"a text is not UTF-8: {error}") from None
    return bytes_of(texts)


def bytes_of(texts: pa.StringArray) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return bytes and starts like `utf8_of`, for texts that are known to be UTF-8.

    It checks nothing and copies only the offsets.
    """
    width = np.dtype(np.int64 if pa.types.is_large_string(texts.type) else np.int32)
    _, places, values = texts.buffers()
    if not len(texts):
        return np.empty(0, np.uint8), np.zeros(1, np.int64)
    offsets = np.frombuffer(places, width, count=len(texts) + 1, offset=texts.offset * width.itemsize).astype(np.int64)
    data = np.frombuffer(values, np.uint8) if values is not None else np.empty(0, np.uint8)
    return data[: offsets[-1]], offsets


def extra_columns(path: Path) -> tuple[str | pa.Field, ...]:
    """Return the columns of a document file beyond SCHEMA, in order: by name if in EXTRA_COLUMNS, else as a field.

    A stage that passes rows on gives them to its DocumentWriter.
    """
    with open_documents(path) as parquet:
        fields = [field for field in parquet.schema_arrow if field.name not in SCHEMA.names]
    return tuple(field.name if field.name in EXTRA_COLUMNS else pa.field(field.name, field.type) for field in fields)


def count_documents(path: Path) -> int:
    """Number of rows of a document file, read from its footer."""
    with open_documents(path) as parquet:
        return parquet.metadata.num_rows


@contextmanager
def open_documents(path: Path) -> Iterator[pq.ParquetFile]:
    """Open a parquet file, memory-mapped, to read it row group by row group. Raise DataError if it is not parquet."""
    try:
        parquet = pq.ParquetFile(path, memory_map=True)
    except pa.ArrowInvalid as error:
        raise DataError(f"{path}: not a readable parquet file: {error}") from None
    with parquet:
        yield parquet


class Files(Sequence[Path]):
    """Paths of an input artifact's files, in order.

    A file's checksum is verified only when its path is taken from the list, so a rank verifies only the files that it
    reads.
    """

    def __init__(self, item: InputArtifact, names: Sequence[str]) -> None:
        self.item, self.names = item, names

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, place: int) -> Path: ...
    @overload
    def __getitem__(self, place: slice) -> Files: ...
    def __getitem__(self, place: int | slice) -> Path | Files:
        if isinstance(place, slice):
            return Files(self.item, self.names[place])
        return self.item.file(self.names[place])


class JoinedFiles(Sequence[Path]):
    """The files of several artifacts, one after another; a file is verified when it is taken from the list."""

    def __init__(self, lists: Sequence[Files]) -> None:
        self._places = [(files, place) for files in lists for place in range(len(files))]

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, place: int) -> Path: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Path]: ...
    def __getitem__(self, place: int | slice) -> Path | Sequence[Path]:
        if isinstance(place, slice):
            return [self[number] for number in range(len(self))[place]]
        files, own = self._places[place]
        return files[own]


def document_files(item: InputArtifact, folder: str = "documents") -> Files:
    """Return the artifact's files in `folder` according to its manifest, sorted and thus in rank order."""
    return Files(item, sorted(name for name in item.files() if name.startswith(folder + "/")))


def shares_of(*files: Files) -> list[Share]:
    """Return what each rank reads, if rank i reads file i of every given list of files."""
    named = [[(one.item, name) for name in one.names] for one in files]
    return [Share(files=together) for together in zip(*named, strict=True)]


# Lines of JSON: `.jsonl`, `.jsonl.gz` or `.jsonl.zst`.


class LineWriter:
    """Writes JSON lines to one file, compressed according to its suffix; the file appears complete or not at all."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.num_lines = 0
        self._stack = ExitStack()

    def __enter__(self) -> LineWriter:
        self._stream = self._stack.enter_context(
            compressing(self._stack.enter_context(written(self.path)), self.path.name)
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def write(self, row: Any) -> None:
        """Write a row as one line of JSON. Keys keep their order."""
        line = json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"
        self._stream.write(line.encode("utf-8"))
        self.num_lines += 1


@contextmanager
def compressing(stream: IO[bytes], name: str) -> Iterator[IO[bytes]]:
    if name.endswith(".zst"):
        with zstandard.ZstdCompressor(level=ZSTD_LEVEL).stream_writer(stream, closefd=False) as compressed:
            yield compressed
    elif name.endswith(".gz"):
        # Without a file name and time in the header, equal lines give equal bytes.
        with gzip.GzipFile(filename="", fileobj=stream, mode="wb", compresslevel=6, mtime=0) as compressed:
            yield cast(IO[bytes], compressed)
    else:
        yield stream


def write_lines(path: Path, rows: Iterable[Any]) -> int:
    """Write JSON lines, the complete file or none; return the number of lines."""
    with LineWriter(path) as writer:
        for row in rows:
            writer.write(row)
    return writer.num_lines


def bounded_lines(stream: BinaryIO) -> Iterator[bytes | None]:
    """Yield each line with its end; None for one of more than `MAX_LINE_BYTES`, of which no more than that is held.

    A byte order mark of UTF-8 is no part of the first line.
    """
    if not isinstance(stream, io.BufferedIOBase):  # such as fsspec's, whose lines cannot be limited
        stream = cast(BinaryIO, io.BufferedReader(cast(Any, stream), BUFFER_BYTES))
    following = partial(stream.readline, MAX_LINE_BYTES)
    for number, line in enumerate(iter(following, b"")):
        line = line if number else line.removeprefix(codecs.BOM_UTF8)
        if len(line) < MAX_LINE_BYTES or line.endswith(b"\n"):
            yield line
            continue
        while (rest := stream.readline(1 << 20)) and not rest.endswith(b"\n"):
            pass
        yield None


def bounded_text(stream: BinaryIO, name: str) -> Iterator[str]:
    """Yield the lines of a UTF-8 text from outside. Raise DataError, with the number, for one that is too long."""
    for number, line in enumerate(bounded_lines(stream), 1):
        if line is None:
            raise DataError(f"{name}: line {number} {TOO_LONG}")
        yield line.decode("utf-8")


def read_lines(path: Path) -> Iterator[Any]:
    """Yield the values of a file of JSON lines; empty lines are skipped.

    Raise DataError, with file and line number, for a line that is not JSON.
    """
    with open(path, "rb", opener=at_once) as stream, decompressed_text(stream, str(path)) as lines:
        yield from parsed_lines(lines, str(path))


def parsed_lines(lines: Iterable[str], name: str) -> Iterator[Any]:
    """Yield the JSON value of each line that is not blank.

    Raise DataError, with the line number, for a line that is not JSON or not UTF-8, and for damaged compression.
    """
    number = 0
    try:
        for number, line in enumerate(lines, 1):  # noqa: B007 - the error below needs it
            if line.strip():
                yield json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{name}: line {number} is not JSON: {error}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{name}: not UTF-8 after line {number}: {error}") from None
    except (EOFError, OSError, zstandard.ZstdError) as error:
        raise DataError(f"{name}: damaged after line {number}: {error}") from None


class _Frames(io.RawIOBase):
    """The decompressed bytes of zstd frames.

    Raises EOFError if the file ends inside a frame, which zstandard's own reader does not notice.
    """

    INPUT_BYTES = 1024  # small, because a hostile KiB can expand to 32 MiB

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._frame: Any = None  # decompressor of the current frame; None between frames
        self._input = self._plain = b""
        self._at = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while self._at == len(self._plain):
            block = self._input or self._stream.read(self.INPUT_BYTES)
            if not block:
                if self._frame is not None:
                    raise EOFError("the file ends inside a zstd frame")
                return 0
            self._frame = self._frame or zstandard.ZstdDecompressor().decompressobj()
            self._plain, self._at, self._input = self._frame.decompress(block), 0, b""
            if self._frame.eof:
                self._input, self._frame = self._frame.unused_data, None
        size = min(len(buffer), len(self._plain) - self._at)
        buffer[:size] = self._plain[self._at : self._at + size]
        self._at += size
        return size


@contextmanager
def decompressed_text(stream: BinaryIO, name: str) -> Iterator[TextIO]:
    """Open `stream` as UTF-8 text, decompressed according to the suffix of `name` (.gz, .zst; any other is plain)."""
    with decompressed(stream, name) as raw, io.TextIOWrapper(raw, "utf-8", newline="\n") as lines:
        yield lines


@contextmanager
def decompressed(stream: BinaryIO, name: str) -> Iterator[BinaryIO]:
    """Open `stream` decompressed according to the suffix of `name`.

    Several gzip members or zstd frames are read as one stream.
    """
    if name.endswith(".gz"):
        with gzip.open(stream, "rb") as raw, io.BufferedReader(cast(Any, raw), BUFFER_BYTES) as buffered:
            yield buffered
    elif name.endswith(".zst"):
        with io.BufferedReader(_Frames(stream)) as raw:
            yield raw
    else:
        yield stream
