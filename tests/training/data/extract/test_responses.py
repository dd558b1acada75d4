"""HTTP payloads: codings undone, quirks of crawlers taken as they are, bombs and damage refused."""

from __future__ import annotations

import gzip
import zlib

import brotli
import pytest
import zstandard

from training.data.extract.responses import PayloadError, Response, parse_response, payload

PAGE = b"<html><body>" + b"<p>text of a page</p>" * 200 + b"</body></html>"


def response(body: bytes, **headers: str) -> Response:
    return Response(status=200, headers={name.replace("_", "-"): value for name, value in headers.items()}, body=body)


def chunked(body: bytes, size: int = 1000) -> bytes:
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def raw_deflate(body: bytes) -> bytes:
    compress = zlib.compressobj(wbits=-15)
    return compress.compress(body) + compress.flush()


CODINGS = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": zstandard.compress,
}


def test_status_headers_and_body_are_told_apart():
    head = b'HTTP/1.1 404 Not Found\r\nContent-Type: text/HTML; Charset="Latin1"\r\n\r\n'
    made = parse_response(head + b"body\r\n\r\nmore")
    assert (made.status, made.body) == (404, b"body\r\n\r\nmore")
    assert (made.content_type, made.charset) == ("text/html", "Latin1")


STARTS = [b"HTTP/1.1 200 OK", b"HTTP/1.1 200\r\n", b"HTTP/2 200 \r\n\r\n", b"HTTP/1.0 200 OK\n\n"]


@pytest.mark.parametrize("head", STARTS)
def test_responses_without_body_or_with_bare_line_ends_are_read(head: bytes):
    assert (parse_response(head).status, parse_response(head).body) == (200, b"")


@pytest.mark.parametrize("content", [b"", b"<html>", b"GET / HTTP/1.1\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n"])
def test_what_is_no_response_is_refused(content: bytes):
    with pytest.raises(PayloadError, match="no status line") as caught:
        parse_response(content)
    assert caught.value.reason == "bad_http"


@pytest.mark.parametrize("coding", CODINGS)
def test_every_coding_is_undone(coding: str):
    assert payload(response(CODINGS[coding](PAGE), content_encoding=coding), max_bytes=10**6) == PAGE


def test_chunks_may_end_in_bare_line_ends_or_in_none():
    body = chunked(PAGE).replace(b"\r\n", b"\n")
    assert payload(response(body, transfer_encoding="chunked"), max_bytes=100_000) == PAGE
    assert payload(response(b"3\r\nabc2\r\nde0\r\n", transfer_encoding="chunked"), max_bytes=100) == b"abcde"


def test_codings_are_undone_in_reverse_order_and_after_chunks():
    body = chunked(brotli.compress(gzip.compress(PAGE)))
    made = response(body, content_encoding="gzip, br", transfer_encoding="chunked")
    assert payload(made, max_bytes=10**6) == PAGE


def test_bare_deflate_is_undone_too():
    assert payload(response(raw_deflate(PAGE), content_encoding="deflate"), max_bytes=10**6) == PAGE


@pytest.mark.parametrize("coding", [*CODINGS, "utf-8", "none", ""])
def test_a_body_that_was_stored_decoded_is_taken_as_it_is(coding: str):
    made = response(PAGE, content_encoding=coding, transfer_encoding="chunked")
    assert payload(made, max_bytes=10**6) == PAGE


@pytest.mark.parametrize("coding", CODINGS)
def test_a_body_that_breaks_off_is_damage(coding: str):
    body = CODINGS[coding](bytes(range(256)) * 100)
    with pytest.raises(PayloadError) as caught:
        payload(response(body[:-6], content_encoding=coding), max_bytes=10**6)
    assert caught.value.reason == "bad_content_encoding"


@pytest.mark.parametrize("coding", CODINGS)
def test_a_bomb_is_refused_at_the_limit(coding: str):
    body = CODINGS[coding](bytes(50_000_000))
    with pytest.raises(PayloadError) as caught:
        payload(response(body, content_encoding=coding), max_bytes=10**6)
    assert caught.value.reason == "bomb"


def test_a_large_page_is_cut_one_byte_after_the_limit():
    assert len(payload(response(gzip.compress(PAGE), content_encoding="gzip"), max_bytes=1000)) == 1001


@pytest.mark.parametrize("body", [b"5\r\nabcde\r\nxyz\r\n", b"ff\r\nshort", b"5\r\nabcde\r\n"])
def test_chunks_that_go_wrong_are_damage(body: bytes):
    with pytest.raises(PayloadError) as caught:
        payload(response(body, transfer_encoding="chunked"), max_bytes=1000)
    assert caught.value.reason == "bad_transfer_encoding"
