"""Overwrite single records of an archive, so that every other record keeps its offset and thus its id.

A WARC record keeps its type, address, date and length on disk; its block becomes an HTTP response `410 Gone` and its
digests go. The extraction drops such a record by its takedown list before it looks at the block, so it makes what it
would make of the original. `WARC-Truncated: unspecified` marks it (ISO 28500).

A gzip member is padded by a comment in its header, a zstd frame by a skippable frame behind it. In a file that is
compressed as a whole, offsets count plain bytes, so the plain record is overwritten and the file is compressed again.
An LZ4 frame cannot be padded; its records are returned as not overwritten. Of a damaged record everything up to the
next record is overwritten, if its header can be read.
"""

from __future__ import annotations

import gzip
import mmap
import os
import random
import shutil
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import IO

import zstandard

from training.contract.files.writing import temporary_for
from training.data.crawl.warc import (
    GZIP_MAGIC,
    HEADER_END,
    LONGEST_RECORD_START,
    LZ4_MAGIC,
    MAX_HEADER_BYTES,
    RECORD_START,
    VERSION,
    ZSTD_DICTIONARY_MAGIC,
    ZSTD_MAGIC,
    damaged_part,
    parse_headers,
)
from training.data.documents import decompressed

GONE = b"HTTP/1.1 410 Gone\r\n\r\n"
MARK = b"WARC-Truncated: unspecified"
KEPT_HEADERS = ("warc-type", "warc-target-uri", "warc-date", "warc-record-id", "content-type")
SKIPPABLE_MAGIC = b"\x50\x2a\x4d\x18"
LEAST_SKIPPABLE = 8  # bytes of a skippable frame without content
TRIES = 64


def overwrite_records(path: Path, offsets: Collection[int], out: IO[bytes]) -> tuple[int, list[int]]:
    """Write to `out` the archive at `path` with the records at these offsets overwritten.

    Return how many records were overwritten, and the offsets at which nothing could be overwritten. A record that was
    overwritten before counts as neither.
    """
    with open(path, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        magic = data[:4]
        is_packed = magic[:3] == GZIP_MAGIC or magic in (ZSTD_MAGIC, ZSTD_DICTIONARY_MAGIC, LZ4_MAGIC)
        if is_packed and not _is_one_member(data):
            return _by_member(data, sorted(offsets), out)
    if not is_packed:
        shutil.copyfile(path, out.name)
        return _in_plain(out, sorted(offsets))
    plain = temporary_for(path)
    try:
        with open(plain, "w+b") as unpacked:
            kind = ".gz" if magic[:3] == GZIP_MAGIC else ".zst"
            with open(path, "rb") as stream, decompressed(stream, kind) as raw:
                shutil.copyfileobj(raw, unpacked, 1 << 20)
            told = _in_plain(unpacked, sorted(offsets))
            unpacked.seek(0)
            if kind == ".gz":
                with gzip.GzipFile(filename="", fileobj=out, mode="wb", mtime=0) as packed:
                    shutil.copyfileobj(unpacked, packed, 1 << 20)
            else:
                zstandard.ZstdCompressor().copy_stream(unpacked, out)
        return told
    finally:
        plain.unlink(missing_ok=True)


def _is_one_member(data: mmap.mmap) -> bool:
    """Whether a packed file is one member that holds more than one record."""
    found = _member_at(data, 0)
    return found is not None and found[1] == len(data) and _end_of_record(found[0]) not in (None, len(found[0]))


def _end_of_record(plain: bytes) -> int | None:
    """Return where the record at the start of `plain` ends, its blank lines included; None if there is none."""
    head = HEADER_END.search(plain, 0, MAX_HEADER_BYTES)
    if head is None or not VERSION.match(plain):
        return None
    length = parse_headers(plain[: head.start()]).get("content-length", "")
    if not length.isdigit() or head.end() + int(length) > len(plain):
        return None
    rest = plain[head.end() + int(length) :]
    return len(plain) - len(rest.lstrip(b"\r\n"))


def _by_member(data: mmap.mmap, offsets: list[int], out: IO[bytes]) -> tuple[int, list[int]]:
    done, failed = 0, []
    for start in range(0, len(data), 1 << 20):
        out.write(data[start : start + (1 << 20)])
    for offset in offsets:
        found = _record_at(data, offset)
        if found is None:
            failed.append(offset)
            continue
        plain, following = found
        if MARK in plain[:MAX_HEADER_BYTES].partition(b"\r\n\r\n")[0]:
            continue
        magic = data[offset : offset + 4]
        member = _packed(plain, following - offset, magic)
        if member is None and following == len(data):
            member = _packed(plain, None, magic)  # nothing follows that must keep its offset
        if member is None:
            failed.append(offset)
            continue
        out.seek(offset)
        out.write(member)
        done += 1
    return done, failed


def _record_at(data: mmap.mmap, offset: int) -> tuple[bytes, int] | None:
    """Return the plain bytes of the record at an offset, and where the next one begins.

    Of a damaged record, these are the bytes that can be read. None if its header is not among them, or if other records
    could be lost with it.
    """
    whole = _member_at(data, offset)
    if whole is not None and _end_of_record(whole[0]) == len(whole[0]):
        return whole
    if not data[offset : offset + 4].startswith((GZIP_MAGIC, ZSTD_MAGIC)) or data[:4] == ZSTD_DICTIONARY_MAGIC:
        return None
    plain, following = damaged_part(data, offset)
    head = HEADER_END.search(plain, 0, MAX_HEADER_BYTES)
    if head is None or not VERSION.match(plain) or RECORD_START.search(plain, head.end()):
        return None
    return (plain, following) if whole is None or whole[1] == following else None


def _member_at(data: mmap.mmap, offset: int) -> tuple[bytes, int] | None:
    """Return the plain bytes of the member at an offset, and where it ends; None if it cannot be read."""
    magic = data[offset : offset + 4]
    try:
        if magic[:3] == GZIP_MAGIC:
            inflate = zlib.decompressobj(wbits=31)
            plain, at = bytearray(), offset
            while not inflate.eof and at < len(data):
                plain += inflate.decompress(data[at : at + (1 << 16)])
                at += 1 << 16
            return (bytes(plain), min(at, len(data)) - len(inflate.unused_data)) if inflate.eof else None
        if magic == ZSTD_MAGIC:
            frame, plain, at = zstandard.ZstdDecompressor().decompressobj(), bytearray(), offset
            while not frame.eof and at < len(data):
                plain += frame.decompress(data[at : at + (1 << 16)])
                at += 1 << 16
            return (bytes(plain), min(at, len(data)) - len(frame.unused_data)) if frame.eof else None
    except (zlib.error, zstandard.ZstdError):
        return None
    return None


def _packed(plain: bytes, size: int | None, magic: bytes) -> bytes | None:
    """Return a member of exactly `size` bytes with what stays of a record; None if it does not fit.

    Without a size the member has no padding.
    """
    if magic[:3] == GZIP_MAGIC:
        body = zlib.compress(_record(plain), 9, wbits=-15)
        room = size - 10 - len(body) - 8 if size is not None else 0
        if room < 0:
            return None
        flags, comment = (b"\x10", b" " * (room - 1) + b"\x00") if room else (b"\x00", b"")
        check = zlib.crc32(_record(plain)).to_bytes(4, "little") + len(_record(plain)).to_bytes(4, "little")
        return GZIP_MAGIC + flags + b"\x00" * 4 + b"\x02\xff" + comment + body + check
    chance = random.Random(0)
    for length in range(TRIES):  # one more header line, until what is missing can be a skippable frame
        more = b"Padding: %s\r\n" % bytes(chance.choices(b"0123456789abcdef", k=length)) if length else b""
        body = zstandard.ZstdCompressor(level=19).compress(_record(plain, more))
        room = size - len(body) if size is not None else 0
        if room == 0:
            return body
        if room >= LEAST_SKIPPABLE:
            left = room - LEAST_SKIPPABLE
            return body + SKIPPABLE_MAGIC + left.to_bytes(4, "little") + b"\x00" * left
    return None


def _record(plain: bytes, more: bytes = b"") -> bytes:
    """Return what stays of a record: its address and its place, and no word of its block."""
    head = plain.partition(b"\r\n\r\n")[0]
    version, *lines = head.split(b"\r\n")
    kept = [line for line in lines if line.partition(b":")[0].strip().lower().decode("latin-1") in KEPT_HEADERS]
    block = GONE if b"msgtype=response" in head or b"WARC-Type: response" in head else b""
    fields = b"\r\n".join([version, *kept, MARK, b"Content-Length: %d" % len(block)])
    return fields + b"\r\n" + more + b"\r\n" + block + b"\r\n\r\n"


def _in_plain(stream: IO[bytes], offsets: list[int]) -> tuple[int, list[int]]:
    """Overwrite records of a plain file in place, each by one of the same length."""
    done, failed = 0, []
    for offset in offsets:
        stream.seek(offset)
        head = stream.read(MAX_HEADER_BYTES)
        end = HEADER_END.search(head)
        length = parse_headers(head[: end.start()]).get("content-length", "") if end and VERSION.match(head) else ""
        if end is None or not length.isdigit():
            failed.append(offset)
            continue
        size = _block_bytes(stream, offset + end.end(), int(length))
        block = GONE[:size].ljust(size)
        stream.seek(offset + end.end())
        if stream.read(size) == block:
            continue
        stream.seek(offset)
        stream.write(_without_digests(head[: end.start()]))
        stream.seek(offset + end.end())
        stream.write(block)
        done += 1
    return done, failed


def _block_bytes(stream: IO[bytes], start: int, length: int) -> int:
    """Return the bytes of a record's block: the stated length, or, if it is wrong, those up to the next record."""
    size = stream.seek(0, os.SEEK_END)
    stream.seek(start + length)
    rest = stream.read(LONGEST_RECORD_START).lstrip(b"\r\n")
    if start + length <= size and (not rest or VERSION.match(rest)):
        return length
    at, seen = stream.seek(start), b""  # the end of the bytes before `at`, in which a record may begin
    while chunk := stream.read(1 << 20):
        if found := RECORD_START.search(seen + chunk):
            return at - len(seen) + found.start() - start
        at, seen = at + len(chunk), (seen + chunk)[-LONGEST_RECORD_START:]
    return size - start


def _without_digests(head: bytes) -> bytes:
    """Return a header of the same length whose digests are blank."""
    lines = head.split(b"\n")
    for number, line in enumerate(lines):
        name, colon, value = line.partition(b":")
        if name.strip().lower().endswith(b"-digest"):
            end = b"\r" if value.endswith(b"\r") else b""
            lines[number] = name + colon + b" " + b"-" * (len(value) - len(end) - 1) + end
    return b"\n".join(lines)
