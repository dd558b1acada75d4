"""Read the rows of a parquet file from outside, of which only some are held at a time, whatever its footer says.

A small file can hold much: pages that unfold, and encodings that repeat or share one large value. So the header of each
page, which pyarrow does not show, is read before the page itself. What the footer says of a column is read here too:
pyarrow ends the process where that is wrong, or encrypted. Format: https://github.com/apache/parquet-format, Thrift's
compact protocol.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from training.contract.job import DataError
from training.data.documents import MAX_LINE_BYTES, TOO_LONG

MAX_FOOTER_BYTES = 4 << 20  # 0.4 MB take 0.2 s to parse
MOST_DEPTH = 16  # of lists and structures in each other
ENCRYPTED = "its columns are encrypted; write it without encryption"
MAX_PAGES_BYTES = 256 << 20  # of one page of each column; DuckDB writes pages of 100 MB, others of 1 MiB
HELD_BYTES = 16 << 20  # of rows that are held, if each is as large as its pages let it be
LARGE_ROW_BYTES = 1 << 18
MOST_ROWS = 4096  # of small rows
HEADER_BYTES = (1 << 10, 1 << 16, 1 << 20, 1 << 22)  # that are read of a page; statistics may hold whole texts
VALUE_BYTES = 8  # at least, of a value in memory, of which a page may have many in one byte
DICTIONARY_PAGE, DATA_PAGES = 2, {5: (2, 1), 8: (4, 1)}  # fields of a header with encoding and number of values
BEGINNINGS = 7
SHARED = (6, BEGINNINGS)  # encodings of lengths and of beginnings that a text shares with the one before


class RowTooLarge(ValueError):
    """A group of rows of a parquet file whose rows are too large to be held."""


class ParquetColumn(NamedTuple):
    """What the footer says of a column in one group of rows."""

    path: str
    is_text: bool
    is_repeated: bool  # in lists: a row may have many values
    num_values: int
    start: int  # offset in bytes of its first page


class ParquetChunk(NamedTuple):
    """What the headers of a column's pages say: bytes in all, of the largest page, and that one value may have.

    `is_shared` says whether the values of rows may be held as places in one dictionary.
    """

    total: int
    page: int
    value: int
    is_shared: bool


class UntrustedParquet:
    """A parquet file from outside. Its rows are read group by group, and only some are held at a time."""

    def __init__(self, stream: BinaryIO, name: str) -> None:
        """Open a file of which nothing but the footer is read yet. Raise DataError if it is none that can be read."""
        self._stream = stream
        try:
            self._groups = _groups(stream)
            self._parquet = pq.ParquetFile(stream)
            self.names: list[str] = self._parquet.schema_arrow.names
            self._leaves = [self._parquet.schema.column(place) for place in range(len(self._parquet.schema))]
        except (pa.ArrowException, OSError, ValueError) as error:  # such as a name that is not UTF-8
            raise DataError(f"{name}: not a readable parquet file: {error}") from None

    @property
    def group_rows(self) -> list[int]:
        """The number of rows in each group, by the footer."""
        return [_number(group, 3) for group in self._groups]

    def rows(self, group: int, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
        """Yield the rows of one group. See `batches`."""
        try:
            for batch in self.batches(group, columns):
                yield from batch.to_pylist()
        except RowTooLarge:
            raise
        except (ValueError, OverflowError) as error:  # such as texts that are not UTF-8, and dates behind the year 9999
            raise pa.ArrowInvalid(str(error)) from None

    def batches(self, group: int, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one group, in batches that are smaller the larger a row may be.

        Raise RowTooLarge if its rows have more than `MAX_LINE_BYTES` on average, or one of them in lists that repeat
        values, or its pages more than `MAX_PAGES_BYTES`. Raise ArrowInvalid for a page without a header, and for
        another number of rows than the footer says. A single list of texts that share their beginnings is not bounded.
        """
        num_rows = self.group_rows[group]
        chosen = self.columns(group, columns)
        chunks = [_chunk(self._stream, one, None if one.is_repeated else num_rows) for one in chosen]
        number = _rows_at_once(chosen, chunks, num_rows)
        shared = [column.path for column, chunk in zip(chosen, chunks, strict=True) if chunk.is_shared]
        parquet = self._parquet
        if shared:
            parquet = pq.ParquetFile(self._stream, metadata=parquet.metadata, read_dictionary=shared)
        found = 0
        for batch in parquet.iter_batches(number, row_groups=[group], columns=columns, use_threads=False):
            found += batch.num_rows
            yield from _unfolded(batch) if shared else (batch,)
        if found != num_rows:
            raise pa.ArrowInvalid(f"the footer says {num_rows} rows, and {found} are there")

    def columns(self, group: int, names: Sequence[str] | None = None) -> list[ParquetColumn]:
        """Return what the footer says of the columns of one group, or of those of these names."""
        chunks = _structures(self._groups[group], 1)
        if len(chunks) != len(self._leaves):
            raise pa.ArrowInvalid(f"a group of rows has other columns than the {len(self._leaves)} of the file")
        return [
            _column(leaf, chunk)
            for leaf, chunk in zip(self._leaves, chunks, strict=True)
            if names is None or f"{leaf.path}.".startswith(tuple(f"{name}." for name in names))
        ]


def _column(leaf: Any, chunk: dict[int, Any]) -> ParquetColumn:
    if not isinstance(about := chunk.get(3), dict):
        raise pa.ArrowInvalid(f"the footer says nothing of column {leaf.path}")
    start, dictionary = _number(about, 9), _number(about, 11)
    return ParquetColumn(
        path=leaf.path,
        is_text=leaf.physical_type.endswith("BYTE_ARRAY"),
        is_repeated=leaf.max_repetition_level > 0,
        num_values=_number(about, 5),
        start=dictionary if 0 < dictionary < start else start,
    )


def _chunk(stream: BinaryIO, column: ParquetColumn, num_rows: int | None) -> ParquetChunk:
    """Return what the headers of the pages of a column say.

    Raise ArrowInvalid if they say another number of values than the footer, or than `num_rows` if that is known.
    """
    at, left = column.start, column.num_values
    total = largest = value = dictionary = 0
    encodings = set[int]()
    while left > 0:
        header, length = _header(stream, at)
        size = held = _number(header, 2)
        if header.get(1) == DICTIONARY_PAGE and column.is_text:
            dictionary = max(dictionary, size)
        for field, (encoding, number) in DATA_PAGES.items():
            if data := header.get(field):
                values, kind = _number(data, number), _number(data, encoding)
                left -= values
                size += VALUE_BYTES * values
                encodings.add(kind)
                if kind in SHARED:
                    value = max(value, _number(header, 2))
                if num_rows is None or kind in SHARED:  # others are decoded a batch at a time
                    held = size
        total, largest = total + size, max(largest, held)
        at += length + _number(header, 3)
    rows = column.num_values if num_rows is None else num_rows
    if left or rows != column.num_values:
        there = f"{rows} rows, {column.num_values} values, {column.num_values - left} in its pages"
        raise pa.ArrowInvalid(f"column {column.path}: {there}")
    is_shared = column.is_repeated and dictionary > 0 and BEGINNINGS not in encodings
    return ParquetChunk(total, largest, value if is_shared else max(value, dictionary), is_shared)


def _rows_at_once(columns: Sequence[ParquetColumn], chunks: Sequence[ParquetChunk], num_rows: int) -> int:
    """Return the number of rows in a batch. Raise RowTooLarge as `UntrustedParquet.batches` does."""
    total, pages = sum(one.total for one in chunks), sum(one.page for one in chunks)
    in_a_row = (-(-one.num_values // max(num_rows, 1)) for one in columns)  # values, on average
    a_row = sum(one.value * values for one, values in zip(chunks, in_a_row, strict=True))
    if pages > MAX_PAGES_BYTES:
        raise RowTooLarge(f"its pages have {pages >> 20} MiB, more than {MAX_PAGES_BYTES >> 20}")
    if total > MAX_LINE_BYTES * max(num_rows, 1):
        raise RowTooLarge(f"a row {TOO_LONG}")
    mean = total // max(num_rows, 1)
    return 1 if mean > LARGE_ROW_BYTES else min(max(HELD_BYTES // max(a_row, mean, 1), 1), MOST_ROWS)


def _unfolded(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield a batch, or its rows alone if much is repeated in them. Raise RowTooLarge for too large a row."""
    if sum(map(_shared_bytes, batch.columns)) <= HELD_BYTES:
        yield batch
        return
    for one in (batch.slice(row, 1) for row in range(batch.num_rows)):
        if sum(map(_shared_bytes, one.columns)) > MAX_LINE_BYTES:
            raise RowTooLarge(f"a row {TOO_LONG}")
        yield one


def _shared_bytes(array: pa.Array) -> int:
    """Return the bytes that texts of a dictionary would have, each written out."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        lengths = pc.binary_length(array.dictionary.cast(pa.large_binary()))
        return pc.sum(pc.take(lengths, array.indices)).as_py() or 0
    if pa.types.is_map(kind):  # of a part, keys and items are those of the whole
        start, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
        return sum(_shared_bytes(one.slice(start, end - start)) for one in (array.keys, array.items))
    if pa.types.is_struct(kind):
        return sum(map(_shared_bytes, array.flatten()))
    return _shared_bytes(array.flatten()) if pa.types.is_nested(kind) else 0


# Thrift's compact protocol


def _groups(stream: BinaryIO) -> list[dict[int, Any]]:
    """Return the groups of rows in the footer of a file. Raise ArrowInvalid if it is none that can be read."""
    end = stream.seek(0, 2)
    stream.seek(max(end - 8, 0))
    length, magic = int.from_bytes(stream.read(4), "little"), stream.read(4)
    if magic == b"PARE":
        raise pa.ArrowInvalid(ENCRYPTED)
    if magic != b"PAR1" or length > end - 8:
        raise pa.ArrowInvalid("it does not end as one; it was cut, or is another file")
    if length > MAX_FOOTER_BYTES:
        raise pa.ArrowInvalid(f"its footer has {length >> 20} MiB, more than {MAX_FOOTER_BYTES >> 20}")
    stream.seek(end - 8 - length)
    try:
        footer, _ = _structure(stream.read(length), 0)
    except IndexError:
        raise pa.ArrowInvalid("its footer cannot be read") from None
    groups = _structures(footer, 4)
    chunks = [chunk for group in groups for chunk in _structures(group, 1)]
    if 8 in footer or any(field in chunk for chunk in chunks for field in (8, 9)):
        raise pa.ArrowInvalid(ENCRYPTED)
    return groups


def _structures(fields: dict[int, Any], field: int) -> list[dict[int, Any]]:
    values = fields.get(field, [])
    if not isinstance(values, list) or not all(isinstance(one, dict) for one in values):
        raise pa.ArrowInvalid("its footer cannot be read")
    return values


def _number(fields: Any, field: int) -> int:
    """Return a number of a structure, 0 if it is not there. Raise ArrowInvalid for another value."""
    value = fields.get(field, 0) if isinstance(fields, dict) else None
    if type(value) is not int or value < 0:
        raise pa.ArrowInvalid("a number is missing or below zero")
    return value


def _header(stream: BinaryIO, at: int) -> tuple[dict[int, Any], int]:
    """Parse the header of the Parquet page at an offset in bytes: return its fields by number, and its length."""
    for size in HEADER_BYTES:
        stream.seek(max(at, 0))
        data = stream.read(size)
        try:
            header, length = _structure(data, 0)
        except IndexError:
            if len(data) < size:
                break
            continue
        if all(type(header.get(field)) is int and 0 <= header[field] < 1 << 31 for field in (1, 2, 3)):
            return header, length
        break
    raise pa.ArrowInvalid(f"no header of a page at offset {at}")


def _structure(data: bytes, at: int, depth: int = 0) -> tuple[dict[int, Any], int]:
    """Return the fields of a structure by number, without texts, and where it ends."""
    if depth > MOST_DEPTH:
        raise IndexError
    fields: dict[int, Any] = {}
    number = 0
    while kind := data[at]:
        at += 1
        if kind >> 4:
            number += kind >> 4
        else:
            number, at = _integer(data, at)
        fields[number], at = _value(data, at, kind & 15, depth)
    return fields, at + 1


def _value(data: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in (1, 2):
        return kind == 1, at
    if kind in (4, 5, 6):
        return _integer(data, at)
    if kind == 8:
        length, at = _unsigned(data, at)
        return None, at + length
    if kind in (9, 10):
        return _list(data, at, depth + 1)
    if kind == 12:
        return _structure(data, at, depth + 1)
    if kind in (3, 7):
        return None, at + (1 if kind == 3 else 8)
    raise IndexError  # nothing in a parquet file is a map


def _list(data: bytes, at: int, depth: int) -> tuple[list[Any], int]:
    if depth > MOST_DEPTH:
        raise IndexError
    kind, count = data[at] & 15, data[at] >> 4
    at += 1
    if count == 15:
        count, at = _unsigned(data, at)
    values: list[Any] = []
    for _ in range(count):
        value, at = (None, at + 1) if kind in (1, 2) else _value(data, at, kind, depth)
        values.append(value)
        if at > len(data):
            raise IndexError
    return values, at


def _unsigned(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while data[at] & 128:
        if shift > 63:
            raise IndexError
        value, shift, at = value | (data[at] & 127) << shift, shift + 7, at + 1
    return value | data[at] << shift, at + 1


def _integer(data: bytes, at: int) -> tuple[int, int]:
    value, at = _unsigned(data, at)
    return value >> 1 ^ -(value & 1), at
