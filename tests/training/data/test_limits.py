"""What a file from outside may make a process hold is limited before it is held."""

from __future__ import annotations

import gzip
import struct
import zipfile
from functools import partial
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from tests.peak import peak
from training.contract.job import DataError
from training.data.documents import MAX_LINE_BYTES
from training.data.extract.extract import jsonl_items, parquet_items
from training.data.extract.record_outcomes import Quarantined
from training.data.sources import UnreadRow, read_rows

LONG_BYTES = 6 * MAX_LINE_BYTES
SMALL = b'{"text": "small"}\n'


def long_line(path):
    """Write a file with a small line, one of 192 MiB, and a small one; it is small where it is compressed."""
    opened = {".gz": partial(gzip.open, compresslevel=1), ".zst": zstandard.open}.get(path.suffix, open)
    with opened(path, "wb") as stream:
        stream.write(SMALL + b'{"text": "')
        for _ in range(LONG_BYTES >> 20):
            stream.write(b"x" * (1 << 20))
        stream.write(b'"}\n' + SMALL)
    return path


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz", "rows.jsonl.zst"])
def test_a_line_without_end_is_quarantined_with_its_number(tmp_path, name):
    path = long_line(tmp_path / name)
    with peak() as found:
        first, long, last = jsonl_items(SimpleNamespace(path=path, name=name), None)
        rows = list(read_rows(str(path), with_unread=True))
        with pytest.raises(DataError, match=r"line 2 has more than 32 MiB"):
            list(read_rows(str(path)))
    assert found[0] < LONG_BYTES
    assert (first, last) == ((0, SMALL), (2, SMALL))
    assert long == Quarantined(offset=1, reason="too_large", detail="line 2 has more than 32 MiB")
    assert [type(row) for row in rows] == [dict, UnreadRow, dict] and rows[1].reason == "has more than 32 MiB"


@pytest.mark.parametrize("small", [0, 60])  # rows, which make the mean of a group small
def test_large_rows_of_a_parquet_file_are_not_held_together(tmp_path, small):
    path, text = tmp_path / "rows.parquet", "x" * (MAX_LINE_BYTES >> 1)
    large = pa.DictionaryArray.from_arrays(np.array([0] * small + [1] * 20, np.int32), ["", text])
    pq.write_table(pa.table({"text": large}), path, store_schema=False)  # a dictionary: 1 KB for 320 MB
    file = SimpleNamespace(path=path, name=path.name, text_field="text", url_field="url", prompt_field="")
    with peak() as found:
        assert sum(len(row["text"]) for _, row in parquet_items(file, None)) == 20 * len(text)
        assert sum(1 for _ in read_rows(str(path))) == small + 20
    assert found[0] < 8 * MAX_LINE_BYTES
    pq.write_table(pa.table({"text": ["y", text * 5]}), path, use_dictionary=False)
    assert [one.reason for one in parquet_items(file, None)] == ["too_large"]
    with pytest.raises(DataError, match="a row has more than 32 MiB"):
        list(read_rows(str(path)))


def test_a_text_that_is_not_utf_8_damages_its_group_of_rows_and_no_other(tmp_path):
    path = tmp_path / "rows.parquet"
    wrong = pa.StringArray.from_buffers(1, pa.py_buffer(np.array([0, 3], np.int32)), pa.py_buffer(b"a\xb7b"))
    with pq.ParquetWriter(path, pa.schema({"text": pa.string()})) as writer:
        for texts in (pa.array(["first"]), wrong, pa.array(["last"])):
            writer.write_table(pa.table({"text": texts}))
    file = SimpleNamespace(path=path, name=path.name, text_field="text", url_field="url", prompt_field="")
    first, damaged, last = parquet_items(file, None)
    assert (first, last) == ((0, {"text": "first"}), (2, {"text": "last"}))
    assert (damaged.offset, damaged.reason) == (1, "damaged_compression") and "'utf-8' codec" in damaged.detail
    with pytest.raises(DataError, match="not a readable parquet file: 'utf-8' codec"):
        list(read_rows(str(path)))


def test_a_zip_file_whose_directory_leads_before_its_beginning_is_named(tmp_path):
    path = tmp_path / "texts.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", "some text")
    data = bytearray(path.read_bytes())
    end = data.rindex(b"PK\x05\x06")
    data[end + 16 : end + 20] = struct.pack("<L", 2**31)
    path.write_bytes(data)
    with pytest.raises(DataError, match="not a readable zip file"):
        list(read_rows(str(path)))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"[" * 100_000, "is nested too deep"),
        (b"9" * 5000, "is not JSON: "),
        (b"[1]", "is no JSON object but list"),
        (b'"\xff"', "is not UTF-8"),
        (b'{"a": ', "is not JSON: "),
    ],
)
def test_a_line_that_is_no_row_is_named(tmp_path, line, said):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(SMALL + line + b"\n" + SMALL)
    first, unread, last = read_rows(str(path), with_unread=True)
    assert first == last == {"text": "small"} and unread.reason.startswith(said)
    with pytest.raises(DataError, match=f"rows.jsonl: line 2 {said}"):
        list(read_rows(str(path)))
