"""Data by URI: found, opened by its suffix, identified by its content."""

from __future__ import annotations

import codecs
import gzip
import hashlib
import io
import json
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from tests.cluster.minis3 import MiniS3
from training.contract.job import DataError
from training.contract.records import RecipeError
from training.data.look import look_at
from training.data.sources import checksum_of, decoded, expand, open_uri, read_rows, resolve, size_and_tag, size_of

ROWS = [{"text": "eins"}, {"text": "zwei ü"}]
LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS).encode()


def zipped(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def as_parquet(rows: list[dict[str, Any]]) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), buffer)
    return buffer.getvalue()


FORMS = {
    "a.jsonl": LINES,
    "a.jsonl.gz": gzip.compress(LINES, mtime=0),
    "a.jsonl.zst": zstandard.compress(LINES),
    "a.json": json.dumps(ROWS).encode(),
    "a.parquet": as_parquet(ROWS),
}


@pytest.mark.parametrize("name", FORMS)
def test_rows_are_the_same_in_every_form(tmp_path: Path, name: str):
    (tmp_path / name).write_bytes(FORMS[name])
    assert list(read_rows(str(tmp_path / name))) == ROWS


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.parquet"])
def test_fsspec_urls_are_read_like_files(name: str):
    import fsspec

    fsspec.filesystem("memory").pipe(f"/rows/{name}", FORMS[name])
    assert list(read_rows(f"memory://rows/{name}")) == ROWS


def test_a_text_file_is_one_row_and_a_zip_one_for_each_text(tmp_path: Path):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress("\ufeffeins\r\nzwei".encode(), mtime=0))
    assert list(read_rows(str(tmp_path / "a.txt.gz"))) == [{"text": "eins\nzwei", "name": "a.txt.gz"}]
    (tmp_path / "a.zip").write_bytes(zipped({"b/2.txt": b"zwei", "b/1.txt": b"eins", "README": b"no"}))
    assert [row["name"] for row in read_rows(str(tmp_path / "a.zip"))] == ["b/1.txt", "b/2.txt"]


def test_two_texts_of_one_name_in_a_zip_are_two_rows(tmp_path: Path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a.txt", "eins")
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("a.txt", "zwei")
    assert [row["text"] for row in read_rows(str(tmp_path / "a.zip"))] == ["eins", "zwei"]


@pytest.mark.parametrize("charset", ["utf-16", "utf-32", "utf-8-sig"])
def test_a_text_is_read_by_its_byte_order_mark(charset: str):
    assert decoded("Größe\r\nżółw 🐢".encode(charset), "a.txt") == "Größe\nżółw 🐢"
    assert decoded(codecs.BOM_UTF16_BE + "żółw".encode("utf-16-be"), "a.txt") == "żółw"


@pytest.mark.parametrize("data", ["This is UTF-16.".encode("utf-16-le"), "Größe".encode("utf-16-be")])
def test_utf_16_without_a_mark_is_no_text(data):
    with pytest.raises(DataError, match=r"a\.txt: byte \d+ is 0, as in UTF-16 without a mark"):
        decoded(data, "a.txt")


def test_a_byte_of_0_is_one_of_utf_8_and_of_no_other():
    assert decoded("one field\0and another, größer".encode(), "a.txt") == "one field\0and another, größer"
    with pytest.raises(DataError, match=r"a\.txt: not UTF-8 from byte"):
        decoded("one field\0and another, größer".encode("cp1252"), "a.txt")


def test_a_mark_that_the_bytes_do_not_follow_is_named():
    with pytest.raises(DataError, match=r"a\.txt: begins as UTF-16 does, and is not from byte 6 on"):
        decoded(codecs.BOM_UTF16_LE + "ab".encode("utf-16-le") + b"c", "a.txt")


WESTERN = (
    "The naïve café put “quotes” around its whole menu.",
    "Ja, größer.",
    "½ cup, 10²",
    "Hver maður er borinn frjáls og jafn öðrum að virðingu og réttindum. Menn eru gæddir vitsmunum og samvizku.",
    "Të gjithë njerëzit lindin të lirë dhe të barabartë në dinjitet e në të drejta. Ata kanë arsye e ndërgjegje.",
    "Kõik inimesed sünnivad vabadena ja võrdsetena oma väärikuselt ja õigustelt. Neile on antud mõistus, žürii.",
    "Größe, Käse und Brötchen stehen auf dem Tisch; à côté, le garçon a mangé; and the rest of the long afternoon "
    "went by without a word. El señor Núñez arrived at São Paulo with all of his luggage and two of his sons." * 2,
)


@pytest.mark.parametrize("text", WESTERN)
def test_text_that_is_not_utf8_is_read_as_windows_1252(text):
    assert decoded(text.encode("cp1252"), "a.txt") == text


@pytest.mark.parametrize(
    "data",
    [
        "Вчера мы были в горах.".encode("cp1251"),
        "Příliš žluťoučký kůň".encode("cp1250"),
        ("Vsi ljudje se rodijo svobodni. Č, š, ž: življenje, človeštvo, križišče. " * 3).encode("cp1250"),
        ("Toate fiin\u0163ele umane se nasc libere \u015fi egale \u00een demnitate \u015fi drepturi. " * 6).encode(
            "cp1250"
        ),
        ("Bütün insanlar hür, haysiyet ve haklar bakımından eşit doğarlar. " * 3).encode("cp1254"),
        ("Visi žmonės gimsta laisvi ir lygūs savo orumu ir teisėmis. " * 3).encode("cp1257"),
        "Wiatr wiał mroźny od zachodniosłowiańskiej granicy.".encode("iso8859-2"),
        b"a \x81 " * 9,
        ("Hän sanoi, että pöytä on täynnä äidin leipomia pullia. " * 3).encode() + b"\xe4",  # cut within a letter
        ("L'été dernier, le garçon était fâché. " * 3).encode() + "L'été".encode("cp1252"),
    ],
)
def test_text_that_may_be_of_any_charset_is_refused(data):
    with pytest.raises(DataError, match=r"a\.txt: not UTF-8 from byte"):
        decoded(data, "a.txt")


def test_a_data_uri_needs_the_variable_and_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("PEDIGREE_DATA", raising=False)
    with pytest.raises(DataError, match="PEDIGREE_DATA"):
        list(read_rows("data://sft/a.jsonl"))
    monkeypatch.setenv("PEDIGREE_DATA", str(tmp_path))
    with pytest.raises(DataError, match="PEDIGREE_DATA="):
        list(read_rows("data://sft/a.jsonl"))
    (tmp_path / "sft").mkdir()
    (tmp_path / "sft/a.jsonl").write_bytes(LINES)
    assert list(read_rows("data://sft/a.jsonl")) == ROWS
    assert resolve("data://sft/a.jsonl") == f"{tmp_path}/sft/a.jsonl"


def test_kitchen_rows_are_made_from_the_world():
    rows = list(read_rows("kitchen://cloze", settings={"kitchen": {}}))
    assert rows and all(set(row) >= {"query", "choices", "gold"} for row in rows)
    with pytest.raises(RecipeError, match="no section kitchen"):
        list(read_rows("kitchen://cloze"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"a,b\n", "unknown format"),
        ("a.jsonl", b'{"a": 1}\n{"a"\n', "line 2 is not JSON"),
        ("a.jsonl", b"[1]\n", "line 1 is no JSON object but list"),
        ("a.jsonl", b'{"a": {"b": 1, "c": 2, "b": 3}}\n', "line 1 has the key 'b' twice in one object"),
        ("a.json", b'{"a": 1}', "expected a list"),
        ("a.json", b'[{"a": 1}, 2]', "value 2 of the list is no JSON object but int"),
        ("a.json", b'[{"a": 1, "a": 1}]', "value 1 of the list has the key 'a' twice in one object"),
        ("a.json", b'[{"a": 1}, {"a"', "behind value 1 of it: "),
        ("a.json", b'[{"a": 1} {"a": 1}]', "at its beginning: neither , nor ] is behind it"),
        ("a.json", b'[{"a": 1},]', "behind value 1 of it: Expecting value"),
        ("a.json", b"[] []", "there is more behind its end"),
        ("a.json", b"[ ]" + b" " * (3 << 20) + b"1", "there is more behind its end"),
        ("a.json", b'[{"a": "\xff"}]', "at its beginning: 'utf-8' codec"),
        ("a.parquet", b"no parquet", "not a readable parquet file"),
        ("a.zip", b"no zip", "not a readable zip file"),
        ("a.txt.gz", gzip.compress(b"text" * 1000, mtime=0)[:20], "damaged"),
    ],
)
def test_what_cannot_be_rows_is_an_error_that_names_the_file(tmp_path: Path, name: str, content: bytes, message: str):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        list(read_rows(str(tmp_path / name)))
    assert name in str(caught.value)


def test_a_value_of_a_list_that_is_no_row_is_named_and_the_others_are_read(tmp_path: Path):
    path = tmp_path / "rows.json"
    path.write_text('[{"a": 1}, null, {"a": 2}]')
    first, unread, last = read_rows(str(path), with_unread=True)
    assert (first, last) == ({"a": 1}, {"a": 2})
    assert unread == {"line": 2, "unread": "is no JSON object but NoneType"}


def test_files_are_found_by_folder_glob_and_name_in_order_of_file_name(tmp_path: Path):
    for name in ("x/2.warc.gz", "x/1.warc.gz", "x/.3.warc.gz", "x/index.cdx", "y/0.warc.gz"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    wanted = [f"{tmp_path}/{name}" for name in ("y/0.warc.gz", "x/1.warc.gz", "x/2.warc.gz")]
    assert expand([f"{tmp_path}/x", f"{tmp_path}/y"], [".warc.gz"]) == wanted
    assert expand([f"{tmp_path}/*/*.warc.gz"]) == wanted
    assert expand([*reversed(wanted), *wanted]) == wanted
    assert expand([f"{tmp_path}/x/index.cdx"], [".warc.gz"]) == [f"{tmp_path}/x/index.cdx"]
    with pytest.raises(DataError, match=r"\.jsonl"):
        expand([f"{tmp_path}/x"], [".jsonl"])


def test_a_checksum_is_the_content_s_and_follows_a_change(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    for content in (b"one", b"three"):
        path.write_bytes(content)
        assert checksum_of(str(path)) == hashlib.sha256(content).hexdigest()
        assert size_of(str(path)) == len(content)
    path.write_bytes(b"seven")
    os.utime(path, ns=(1, 1))
    assert checksum_of(str(path)) == hashlib.sha256(b"seven").hexdigest()
    with pytest.raises(DataError, match="is a folder"):
        checksum_of(str(tmp_path))


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[MiniS3]:
    """A store with one file of rows, which this process may read."""
    s3fs = pytest.importorskip("s3fs")
    server = MiniS3(objects={"bucket/rows/a.jsonl": LINES})
    variables = {"ACCESS_KEY_ID": "k", "SECRET_ACCESS_KEY": "s", "DEFAULT_REGION": "r", "EC2_METADATA_DISABLED": "true"}
    for name, value in {**variables, "ENDPOINT_URL": server.endpoint, "SHARED_CREDENTIALS_FILE": "/none"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    s3fs.S3FileSystem.clear_instance_cache()
    yield server
    s3fs.S3FileSystem.clear_instance_cache()
    server.stop()


READERS = (lambda uri: expand([uri]), lambda uri: list(read_rows(uri)), size_of, size_and_tag, checksum_of, look_at)
WITHOUT_KEYS = {"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None}


def test_a_store_is_read_like_a_folder_and_a_file_in_it_belongs_to_one_source(store):
    rows = "s3://bucket/rows"
    assert expand([rows]) == [f"{rows}/a.jsonl"] and size_of(f"{rows}/a.jsonl") == len(LINES)
    assert list(read_rows(f"{rows}/a.jsonl")) == ROWS
    for place in (rows, f"{rows}/a.jsonl"):
        assert [(one.source, one.files) for one in look_at(place).data] == [("jsonl", 1)]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(
    ("variables", "faults", "said"),
    [
        (WITHOUT_KEYS, 0, "Unable to locate credentials"),
        ({"AWS_SECRET_ACCESS_KEY": None}, 0, "Partial credentials"),
        ({"AWS_PROFILE": "nobody"}, 0, "nobody"),
        ({"AWS_ENDPOINT_URL": "nowhere"}, 0, "Invalid endpoint"),
        ({}, 403, "PermissionError"),
    ],
)
def test_what_a_store_refuses_is_one_sentence_with_the_address(store, monkeypatch, read, variables, faults, said):
    for name, value in variables.items():
        monkeypatch.delenv(name) if value is None else monkeypatch.setenv(name, value)
    store.faults = [faults] * 99
    with pytest.raises(DataError, match=said) as refused:
        read("s3://bucket/rows/a.jsonl")
    assert str(refused.value).startswith("s3://bucket/rows/a.jsonl: the store cannot be read (")
    assert "\n" not in str(refused.value)


def test_of_what_is_raised_while_a_stream_is_read_only_the_store_s_errors_are_told_as_its_own(store):
    from botocore.exceptions import ReadTimeoutError

    for error, told in ((ReadTimeoutError(endpoint_url="e"), DataError), (KeyError("a"), KeyError)):
        with pytest.raises(told), open_uri("s3://bucket/rows/a.jsonl"):
            raise error
