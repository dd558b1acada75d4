"""What a file from outside may make a process hold is limited before it is held."""

from __future__ import annotations

import codecs
import gzip
import struct
import zipfile
from functools import partial
from io import BytesIO
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as encryption
import pytest
import zstandard

from tests.peak import peak
from training.contract.job import DataError
from training.data import sources
from training.data.crawl.selection import _parquet_rows
from training.data.documents import MAX_LINE_BYTES
from training.data.extract.extract import jsonl_items, parquet_items
from training.data.extract.record_outcomes import Quarantined
from training.data.parquet_pages import UntrustedParquet, _header
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


def test_a_list_is_read_by_its_values_and_a_long_one_is_refused(tmp_path):
    path = tmp_path / "rows.json"
    path.write_bytes(b"[" + b'{"text": "small"}, ' * 400_000 + b'{"text": "' + b"x" * (MAX_LINE_BYTES - 100) + b'"}]')
    with peak() as found:
        assert sum(1 for _ in read_rows(str(path))) == 400_001
    assert found[0] < 4 * MAX_LINE_BYTES  # as a whole it takes 160 MiB more
    path.write_bytes(SMALL[:-1].join([b"[", b', {"text": "']) + b"x" * LONG_BYTES + b'"}]')
    rows = read_rows(str(path))
    with peak() as found:
        assert next(rows) == {"text": "small"}
        with pytest.raises(DataError, match="behind value 1 of it: the next value has more than 32 MiB"):
            next(rows)
    assert found[0] < LONG_BYTES


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32-le"])
@pytest.mark.parametrize("characters", [1, 7, 1 << 20])
def test_a_list_is_the_same_however_it_is_divided(tmp_path, monkeypatch, encoding, characters):
    monkeypatch.setattr(sources, "CHARACTERS", characters)
    path, twice = tmp_path / "rows.json", '{"a": 1, "a": 2}'
    path.write_text(f' [ {{"a": "é, ] \\" [", "b": [1.10, [2]]}} ,\n {twice}, 12 , {{}} ] \n', encoding)
    whole, unread, no_row, empty = read_rows(str(path), with_unread=True)
    assert (whole["a"], str(whole["b"][0]), empty) == ('é, ] " [', "1.10", {})
    assert unread["unread"] == "has the key 'a' twice in one object" and no_row["unread"] == "is no JSON object but int"


def test_a_text_that_unfolds_is_refused_before_it_is_held(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "MAX_WHOLE_BYTES", 1 << 20)
    text, member = gzip.compress(bytes(LONG_BYTES)), BytesIO()
    with zipfile.ZipFile(member, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.txt", bytes(LONG_BYTES))
    for name, data in (("a.txt.gz", text), ("a.zip", member.getvalue())):
        (tmp_path / name).write_bytes(data)
        with peak() as found, pytest.raises(DataError, match="more than 1 MiB to be held at once"):
            list(read_rows(str(tmp_path / name)))
        assert found[0] < 16 << 20


def test_a_mark_of_the_byte_order_is_no_part_of_a_row(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(codecs.BOM_UTF8 + SMALL + SMALL)
    assert [one for _, one in jsonl_items(SimpleNamespace(path=path, name=path.name), None)] == [SMALL, SMALL]
    assert list(read_rows(str(path))) == [{"text": "small"}] * 2


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


@pytest.mark.parametrize("form", ["page", "dictionary", "lengths"])
def test_pages_that_unfold_are_not_held_by_any_reader(tmp_path, form):
    path, text = tmp_path / "rows.parquet", "x" * (1 << 22)
    few = pa.DictionaryArray.from_arrays(np.zeros(300, np.int32), [text])
    texts = {"page": ["x" * 4000] * 80_000, "dictionary": few, "lengths": [f"{text}{i}" for i in range(50)]}[form]
    table = pa.table({"warc_filename": texts, "warc_record_offset": range(len(texts))})
    table = table.append_column("warc_record_length", [[1] * len(texts)])
    encoded = {"warc_filename": "DELTA_BYTE_ARRAY"} if form == "lengths" else None
    big = {"data_page_size": 1 << 30, "max_rows_per_page": 1 << 30, "write_batch_size": 1 << 30}
    pq.write_table(table, path, store_schema=False, use_dictionary=form == "dictionary", column_encoding=encoded, **big)
    del table, texts, few
    file = SimpleNamespace(path=path, name=path.name, text_field="warc_filename", url_field="url", prompt_field="")
    with peak() as found:
        rows = [one if isinstance(one, Quarantined) else one[0] for one in parquet_items(file, None)]
        if form == "page":
            assert [one.reason for one in rows] == ["too_large"]
            with pytest.raises(DataError, match=r"its pages have 30. MiB, more than 256"):
                list(_parquet_rows(str(path), {}))
        else:
            assert rows == list(range(len(rows))) and sum(1 for _ in _parquet_rows(str(path), {})) == len(rows)
    assert found[0] < 195 << 20


def test_pages_of_many_small_values_are_read(tmp_path):
    path, number = tmp_path / "rows.parquet", 9_000_000
    bits = {f"is.{column}": pa.array(np.zeros(number, bool)) for column in range(5)}
    pq.write_table(pa.table(bits), path, row_group_size=number, max_rows_per_page=number, use_dictionary=False)
    with open(path, "rb") as stream:
        parquet = UntrustedParquet(stream, "rows.parquet")
        assert next(parquet.rows(0)) == dict.fromkeys(bits, False)
        assert [column.path for column in parquet.columns(0, ["is.3"])] == ["is.3"]


def test_a_header_may_hold_two_long_texts_as_statistics_and_no_number_without_end():
    text = b"\x80\x80\x28" + b"x" * 655_360  # with its length before it
    page = b"\x15\x00\x15\x02\x15\x02\x2c\x15\x02\x1c\x58" + text + b"\x18" + text + b"\x00\x00\x00"
    header, length = _header(BytesIO(page + b"y" * 100), 0)
    assert length == len(page) and header[5][1] == 1
    with pytest.raises(pa.ArrowInvalid, match="no header"):
        _header(BytesIO(b"\x15" + b"\xff" * (1 << 20)), 0)


def test_a_footer_that_says_fewer_rows_than_there_are_loses_none_unsaid(tmp_path):
    path = tmp_path / "rows.parquet"
    table = pa.table({"text": [str(number) for number in range(300)]})
    pq.write_table(table, path, use_dictionary=False, write_statistics=False, store_schema=False)
    data = path.read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    few = data[footer:].replace(b"\xd8\x04", b"\xd6\x04")  # 300 and 299 as Thrift writes them
    path.write_bytes(data[:footer] + few)
    file = SimpleNamespace(path=path, name=path.name, text_field="text", url_field="url", prompt_field="")
    (damaged,) = parquet_items(file, None)
    assert damaged.reason == "damaged_compression" and "299 rows, 299 values, 300 in its pages" in damaged.detail


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


def test_a_value_that_python_cannot_hold_damages_its_group_alone(tmp_path):
    path = tmp_path / "rows.parquet"
    whens = pa.array([0, 2**55], pa.timestamp("ms"))
    pq.write_table(pa.table({"text": ["a", "b"], "when": whens}), path, row_group_size=1)
    with pytest.raises(DataError, match="not a readable parquet file: "):
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


def test_a_list_that_repeats_a_large_value_is_not_held(tmp_path):
    path, text = tmp_path / "rows.parquet", "x" * (1 << 20)
    told = pa.DictionaryArray.from_arrays(np.array([1] + [0] * 1500, np.int32), [text, "small"])
    turns = pa.StructArray.from_arrays([told], ["content"])
    pq.write_table(pa.table({"messages": pa.ListArray.from_arrays([0, 1, 1501], turns)}), path, store_schema=False)
    rows = read_rows(str(path))
    with peak() as found:
        assert next(rows) == {"messages": [{"content": "small"}]}
        with pytest.raises(DataError, match="a row has more than 32 MiB"):
            next(rows)
    assert found[0] < 4 * MAX_LINE_BYTES


@pytest.mark.parametrize("hidden", ["footer", "columns"])
def test_an_encrypted_parquet_file_is_named(tmp_path, hidden):
    class Keys(encryption.KmsClient):
        def wrap_key(self, key_bytes, master_key_identifier):
            return key_bytes.hex()

    config = {"column_keys": {"key": ["text"]}, "plaintext_footer": hidden == "columns"}
    properties = encryption.CryptoFactory(lambda _: Keys()).file_encryption_properties(
        encryption.KmsConnectionConfig(), encryption.EncryptionConfiguration(footer_key="key", **config)
    )
    path, table = tmp_path / "rows.parquet", pa.table({"text": ["a"]})
    with pq.ParquetWriter(path, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)
    with pytest.raises(DataError, match="its columns are encrypted"):
        list(read_rows(str(path)))


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (b"\x18\x04text", b"\x18\x04te\xfft"),  # a name that is not UTF-8
        (b"\x19\x1c\x26", b"\x19\x0c\x26"),  # a group without columns
        (b"\x16\x06\x26", b"\x16\x05\x26"),  # a number below zero
    ],
)
def test_a_footer_that_is_wrong_is_named(tmp_path, right, wrong):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"text": ["a", "b", "c"]}), path, store_schema=False)
    data = path.read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    assert right in data[footer:]
    path.write_bytes(data[:footer] + data[footer:].replace(right, wrong))
    with pytest.raises(DataError, match="not a readable parquet file"):
        list(read_rows(str(path)))


def test_a_footer_of_lists_in_each_other_is_named(tmp_path):
    path, footer = tmp_path / "rows.parquet", b"\x19" * 5000
    path.write_bytes(b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    with pytest.raises(DataError, match="its footer cannot be read"):
        list(read_rows(str(path)))


def test_maps_that_repeat_a_text_are_read(tmp_path):
    path, number = tmp_path / "rows.parquet", 4096
    said = pa.array([[("system", "x" * 10240)]] * number, pa.map_(pa.string(), pa.string()))
    pq.write_table(pa.table({"said": said}), path)
    assert sum(len(row["said"]) for row in read_rows(str(path))) == number
