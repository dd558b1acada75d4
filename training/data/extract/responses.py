"""Parse HTTP responses from WARC records: status, headers, and the payload with its encodings removed.

RFC 9112 (chunked), RFC 9110 (content codings gzip, deflate, br, zstd). Every decoder stops at a limit.
"""

from __future__ import annotations

import re
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import brotli
import zstandard
from isal import isal_zlib

from training.data.crawl.warc import ZSTD_INPUT_BYTES, ZSTD_MAGIC, parse_headers

STATUS_LINE = re.compile(rb"HTTP/\d(?:\.\d)?[ \t]+(\d{3})\b[^\r\n]*(?:\r?\n|$)")
HEADER_END = re.compile(rb"\r?\n\r?\n")
CHUNK_SIZE = re.compile(rb"[ \t]*([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\r\n]*)?\r?\n")
LISTS = ("x-robots-tag", "content-usage", "content-signal", "link")  # headers of which every line counts
LIST_LINE = re.compile(rb"^(%b):[ \t]*(.*?)[ \t]*\r?$" % "|".join(LISTS).encode(), re.IGNORECASE | re.MULTILINE)
BOMB_RATIO = 200  # pages shrink 3 to 30 times; deflate can reach 1032

CHARSET = re.compile(r"""charset\s*=\s*["']?\s*([^\s"';,]+)""", re.IGNORECASE)


class PayloadError(ValueError):
    """A payload that cannot be read; `reason` is the reason for the quarantine."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(frozen=True, kw_only=True, slots=True)
class Response:
    """An HTTP response. `headers` have lower-case names; `body` is still encoded."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def content_type(self) -> str:
        """The media type in lower case, without parameters; empty if the server declares none."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def charset(self) -> str:
        """The charset that the response's header declares; empty if it declares none."""
        found = CHARSET.search(self.headers.get("content-type", ""))
        return found[1] if found else ""


def parse_response(data: bytes, start: int = 0, end: int = sys.maxsize) -> Response:
    """Parse the response in data[start:end], a record's block.

    Raise PayloadError if it does not begin with a status line.
    """
    status = STATUS_LINE.match(data, start, end)
    if not status:
        raise PayloadError("bad_http", f"no status line: {data[start:end][:40]!r}")
    blank = HEADER_END.search(data, status.end() - 2, end)
    head, body = (data[start : blank.start()], data[blank.end() : end]) if blank else (data[start:end], b"")
    headers = parse_headers(head)
    if any(name in headers for name in LISTS):
        lines = [(name.decode().lower(), line.decode("latin-1")) for name, line in LIST_LINE.findall(head)]
        headers |= {name: ", ".join(line for other, line in lines if other == name) for name, _ in lines}
    return Response(status=int(status[1]), headers=headers, body=body)


def payload(response: Response, *, max_bytes: int) -> bytes:
    """Return the body without transfer and content encodings, at most `max_bytes` + 1 bytes.

    Crawlers often store the body decoded but leave the header. So a body that does not begin as its encoding requires
    is returned unchanged. Raise PayloadError if the body cannot be decoded or is a decompression bomb.
    """
    body = next(without_chunks(response), response.body)
    for coding in reversed(response.headers.get("content-encoding", "").lower().split(",")):
        body = _decoded(body, coding.strip(), max_bytes)
    return body[: max_bytes + 1]


def without_chunks(response: Response) -> Iterator[bytes]:
    """Yield the body without its chunked transfer encoding; yield nothing if it is not chunked.

    Raise PayloadError if the chunks are damaged.
    """
    if "chunked" in response.headers.get("transfer-encoding", "").lower():
        yield _without_chunks(response.body)


def _without_chunks(body: bytes) -> bytes:
    if not CHUNK_SIZE.match(body):
        return body
    parts = []
    at = 0
    while True:
        head = CHUNK_SIZE.match(body, at)
        if not head:
            raise PayloadError("bad_transfer_encoding", f"no chunk size at byte {at} of {len(body)}")
        size = int(head[1], 16)
        if size == 0:
            return b"".join(parts)
        at = head.end() + size
        if at > len(body):
            raise PayloadError("bad_transfer_encoding", f"a chunk of {size} bytes at byte {head.end()} of {len(body)}")
        parts.append(body[head.end() : at])
        at += 2 if body[at : at + 2] == b"\r\n" else 1 if body[at : at + 1] == b"\n" else 0


def _decoded(body: bytes, coding: str, max_bytes: int) -> bytes:
    """Undo one content encoding of `body`; return at most `max_bytes` + 1 bytes."""
    if coding not in _DECODERS or not body:
        return body  # identity, or a word that is not an encoding (servers send "utf-8", "none")
    try:
        plain, consumed = _DECODERS[coding](body, max_bytes)
    except (isal_zlib.error, zlib.error, brotli.error, zstandard.ZstdError) as error:
        raise PayloadError("bad_content_encoding", f"{coding}: {error}") from None
    if len(plain) > max_bytes and len(plain) > BOMB_RATIO * consumed:
        raise PayloadError("bomb", f"{coding}: {consumed} bytes become {len(plain)}, and there are more")
    return plain


# Decoders return the plain bytes, at most one more than the limit, and the number of body bytes they consumed.


def _gunzipped(body: bytes, max_bytes: int) -> tuple[bytes, int]:
    if body[:2] != b"\x1f\x8b":
        return body, len(body)
    inflate = isal_zlib.decompressobj(wbits=31)
    plain = inflate.decompress(body, max_bytes + 1)
    if not inflate.eof and len(plain) <= max_bytes:
        raise _broken_off("gzip")
    return plain, len(body) - len(inflate.unconsumed_tail)


def _inflated(body: bytes, max_bytes: int) -> tuple[bytes, int]:
    """Decode `deflate`, which should be a zlib stream; some servers send a raw deflate stream."""
    for wbits in (15, -15):
        inflate = zlib.decompressobj(wbits)
        try:
            plain = inflate.decompress(body, max_bytes + 1)
        except zlib.error:
            continue
        if inflate.eof or len(plain) > max_bytes:
            return plain, len(body) - len(inflate.unconsumed_tail)
    if _is_markup(body):
        return body, len(body)
    raise _broken_off("deflate")


def _unbrotlied(body: bytes, max_bytes: int) -> tuple[bytes, int]:
    """Decode Brotli. It has no magic bytes, so a body that is stored decoded is recognized when decoding fails."""
    decoder = brotli.Decompressor()
    try:
        plain = decoder.process(body, output_buffer_limit=max_bytes + 1)
    except brotli.error:
        if _is_markup(body):
            return body, len(body)
        raise
    if not decoder.is_finished() and len(plain) <= max_bytes:
        raise _broken_off("br")
    return plain[: max_bytes + 1], len(body)


def _unzstded(body: bytes, max_bytes: int) -> tuple[bytes, int]:
    if body[:4] != ZSTD_MAGIC:
        return body, len(body)
    frame = zstandard.ZstdDecompressor(max_window_size=1 << 27).decompressobj()
    plain = bytearray()
    for at in range(0, len(body), ZSTD_INPUT_BYTES):
        plain += frame.decompress(body[at : at + ZSTD_INPUT_BYTES])
        if frame.eof or len(plain) > max_bytes:
            return bytes(plain[: max_bytes + 1]), at + ZSTD_INPUT_BYTES
    raise _broken_off("zstd")


def _is_markup(body: bytes) -> bool:
    return body.lstrip()[:1] == b"<"


def _broken_off(coding: str) -> PayloadError:
    return PayloadError("bad_content_encoding", f"{coding}: the body ends inside the stream")


_DECODERS = {
    "gzip": _gunzipped,
    "x-gzip": _gunzipped,
    "deflate": _inflated,
    "br": _unbrotlied,
    "zstd": _unzstded,
}
