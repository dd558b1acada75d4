"""Documents on disk: the same bytes for the same rows, whole or not at all, streamed back as they were."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from training.contract.job import DataError, RefusedInput
from training.data.documents import (
    EXTRA_COLUMNS,
    ROWS_PER_GROUP,
    SCHEMA,
    DocumentWriter,
    JoinedFiles,
    LineWriter,
    count_documents,
    document_files,
    document_id,
    extra_columns,
    read_documents,
    read_lines,
    texts_at,
    write_lines,
)

from tests.training.data import chain  # isort: skip


def row(number: int, **fields: Any) -> dict[str, Any]:
    return chain.document("s", "a.warc.gz", number, f"text {number}", **fields)


def written(path: Path, number: int, extra: tuple[str | pa.Field, ...] = (), **fields: Any) -> Path:
    with DocumentWriter(path, extra) as writer:
        for i in range(number):
            writer.write(row(i, **fields))
    return path


@pytest.mark.parametrize("rows", [[], [0], [999, 1000], [3, 2500], list(range(2501))])
def test_chosen_rows_give_their_texts(tmp_path, rows):
    path = written(tmp_path / "a.parquet", 2 * ROWS_PER_GROUP + 501)
    assert list(texts_at(path, rows)) == [f"text {number}" for number in rows]


def test_of_joined_files_only_those_that_are_taken_are_checked(tmp_path):
    items = [
        chain.documents(tmp_path / name, name, [["a"], ["b"]], asset="extracted_documents") for name in ("s1", "s2")
    ]
    files = JoinedFiles([document_files(item) for item in items])
    with open(Path(items[1].path, "documents/00001.parquet"), "ab") as stream:
        stream.write(b"more")
    assert [next(read_documents(files[number]))["text"] for number in range(3)] == ["a", "b", "a"]
    assert len(files) == 4 and len(files[:3]) == 3
    with pytest.raises(RefusedInput, match=r"00001\.parquet"):
        _ = files[3]


def test_ids_of_a_file_sort_as_its_offsets():
    offsets = [5, 40, 300, 10**9, 10**11]
    ids = [document_id("s", "a.warc.gz", offset) for offset in offsets]
    assert ids == sorted(ids)
    assert ids[0] == "s/a.warc.gz/000000000005"


def test_columns_are_those_of_the_contract_in_order():
    names = "id text url snapshot warc_file warc_offset date title language language_score source"
    assert SCHEMA.names == names.split()


def test_rows_come_back_in_order_across_row_groups(tmp_path: Path):
    path = written(tmp_path / "00000.parquet", 2 * ROWS_PER_GROUP + 7)
    assert [got["warc_offset"] for got in read_documents(path)] == list(range(2 * ROWS_PER_GROUP + 7))
    assert next(read_documents(path)) == row(0)
    assert count_documents(path) == 2 * ROWS_PER_GROUP + 7
    assert pq.ParquetFile(path).num_row_groups == 3
    assert next(read_documents(path, columns=["id"])) == {"id": row(0)["id"]}


def test_equal_rows_are_equal_bytes(tmp_path: Path):
    one, two = (written(tmp_path / name, 1234, ("reason",), reason="r") for name in ("a.parquet", "b.parquet"))
    assert one.read_bytes() == two.read_bytes()


def test_without_rows_the_file_still_says_its_columns(tmp_path: Path):
    path = written(tmp_path / "00000.parquet", 0, ("reason",))
    assert list(read_documents(path)) == []
    assert extra_columns(path) == ("reason",)


def test_every_extra_column_is_stored(tmp_path: Path):
    values: dict[str, Any] = dict.fromkeys(EXTRA_COLUMNS, "x") | {
        "similarity": 0.5,
        "flags": ["a", "b"],
    }
    path = written(tmp_path / "00000.parquet", 1, tuple(EXTRA_COLUMNS), **values)
    assert {name: next(read_documents(path))[name] for name in EXTRA_COLUMNS} == values


def test_a_column_that_no_list_names_is_stored_and_passed_on(tmp_path: Path):
    column = pa.field("tone", pa.float32())
    path = written(tmp_path / "a.parquet", 1, ("reason", column), reason="r", tone=0.5)
    assert extra_columns(path) == ("reason", column)
    again = written(tmp_path / "b.parquet", 1, extra_columns(path), reason="r", tone=0.5)
    assert next(read_documents(again))["tone"] == 0.5 and again.read_bytes() == path.read_bytes()
    with pytest.raises(KeyError, match="tone"):
        written(tmp_path / "c.parquet", 1, ("tone",), tone=0.5)


def test_a_failure_leaves_no_file_behind(tmp_path: Path):
    with pytest.raises(RuntimeError, match="stop"), DocumentWriter(tmp_path / "00000.parquet") as writer:
        writer.write(row(0))
        raise RuntimeError("stop")
    with pytest.raises(RuntimeError, match="stop"), LineWriter(tmp_path / "a.jsonl.zst") as lines:
        lines.write({})
        raise RuntimeError("stop")
    assert list(tmp_path.iterdir()) == []


def test_a_column_that_was_not_announced_or_is_missing_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="unknown column 'reason'"), DocumentWriter(tmp_path / "a.parquet") as writer:
        writer.write(row(0, reason="r"))
    with pytest.raises(ValueError, match="'text' is missing"), DocumentWriter(tmp_path / "a.parquet") as writer:
        writer.write(row(0) | {"text": None})


def test_a_damaged_parquet_file_is_named(tmp_path: Path):
    path = tmp_path / "broken.parquet"
    path.write_bytes(b"PAR1 and then nothing of the kind")
    with pytest.raises(DataError, match=r"broken\.parquet"):
        next(read_documents(path))


def test_document_files_are_the_folder_s_by_the_manifest(tmp_path: Path):
    names = ["documents/00001.parquet", "documents/00000.parquet", "dropped/00000.parquet"]
    for name in names:
        written(tmp_path / name, 1)
    written(tmp_path / "documents/00002.parquet", 1)  # of an attempt that was not committed
    item = chain.committed(tmp_path, "extracted_documents", "tiny@s", names)
    assert [path.name for path in document_files(item)] == ["00000.parquet", "00001.parquet"]
    assert [path.name for path in document_files(item, "dropped")] == ["00000.parquet"]


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "jsonl.zst"])
def test_lines_come_back_and_equal_lines_are_equal_bytes(tmp_path: Path, suffix: str):
    rows = [{"b": "ü", "a": i} for i in range(1000)]
    one, two = tmp_path / f"1.{suffix}", tmp_path / f"2.{suffix}"
    assert write_lines(one, rows) == 1000
    write_lines(two, rows)
    assert list(read_lines(one)) == rows
    assert one.read_bytes() == two.read_bytes()


def test_a_line_that_is_not_json_is_named_by_number(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n\n{"a": \n')
    with pytest.raises(DataError, match="line 3 "):
        list(read_lines(tmp_path / "a.jsonl"))


def test_compressed_lines_that_break_off_are_named(tmp_path: Path):
    write_lines(tmp_path / "a.jsonl.gz", [{"a": i} for i in range(100_000)])
    data = (tmp_path / "a.jsonl.gz").read_bytes()
    (tmp_path / "a.jsonl.gz").write_bytes(data[: len(data) // 2])
    with pytest.raises(DataError, match=r"a\.jsonl\.gz: damaged"):
        list(read_lines(tmp_path / "a.jsonl.gz"))


def test_gzip_of_several_members_is_read_to_its_end(tmp_path: Path):
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"a": 1}\n') + gzip.compress(b'{"a": 2}\n'))
    assert list(read_lines(tmp_path / "a.jsonl.gz")) == [{"a": 1}, {"a": 2}]
