"""Write a snapshot of the kitchen as WARC files, with the truth of every response in a file beside them."""

from __future__ import annotations

import gzip
import io
import json
import uuid
from http import HTTPStatus
from pathlib import Path
from typing import BinaryIO

from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

from training.data.kitchen.pages import REWORDED, KitchenPage, PagePlan, first_of, make, plan, snapshot_number
from training.data.kitchen.settings import KitchenWorld

_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "kitchen.example")
Truth = dict[str, object]


def write_snapshot(world: KitchenWorld, snapshot: str, out_dir: Path) -> list[Path]:
    """Write `<snapshot>-00000.warc.gz` … and `<snapshot>.truth.jsonl` into `out_dir`; return the WARC files.

    The same world gives the same bytes. Every file but the first ends in an unreadable record: a gzip member that is
    cut off, or a record longer than its file. Everything before these records is intact.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    number = snapshot_number(snapshot)
    planned = plan(world, number)
    first = first_of(world, number)
    paths, rows = [], []
    for i in range(world.files):
        path = out_dir / f"{snapshot}-{i:05d}.warc.gz"
        share = planned[i * len(planned) // world.files : (i + 1) * len(planned) // world.files]
        with path.open("wb") as stream:
            stream.write(_member(_info(path.name, number)))
            for j, one in enumerate(share):
                page = make(world, one)
                damage = ("", "cut", "long")[(i - 1) % 2 + 1] if i and j == len(share) - 1 else ""
                offset = _write_page(stream, page, number, damage)
                rows.append(_truth(page, snapshot, path.name, offset, first[one.origin], damage))
        paths.append(path)
    (out_dir / truth_name(snapshot)).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return paths


def truth_name(snapshot: str) -> str:
    """Return the name of the file with the truth about a snapshot's responses."""
    return f"{snapshot}.truth.jsonl"


def _write_page(stream: BinaryIO, page: KitchenPage, number: int, damage: str) -> int:
    """Write request and response; return the offset of the response in bytes."""
    stream.write(_member(_request(page, number)))
    offset = stream.tell()
    response = _member(_response(page, number))
    if damage == "cut":
        response = response[: len(response) // 2]
    elif damage == "long":
        response = _too_long(response)
    stream.write(response)
    return offset


def _too_long(member: bytes) -> bytes:
    """Return a WARC record whose header claims twice the length of its content, so that the record ends too early."""
    head, _, rest = gzip.decompress(member).partition(b"\r\n\r\n")
    lines = [
        b"Content-Length: %d" % (2 * len(rest)) if line.startswith(b"Content-Length:") else line
        for line in head.split(b"\r\n")
    ]
    return gzip.compress(b"\r\n".join(lines) + b"\r\n\r\n" + rest, mtime=0)


def _member(record: tuple[str, str, bytes, dict[str, str], StatusAndHeaders | None]) -> bytes:
    kind, url, payload, headers, http = record
    raw = io.BytesIO()
    writer = WARCWriter(raw, gzip=True, warc_version="1.0")
    content_type = "application/warc-fields" if kind == "warcinfo" else None
    made = writer.create_warc_record(
        url,
        kind,
        payload=io.BytesIO(payload),
        length=len(payload),
        warc_content_type=content_type or f"application/http; msgtype={kind}",
        warc_headers_dict=headers,
        http_headers=http,
    )
    writer.write_record(made)
    # warcio writes no time into the gzip header, so equal records give equal bytes.
    return raw.getvalue()


def _headers(name: str, date: str) -> dict[str, str]:
    return {"WARC-Record-ID": f"<urn:uuid:{uuid.uuid5(_NAMESPACE, name)}>", "WARC-Date": f"{date}T12:00:00Z"}


def _crawl_date(number: int) -> str:
    return f"{2031 + number // 12}-{number % 12 + 1:02d}-28"


def _info(name: str, number: int) -> tuple[str, str, bytes, dict[str, str], None]:
    fields = "software: pedigree kitchen\r\nformat: WARC File Format 1.0\r\nrobots: obey\r\n"
    return "warcinfo", "", fields.encode(), {**_headers(name, _crawl_date(number)), "WARC-Filename": name}, None


def _request(page: KitchenPage, number: int) -> tuple[str, str, bytes, dict[str, str], StatusAndHeaders]:
    http = StatusAndHeaders(
        f"GET /{page.plan.path} HTTP/1.1", [("Host", page.plan.site.host), ("Accept", "*/*")], is_http_request=True
    )
    return "request", page.plan.url, b"", _headers(f"request/{page.plan.key}", _crawl_date(number)), http


def _response(page: KitchenPage, number: int) -> tuple[str, str, bytes, dict[str, str], StatusAndHeaders]:
    headers = [("Server", "kitchen"), ("Date", "Sat, 01 Feb 2031 12:00:00 GMT"), *page.headers]
    if not any(name == "Content-Length" for name, _ in headers):
        headers.append(("Content-Length", str(len(page.body))))
    http = StatusAndHeaders(f"{page.status} {HTTPStatus(page.status).phrase}", headers, protocol="HTTP/1.1")
    return "response", page.plan.url, page.body, _headers(f"response/{page.plan.key}", _crawl_date(number)), http


def _truth(page: KitchenPage, snapshot: str, file: str, offset: int, first: PagePlan, damage: str) -> Truth:
    fate, reason = ("quarantined", damage) if damage else (page.fate, page.reason)
    is_copy = fate in ("kept", "duplicate") and page.plan.key != first.key
    if is_copy:
        fate, reason = "duplicate", "near" if {page.plan.kind, first.kind} & set(REWORDED) else "exact"
    elif fate == "duplicate":
        # The copy comes before its original in the archive, so deduplication keeps the copy.
        fate, reason = "kept", ""
    return {
        "url": page.plan.url,
        "snapshot": snapshot,
        "warc_file": file,
        "warc_offset": offset,
        "kind": page.plan.kind,
        "form": page.plan.form,
        "fate": fate,
        "reason": reason,
        "duplicate_of": first.url if is_copy else None,
        "language": page.language,
        "personal": page.personal,
        "decoys": page.decoys,
        "items": list(page.items),
        "title": page.title,
        "text": page.text,
    }
