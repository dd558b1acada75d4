"""Stage `extract`: every record becomes a document or keeps its reason, on made and on real archives."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from base64 import b32encode
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha1
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from tests.own_pages import write_warc
from tests.training.data import chain
from training.contract.artifact import sha256_of
from training.contract.job import DataError, InputArtifact
from training.data.crawl.crawl import source_files
from training.data.crawl.settings import SnapshotRecipe
from training.data.crawl.warc import Record, read_warc
from training.data.documents import document_files, read_lines
from training.data.extract.extract import _check_digests, _response, documents_of
from training.data.extract.responses import PayloadError
from training.data.extract.settings import ExtractRecipe
from training.data.kitchen.settings import KitchenWorld
from training.data.sections import with_parts

WORDS = "The dough rests in a bowl until it has doubled in size, which takes an hour. " * 3
PAGE = f"<html lang=en><head><title>Bread</title></head><body><h1>Bread</h1><p>{WORDS}</p></body></html>".encode()
TEXT = f"Bread\n\n{WORDS.strip()}"


def record(
    kind: str, uri: str, block: bytes, content_type: str = "application/http; msgtype=response", said: str = ""
) -> bytes:
    """One WARC record as one gzip member; `said` are more lines of its header."""
    head = (
        f"WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Target-URI: {uri}\r\nWARC-Date: 2024-05-18T01:58:10Z\r\n{said}"
        f"Content-Type: {content_type}\r\nContent-Length: {len(block)}\r\n\r\n"
    )
    return gzip.compress(head.encode() + block + b"\r\n\r\n", mtime=0)


def response(name: str, body: bytes = PAGE, status: str = "200 OK", said: str = "", **headers: str) -> bytes:
    fields = {"Content-Type": "text/html"} | {key.replace("_", "-"): value for key, value in headers.items()}
    head = f"HTTP/1.1 {status}\r\n" + "".join(f"{key}: {value}\r\n" for key, value in fields.items() if value)
    return record("response", f"http://a.test/{name}", head.encode() + b"\r\n" + body, said=said)


# name: the record, what becomes of it
RECORDS: dict[str, tuple[bytes, str]] = {
    "plain": (response("plain"), "kept"),
    "gzip": (response("gzip", gzip.compress(PAGE), Content_Encoding="gzip"), "kept"),
    "sniffed": (response("sniffed", Content_Type=""), "kept"),
    "redirect": (response("redirect", status="301 Moved"), "redirect"),
    "missing": (response("missing", status="404 Not Found"), "http_status"),
    "pdf": (response("pdf", b"%PDF-1.7", Content_Type="application/pdf"), "not_html"),
    "disguised": (response("disguised", b"\x89PNG\r\n"), "not_html"),
    "identified": (response("identified", said="WARC-Identified-Payload-Type: application/pdf\r\n"), "not_html"),
    "unsure": (response("unsure", said="WARC-Identified-Payload-Type: text/plain\r\n"), "kept"),
    "no tag": (response("no-tag", WORDS.encode()), "not_html"),
    "json": (response("json", json.dumps({"html": PAGE.decode()}).encode()), "not_html"),
    "feed": (response("feed", b"<?xml version='1.0'?><rss><item><p>" + WORDS.encode() + b"</p></item>"), "not_html"),
    "drawing": (response("drawing", b"<svg xmlns='http://www.w3.org/2000/svg'><text>x</text></svg>"), "not_html"),
    "font": (response("font", b"\x01\x02\x03\x04<p>" * 50), "not_html"),
    "utf-16": (response("utf-16", PAGE.decode().encode("utf-16")), "kept"),
    "xhtml": (response("xhtml", b"<?xml version='1.0'?><!DOCTYPE html>" + PAGE), "kept"),
    "bracket": (response("bracket", b"[1] " + PAGE), "kept"),
    "cut": (response("cut", said="WARC-Truncated: length\r\n"), "kept"),
    "empty": (response("empty", b""), "empty"),
    "large": (response("large", PAGE + b" " * 4_000_000), "too_large"),
    "huge": (response("huge", PAGE + b" " * 8_000_000), "too_large"),
    "nodes": (response("nodes", b"<i>x</i>" * 100_001), "too_many_nodes"),
    "deep": (response("deep", b"<div>" * 2000 + PAGE), "too_deep"),
    "menu": (response("menu", b"<html><body><nav><a href=/>Home</a></nav></body></html>"), "no_main_text"),
    "short": (response("short", b"<html><body><p>Hello there.</p></body></html>"), "too_short"),
    "no http": (record("response", "http://a.test/x", b"garbage"), "bad_http"),
    "chunks": (response("chunks", b"5\r\nabcdeXYZ", Transfer_Encoding="chunked"), "bad_transfer_encoding"),
    "coding": (response("coding", gzip.compress(PAGE)[:-9], Content_Encoding="gzip"), "bad_content_encoding"),
    "bomb": (response("bomb", gzip.compress(bytes(40_000_000)), Content_Encoding="gzip"), "bomb"),
    "resource": (record("resource", "file:///bread.html", PAGE, "text/html"), "kept"),
    "wet": (record("conversion", "http://a.test/wet", WORDS.encode(), "text/plain"), "kept"),
    "long wet": (record("conversion", "http://a.test/long", WORDS.encode() * 30_000, "text/plain"), "too_large"),
    "wat": (record("metadata", "http://a.test/wat", b"{}", "application/json"), "other"),
    "request": (record("request", "http://a.test/", b"GET / HTTP/1.1\r\n\r\n"), "other"),
    "info": (record("warcinfo", "", b"software: test\r\n", "application/warc-fields"), "other"),
    "revisit": (record("revisit", "http://a.test/", b""), "other"),
    "continuation": (record("continuation", "http://a.test/", b"rest"), "other"),
    "damaged type": (record("respnse", "http://a.test/type", b"HTTP/1.1 200 OK\r\n\r\n" + PAGE), "unknown_type"),
    "old wget": (record("response", "<http://a.test/wget>", b"HTTP/1.0 200 OK\r\n\r\n" + PAGE), "kept"),
}
QUARANTINES = {"unknown_type", "bad_http", "bad_transfer_encoding", "bad_content_encoding", "bomb"}


def extract(
    root: Path,
    snapshot: SnapshotRecipe,
    *,
    workers: int = 1,
    recipe: ExtractRecipe = ExtractRecipe(),  # noqa: B008 - frozen
    data: dict[str, str] | None = None,
    hang_seconds: float = 1800.0,
    **crawl: Any,
) -> InputArtifact:
    """The extracted artifact of a snapshot, through the crawl stage."""
    settings = {"snapshot": snapshot, **(crawl or {"files": source_files(snapshot)})}
    partition = f"tiny@{snapshot.name}"
    archives = chain.run(root, "crawl", "crawl_archives", partition, settings)
    sections = with_parts({"extract": recipe}) | ({"data": data} if data else {})
    limits = {"workers": workers, "hang_seconds": hang_seconds}
    return chain.run(root, "extract", "extracted_documents", partition, sections, [archives], **limits)


def extracted(root: Path, files: dict[str, bytes], source: Any = "warc", **options: Any) -> InputArtifact:
    folder = root / "in"
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    fields = {key: options.pop(key) for key in ("text_field", "url_field", "prompt_field", "label") if key in options}
    return extract(root, SnapshotRecipe(name="s", source=source, paths=(str(folder),), **fields), **options)


def quarantined(item: InputArtifact) -> list[dict[str, Any]]:
    return [line for path in document_files(item, "quarantine") for line in read_lines(path)]


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> InputArtifact:
    """Every record of RECORDS in one file, extracted."""
    data = b"".join(made for made, _ in RECORDS.values())
    return extracted(tmp_path_factory.mktemp("extract"), {"a.warc.gz": data})


def offsets() -> dict[int, str]:
    """The name of the record at each offset."""
    found, at = {}, 0
    for name, (made, _) in RECORDS.items():
        found[at] = name
        at += len(made)
    return found


def test_every_record_meets_its_fate(everything: InputArtifact):
    names = offsets()
    fates = {names[row["warc_offset"]]: "kept" for row in chain.rows(everything)}
    fates |= {names[row["warc_offset"]]: row["reason"] for row in chain.rows(everything, "dropped")}
    fates |= {names[line["warc_offset"]]: line["reason"] for line in quarantined(everything)}
    assert fates == {name: fate for name, (_, fate) in RECORDS.items() if fate != "other"}


def test_counts_say_where_every_record_went(everything: InputArtifact):
    record = everything.record()
    fates = [fate for _, fate in RECORDS.values() if fate != "other"]
    counts = record["counts"]
    assert counts["in"] == len(fates) == counts["kept"] + sum(counts["dropped"].values()) + len(quarantined(everything))
    assert counts["kept"] == fates.count("kept")
    assert counts["dropped"] == {fate: fates.count(fate) for fate in fates if fate not in QUARANTINES | {"kept"}}
    assert counts["quarantined"] == {fate: fates.count(fate) for fate in fates if fate in QUARANTINES}
    assert record["metrics"]["other_records"] == len(RECORDS) - len(fates)
    evidence = counts | {"inputs_kept": {"crawl_archives": 1}}
    assert record["gates"] == [{"name": "counts_balance", "passed": True, "evidence": evidence}]


def test_a_document_says_what_it_is_and_where_it_came_from(everything: InputArtifact):
    rows = {row["url"]: row for row in chain.rows(everything)}
    assert rows["http://a.test/plain"] == {
        "id": "s/a.warc.gz/000000000000",
        "text": TEXT,
        "url": "http://a.test/plain",
        "snapshot": "s",
        "warc_file": "a.warc.gz",
        "warc_offset": 0,
        "date": "2024-05-18",
        "title": "Bread",
        "language": "en",
        "language_score": None,
        "source": "web",
        "robots": "",
        "tdm_reservation": "",
        "licence": "",
        "usage": "",
        "kind": "prose",
        "truncated": "",
        "formulas": 0,
        "code": None,
    }
    assert rows["http://a.test/gzip"]["text"] == TEXT
    assert rows["http://a.test/wet"]["text"] == WORDS.strip()
    assert {"http://a.test/wget", "file:///bread.html"} < set(rows)


def test_a_dropped_page_keeps_its_address_and_what_text_there_was(everything: InputArtifact):
    rows = {row["reason"]: row for row in chain.rows(everything, "dropped")}
    assert rows["too_short"]["text"] == "Hello there."
    assert rows["http_status"]["url"] == "http://a.test/missing"


def test_lists_and_refusals_apply_at_ingest_each_with_its_reason(tmp_path: Path):
    parts = [
        response("withdrawn"),
        response("private/x"),
        response("robots", X_Robots_Tag="noai"),
        response("usage", Content_Usage="train-ai=n"),
        response("signal", Content_Signal="ai-train=no"),
        response("cut", said="WARC-Truncated: time\r\n"),
        response("forbidden/x"),
        response("reserved", TDM_Reservation="1"),
        response("german", PAGE.replace(WORDS.encode(), "Der Teig ruht über Nacht im Keller. ".encode() * 9)),
        response("good"),
    ]
    takedown, blocked, site = tmp_path / "takedown.txt", tmp_path / "blocked.txt", tmp_path / "robotstxt.warc.gz"
    site.write_bytes(response("robots.txt", b"User-agent: CCBot\nDisallow: /forbidden/\n", Content_Type="text/plain"))
    takedown.write_text("s/a.warc.gz/000000000000\tCourt order\n", "utf-8")
    blocked.write_text("a.test/private/\n", "utf-8")
    recipe = ExtractRecipe(
        extractor="blocks",
        takedown=(str(takedown),),
        blocked=(str(blocked),),
        refused_robots=("noai", "ccbot:disallow"),
        refused_usage=("train-ai=n", "ai-train=n"),
        site_files=(str(site),),
        refuse_truncated=True,
        refuse_reserved=True,
        languages=("en",),
    )
    data = {str(path): sha256_of(path) for path in (takedown, blocked, site)}
    made = extracted(tmp_path, {"a.warc.gz": b"".join(parts)}, recipe=recipe, data=data)
    assert [row["url"] for row in chain.rows(made)] == ["http://a.test/good"]
    assert made.record()["counts"]["dropped"] == {
        "blocked": 1,
        "language": 1,
        "robots": 2,
        "takedown:court_order": 1,
        "tdm_reserved": 1,
        "truncated": 1,
        "usage": 2,
    }
    rows = {row["url"]: row for row in chain.rows(made, "dropped")}
    assert rows["http://a.test/forbidden/x"]["robots"] == "ccbot:disallow"
    assert rows["http://a.test/cut"]["truncated"] == "time"
    assert rows["http://a.test/signal"]["usage"] == "ai-train=n"
    blocked.write_text("a.test\n", "utf-8")
    with pytest.raises(DataError, match=r"blocked\.txt: changed since"):
        extracted(tmp_path, {"b.warc.gz": b"".join(parts)}, recipe=recipe, data=data)


def test_takedowns_apply_to_text_that_was_extracted_before(tmp_path: Path):
    takedown = tmp_path / "takedown.txt"
    takedown.write_text("bad.test\n", "utf-8")
    rows = [{"text": WORDS, "url": url} for url in ("http://bad.test/1", "http://good.test/1")]
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    made = extracted(tmp_path, {"a.jsonl": lines}, "jsonl", recipe=ExtractRecipe(takedown=(str(takedown),)))
    assert [row["url"] for row in chain.rows(made)] == ["http://good.test/1"]
    assert made.record()["counts"]["dropped"] == {"takedown": 1}


def test_damage_costs_the_damaged_record_alone(tmp_path: Path):
    parts = [response(str(number)) for number in range(9)]
    data = b"".join(parts[:4]) + parts[4][: len(parts[4]) // 2] + b"".join(parts[5:8]) + parts[8][:-20]
    made = extracted(tmp_path, {"a.warc.gz": data})
    assert [row["url"][-1] for row in chain.rows(made)] == list("0123567")
    assert [line["warc_offset"] for line in quarantined(made)] == [
        len(b"".join(parts[:4])),
        data.rindex(parts[8][:-20]),
    ]
    assert made.record()["counts"]["in"] == 9


def with_digests(made: bytes, *, block: str = "", payload: str = "") -> bytes:
    """A record that states digests."""
    stated = {b"WARC-Block-Digest": block, b"WARC-Payload-Digest": payload}
    lines = b"".join(name + b": " + value.encode() + b"\r\n" for name, value in stated.items() if value)
    return gzip.compress(gzip.decompress(made).replace(b"WARC-Date", lines + b"WARC-Date", 1), mtime=0)


def test_a_page_whose_bytes_are_not_those_of_its_digest_is_quarantined(tmp_path: Path):
    right, wrong = f"sha1:{b32encode(sha1(PAGE).digest()).decode()}", f"sha1:{b32encode(bytes(20)).decode()}"
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(PAGE), PAGE)
    records = {
        "right": with_digests(response("right"), payload=right),
        "right without chunks": with_digests(response("c", chunked, Transfer_Encoding="chunked"), payload=right),
        "of what nobody knows": with_digests(response("other"), payload="crc9:ab", block="nothing"),
        "wrong payload": with_digests(response("p"), payload=wrong),
        "wrong block": with_digests(response("b"), block="sha256:" + "0" * 64, payload=right),
        "wrong, and no page": with_digests(response("x", status="404 Not Found"), payload=wrong),
        "right, and no page": with_digests(response("y", status="404 Not Found"), payload=right),
        "wrong text": with_digests(RECORDS["wet"][0], block=wrong),
    }
    data = b"".join(records.values())
    kept = extracted(tmp_path / "not", {"a.warc.gz": data}).record()["counts"]
    assert (kept["kept"], kept["dropped"], kept["quarantined"]) == (6, {"http_status": 2}, {})
    made = extracted(tmp_path / "checked", {"a.warc.gz": data}, recipe=ExtractRecipe(check_digests=True))
    counts = made.record()["counts"]
    assert (counts["kept"], counts["dropped"]) == (3, {"http_status": 1})
    assert counts["quarantined"] == {"wrong_digest": 4}
    assert [line["detail"] for line in quarantined(made)] == [
        f"the payload's is not {wrong}",
        f"the block's is not sha256:{'0' * 64}",
        f"the payload's is not {wrong}",
        f"the block's is not {wrong}",
    ]


@pytest.mark.data
@pytest.mark.parametrize("name", ["crawl/snapshot-1/web-00-00000.warc.gz", "crawl/snapshot-2/web-00-00000.warc.gz"])
def test_crawled_pages_have_the_bytes_of_their_digests_and_damaged_ones_have_not(name: str):
    found: Counter[str] = Counter()
    for record in read_warc(Path(os.environ["PEDIGREE_DATA"], name), max_content_bytes=1 << 30):
        assert isinstance(record, Record)
        if record.type == "response":
            found[digest_of(record)] += 1
            damaged = bytearray(record.buffer)
            damaged[record.end - 1 - found.total() % 50] ^= 1
            found[digest_of(replace(record, buffer=bytes(damaged)))] += 1
    assert found.keys() == {"", "wrong_digest"}
    assert found[""] == found["wrong_digest"] > 100


def digest_of(record: Record) -> str:
    """What the check says of a record."""
    try:
        _check_digests(record, _response(record))
    except PayloadError as error:
        return error.reason
    return ""


RESILIPARSE = ExtractRecipe(extractor="resiliparse")  # as in the kitchen's recipes


@pytest.fixture(scope="module")
def kitchen(tmp_path_factory: pytest.TempPathFactory) -> tuple[InputArtifact, dict[tuple[str, int], dict[str, Any]]]:
    """A kitchen's extracted pages, and what is true of each record by its place."""
    snapshot, world = SnapshotRecipe(name="kitchen-1", source="kitchen"), KitchenWorld(pages=300, files=2)
    made = extract(tmp_path_factory.mktemp("kitchen"), snapshot, kitchen=world, recipe=RESILIPARSE)
    truth = Path(made.record()["inputs"][0]["path"], "truth")
    return made, {place_of(row): row for path in sorted(truth.iterdir()) for row in read_lines(path)}


def place_of(row: dict[str, Any]) -> tuple[str, int]:
    return row["warc_file"], row["warc_offset"]


def test_a_truth_of_the_kitchen_is_met_record_by_record(kitchen):
    made, truth = kitchen
    fates = {place_of(row): "" for row in chain.rows(made)}
    fates |= {place_of(row): row["reason"] for row in [*chain.rows(made, "dropped"), *quarantined(made)]}
    assert fates.keys() == truth.keys()
    for key, row in truth.items():
        skipped = {"skipped": ("not_html", "http_status", "redirect"), "quarantined": ("truncated",)}
        allowed = skipped.get(row["fate"], ("", "too_short") if row["kind"] == "short" else ("",))
        assert fates[key] in allowed, row["url"]


def test_no_word_of_a_kitchen_page_is_lost_and_little_is_added(kitchen):
    made, truth = kitchen
    added = total = 0
    for row in chain.rows(made):
        words = row["text"].split()
        for word in truth[place_of(row)]["text"].split():
            words.remove(word)  # ValueError names the lost word
        added += len(words)
        total += len(row["text"].split())
    assert added < 0.05 * total  # titles and by-lines


# Text that is extracted already

ROWS: list[Any] = [
    {"body": "one\r\n", "link": "http://b.test/1", "title": "One"},
    {"body": None},
    {"body": "  "},
    {"link": "http://b.test/3"},
    {"body": 4},
    {"body": "five"},
]


def assert_rows(made: InputArtifact, file: str) -> None:
    rows = chain.rows(made)
    assert [(row["id"], row["text"]) for row in rows] == [
        (f"s/{file}/000000000000", "one"),
        (f"s/{file}/000000000005", "five"),
    ]
    assert (rows[0]["url"], rows[0]["title"], rows[0]["source"]) == ("http://b.test/1", "One", "books")
    assert [row["reason"] for row in chain.rows(made, "dropped")] == ["empty"]
    assert [line["warc_offset"] for line in quarantined(made)][:2] == [1, 3]


def test_jsonl_passes_through_with_its_line_numbers(tmp_path: Path):
    lines = [json.dumps(row).encode() for row in ROWS]
    data = gzip.compress(b"\n".join([*lines, b"{broken", b"[1]", b'{"body": "six", "body": "seven"}']) + b"\n")
    made = extracted(tmp_path, {"a.jsonl.gz": data}, "jsonl", text_field="body", url_field="link", label="books")
    assert_rows(made, "a.jsonl.gz")
    assert [(line["warc_offset"], line["reason"]) for line in quarantined(made)] == [
        (1, "missing_text"),
        (3, "missing_text"),
        (4, "missing_text"),
        (6, "bad_row"),
        (7, "bad_row"),
        (8, "bad_row"),  # of two values of one key one would be lost
    ]


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_the_prompts_that_a_model_answered_stay_with_its_texts(tmp_path: Path, form: Any):
    asked = [("Bread.", "Name a food."), ("Rice.", None), ("", "?")]
    rows = [{"text": text, "asked": prompt} for text, prompt in asked]
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    if form == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
        data = (tmp_path / "rows.parquet").read_bytes()
    made = extracted(tmp_path, {f"a.{form}": data}, form, prompt_field="asked")
    assert [(row["text"], row["prompt"]) for row in chain.rows(made)] == [("Bread.", "Name a food.")]
    assert [row["reason"] for row in chain.rows(made, "dropped")] == ["empty"]
    assert [(line["warc_offset"], line["reason"]) for line in quarantined(made)] == [(1, "missing_prompt")]
    without = extracted(tmp_path / "without", {f"a.{form}": data}, form)
    assert "prompt" not in chain.rows(without)[0]


def test_a_text_file_is_one_document(tmp_path: Path):
    whole = {"a.txt": "Brot ist süß.\r\n".encode("cp1252"), "b.txt.gz": gzip.compress(b"Flour, water.")}
    broken = {"c.txt": b" ", "d.txt.gz": gzip.compress(b"x" * 99)[:20], "e.txt": b"long " * 30}
    made = extracted(tmp_path, whole | broken, "files", recipe=ExtractRecipe(max_html_bytes=100))
    rows = [row for path in document_files(made) for row in pq.read_table(path).to_pylist()]
    assert [(row["text"], row["warc_offset"]) for row in rows] == [("Brot ist süß.", 0), ("Flour, water.", 0)]
    assert [line["reason"] for line in quarantined(made)] == ["damaged_compression", "too_large"]
    assert made.record()["counts"]["dropped"] == {"empty": 1}


def test_rows_of_which_none_can_be_used_are_bad_input_and_make_no_artifact(tmp_path: Path):
    with pytest.raises(DataError, match="none of 3 records"):
        extracted(tmp_path, {"a.jsonl": b'{"txt": "one"}\nno row\n{"txt": "three"}\n'}, "jsonl")
    assert not list(tmp_path.rglob("extracted_documents/**/artifact.json"))
    extracted(tmp_path, {"a.jsonl": b'{"txt": "one"}\n{"text": "flour and water"}\n'}, "jsonl")


@pytest.mark.parametrize(("suffix", "compress"), [("gz", gzip.compress), ("zst", zstandard.compress)])
def test_compressed_jsonl_passes_through_and_keeps_what_came_before_a_break(tmp_path: Path, suffix: str, compress: Any):
    rows = [{"text": f"{i} {os.urandom(90).hex()}"} for i in range(5000)]
    data = compress("".join(json.dumps(row) + "\n" for row in rows).encode())
    made = extracted(tmp_path / "whole", {f"a.jsonl.{suffix}": data}, "jsonl")
    assert [row["text"] for row in chain.rows(made)] == [row["text"] for row in rows]
    assert made.record()["counts"]["in"] == 5000
    cut = extracted(tmp_path / "cut", {f"a.jsonl.{suffix}": data[: len(data) // 2]}, "jsonl")
    kept = [row["warc_offset"] for row in chain.rows(cut)]
    assert kept == list(range(len(kept))) and 1000 < len(kept) < 4000
    assert [(line["reason"], line["warc_offset"]) for line in quarantined(cut)] == [("damaged_compression", len(kept))]


def test_parquet_passes_through_with_its_row_numbers(tmp_path: Path):
    rows = [row for row in ROWS if row.get("body") != 4]
    rows.insert(4, {"body": None})
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=2)
    data = (tmp_path / "a.parquet").read_bytes()
    made = extracted(tmp_path, {"a.parquet": data}, "parquet", text_field="body", url_field="link", label="books")
    assert_rows(made, "a.parquet")


def test_pages_of_which_the_extractor_is_in_doubt_are_counted(tmp_path: Path):
    aside = b"<div class=upnext><p>" + b"Knead the flour with water and salt, then leave it alone. " * 9 + b"</p></div>"
    body = b"<html><body><div class=text>" + f"<p>{WORDS}</p>".encode() + b"</div>" + aside * 3 + b"</body></html>"
    data = response("sure") + response("doubtful", body)
    made = extracted(tmp_path, {"a.warc.gz": data}, recipe=ExtractRecipe(extractor="blocks_or_trafilatura"))
    metrics = made.record()["metrics"]
    assert (metrics["doubtful_pages"], metrics["second_extractor_pages"]) == (1, 1)
    assert ["Knead" in row["text"] for row in chain.rows(made)] == [False, True]


# Real crawls


def real(tmp_path: Path, *paths: str, **options: Any) -> InputArtifact:
    return extract(tmp_path, SnapshotRecipe(name="real", source="warc", paths=paths), **options)


@pytest.mark.data
@pytest.mark.parametrize(
    ("path", "responses", "pages"),
    [
        ("data://crawl/snapshot-1/web-06-00000.warc.gz", 157, 153),
        ("data://crawl/snapshot-2/web-04-00000.warc.gz", 102, 98),  # sent with gzip content coding
    ],
)
def test_no_page_of_a_real_shard_is_skipped(tmp_path: Path, path: str, responses: int, pages: int):
    made = real(tmp_path, path)
    counts = made.record()["counts"]
    by_header = sum(counts["dropped"].get(reason, 0) for reason in ("http_status", "redirect", "not_html"))
    assert counts["in"] == responses
    assert counts["in"] - by_header == pages
    assert counts["kept"] >= pages - 5
    assert counts["quarantined"] == {}
    assert made.record()["metrics"]["replaced_characters"] == 0


@pytest.mark.data
@pytest.mark.parametrize(
    ("path", "kept", "dropped", "quarantined_reasons"),
    [
        ("dolma/sample-0000.warc.gz", 22, {"not_html": 2}, {}),
        ("whirlwind/whirlwind.warc.gz", 1, {}, {}),
        ("whirlwind/whirlwind.warc.wet.gz", 1, {}, {}),
        ("resiliparse/warcfile.warc.lz4", 14, {"no_main_text": 1, "too_short": 1}, {}),
        ("warcio/example-iana.org-chunked.warc", 1, {}, {}),
        ("warcio/example-wrong-chunks.warc.gz", 1, {}, {}),
        ("warcio/example-wget-bad-target-uri.warc.gz", 1, {"not_html": 2}, {}),
        ("warcio/example-trunc.warc", 0, {}, {"wrong_length": 1}),
    ],
)
def test_published_archives_with_quirks_are_read(
    tmp_path: Path, path: str, kept: int, dropped: dict[str, int], quarantined_reasons: dict[str, int]
):
    made = real(tmp_path, f"data://warc/{path}")
    counts = made.record()["counts"]
    assert (counts["kept"], counts["dropped"], counts["quarantined"]) == (kept, dropped, quarantined_reasons)
    for row in chain.rows(made):
        assert row["url"].startswith("http")
        assert not set("\0\r\ufffd") & set(row["text"])


@contextmanager
def busy_cores() -> Iterator[None]:
    """A process that never rests for each core."""
    command = [sys.executable, "-c", "while True: pass"]
    loops = [subprocess.Popen(command) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


@pytest.mark.data
def test_what_is_kept_depends_neither_on_workers_nor_on_what_else_the_machine_does(tmp_path: Path):
    paths = [f"data://warc/{name}" for name in ("dolma/sample-0000.warc.gz", "resiliparse/warcfile.warc.lz4")]
    recipe = ExtractRecipe(extractor="blocks")
    alone = real(tmp_path / "alone", *paths, recipe=recipe)
    with busy_cores():
        beside = real(tmp_path / "beside", *paths, recipe=recipe, workers=2)
    assert (beside.digest, beside.record()["counts"]) == (alone.digest, alone.record()["counts"])
    assert alone.record()["counts"]["kept"] > 30


@pytest.mark.data
def test_wiki_page_is_read_without_its_menus(tmp_path: Path):
    html = chain.rows(real(tmp_path / "html", "data://warc/whirlwind/whirlwind.warc.gz"))[0]
    wet = chain.rows(real(tmp_path / "wet", "data://warc/whirlwind/whirlwind.warc.wet.gz"))[0]
    assert html["url"] == wet["url"] == "https://an.wikipedia.org/wiki/Escopete"
    assert (html["language"], html["title"][:8]) == ("an", "Escopete")
    assert html["text"].startswith("Iste articlo") and "romanico" in html["text"]
    assert "Menú principal" in wet["text"] and "Menú principal" not in html["text"]


def test_documents_have_the_kind_that_their_extractor_tells(tmp_path):
    write_warc(tmp_path / "own.warc.gz", pages=2)
    kinds = {
        extractor: {
            row["kind"] for row in documents_of(tmp_path / "own.warc.gz", "warc", ExtractRecipe(extractor=extractor))
        }
        for extractor in ("blocks", "resiliparse")
    }
    assert kinds == {"blocks": {"prose"}, "resiliparse": {""}}


def fields_record(day: str, **fields: str) -> bytes:
    """A `warcinfo` record."""
    block = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items()).encode()
    made = gzip.decompress(record("warcinfo", "", block, "application/warc-fields"))
    return gzip.compress(made.replace(b"2024-05-18", day.encode()), mtime=0)


def fetched(name: str, day: str) -> bytes:
    return gzip.compress(gzip.decompress(response(name)).replace(b"2024-05-18", day.encode()), mtime=0)


def test_when_by_whom_and_from_where_pages_were_fetched_is_read_from_the_archives(tmp_path: Path):
    wget = '"-r" "--http-password=x" "--referer=http://no.test/" "http://me:pass@a.test/" "https://b.test/b?c" '
    files = {
        "a.warc.gz": fields_record("2026-01-01", software="Wget", robots="classic", wget_arguments=wget)
        + fetched("one", "2024-05-18")
        + fetched("two", "2024-03-02"),
        "b.warc.gz": fields_record("2020-01-01", software="Wget", operator="Ada (ada@a.test)")
        + fetched("three", "2024-07-09"),
    }
    kept = extracted(tmp_path, files).record()["notes"]["collection"]
    assert (kept["first_day"], kept["last_day"]) == ("2024-03-02", "2024-07-09")  # of the pages, not of the record
    assert kept["said"] == {
        "software": {"Wget": 2},
        "operator": {"Ada (ada@a.test)": 1},
        "robots": {"classic": 1},
        "seeds": {"http://a.test/": 1, "https://b.test/b?c": 1},
    }


def test_a_crawl_with_endless_fields_keeps_few_of_them(tmp_path: Path):
    infos = b"".join(fields_record("2026-01-01", software=f"{number:03d} " + "x" * 900) for number in range(80))
    said = extracted(tmp_path, {"a.warc.gz": infos + fetched("one", "2024-05-18")}).record()["notes"]["collection"]
    software = said["said"]["software"]
    assert (len(software), software[""], sum(software.values())) == (51, 30, 80)
    assert max(map(len, software)) == 300


def test_text_without_an_archive_says_nothing_of_its_collection(tmp_path: Path):
    line = json.dumps({"text": WORDS, "url": "http://a.test/"}).encode()
    assert "collection" not in extracted(tmp_path, {"a.jsonl": line}, source="jsonl").record()["notes"]
