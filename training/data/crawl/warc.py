"""WARC files read record by record, with every damaged stretch reported and nothing after it lost.

Reads gzip, zstd and LZ4, one record a member or the file as a whole, and plain files. FastWARC 2.0.1 (measured) ends
silently at a record that the end of a file cuts off, stops at the first damaged member, and gives every record of a
file compressed as a whole the same offset; hence this reader. It holds one record in memory, and of that no more than
asked for.

Formats: WARC 0.17 to 1.1 (ISO 28500), RFC 1952 (gzip), RFC 8878 (zstd), LZ4 frame format 1.6.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import zstandard
from isal import isal_zlib

MAX_HEADER_BYTES = 65_536
INPUT_BYTES = 65_536  # compressed bytes handed to a decompressor at a time
LEAST_INPUT_BYTES, MOST_INPUT_BYTES = 16_384, 262_144  # for a member that may be read whole
ZSTD_INPUT_BYTES = (
    1024  # its output has no limit; a block of 128 KiB takes 4 bytes, so a hostile KiB gives at most 32 MiB
)
CHUNK_BYTES = 1 << 20  # most that a decompressor may return at a time, whatever a hostile member expands to

GZIP_MAGIC = b"\x1f\x8b\x08"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
ZSTD_DICTIONARY_MAGIC = b"\x5d\x2a\x4d\x18"
LZ4_MAGIC = b"\x04\x22\x4d\x18"

VERSION = re.compile(rb"WARC/\d\.\d{1,2}[ \t]*\r?\n")
# Searched for only after damage, where what stands before a record may be anything.
RECORD_START = re.compile(rb"WARC/\d\.\d{1,2}[ \t]*\r?\n(?=[A-Za-z])")
HEADER_END = re.compile(rb"\r?\n\r?\n")
LONGEST_RECORD_START = 32


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Record:
    """One record. `offset` is the byte in the file where its member starts.

    Where the file is not compressed, or as a whole, it is the byte in the uncompressed stream where the record starts.
    `headers` have lower-case names. The record's block, cut after `max_content_bytes` when `content_length` is larger,
    is `buffer[start:end]`: pages are large, and whoever takes a part of one need not copy it all first.
    """

    offset: int
    headers: dict[str, str]
    buffer: bytes
    start: int
    end: int
    content_length: int

    @property
    def content(self) -> bytes:
        """The block, or as much of it as was asked for."""
        return self.buffer[self.start : self.end]

    @property
    def type(self) -> str:
        """WARC-Type: response, resource, conversion, request, metadata, revisit, warcinfo, continuation."""
        return self.headers.get("warc-type", "").lower()

    @property
    def is_cut(self) -> bool:
        """Whether the block was longer than asked for."""
        return self.content_length > self.end - self.start

    @property
    def target_uri(self) -> str:
        """WARC-Target-URI, without the angle brackets of old Wget versions."""
        uri = self.headers.get("warc-target-uri", "")
        return uri[1:-1] if uri.startswith("<") and uri.endswith(">") else uri


@dataclass(frozen=True, kw_only=True, slots=True)
class Damage:
    """A stretch of a file, from `offset` to the next readable record, that holds no readable record."""

    offset: int
    reason: str
    detail: str


class _Damaged(Exception):
    """The stream cannot go on: `offset` is the compressed offset of the member at fault."""

    def __init__(self, offset: int, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.offset, self.reason, self.detail = offset, reason, detail
        self.is_told = False  # of the same member a Damage was given already, and no record since


def read_warc(path: Path, *, max_content_bytes: int) -> Iterator[Record | Damage]:
    """Every record of a file in order, with a Damage wherever something could not be read. Offsets only rise.

    An empty file gives nothing.
    """
    if path.stat().st_size == 0:
        return
    with open(path, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        yield from _Reader(data, max_content_bytes).records()


# Members: compressed bytes to plain ones. Each codec yields (offset, b"") where a member begins, (None, chunk) for what
# is in it, and END when it was complete and its checksum right; it raises _Damaged.

_Event = tuple[int | None, bytes]
END: _Event = (-1, b"")


def _plain(data: mmap.mmap, start: int) -> Iterator[_Event]:
    for at in range(start, len(data), CHUNK_BYTES):
        yield None, data[at : at + CHUNK_BYTES]


def _gzip(data: mmap.mmap, start: int) -> Iterator[_Event]:
    at = start
    while at < len(data):
        if data[at : at + 3] != GZIP_MAGIC:
            if _is_zeros(data, at):
                return  # padding
            raise _Damaged(at, "damaged_compression", "no gzip member where one should begin")
        yield at, b""
        at = yield from _gzip_member(data, at)
        yield END


def _gzip_member(data: mmap.mmap, start: int) -> Iterator[_Event]:
    inflate = isal_zlib.decompressobj(wbits=31)
    at = start
    given = 0
    pending = b""
    while not inflate.eof:
        if not pending:
            pending = data[at : at + INPUT_BYTES]
            at += len(pending)
        try:
            chunk = inflate.decompress(pending, CHUNK_BYTES)
        except isal_zlib.error as error:
            yield from ((None, chunk) for chunk in _before_damage(data, start, at - len(pending), given))
            raise _Damaged(start, "damaged_compression", f"gzip: {error}") from None
        if not pending and not chunk and not inflate.eof:
            raise _Damaged(start, "truncated", "the file ends inside a gzip member")
        pending = inflate.unconsumed_tail
        if chunk:
            given += len(chunk)
            yield None, chunk
    return at - len(inflate.unused_data)


def _before_damage(data: mmap.mmap, start: int, at: int, given: int) -> Iterator[bytes]:
    """What a damaged gzip member still holds after its first `given` plain bytes: a call that fails returns nothing,
    so it is inflated again and, from the input at `at` on, byte by byte. A file as one member has many records there.
    """
    inflate = isal_zlib.decompressobj(wbits=31)
    try:
        while True:
            step = min(1024, at - start) or 1
            chunk = inflate.decompress(data[start : start + step])
            start, at = start + step, max(at, start + step)
            if chunk[given:]:
                yield chunk[given:]
            given = max(0, given - len(chunk))
    except isal_zlib.error:
        return


def _is_zeros(data: mmap.mmap, at: int) -> bool:
    return not any(any(data[i : i + CHUNK_BYTES]) for i in range(at, len(data), CHUNK_BYTES))


def _zstd(data: mmap.mmap, start: int) -> Iterator[_Event]:
    decompressor = zstandard.ZstdDecompressor(dict_data=_zstd_dictionary(data), max_window_size=1 << 27)
    at = start
    while at < len(data):
        magic = data[at : at + 4]
        if magic[1:] == b"\x2a\x4d\x18" and 0x50 <= magic[0] <= 0x5F:
            at += 8 + int.from_bytes(data[at + 4 : at + 8], "little")  # a skippable frame
            continue
        if magic != ZSTD_MAGIC:
            raise _Damaged(at, "damaged_compression", "no zstd frame where one should begin")
        yield at, b""
        at = yield from _zstd_frame(decompressor, data, at)
        yield END


def _zstd_dictionary(data: mmap.mmap) -> zstandard.ZstdCompressionDict | None:
    """The dictionary that a file carries in its first frame (WARC with zstd, IIPC draft), perhaps compressed itself."""
    if data[:4] != ZSTD_DICTIONARY_MAGIC:
        return None
    content = data[8 : 8 + int.from_bytes(data[4:8], "little")]
    if content[:4] == ZSTD_MAGIC:
        content = zstandard.ZstdDecompressor().decompressobj().decompress(content)
    return zstandard.ZstdCompressionDict(content)


def _zstd_frame(decompressor: zstandard.ZstdDecompressor, data: mmap.mmap, start: int) -> Iterator[_Event]:
    frame = decompressor.decompressobj()
    at = start
    while not frame.eof:
        block = data[at : at + ZSTD_INPUT_BYTES]
        at += len(block)
        if not block:
            raise _Damaged(start, "truncated", "the file ends inside a zstd frame")
        try:
            chunk = frame.decompress(block)
        except zstandard.ZstdError as error:
            raise _Damaged(start, "damaged_compression", f"zstd: {error}") from None
        if chunk:
            yield None, chunk
    return at - len(frame.unused_data)


def _lz4(data: mmap.mmap, start: int) -> Iterator[_Event]:
    from fastwarc.stream_io import Lz4Reader

    at = start
    while at < len(data):
        end = _lz4_frame_end(data, at)
        yield at, b""
        try:
            reader = Lz4Reader(BytesIO(data[at:end]))
            while chunk := reader.read(CHUNK_BYTES):
                yield None, chunk
        except OSError as error:
            raise _Damaged(at, "damaged_compression", f"lz4: {error}") from None
        yield END
        at = end


def _lz4_frame_end(data: mmap.mmap, start: int) -> int:
    """Where the LZ4 frame that begins at `start` ends: header, blocks with their sizes, end mark, checksum."""
    if data[start : start + 4] != LZ4_MAGIC:
        raise _Damaged(start, "damaged_compression", "no LZ4 frame where one should begin")
    flags = data[start + 4] if start + 4 < len(data) else 0
    at = start + 7 + (8 if flags & 8 else 0) + (4 if flags & 1 else 0)
    while at + 4 <= len(data):
        size = int.from_bytes(data[at : at + 4], "little")
        at += 4
        if size == 0:
            end = at + (4 if flags & 4 else 0)
            if end <= len(data):
                return end
            break
        at += (size & 0x7FFFFFFF) + (4 if flags & 16 else 0)
    raise _Damaged(start, "truncated", "the file ends inside an LZ4 frame")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Codec:
    magic: bytes
    events: Callable[[mmap.mmap, int], Iterator[_Event]]


CODECS = (
    _Codec(magic=GZIP_MAGIC, events=_gzip),
    _Codec(magic=ZSTD_MAGIC, events=_zstd),
    _Codec(magic=ZSTD_DICTIONARY_MAGIC, events=_zstd),
    _Codec(magic=LZ4_MAGIC, events=_lz4),
)
PLAIN = _Codec(magic=b"", events=_plain)


def _codec_of(data: mmap.mmap) -> _Codec:
    """The codec by the first bytes, or, where those are damaged, by the first magic that leads to a record."""
    for codec in CODECS:
        if data[: len(codec.magic)] == codec.magic:
            return codec
    if not VERSION.match(data):
        for codec in CODECS:
            if _next_member(data, codec, 1) < len(data):
                return codec
    return PLAIN


def _next_member(data: mmap.mmap, codec: _Codec, at: int) -> int:
    """Offset of the next member from `at` on that begins with a record; the file's length when there is none."""
    magic = ZSTD_MAGIC if codec.magic == ZSTD_DICTIONARY_MAGIC else codec.magic
    while magic and (at := data.find(magic, at)) >= 0:
        if _begins_with_record(data, codec, at):
            return at
        at += 1
    return len(data)


def _begins_with_record(data: mmap.mmap, codec: _Codec, at: int) -> bool:
    try:
        for offset, chunk in codec.events(data, at):
            if chunk:
                return VERSION.match(chunk) is not None
            if (offset, chunk) == END:
                return False
    except _Damaged:
        pass
    return False


class _Stream:
    """The plain bytes of a file from the member at `base` on, and the member that is being read."""

    def __init__(self, data: mmap.mmap, codec: _Codec, base: int, *, position: int) -> None:
        self._events = codec.events(data, base)
        self._damage: _Damaged | None = None  # where the events ended; said again whenever more is asked for
        self.position = position  # in the plain stream, of the buffer's first byte
        self.buffer = bytearray()
        self.member = base
        self.member_position = position  # where that member starts in the plain stream
        self.at_end = False

    def more(self) -> bool:
        """Read on by one event. True when it was bytes; False at the end of a member or of everything."""
        if self._damage:
            raise self._damage
        try:
            for event in self._events:
                offset, chunk = event
                if chunk:
                    self.buffer += chunk
                    return True
                if event == END:
                    return False
                self.member, self.member_position = offset, self.position + len(self.buffer)
        except _Damaged as error:
            self._damage = error
            raise
        self.at_end = True
        return False

    def drop(self, size: int) -> None:
        """Forget the first `size` bytes of the buffer."""
        del self.buffer[:size]
        self.position += size

    def skip(self, size: int) -> None:
        """Move on by `size` bytes, or to the end, without holding them."""
        while size and not self.at_end:
            step = min(size, len(self.buffer))
            self.drop(step)
            size -= step
            if size:
                self.more()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Start:
    """Where a record starts: in the plain stream, and which member it is in."""

    position: int
    member: int
    member_position: int


@dataclass(frozen=True, slots=True)
class _Member:
    """A gzip member that is one sound record: its bytes, where in them the block begins, and the offset behind it."""

    plain: bytes
    headers: dict[str, str]
    begin: int
    length: int
    following: int


def _whole_member(data: memoryview, at: int, input_bytes: int, max_content: int) -> _Member | None:
    """The member at `at` where it is one sound record that is not much longer than what is asked for; else None.

    `input_bytes` is a guess at its length: one that is high enough inflates it at once, into one buffer.
    """
    most = max_content + MAX_HEADER_BYTES
    inflate = isal_zlib.decompressobj(wbits=31)
    parts: list[bytes] = []
    held = 0
    try:
        while not inflate.eof:
            pending = data[at : at + input_bytes]
            if not pending or held >= most or inflate.unconsumed_tail:
                return None  # cut off; or longer than asked for, which is for the way that holds little
            at += len(pending)
            parts.append(inflate.decompress(pending, most))
            held += len(parts[-1])
            input_bytes = INPUT_BYTES
    except isal_zlib.error:
        return None
    plain = parts[0] if len(parts) == 1 else b"".join(parts)
    end = plain.find(b"\r\n\r\n", 0, MAX_HEADER_BYTES)
    if end < 0 or not VERSION.match(plain):
        return None
    try:
        headers = _warc_headers(plain[:end])
        length = _content_length(headers)
    except _Malformed:
        return None
    begin = end + 4
    if len(plain) < begin + length or plain[begin + length :].strip(b"\r\n"):
        return None
    return _Member(plain, headers, begin, length, at - len(inflate.unused_data))


class _Reader:
    def __init__(self, data: mmap.mmap, max_content_bytes: int) -> None:
        self._data = data
        self._max_content = max_content_bytes
        self._codec = _codec_of(data)
        # A file whose first member goes on after its first record is compressed as a whole: offsets count plain bytes.
        self._by_member: bool | None = False if self._codec is PLAIN else None
        self._last_offset = -1
        self._start: _Start | None = None  # of the record being read; None between records

    def records(self) -> Iterator[Record | Damage]:
        at = position = 0
        while True:
            if self._codec.magic == GZIP_MAGIC:
                at = yield from self._whole_members(at)
            stream = _Stream(self._data, self._codec, at, position=max(at, position))
            try:
                following = yield from self._records_of(stream)
                if following is None:
                    return
                at, position = following, stream.position
            except _Damaged as error:
                where = self._start or _Start(
                    position=self._position, member=error.offset, member_position=self._position
                )
                if not error.is_told:
                    yield Damage(offset=self._offset(where), reason=error.reason, detail=error.detail)
                following = _next_member(self._data, self._codec, error.offset + 1)
                if following == len(self._data):
                    return
                at, position = following, max(where.position, self._position) + 1

    def _whole_members(self, at: int) -> Generator[Record, None, int]:
        """The records of gzip members that hold one sound record each, which nearly all do, from `at` on.

        Returns the offset of the first member that is anything else; what is wrong there, `_records_of` finds out. This
        way costs a fifth of that one.
        """
        if self._by_member is False:
            return at
        size = before = LEAST_INPUT_BYTES
        with memoryview(self._data) as view:
            while at < len(view):
                # Requests are short and answers long, by turns: the longer of the last two says what may come.
                guess = min(MOST_INPUT_BYTES, max(LEAST_INPUT_BYTES, 4 * size, 4 * before))
                member = _whole_member(view, at, guess, self._max_content)
                if member is None:
                    return at
                self._by_member = True
                self._last_offset = max(at, self._last_offset + 1)
                yield Record(
                    offset=self._last_offset,
                    headers=member.headers,
                    buffer=member.plain,
                    start=member.begin,
                    end=member.begin + min(member.length, self._max_content),
                    content_length=member.length,
                )
                size, before = member.following - at, size
                at = member.following
        return at

    def _records_of(self, stream: _Stream) -> Generator[Record | Damage, None, int | None]:
        """The records from the stream's position on, read with care, to the end; or up to a gzip member that may again
        be read whole, whose offset is returned."""
        first = stream.member
        while True:
            self._start, self._position = None, stream.position
            while not stream.buffer and not stream.at_end:
                self._skip_blank_lines(stream)
            if not stream.buffer:
                return None
            self._position = stream.position
            is_new = stream.member != first and stream.member_position == stream.position
            if is_new and self._by_member and self._codec.magic == GZIP_MAGIC:
                return stream.member
            start = self._start = _Start(
                position=stream.position, member=stream.member, member_position=stream.member_position
            )
            try:
                yield self._record(stream, start)
            except _Malformed as error:
                self._start = None
                yield Damage(offset=self._offset(start), reason=error.reason, detail=error.detail)
                try:
                    stream = self._resynchronized(start)
                except _Damaged as damage:
                    damage.is_told = damage.offset == start.member
                    raise

    def _record(self, stream: _Stream, start: _Start) -> Record:
        """The record at the stream's position, complete and, where it ends its member, with the checksum verified."""
        headers, header_bytes = self._headers(stream)
        length = _content_length(headers)
        follow = len(self._data) - start.position - header_bytes
        if self._codec is PLAIN and length > follow:
            raise _Malformed("truncated", f"Content-Length is {length}, {follow} bytes follow")
        stream.drop(header_bytes)
        content = self._content(stream, length)
        num_line_ends, ends_member = self._skip_blank_lines(stream, by_member=self._by_member)
        # A blank line after the block says as well that the length was right; what follows it is then another matter.
        # But where bytes of the block are missing, that may be the blank line of the next record's header, or the next
        # record may be inside the block but for its own last line end.
        is_next = VERSION.match(stream.buffer) is not None
        is_odd = not is_next or num_line_ends != 2
        if not ends_member and ((not is_next and num_line_ends < 2) or (is_odd and RECORD_START.search(content))):
            raise _Malformed("wrong_length", f"no record follows after Content-Length {length}")
        if self._by_member is None:
            self._by_member = ends_member
        offset = self._offset(start)
        return Record(offset=offset, headers=headers, buffer=content, start=0, end=len(content), content_length=length)

    def _headers(self, stream: _Stream) -> tuple[dict[str, str], int]:
        """The WARC header at the stream's position, and its length in bytes with the blank line."""
        while len(stream.buffer) < LONGEST_RECORD_START:
            self._read_on(stream)
        if not VERSION.match(stream.buffer):
            raise _Malformed("not_a_record", f"expected WARC/1.0 or the like, found {bytes(stream.buffer[:24])!r}")
        while not (end := HEADER_END.search(stream.buffer, 0, MAX_HEADER_BYTES)):
            if len(stream.buffer) >= MAX_HEADER_BYTES:
                raise _Malformed("bad_header", f"no end of the header within {MAX_HEADER_BYTES} bytes")
            self._read_on(stream)
        return _warc_headers(bytes(stream.buffer[: end.start()])), end.end()

    def _content(self, stream: _Stream, length: int) -> bytes:
        """The first `max_content_bytes` of a record's block; the stream then stands after the block."""
        kept = min(length, self._max_content)
        content = bytearray()
        left = length
        while left:
            while not stream.buffer:
                self._read_on(stream)
            step = min(left, len(stream.buffer))
            content += stream.buffer[: min(step, kept - len(content))]
            stream.drop(step)
            left -= step
        return bytes(content)

    @staticmethod
    def _read_on(stream: _Stream) -> None:
        """Read more of a record. It may span members, but not one that begins with a record of its own."""
        if stream.more():
            return
        before = len(stream.buffer)
        while len(stream.buffer) < before + LONGEST_RECORD_START and not stream.at_end:
            stream.more()
        if len(stream.buffer) == before or VERSION.match(stream.buffer, before):
            raise _Malformed("truncated", "the record is longer than what is there of it")

    @staticmethod
    def _skip_blank_lines(stream: _Stream, *, by_member: bool | None = True) -> tuple[int, bool]:
        """Pass line ends. How many, and whether the member, or everything, ended before anything else came.

        Of a file that is one member no record is verified before the file's end, so damage that comes after the blank
        line is the next record's.
        """
        num_line_ends = 0
        while True:
            blank = len(stream.buffer) - len(stream.buffer.lstrip(b"\r\n"))
            num_line_ends += stream.buffer.count(b"\n", 0, blank)
            stream.drop(blank)
            if len(stream.buffer) >= LONGEST_RECORD_START:
                return num_line_ends, False
            try:
                is_more = stream.more()
            except _Damaged:
                is_begun = bool(stream.buffer) and b"WARC/".startswith(bytes(stream.buffer[:5]))
                if by_member or num_line_ends < 2 or (by_member is None and not is_begun):
                    raise
                return num_line_ends, False
            if not is_more:
                if not stream.buffer:
                    return num_line_ends, True
                if stream.at_end:
                    return num_line_ends, False

    def _resynchronized(self, bad: _Start) -> _Stream:
        """A stream at the next record after the bad one, searched for from the bad one's start on."""
        base, position = (bad.position, bad.position) if self._codec is PLAIN else (bad.member, bad.member_position)
        stream = _Stream(self._data, self._codec, base, position=position)
        stream.skip(bad.position + 1 - position)  # past the bad one's own first letter
        while True:
            found = RECORD_START.search(stream.buffer)
            if found:
                stream.drop(found.start())
                return stream
            stream.drop(max(0, len(stream.buffer) - LONGEST_RECORD_START))
            member = stream.member
            if not stream.more() and stream.at_end:
                stream.drop(len(stream.buffer))
                return stream
            if stream.member != member and self._record_begins_member(stream):
                return stream

    @staticmethod
    def _record_begins_member(stream: _Stream) -> bool:
        """Whether the gzip member at the stream's position begins with a WARC record; if it does, the stream is moved
        to it."""
        at = stream.member_position - stream.position
        while len(stream.buffer) < at + LONGEST_RECORD_START and stream.more():
            pass
        if not VERSION.match(stream.buffer, at):
            return False
        stream.drop(at)
        return True

    def _offset(self, start: _Start) -> int:
        """The record's offset. A second record inside a member takes the next free number after its member's."""
        offset = start.position if self._by_member is False else start.member
        self._last_offset = max(offset, self._last_offset + 1)
        return self._last_offset


class _Malformed(Exception):
    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason, self.detail = reason, detail


def _warc_headers(block: bytes) -> dict[str, str]:
    """A record's fields. A line or a field that cannot be in one header means that two records ran together."""
    if (fields := _plain_fields(block)) is not None:
        return fields
    lines = block.splitlines()[1:]
    names = [line.partition(b":")[0].strip().lower() for line in lines if line[:1] not in (b" ", b"\t")]
    for name in (b"warc-type", b"warc-record-id", b"content-length"):
        if names.count(name) > 1:
            raise _Malformed("bad_header", f"{name.decode()} occurs {names.count(name)} times")
    if bad := next((line for line in lines if b":" not in line and line[:1] not in (b" ", b"\t")), None):
        raise _Malformed("bad_header", f"no field: {bad[:40]!r}")
    return parse_headers(block)


class _Names(dict[str, str]):
    """Maps a header field's name as written to its normalized form. Emptied when a hostile crawl has too many names."""

    LIMIT = 10_000

    def __missing__(self, written: str) -> str:
        if len(self) >= self.LIMIT:
            self.clear()
        name = self[written] = written.strip().lower()
        return name


_NAMES = _Names()


def _plain_fields(block: bytes) -> dict[str, str] | None:
    """The fields after the first line where each stands once, on a line of its own that ends as lines do; else None."""
    try:
        text = block.decode("utf-8")
    except UnicodeDecodeError:
        return None
    lines = text.split("\r\n")
    ends = len(lines) - 1
    if text.count("\n") != ends or text.count("\r") != ends or "\n " in text or "\n\t" in text:
        return None
    pairs = [line.split(":", 1) for line in lines[1:]]
    try:
        fields = {_NAMES[name]: value.strip() for name, value in pairs}
    except ValueError:  # a line without a colon
        return None
    return fields if len(fields) == len(pairs) and "" not in fields else None


def parse_headers(block: bytes) -> dict[str, str]:
    """Header fields after a first line, with lower-case names; continued lines are joined, the first of several wins.

    UTF-8, else Latin-1, which every sequence of bytes is.
    """
    if (fields := _plain_fields(block)) is not None:
        return fields
    try:
        text = block.decode("utf-8")
    except UnicodeDecodeError:
        text = block.decode("latin-1")
    headers: dict[str, str] = {}
    last = ""
    for line in text.replace("\r\n", "\n").split("\n")[1:]:
        if line[:1] in (" ", "\t") and last:
            headers[last] = f"{headers[last]} {line.strip()}"
            continue
        name, colon, value = line.partition(":")
        last = name.strip().lower() if colon else ""
        if last:
            headers.setdefault(last, value.strip())
    return headers


def _content_length(headers: dict[str, str]) -> int:
    value = headers.get("content-length", "")
    if not (value.isascii() and value.isdigit() and len(value) < 16):
        raise _Malformed("bad_header", f"Content-Length is {value!r}")
    return int(value)
