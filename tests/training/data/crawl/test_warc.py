"""WARC reading: every undamaged record, every damaged stretch, in every compression."""

from __future__ import annotations

import gzip
import os
import random
import re
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from tests import fuzz
from training.data.crawl import warc
from training.data.crawl.warc import Damage, Record, parse_headers, read_warc


def data_folder() -> Path:
    return Path(os.environ["PEDIGREE_DATA"])


def record(number: int, size: int = 400) -> bytes:
    body = random.Random(number).randbytes(size).hex().encode()
    head = (
        f"WARC/1.0\r\nWARC-Type: response\r\nWARC-Record-ID: <urn:uuid:{number}>\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body + b"\r\n\r\n"


RECORDS = [record(number) for number in range(20)]


def with_dictionary(records: list[bytes], *, compressed: bool) -> bytes:
    """zstd by record with the dictionary in front, in a frame that other readers skip (IIPC's draft)."""
    trained = zstandard.train_dictionary(4096, [one[at : at + 90] for one in records for at in range(0, 800, 90)])
    carried = zstandard.compress(trained.as_bytes()) if compressed else trained.as_bytes()
    compressor = zstandard.ZstdCompressor(dict_data=trained)
    frames = b"".join(map(compressor.compress, records))
    return warc.ZSTD_DICTIONARY_MAGIC + len(carried).to_bytes(4, "little") + carried + frames


FORMS: dict[str, Callable[[list[bytes]], bytes]] = {
    "plain": lambda records: b"".join(records),
    "gzip by record": lambda records: b"".join(gzip.compress(one, mtime=0) for one in records),
    "gzip as a whole": lambda records: gzip.compress(b"".join(records), mtime=0),
    "gzip in blocks": lambda records: b"".join(
        gzip.compress(b"".join(records)[at : at + 1000], mtime=0) for at in range(0, len(b"".join(records)), 1000)
    ),
    "zstd by record": lambda records: b"".join(map(zstandard.compress, records)),
    "zstd as a whole": lambda records: zstandard.compress(b"".join(records)),
    "zstd by record with a dictionary": lambda records: with_dictionary(records, compressed=False),
    "zstd by record with a compressed dictionary": lambda records: with_dictionary(records, compressed=True),
    "lz4 by record": lambda records: b"".join(map(fuzz.lz4_frame, records)),
}


def read(tmp_path: Path, data: bytes, max_content_bytes: int = 1 << 20) -> tuple[list[str], list[Damage]]:
    """Record ids, and what was damaged; offsets are checked to rise."""
    path = tmp_path / "a.warc"
    path.write_bytes(data)
    items = list(read_warc(path, max_content_bytes=max_content_bytes))
    offsets = [item.offset for item in items]
    assert offsets == sorted(set(offsets))
    ids = [item.headers["warc-record-id"][10:-1] for item in items if isinstance(item, Record)]
    return ids, [item for item in items if isinstance(item, Damage)]


def all_but(*numbers: int) -> list[str]:
    return [str(number) for number in range(20) if number not in numbers]


@pytest.mark.parametrize("form", FORMS)
def test_every_record_is_read_whole_in_every_form(tmp_path: Path, form: str):
    path = tmp_path / "a.warc"
    path.write_bytes(FORMS[form](RECORDS))
    items = [item for item in read_warc(path, max_content_bytes=1 << 20) if isinstance(item, Record)]
    assert [item.content for item in items] == [one.partition(b"\r\n\r\n")[2][:-4] for one in RECORDS]
    assert not any(item.is_cut for item in items)


@pytest.mark.parametrize("form", FORMS)
def test_a_record_that_the_end_of_the_file_cuts_off_is_damage(tmp_path: Path, form: str):
    data = FORMS[form](RECORDS)
    ids, damages = read(tmp_path, data[:-40])
    assert ids == all_but(19) or ("whole" in form and set(ids) < set(all_but(19)))
    assert [damage.reason for damage in damages] == ["truncated"]


@pytest.mark.parametrize("form", [form for form in FORMS if "whole" not in form])
def test_damage_has_the_address_of_the_page_whose_header_was_read(tmp_path: Path, form: str):
    last = RECORDS[-1].replace(b"Content-Length", b"WARC-Target-URI: <http://a.test/19>\r\nContent-Length")
    data = FORMS[form]([*RECORDS[:-1], last])
    _, (damage,) = read(tmp_path, data[:-40])
    assert damage.url == (
        "" if form.startswith(("zstd", "lz4")) else "http://a.test/19"
    )  # these give no part of a block
    request = FORMS[form]([*RECORDS[:-1], last.replace(b"Type: response", b"Type: request ")])
    _, (damage,) = read(tmp_path, request[:-40])
    assert damage.url == ""


@pytest.mark.parametrize("form", ["gzip by record", "zstd by record", "lz4 by record"])
def test_overwritten_bytes_cost_one_record(tmp_path: Path, form: str):
    start = len(FORMS[form](RECORDS[:7]))
    data = bytearray(FORMS[form](RECORDS))
    data[start + 2 : start + 40] = b"\xff" * 38
    ids, damages = read(tmp_path, bytes(data))
    assert ids == all_but(7)
    assert [damage.offset for damage in damages] == [start]


def test_a_wrong_checksum_costs_the_record_even_though_it_was_read(tmp_path: Path):
    members = [gzip.compress(one, mtime=0) for one in RECORDS]
    members[7] = members[7][:-8] + b"\0\0\0\0" + members[7][-4:]
    ids, damages = read(tmp_path, b"".join(members))
    assert ids == all_but(7)
    assert damages[0].offset == len(b"".join(members[:7]))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("change", [b"9", b"", b"x", b"99999999"])
def test_a_wrong_content_length_costs_one_record(tmp_path: Path, form: str, change: bytes):
    records = list(RECORDS)
    records[7] = re.sub(rb"Content-Length: \d", b"Content-Length: " + change, records[7], count=1)
    ids, damages = read(tmp_path, FORMS[form](records))
    assert ids == all_but(7)
    assert len(damages) == 1
    assert damages[0].reason in ("wrong_length", "truncated", "bad_header")


def test_two_records_that_ran_together_are_told_apart(tmp_path: Path):
    for cut in range(1, len(RECORDS[7]), 37):
        ids, damages = read(tmp_path, b"".join([*RECORDS[:7], RECORDS[7][:cut], *RECORDS[8:]]))
        assert ids == all_but(7)
        assert len(damages) == 1


def test_a_block_that_ends_with_the_header_of_the_next_record_does_not_swallow_it(tmp_path: Path):
    header, _, body = RECORDS[7].partition(b"\r\n\r\n")
    missing = len(RECORDS[8].partition(b"\r\n\r\n")[0])
    broken = header + b"\r\n\r\n" + body[: -4 - missing]
    ids, damages = read(tmp_path, b"".join([*RECORDS[:7], broken, *RECORDS[8:]]))
    assert ids == all_but(7)
    assert [damage.reason for damage in damages] == ["wrong_length"]


@pytest.mark.parametrize("at", [0.3, 0.5, 0.9])
def test_damage_inside_a_file_that_is_one_member_costs_no_record_before_it(tmp_path: Path, at: float):
    data = bytearray(FORMS["gzip as a whole"](RECORDS))
    start = int(len(data) * at)
    held = len(zlib.decompressobj(31).decompress(bytes(data[:start])))
    num_whole = sum(len(b"".join(RECORDS[: number + 1])) <= held for number in range(20))
    data[start : start + 200] = b"\xff" * 200
    ids, damages = read(tmp_path, bytes(data))
    assert ids[:num_whole] == [str(number) for number in range(num_whole)] and 4 < num_whole < 20
    assert damages[-1].reason == "damaged_compression"


def test_garbage_between_records_costs_none(tmp_path: Path):
    for form in ("plain", "gzip by record"):
        data = FORMS[form](RECORDS[:7]) + b"garbage\r\n" * 9 + FORMS[form](RECORDS[7:])
        ids, damages = read(tmp_path, data)
        assert ids == all_but()
        assert len(damages) == 1


def test_a_damaged_beginning_costs_the_first_record(tmp_path: Path):
    for form in ("plain", "gzip by record", "zstd by record", "lz4 by record"):
        data = bytearray(FORMS[form](RECORDS))
        data[:4] = b"\0\0\0\0"
        ids, damages = read(tmp_path, bytes(data))
        assert ids == all_but(0)
        assert [damage.offset for damage in damages] == [0]


def test_padding_is_no_damage_and_an_empty_file_is_nothing(tmp_path: Path):
    assert read(tmp_path, FORMS["gzip by record"](RECORDS) + bytes(5000)) == (all_but(), [])
    assert read(tmp_path, b"") == ([], [])


def test_what_is_no_archive_is_one_damage(tmp_path: Path):
    ids, damages = read(tmp_path, b"<html>no archive</html>\n" * 100)
    assert ids == []
    assert [(damage.offset, damage.reason) for damage in damages] == [(0, "not_a_record")]


def test_a_large_block_is_cut_and_not_held(tmp_path: Path):
    path = tmp_path / "a.warc.gz"
    path.write_bytes(gzip.compress(record(0, 5_000_000)) + gzip.compress(RECORDS[1]))
    items = [item for item in read_warc(path, max_content_bytes=100) if isinstance(item, Record)]
    assert [(item.is_cut, len(item.content), item.content_length) for item in items] == [
        (True, 100, 10_000_000),
        (True, 100, 800),
    ]


def test_a_member_that_expands_without_end_stays_small(tmp_path: Path):
    import tracemalloc

    compress = zlib.compressobj(9, wbits=31)
    head = b"WARC/1.0\r\nWARC-Type: response\r\nContent-Length: 300000000\r\n\r\n"
    bomb = (
        compress.compress(head) + b"".join(compress.compress(bytes(1_000_000)) for _ in range(300)) + compress.flush()
    )
    path = tmp_path / "a.warc.gz"
    path.write_bytes(bomb + gzip.compress(RECORDS[1]))
    tracemalloc.start()
    items = list(read_warc(path, max_content_bytes=1000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(items) == 2
    assert peak < 20_000_000


def test_headers_are_joined_over_lines_and_read_in_either_charset():
    block = "HTTP/1.1 200 OK\r\nA: one\r\n two\r\na: later\r\nB: ü\r\nno field\r\n".encode()
    assert parse_headers(block) == {"a": "one two", "b": "ü"}
    assert parse_headers(b"x\r\nB: \xfc") == {"b": "ü"}
    assert len(parse_headers(b"x\r\na: b" + b"\r\n c" * 1_000_000)["a"]) == 2_000_001


def test_angle_brackets_of_old_wget_are_taken_off():
    made = Record(
        offset=0, headers={"warc-target-uri": "<http://a.test/>"}, buffer=b"", start=0, end=0, content_length=0
    )
    assert made.target_uri == "http://a.test/"


# Real files


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "records", "damages"),
    [
        ("aut/example.warc.gz", 822, []),  # WARC 0.17
        ("dolma/sample-0000.warc.gz", 48, []),
        ("resiliparse/block-sized-records.warc.gz", 3, []),
        ("resiliparse/warcfile.warc.gz", 50, []),
        ("resiliparse/warcfile.warc.lz4", 50, []),
        ("warcio/example-bad-non-chunked.warc.gz", 6, []),  # compressed as a whole
        ("warcio/example-bad.warc.gz.bad", 6, []),
        ("warcio/example-digest.warc", 4, []),
        ("warcio/example-iana.org-chunked.warc", 3, []),
        ("warcio/example-resource.warc.gz", 3, []),
        ("warcio/example-space-in-target-uri.warc.gz", 2, []),
        ("warcio/example-trunc.warc", 3, [(1197, "wrong_length")]),
        ("warcio/example-wget-bad-target-uri.warc.gz", 6, []),
        ("warcio/example-wrong-chunks.warc.gz", 2, []),
        ("warcio/example.warc", 6, []),
        ("warcio/example.warc.gz", 6, []),
        ("warcio/post-test.warc.gz", 6, []),
        ("warcio/example.arc.gz", 0, [(0, "not_a_record")]),
        ("whirlwind/whirlwind.warc.gz", 4, []),
        ("whirlwind/whirlwind.warc.wet.gz", 2, []),
    ],
)
def test_published_files_give_all_their_records(name: str, records: int, damages: list[tuple[int, str]]):
    items = list(read_warc(data_folder() / "warc" / name, max_content_bytes=1 << 20))
    assert len([item for item in items if isinstance(item, Record)]) == records
    assert [(item.offset, item.reason) for item in items if isinstance(item, Damage)] == damages


@pytest.mark.data
def test_offsets_are_those_of_the_crawler_s_own_index():
    folder = data_folder() / "crawl/snapshot-1"
    with gzip.open(folder / "web-06.cdx.gz", "rt") as lines:
        header = next(lines).split()
        column = header.index("V") - 1  # the compressed offset; the first word of the header is CDX
        listed = sorted(int(line.split()[column]) for line in lines)
    items = read_warc(folder / "web-06-00000.warc.gz", max_content_bytes=0)
    assert [item.offset for item in items if isinstance(item, Record) and item.type == "response"] == listed


def test_plain_header_fields_are_what_the_careful_way_reads(monkeypatch: pytest.MonkeyPatch):
    rng = random.Random(1)
    parts = [b"A: b", b"a:c", b"\r\n", b"\n", b"\r", b" x", b"\tq", b":", b"Content-Length: 5", b"\xff", b"nocolon"]
    blocks = [b"WARC/1.0\r\n" + b"".join(rng.choices(parts, k=rng.randrange(8))) for _ in range(5000)]

    def read(block: bytes) -> Any:
        try:
            return warc.parse_headers(block), warc._warc_headers(block)
        except warc._Malformed as error:
            return warc.parse_headers(block), error.reason

    plain = [read(block) for block in blocks]
    assert sum(warc._plain_fields(block) is not None for block in blocks) > 500
    monkeypatch.setattr(warc, "_plain_fields", lambda block: None)
    assert [read(block) for block in blocks] == plain


def parts(items: Iterable[Record | Damage]) -> list[Any]:
    """What can be compared of what a reader gave."""
    return [
        item if isinstance(item, Damage) else (item.offset, item.headers, item.content, item.content_length)
        for item in items
    ]


@pytest.mark.data
@pytest.mark.parametrize("name", ["warc/aut/example.warc.gz", "crawl/snapshot-2/web-04-00000.warc.gz"])
@pytest.mark.parametrize("most", [10_000, 1 << 30])
def test_whole_members_are_what_the_careful_way_reads(monkeypatch: pytest.MonkeyPatch, name: str, most: int):
    path = data_folder() / name
    quick = parts(read_warc(path, max_content_bytes=most))
    monkeypatch.setattr(warc, "_whole_member", lambda *arguments: None)
    assert parts(read_warc(path, max_content_bytes=most)) == quick


def test_broken_archives_are_read_alike_both_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "a.warc.gz"
    quick, careful = {}, {}
    for number in (n for n in range(132) if "gzip" in fuzz.FORMS[n % len(fuzz.FORMS)]):
        path.write_bytes(fuzz.archive(number).data)
        quick[number] = parts(read_warc(path, max_content_bytes=1000))
        with monkeypatch.context() as patch:
            patch.setattr(warc, "_whole_member", lambda *arguments: None)
            careful[number] = parts(read_warc(path, max_content_bytes=1000))
    assert quick == careful
    assert sum(isinstance(one, Damage) for found in quick.values() for one in found) > 30


def test_after_a_long_record_and_after_damage_members_are_read_whole_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    whole, read_whole = [], warc._whole_member

    def watched(*arguments: Any) -> Any:
        found = read_whole(*arguments)
        whole.append(found is not None)
        return found

    monkeypatch.setattr(warc, "_whole_member", watched)
    members = [gzip.compress(one, mtime=0) for one in RECORDS]
    members[3] = gzip.compress(record(3, 200_000), mtime=0)
    members[9] = members[9][:-20]
    ids, damages = read(tmp_path, b"".join(members), max_content_bytes=1000)
    assert (ids, len(damages)) == (all_but(9), 1)
    assert (whole.count(True), whole.count(False)) == (18, 2)


def test_names_of_fields_are_not_kept_without_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(warc._Names, "LIMIT", 3)
    names = warc._Names()
    assert [names[f" Name-{number}"] for number in range(10)] == [f"name-{number}" for number in range(10)]
    assert len(names) <= 3
