"""Read the rows of a parquet file from outside, of which only some are held at a time, whatever its footer says.

A small file can hold much: pages that unfold, and encodings that repeat or share one large value. So the header of each
page, which pyarrow does not show, is read before the page itself. Format: https://github.com/apache/parquet-format,
Thrift's compact protocol.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from training.data.documents import MAX_LINE_BYTES, TOO_LONG

MAX_PAGES_BYTES = 256 << 20  # of one page of each column; DuckDB writes pages of 100 MB, others of 1 MiB
HELD_BYTES = 16 << 20  # of rows that are held, if each is as large as its pages let it be
LARGE_ROW_BYTES = 1 << 18
MOST_ROWS = 4096  # of small rows
HEADER_BYTES = (1 << 10, 1 << 16, 1 << 20, 1 << 24)  # that are read of a page; statistics may hold whole texts
VALUE_BYTES = 8  # at least, of a value in memory, of which a page may have many in one byte
DICTIONARY_PAGE, DATA_PAGES = 2, {5: (2, 1), 8: (4, 1)}  # fields of a header with encoding and number of values
SHARED = (6, 7)  # encodings of lengths and of beginnings that a text shares with the one before


class RowTooLarge(ValueError):
    """A group of rows of a parquet file whose rows are too large to be held."""


class Chunk(NamedTuple):
    """What the headers of a column's pages say: bytes in all, of the largest page, and that one value may have."""

    total: int
    page: int
    value: int


def rows_of_group(
    stream: BinaryIO, parquet: pq.ParquetFile, group: int, columns: Sequence[str] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the rows of one group; `stream` is the file that `parquet` reads. See `batches_of_group`."""
    try:
        for batch in batches_of_group(stream, parquet, group, columns):
            yield from batch.to_pylist()
    except RowTooLarge:
        raise
    except (ValueError, OverflowError) as error:  # such as texts that are not UTF-8, and dates behind the year 9999
        raise pa.ArrowInvalid(str(error)) from None


def batches_of_group(
    stream: BinaryIO, parquet: pq.ParquetFile, group: int, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one group, in batches that are smaller the larger a row may be.

    A list may repeat one large value in a single row; only how many lists are held is bounded, not one of them. Raise
    RowTooLarge if its rows have more than `MAX_LINE_BYTES` on average, or its pages more than `MAX_PAGES_BYTES`,
    and ArrowInvalid for a page without a header, and for another number of rows than the footer says.
    """
    described = parquet.metadata.row_group(group)
    num_rows = described.num_rows
    chosen = list(_columns_of(parquet, group, columns))
    chunks = [_chunk(stream, one, num_rows if is_flat else None) for one, is_flat in chosen]
    total, pages = sum(one.total for one in chunks), sum(one.page for one in chunks)
    in_a_row = (-(-one.num_values // max(num_rows, 1)) for one, _ in chosen)  # values, on average
    a_row = sum(one.value * values for one, values in zip(chunks, in_a_row, strict=True))
    if pages > MAX_PAGES_BYTES:
        raise RowTooLarge(f"its pages have {pages >> 20} MiB, more than {MAX_PAGES_BYTES >> 20}")
    if total > MAX_LINE_BYTES * max(num_rows, 1):
        raise RowTooLarge(f"a row {TOO_LONG}")
    mean = total // max(num_rows, 1)
    number = 1 if mean > LARGE_ROW_BYTES else min(max(HELD_BYTES // max(a_row, mean, 1), 1), MOST_ROWS)
    found = 0
    for batch in parquet.iter_batches(number, row_groups=[group], columns=columns, use_threads=False):
        found += batch.num_rows
        yield batch
    if found != num_rows:
        raise pa.ArrowInvalid(f"the footer says {num_rows} rows, and {found} are there")


def _columns_of(parquet: pq.ParquetFile, group: int, columns: Sequence[str] | None) -> Iterator[tuple[Any, bool]]:
    """Yield what the footer says of the columns, and whether they have one value in each row."""
    described = parquet.metadata.row_group(group)
    for place in range(described.num_columns):
        column = described.column(place)
        if columns is None or f"{column.path_in_schema}.".startswith(tuple(f"{name}." for name in columns)):
            yield column, parquet.schema.column(place).max_repetition_level == 0


def _chunk(stream: BinaryIO, column: Any, num_rows: int | None) -> Chunk:
    """Return what the headers of the pages of a column say.

    Raise ArrowInvalid if they say another number of values than the footer, or than `num_rows` if that is known.
    """
    at, left = column.data_page_offset, column.num_values
    if 0 < (column.dictionary_page_offset or 0) < at:
        at = column.dictionary_page_offset
    total = largest = value = 0
    while left > 0:
        header, length = _header(stream, at)
        size = held = header.get(2, 0)
        if header.get(1) == DICTIONARY_PAGE and column.physical_type.endswith("BYTE_ARRAY"):
            value = max(value, size)
        for field, (encoding, number) in DATA_PAGES.items():
            if data := header.get(field):
                left -= data.get(number, 0)
                size += VALUE_BYTES * data.get(number, 0)
                if data.get(encoding) in SHARED:
                    value = max(value, header.get(2, 0))
                if num_rows is None or data.get(encoding) in SHARED:  # others are decoded a batch at a time
                    held = size
        total, largest = total + size, max(largest, held)
        at += length + header.get(3, 0)
    rows = column.num_values if num_rows is None else num_rows
    if left or rows != column.num_values:
        there = f"{rows} rows, {column.num_values} values, {column.num_values - left} in its pages"
        raise pa.ArrowInvalid(f"column {column.path_in_schema}: {there}")
    return Chunk(total, largest, value)


# Thrift's compact protocol


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
    """Return the fields of a structure by number, of which texts and lists are skipped, and where it ends."""
    if depth > 8:
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
    if kind == 12:
        return _structure(data, at, depth + 1)
    if kind in (3, 7):
        return None, at + (1 if kind == 3 else 8)
    raise IndexError  # no header of a page has lists or maps


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
